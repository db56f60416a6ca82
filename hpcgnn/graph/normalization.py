"""Coefficients by which reductions scale rows: they follow from in-degrees in the whole graph, not from local ones."""

from __future__ import annotations

import numpy as np


def degree_factor(in_degree: np.ndarray, reduction: str) -> np.ndarray | None:
    """Return the coefficient of each row, (n,) float32; None where all are 1.

    Parameters
    ----------
    in_degree : (n,) integer
    reduction : {"sum", "mean", "gcn"}
        mean gives 1 / max(in-degree, 1), by which sums are scaled; gcn (in-degree + 1)^-1/2, by which both sides of an
        entry are (Kipf and Welling, ICLR 2017, Eq. 2)
    """
    if reduction == "sum":
        return None
    degree = in_degree.astype(np.float64)
    factor = 1.0 / np.sqrt(degree + 1) if reduction == "gcn" else 1.0 / np.maximum(degree, 1)
    return factor.astype(np.float32)
