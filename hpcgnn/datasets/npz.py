"""`npz:FILE`: one archive with a CSR graph, features, labels and masks; docs/own-data.md has the layout.

The archive is read without pickle.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.sparse

from hpcgnn.datasets.arrays import Archive
from hpcgnn.datasets.assemble import assemble_dataset
from hpcgnn.datasets.cleaning import build_csr, expand_rows
from hpcgnn.datasets.dataset import GraphDataset
from hpcgnn.datasets.features import Features
from hpcgnn.datasets.labels import class_ids, indicator_rows, num_classes_of
from hpcgnn.datasets.made import assemble_made_dataset, refuse_given_labels
from hpcgnn.datasets.options import SourceOptions
from hpcgnn.datasets.splits import Masks
from hpcgnn.errors import DatasetError

MASKS = ("train_mask", "val_mask", "test_mask")


def load_npz(rest: str, options: SourceOptions) -> GraphDataset:
    """Load the archive at path `rest`; the dataset is named after the file.

    Raises
    ------
    DatasetError      a file that is missing, damaged, without labels where none are to be made, or with arrays that
                      disagree
    """
    path = Path(rest)
    name = path.stem
    with Archive(path) as archive:
        if "labels" in archive:
            refuse_given_labels(str(path), options)
        elif options.made_classes is None:
            raise DatasetError(f"{path} has no labels; training needs an array 'labels' of class ids or indicator "
                               "rows, or pass --make-labels K for K classes made from in-degrees")
        indptr, indices = archive.integers("indptr"), archive.integers("indices")
        # Row v lists the sources of the arcs into v.
        graph = build_csr(indices, expand_rows(indptr, len(indices), name), len(indptr) - 1, options.symmetrize, name)
        if options.made_classes is not None:
            return assemble_made_dataset(name, graph, _features(archive, len(indptr) - 1, options), options)
        labels = _labels(archive, name)
        num_classes = archive.integer("num_classes") if "num_classes" in archive else num_classes_of(labels)
        return assemble_dataset(name, graph, _features(archive, len(indptr) - 1, options), labels, num_classes,
                                _masks(archive, len(indptr) - 1, name), options)


def _labels(archive: Archive, name: str) -> np.ndarray:
    labels = archive.read("labels")
    return indicator_rows(labels, name) if labels.ndim == 2 else class_ids(labels, name)


def _masks(archive: Archive, num_nodes: int, name: str) -> Masks | None:
    if not any(key in archive for key in MASKS):
        return None
    return tuple(_mask(archive.read(key), num_nodes, f"{name}: {key}") for key in MASKS)


def _mask(values: np.ndarray, num_nodes: int, name: str) -> np.ndarray:
    """Make a mask of bool, or of numbers that are 0 or 1; texts such as 'False', and NaN, would all become True."""
    if values.shape != (num_nodes,):
        raise DatasetError(f"{name} has shape {values.shape}; expected ({num_nodes},)")
    if values.dtype.kind not in "biuf" or not ((values == 0) | (values == 1)).all():
        raise DatasetError(f"{name} is {values.dtype} and holds more than 0 and 1; expected bool, one value a node")
    return values.astype(bool)


def _features(archive: Archive, num_nodes: int, options: SourceOptions) -> Features | None:
    if options.features == "structural":
        return None
    if "features" in archive:
        features = archive.map("features")
        if features.ndim != 2 or features.dtype.kind not in "fiub":
            raise DatasetError(f"{archive.path}: features are {features.dtype} of shape {features.shape}; "
                               "expected a matrix of numbers")
        return features
    return _sparse_features(archive, num_nodes) if "feat_indptr" in archive else None


def _sparse_features(archive: Archive, num_nodes: int) -> scipy.sparse.csr_matrix:
    indptr, columns = archive.integers("feat_indptr"), archive.integers("feat_indices")
    values = archive.read("feat_data") if "feat_data" in archive else np.ones(len(columns), dtype=np.float32)
    shape = (num_nodes, archive.integer("num_features"))
    if values.ndim != 1 or values.dtype.kind not in "fiub":
        raise DatasetError(f"{archive.path}: feat_data is {values.dtype} of shape {values.shape}; expected a vector of "
                           "numbers")
    try:
        features = scipy.sparse.csr_matrix((values.astype(np.float32, copy=False), columns, indptr), shape=shape)
        features.check_format(full_check=True)
    except ValueError as error:
        raise DatasetError(f"{archive.path} has sparse features that are inconsistent ({error}); "
                           f"expected CSR of shape {shape}") from None
    return features
