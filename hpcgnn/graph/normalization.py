"""Coefficients by which reductions scale rows: they follow from in-degrees in the whole graph, not from local ones."""

from __future__ import annotations

import numpy as np

from hpcgnn.errors import KernelError


def degree_factor(in_degree: np.ndarray, reduction: str) -> np.ndarray | None:
    """Return the coefficient of each row, (n,) float32; None where all are 1.

    Parameters
    ----------
    in_degree : (n,) integer, or (n,) float32 sums of weights
    reduction : {"sum", "mean", "gcn"}
        mean gives 1 / in-degree, by which sums are scaled, and 1 where it is 0; gcn (in-degree + 1)^-1/2, by which both
        sides of an entry are (Kipf and Welling, ICLR 2017, Eq. 2)
    """
    if reduction == "sum":
        return None
    degree = in_degree.astype(np.float64)
    factor = 1.0 / np.sqrt(degree + 1) if reduction == "gcn" else 1.0 / np.where(degree > 0, degree, 1)
    return factor.astype(np.float32)


def weighted_degree(indptr: np.ndarray, edge_weight: np.ndarray) -> np.ndarray:
    """Sum the weights of each row's entries, in their order and in float64, so that no partition changes a bit of it.

    Parameters
    ----------
    indptr : (n + 1,) int64
    edge_weight : (num_edges,) float32

    Returns
    -------
    (n,) float32
    """
    target = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return np.bincount(target, edge_weight, minlength=len(indptr) - 1).astype(np.float32)


def check_edge_weight(edge_weight: np.ndarray | None, degree: np.ndarray | None, num_edges: int, num_rows: int) -> None:
    """Check the weights of arcs, and their sums, of a part.

    Raises
    ------
    KernelError      see `hpcgnn.graph.local_graph.LocalGraph`
    """
    if (edge_weight is None) != (degree is None):
        raise KernelError("edge weights and weighted degrees are given together, or neither is")
    if edge_weight is None:
        return
    for name, array, length in (("edge_weight", edge_weight, num_edges), ("weighted_degree", degree, num_rows)):
        if array.dtype != np.float32 or array.shape != (length,):
            raise KernelError(f"{name} is {array.dtype} of shape {array.shape}; expected float32 of shape ({length},)")
        if not (np.isfinite(array).all() and (array >= 0).all()):
            raise KernelError(f"{name} holds negative numbers or ones that are not finite; weigh edges by 0 or more")
