"""Weights of edges: which ones a model can work with. No file format is known here."""

from __future__ import annotations

import numpy as np

from hpcgnn.errors import DatasetError

Remarks = tuple[str, ...]


def check_weights(weight: np.ndarray | None, source: np.ndarray, target: np.ndarray, name: str) -> tuple[bool, Remarks]:
    """Check weights and tell whether they say anything.

    They must be positive, since GCN divides by the root of their sums, and an edge of weight 0 is none.

    Parameters
    ----------
    weight : (num_edges,) number, or None
    source, target : (num_edges,) node ids, to name an edge by

    Returns
    -------
    is_weighted : bool        False where there are none, or all are 1
    remarks : tuple of str    for the cleaning report

    Raises
    ------
    DatasetError              a weight that is no number, or not positive and finite as float32
    """
    if weight is None:
        return False, ()
    if weight.ndim != 1 or len(weight) != len(source) or weight.dtype.kind not in "iufb":
        raise DatasetError(f"{name} has edge weights of {weight.dtype} and shape {weight.shape}; expected a number for "
                           f"each of {len(source)} edges")
    with np.errstate(over="ignore"):
        as_stored = weight.astype(np.float32)
    is_bad = ~(np.isfinite(as_stored) & (as_stored > 0))
    if is_bad.any():
        place = int(np.argmax(is_bad))
        raise DatasetError(f"{name} has an edge of weight {weight[place]} from node {source[place]} to "
                           f"{target[place]}; expected positive, finite weights: leave out such edges, or all weights "
                           "by weight=none (edge_weight=False in Python)")
    if (as_stored == 1).all():
        return False, ("all edges weigh 1, so weights were left out",)
    return True, ()
