"""`edges:FILE[,labels=FILE][,features=FILE]`: an edge list as text, with labels and features as text or .npy.

Row k of the label and feature files belongs to node k.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hpcgnn.datasets.arrays import load_array
from hpcgnn.datasets.assemble import assemble_dataset
from hpcgnn.datasets.cleaning import build_csr
from hpcgnn.datasets.dataset import GraphDataset
from hpcgnn.datasets.labels import class_ids, indicator_rows, num_classes_of
from hpcgnn.datasets.made import assemble_made_dataset, refuse_given_labels
from hpcgnn.datasets.options import SourceOptions
from hpcgnn.datasets.spec import split_settings
from hpcgnn.datasets.tables import read_table
from hpcgnn.errors import DatasetError

SETTINGS = ("labels", "features")


def load_edges(rest: str, options: SourceOptions) -> GraphDataset:
    """Load "FILE[,labels=FILE][,features=FILE]"; the dataset is named after the edge file, the number of nodes is that
    of label rows, or the largest id plus one where labels are made, and the split is random.

    Raises
    ------
    DatasetError      a file that is missing or malformed, no labels given, an edge to a node that has no label row
    """
    file, _, settings_text = rest.partition(",")
    settings = split_settings(settings_text, SETTINGS, "an edges: source")
    path = Path(file)
    name = path.name.split(".")[0]
    if "labels" in settings:
        refuse_given_labels(f"edges:{rest}", options)
        labels = _read_labels(Path(settings["labels"]), options)
    elif options.made_classes is None:
        raise DatasetError(f"edges:{file} names no labels, which training needs; append ,labels=FILE, one row a node, "
                           "or pass --make-labels K for K classes made from in-degrees")
    features = None
    if "features" in settings and options.features != "structural":
        features = _read_features(Path(settings["features"]), options)
    edges = _read_edges(path, options)
    num_nodes = len(labels) if "labels" in settings else int(edges.max(initial=-1)) + 1
    graph = build_csr(edges[:, 0], edges[:, 1], num_nodes, options.symmetrize, name)
    if options.made_classes is not None:
        return assemble_made_dataset(name, graph, features, options)
    return assemble_dataset(name, graph, features, labels, num_classes_of(labels), None, options)


def _read_edges(path: Path, options: SourceOptions) -> np.ndarray:
    edges = read_table(path, np.int64, options.progress)
    if edges.shape[1] != 2:
        raise DatasetError(f"{path} has {edges.shape[1]} columns; expected two, the source and target node of an arc")
    return edges


def _read_labels(path: Path, options: SourceOptions) -> np.ndarray:
    values = _read_matrix(path, np.float64, options)
    return indicator_rows(values, str(path)) if values.shape[1] > 1 else class_ids(values, str(path))


def _read_features(path: Path, options: SourceOptions) -> np.ndarray:
    return _read_matrix(path, np.float32, options)


def _read_matrix(path: Path, dtype: type, options: SourceOptions) -> np.ndarray:
    if path.suffix != ".npy":
        matrix = read_table(path, dtype, options.progress)
    else:
        matrix = load_array(path)
        matrix = matrix[:, None] if matrix.ndim == 1 else matrix
    if matrix.ndim != 2 or matrix.size == 0 or matrix.dtype.kind not in "iufb":
        raise DatasetError(f"{path} holds {matrix.dtype} of shape {matrix.shape}; expected a number or a row of "
                           "numbers a node")
    return matrix
