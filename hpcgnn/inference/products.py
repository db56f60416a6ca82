"""Products of codes and weight codes, exact, on the host's dense kernels."""

from __future__ import annotations

import numpy as np


def combine(codes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """codes @ weights.T.

    Parameters
    ----------
    codes : (n, in_dim) int8 or uint8
    weights : (out_dim, in_dim) int8

    Returns
    -------
    (n, out_dim) int32, exact: float64 holds every integer below 2**53, and no sum of codes passes it
    """
    return (codes.astype(np.float64) @ weights.T.astype(np.float64)).astype(np.int32)
