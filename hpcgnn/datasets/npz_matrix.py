"""Adjacency matrices of scipy.sparse.save_npz, which don't say whether rows are sources or destinations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy.sparse

from hpcgnn.datasets.arrays import Archive
from hpcgnn.datasets.given import GivenGraph
from hpcgnn.datasets.node_files import read_node_file
from hpcgnn.datasets.objects.choices import ROWS, Choices
from hpcgnn.datasets.objects.networks import graph_of_matrix
from hpcgnn.datasets.options import SourceOptions
from hpcgnn.datasets.spec import NOTHING, choice_of, ignored_of
from hpcgnn.errors import DatasetError

MATRIX_SETTINGS = ("rows", "labels", "features", "splits", "weight", "ignore")


def is_matrix(archive: Archive) -> bool:
    """Tell whether an archive is one of scipy.sparse.save_npz."""
    return all(key in archive for key in ("format", "shape", "data"))


def load_matrix(path: Path, settings: dict[str, str], options: SourceOptions) -> GivenGraph:
    """Read the matrix and the files of labels, features and splits that `settings` name, row k for node k.

    Raises
    ------
    DatasetError       a matrix that is damaged or not square; one that is not symmetric, without rows=
    """
    try:
        matrix = scipy.sparse.load_npz(path)
        if hasattr(matrix, "check_format"):
            matrix.check_format(full_check=True)
    except Exception as error:  # A damaged archive can raise anything.
        raise DatasetError(f"{path} can't be read as a matrix of scipy.sparse.save_npz ({error}); it is "
                           "damaged") from None
    rows = settings.get("rows")
    if rows not in (None, *ROWS):
        raise DatasetError(f"npz:{path} has rows={rows}; expected sources or destinations")
    if rows is None and matrix.shape[0] == matrix.shape[1] and (matrix != matrix.T).nnz:
        raise DatasetError(f"{path} holds a SciPy matrix A that is not symmetric, and does not say what A[u, v] is; "
                           "append ,rows=sources if it is the arc u -> v, as SciPy's and NetworkX' own functions take "
                           "it, or ,rows=destinations if it is v -> u")
    if settings.get("weight", NOTHING) != NOTHING:
        raise DatasetError(f"npz:{path} has weight={settings['weight']}; the values of a matrix are its weights: leave "
                           "it out, or write weight=none for none")
    files = {key: read_node_file(Path(settings[key]), dtype, options, has_ids=False)
             for key, dtype in (("labels", np.float64), ("features", np.float32), ("splits", np.float64))
             if key in settings and (key != "features" or options.features != "structural")}
    choices = Choices(rows=rows or "sources", edge_weight=choice_of(settings.get("weight")),
                      ignore=ignored_of(settings.get("ignore")), **{key: file.values for key, file in files.items()})
    given = graph_of_matrix(matrix, choices, path.stem)
    remarks = tuple(remark for file in files.values() for remark in file.remarks)
    remarks += (f"rows of the matrix were taken as {rows}",) if rows else ()
    origins = replace(given.origins, **{key: file.path.name for key, file in files.items()})
    return replace(given, remarks=remarks, origins=origins, labels_hint=",labels=FILE, one row a node")
