"""NumPy float64 oracle of normalization + ReLU + dropout, its backward and the error that float32 may make.

Nothing of hpcgnn is called. `kept` (n, dim) holds the scale of an element that is kept and 0 where it is dropped.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

UNIT = 2.0**-24                                                      # half an ulp of 1 in float32
STORAGE_UNIT = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
SMALLEST = {"float32": 0.0, "bfloat16": 0.0, "float16": 2.0**-25}    # half the smallest subnormal


class Normalized(NamedTuple):
    """rows (n, dim) normalized, and rstd (n, 1)."""

    x_hat: np.ndarray
    rstd: np.ndarray


def normalize(rows: np.ndarray, eps: float) -> Normalized:
    """Ba et al., "Layer normalization", 2016, Eq. (4), with the biased variance."""
    centered = rows - rows.mean(axis=1, keepdims=True)
    rstd = 1 / np.sqrt((centered**2).mean(axis=1, keepdims=True) + eps)
    return Normalized(centered * rstd, rstd)


def before_relu(rows: np.ndarray, weight: np.ndarray | None, bias: np.ndarray | None, eps: float) -> np.ndarray:
    return rows if weight is None else normalize(rows, eps).x_hat * weight + bias


def activation(rows: np.ndarray, weight: np.ndarray | None, bias: np.ndarray | None, eps: float,
               kept: np.ndarray) -> np.ndarray:
    """kept * max(0, x^ * weight + bias), without normalization where weight is None; (n, dim) float64."""
    u = before_relu(rows, weight, bias, eps)
    return np.where(kept > 0, np.where(u <= 0, 0, u) * kept, 0)


def activation_backward(rows, weight, bias, eps, kept, gradient):
    """Gradients of rows, weight and bias; the last two are None where weight is."""
    d = gradient * kept * ~(before_relu(rows, weight, bias, eps) <= 0)
    if weight is None:
        return d, None, None
    x_hat, rstd = normalize(rows, eps)
    scaled = d * weight
    mean_product = (scaled * x_hat).mean(axis=1, keepdims=True)
    rows_gradient = rstd * (scaled - scaled.mean(axis=1, keepdims=True) - x_hat * mean_product)
    return rows_gradient, (d * x_hat).sum(axis=0), d.sum(axis=0)


def relative_error(rows: np.ndarray, rstd: np.ndarray) -> np.ndarray:
    """Error of x^ in float32 over 1 + |x^|, (n, 1): a mean of dim terms in sixteen lanes errs by dim / 16 + 4
    roundings of the largest |x|, which rstd magnifies, and about a dozen operations follow."""
    largest = np.abs(rows).max(axis=1, keepdims=True)
    return (rows.shape[1] / 16 + 16) * UNIT * (1 + largest * rstd)


def activation_error(rows, weight, bias, eps, kept, storage):
    """Bound of |float32 result - oracle|, (n, dim), with the rounding to `storage`."""
    rounding = STORAGE_UNIT[storage] * 1.01 * np.abs(activation(rows, weight, bias, eps, kept)) + SMALLEST[storage]
    if weight is None:
        return rounding + 2 * UNIT * np.abs(rows) * kept
    x_hat, rstd = normalize(rows, eps)
    return rounding + relative_error(rows, rstd) * ((1 + np.abs(x_hat)) * np.abs(weight) + np.abs(bias)) * kept


def activation_backward_error(rows, weight, bias, eps, kept, gradient, storage):
    """Bounds of |float32 result - oracle| of the three gradients."""
    exact = activation_backward(rows, weight, bias, eps, kept, gradient)[0]
    rounding = STORAGE_UNIT[storage] * 1.01 * np.abs(exact) + SMALLEST[storage]
    d = np.abs(gradient) * kept
    if weight is None:
        return rounding + 2 * UNIT * d, None, None
    x_hat, rstd = normalize(rows, eps)
    error, reach, scaled = relative_error(rows, rstd), 1 + np.abs(x_hat), d * np.abs(weight)
    spread = scaled + scaled.mean(axis=1, keepdims=True) + reach * (scaled * reach).mean(axis=1, keepdims=True)
    num_terms = len(rows) + 4
    return (rounding + 4 * error * rstd * spread, (d * (num_terms * UNIT + error) * reach).sum(axis=0),
            num_terms * UNIT * d.sum(axis=0))
