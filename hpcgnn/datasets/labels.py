"""Labels in the two forms that a GraphDataset knows, class ids and indicator rows, from what files hold or made."""

from __future__ import annotations

import numpy as np

from hpcgnn.datasets.arcs import ARCS_A_CHUNK
from hpcgnn.errors import DatasetError

UNKNOWN = -1
UNKNOWN_INDICATOR = 255     # of a class that a node of several labels may have or not
LARGEST_LABEL = 1 << 53     # floating-point numbers beyond it are no whole ids any more


def class_ids(values: np.ndarray, name: str) -> np.ndarray:
    """Class ids as int64, UNKNOWN where a value is NaN.

    Parameters
    ----------
    values : (num_nodes,) or (num_nodes, 1), integer or floating point

    Raises
    ------
    DatasetError      a value that is no whole number, or one so large that it is no class
    """
    if values.dtype.kind not in "iufb":
        raise DatasetError(f"{name} has labels of type {values.dtype}; expected numbers")
    if values.ndim != 1 and (values.ndim != 2 or values.shape[1] != 1):
        raise DatasetError(f"{name} has labels of shape {values.shape}; expected one class number a node")
    values = values.reshape(-1)
    # As a cast would turn 2^64 - 1 into -1, which means unknown.
    is_large = values > np.float64(LARGEST_LABEL)
    if is_large.any():
        node = int(np.argmax(is_large))
        raise DatasetError(f"{name} has label {values[node]} at node {node}; expected a class number, or -1 or NaN "
                           "where it is unknown")
    if values.dtype.kind in "iub":
        return values.astype(np.int64)
    is_known = ~np.isnan(values)
    is_whole = np.isfinite(values) & (np.floor(values) == values)
    if (is_known & ~is_whole).any():
        node = int(np.argmax(is_known & ~is_whole))
        raise DatasetError(f"{name} has label {values[node]} at node {node}; expected a whole class number")
    ids = np.full(len(values), UNKNOWN, dtype=np.int64)
    ids[is_known] = values[is_known].astype(np.int64)
    return ids


def indicator_rows(values: np.ndarray, name: str) -> np.ndarray:
    """Multi-label indicators as (num_nodes, num_classes) uint8.

    Raises
    ------
    DatasetError      a value other than 0 and 1
    """
    if values.dtype.kind not in "iufb":
        raise DatasetError(f"{name} has labels of type {values.dtype}; expected 0 and 1")
    if values.ndim != 2 or values.shape[1] == 0:
        raise DatasetError(f"{name} has labels of shape {values.shape}; expected a column a class, at least one")
    is_bad = (values != 0) & (values != 1)
    if is_bad.any():
        node, column = np.argwhere(is_bad)[0]
        raise DatasetError(f"{name} has the multi-label value {values[node, column]} at node {node}; expected 0 or 1")
    return values.astype(np.uint8)


def made_labels(indptr: np.ndarray, indices: np.ndarray, num_classes: int, name: str) -> np.ndarray:
    """Classes of equal size by rank of in-degree, for graphs without labels: a task that the graph alone can teach.

    Nodes of equal in-degree are ranked by the mean in-degree of their in-neighbors, then by id.

    Parameters
    ----------
    indptr, indices           CSR by destination
    num_classes : int, at least 2

    Returns
    -------
    labels : (num_nodes,) int64, sizes of the classes differ by at most one

    Raises
    ------
    DatasetError      more classes than nodes
    """
    degree = np.diff(indptr)
    if num_classes > len(degree):
        raise DatasetError(f"{name} has {len(degree)} nodes, too few for {num_classes} made classes; "
                           "lower --make-labels")
    order = np.lexsort((_sums_of_neighbors(indptr, indices, degree) / np.maximum(degree, 1), degree))
    labels = np.empty(len(degree), np.int64)
    labels[order] = np.arange(len(degree)) * num_classes // len(degree)
    return labels


def _sums_of_neighbors(indptr: np.ndarray, indices: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Sum a whole number of each node over the in-neighbors, (num_nodes,) int64, some arcs at a time."""
    sums, first = np.empty(len(value), np.int64), 0
    while first < len(value):
        last = max(first + 1, int(np.searchsorted(indptr, indptr[first] + ARCS_A_CHUNK, side="right")) - 1)
        start = int(indptr[first])
        before = np.append(0, np.cumsum(value[indices[start:indptr[last]]]))
        sums[first:last] = np.diff(before[indptr[first:last + 1] - start])
        first = last
    return sums


def num_classes_of(labels: np.ndarray) -> int:
    """Number of classes of a source that does not state it: the columns, or the largest class id plus one."""
    return labels.shape[1] if labels.ndim == 2 else int(labels.max(initial=0)) + 1
