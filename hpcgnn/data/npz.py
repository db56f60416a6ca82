"""`npz:FILE`: one archive with a graph, features, labels and masks, or a matrix of scipy.sparse.save_npz.

A graph is CSR, or has the arrays of a graph of PyTorch Geometric: edge_index, x, y.

Labels and features of a SciPy matrix are in separate files, and `rows=` must say whether rows are sources or
destinations. docs/own-data.md has the layout. Archives are read without pickle.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from hpcgnn.data.arcs import RowsOfEntries
from hpcgnn.data.arrays import Archive
from hpcgnn.data.assemble import refuse_given_labels
from hpcgnn.data.dataset import NO_WEIGHTS, GraphDataset, Origins
from hpcgnn.data.features import Features
from hpcgnn.data.given import GivenGraph, finish_dataset, read_relation_names
from hpcgnn.data.ids import NodeRows
from hpcgnn.data.node_files import NodeFile, names_ids, read_node_file, rows_of
from hpcgnn.data.objects import graph_of_matrix
from hpcgnn.data.options import NOTHING, SourceOptions, split_path
from hpcgnn.data.pyg import graph_of_data, splits_in
from hpcgnn.data.tables import (
    PYG_FEATURES,
    PYG_LABELS,
    ROWS,
    SPLIT_NAMES,
    Choices,
    first_of,
    mask_columns,
    split_of_list,
)
from hpcgnn.data.typed import graph_of_archive, is_typed_archive
from hpcgnn.errors import DatasetError

MATRIX_SETTINGS = ("rows", "labels", "features", "splits", "weight", "ignore")


def is_matrix(archive: Archive) -> bool:
    """Whether an archive is one of scipy.sparse.save_npz."""
    return all(key in archive for key in ("format", "shape", "data"))


def load_matrix(path: Path, settings: dict[str, str], options: SourceOptions) -> GivenGraph:
    """Read the matrix and the files of labels, features and splits that `settings` name.

    Row k of a file is of node k, unless its header says that the first column holds ids: then it is of that node.
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
                           "append ,rows=sources if it is the edge u -> v, as SciPy's and NetworkX' own functions take "
                           "it, or ,rows=destinations if it is v -> u")
    if settings.get("weight", NOTHING) != NOTHING:
        raise DatasetError(f"npz:{path} has weight={settings['weight']}; the values of a matrix are its weights: leave "
                           "it out, or write weight=none for none")
    files = {key: _read_rows(Path(settings[key]), dtype, options, matrix.shape[0])
             for key, dtype in (("labels", np.float64), ("features", np.float32), ("splits", np.float64))
             if key in settings and (key != "features" or options.feature_kind != "structural")}
    choices = Choices.of(settings, rows=rows or "sources", **{key: file.values for key, file in files.items()})
    given = graph_of_matrix(matrix, choices, path.stem)
    remarks = tuple(remark for file in files.values() for remark in file.remarks)
    remarks += (f"rows of the matrix were taken as {rows}",) if rows else ()
    origins = replace(given.origins, **{key: file.path.name for key, file in files.items()})
    return replace(given, remarks=remarks, origins=origins, labels_hint=",labels=FILE, one row per node")


def _read_rows(path: Path, dtype: type, options: SourceOptions, num_rows: int) -> NodeFile:
    file = read_node_file(path, dtype, options, has_ids=names_ids(path))
    if file.ids is None:
        return file
    rows = NodeRows(np.arange(num_rows), f"the matrix beside {path.name}")
    return replace(file, ids=None, values=rows_of(file, rows, is_complete=dtype is np.float32))


MASKS = ("train_mask", "val_mask", "test_mask")
WEIGHTS, TARGETS = ("edge_weight", "data"), ("targets", "target")
FEATURES = (*reversed(PYG_FEATURES), "feat_indptr", "feat_indices", "feat_data")
SETTINGS = ("label", "weight", "relation", "edge_features", "time", "split", "ignore")     # for an archive of arrays
LINKS = ("val_links", "test_links")
EDGES, RELATION_NAMES = "edge_index", "relation_names"


def load_npz(rest: str, options: SourceOptions) -> GraphDataset:
    """Load the archive at the path that `rest` starts with; the dataset is named after the file."""
    file, settings = split_path(rest, (*dict.fromkeys((*MATRIX_SETTINGS, *SETTINGS)),), "an npz: source")
    path = Path(file)
    with Archive(path) as archive:
        if is_matrix(archive):
            given = load_matrix(path, settings, options)
        else:
            unknown = next((key for key in settings if key not in SETTINGS), None)
            if unknown:
                raise DatasetError(f"{path} is no matrix of scipy.sparse.save_npz, so {unknown}= has no effect; "
                                   "leave it out")
            choices = Choices.of(settings)
            if EDGES in archive and "indptr" not in archive:
                return finish_dataset(_of_edge_index(archive, path.stem, choices, options), options)
            given = (graph_of_archive(archive, choices, path.stem, options.feature_kind != "structural")
                     if is_typed_archive(archive) else _given(archive, path, choices, options))
            if choices.edge_time and given.time is None:
                raise DatasetError(f"{path} has its edges in rows, which have no times, so time= has no effect; leave "
                                   "it out, or write edge_index and the times")
        return finish_dataset(given, options)


def _of_edge_index(archive: Archive, name: str, choices: Choices, options: SourceOptions) -> GivenGraph:
    held = {key: archive.read(key) for key in archive.names if key not in LINKS}
    if options.feature_kind == "structural":
        choices = replace(choices, features=False)
    return replace(graph_of_data(held, choices, name), val_links=_links(archive, LINKS[0]),
                   test_links=_links(archive, LINKS[1]))


def _given(archive: Archive, path: Path, choices: Choices, options: SourceOptions) -> GivenGraph:
    name = path.stem
    # Row v lists the sources of the edges into v.
    if "indptr" not in archive:
        raise DatasetError(f"{path} has neither indptr with indices nor edge_index, so it holds no graph; it has "
                           f"{', '.join(archive.names) or 'no array'}")
    indptr, source = archive.integers("indptr"), archive.integer_rows("indices")
    target, num_nodes = RowsOfEntries(indptr, len(source), name), len(indptr) - 1
    targets = _one_of(archive, TARGETS)
    if targets is not None and "labels" in archive and choices.labels is None:
        raise DatasetError(f"{path} holds labels and {targets}; choose one by label=labels or label={targets}")
    usual = targets or first_of(reversed(PYG_LABELS), archive.names)
    key = {None: usual, False: None}.get(choices.labels, choices.labels)
    if choices.labels not in (None, False) and key not in archive:
        raise DatasetError(f"{path} has no array {key!r} to take labels from; it holds {', '.join(archive.names)}")
    labels = archive.read(key) if key is not None and key in archive else None
    if labels is not None:
        refuse_given_labels(str(path), options)
    weights = None if choices.edge_weight is False else choices.edge_weight or _one_of(archive, WEIGHTS)
    relation, edge_attr = (_of_edges(archive, choice, usual) for choice, usual in (
        (choices.relation, "edge_type"), (choices.edge_attr, "edge_attr")))
    ids = archive.read("node_ids") if "node_ids" in archive else None
    if ids is not None and ids.shape != (num_nodes,):
        raise DatasetError(f"{path}: node_ids has shape {ids.shape}; expected ({num_nodes},)")
    num_classes = archive.integer("num_classes") if "num_classes" in archive and key in PYG_LABELS else None
    left_out, ignored = choices.ignored(archive.names)
    splits, of_splits = _splits(archive, choices, num_nodes, name)
    used = {"indptr", "indices", *FEATURES, "num_classes", "num_features", "node_ids", key, weights, relation,
            edge_attr, *MASKS, *of_splits, *LINKS} | ({RELATION_NAMES} if relation else set())
    unused = tuple(held for held in archive.names if held not in used)
    split = "" if choices.split_column is None else f", split {choices.split_column}"
    origins = Origins(ids="array node_ids" if ids is not None else "",
                      weights=NO_WEIGHTS if choices.edge_weight is False else f"array {weights}" if weights else "",
                      relations=f"array {relation}", edge_attr=f"array {edge_attr}", labels=f"array {key}",
                      features=next((f"array {held}" for held in FEATURES if held in archive), ""),
                      splits=choices.said("splits", ", ".join(of_splits) or f"masks{split}"), unused=unused,
                      others=tuple(held for held in unused if held not in left_out))
    return GivenGraph(name, source, target, None if weights is None else archive.read(weights), num_nodes=num_nodes,
                      features=_features(archive, num_nodes, options), labels=labels,
                      num_classes=num_classes,
                      splits=splits,
                      val_links=_links(archive, LINKS[0]), test_links=_links(archive, LINKS[1]),
                      split_column=choices.split_column, row_name=ids, ignore=ignored,
                      task="regression" if key in TARGETS else "auto", origins=origins,
                      relation=None if relation is None else archive.read(relation),
                      relation_names=read_relation_names(archive.read(RELATION_NAMES), f"{path}: {RELATION_NAMES}")
                      if relation and RELATION_NAMES in archive else (),
                      edge_attr=None if edge_attr is None else archive.read(edge_attr),
                      labels_hint="an array 'labels' of class ids, texts or indicator rows, or 'targets', or "
                                  "label=NAME of another")


def _splits(archive: Archive, choices: Choices, num_nodes: int, name: str) -> tuple[Any, tuple[str, ...]]:
    # The splits, and the names of arrays that hold them otherwise than as masks.
    if choices.finds_masks and any(mask in archive for mask in MASKS):
        return tuple(_mask(archive.read(key), num_nodes, f"{name}: {key}") for key in MASKS), ()
    if isinstance(choices.splits, str) and choices.splits not in archive:
        raise DatasetError(f"{archive.path} has no array {choices.splits!r} to take the splits from; it holds "
                           f"{', '.join(archive.names)}")
    names = {choices.splits} if isinstance(choices.splits, str) else {
        *chain(*mask_columns(archive.names).values()), *(
            key for key in archive.names if split_of_list(key) or key in SPLIT_NAMES)}
    return splits_in({key: archive.read(key) for key in archive.names if key in names}, choices, name)


def _of_edges(archive: Archive, choice: str | bool | None, usual: str) -> str | None:
    if choice is False or (choice is None and usual not in archive):
        return None
    return usual if choice is None else choice


def _links(archive: Archive, name: str) -> tuple[np.ndarray, ...] | None:
    if name not in archive:
        return None
    links = archive.read(name)
    if links.ndim != 2 or links.shape[1] not in (2, 3) or links.dtype.kind not in "iu":
        raise DatasetError(f"{archive.path}: {name} are {links.dtype} of shape {links.shape}; expected integers of "
                           "shape (number of links, 2), or 3 for source, relation and target")
    return tuple(links.T)


def _one_of(archive: Archive, names: tuple[str, str]) -> str | None:
    held = [name for name in names if name in archive]
    if len(held) > 1:
        raise DatasetError(f"{archive.path} holds {' and '.join(held)}; expected one of them")
    return held[0] if held else None


def _mask(values: np.ndarray, num_nodes: int, name: str) -> np.ndarray:
    # Make a mask of bool, or of numbers that are 0 or 1; texts such as 'False', and NaN, would all become True.
    if values.shape[:1] != (num_nodes,) or values.ndim > 2:
        raise DatasetError(f"{name} has shape {values.shape}; expected ({num_nodes},)")
    if values.dtype.kind not in "biuf" or not ((values == 0) | (values == 1)).all():
        raise DatasetError(f"{name} is {values.dtype} and holds more than 0 and 1; expected bool, one value per node")
    return values.astype(bool)


def _features(archive: Archive, num_nodes: int, options: SourceOptions) -> Features | None:
    if options.feature_kind == "structural":
        return None
    if key := first_of(reversed(PYG_FEATURES), archive.names):
        features = archive.rows(key, options.scratch)
        if features.ndim != 2 or features.dtype.kind not in "fiub":
            raise DatasetError(f"{archive.path}: {key} are {features.dtype} of shape {features.shape}; "
                               "expected a matrix of numbers")
        return features
    return archive.sparse("feat", (num_nodes, archive.integer("num_features"))) if "feat_indptr" in archive else None
