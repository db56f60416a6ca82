"""Products of rows with a weight matrix, forward and backward, in the rows' own storage type.

Sums are float32 whatever the storage; gradients of weights and biases come out as float32.
"""

from __future__ import annotations

import torch

from hpcgnn.ops.dispatch import backend_of
from hpcgnn.ops.storage import check_rows


def map_rows(rows: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return rows @ weight.T, added to `out` where given.

    rows (n, in_dim) and out (n, out_dim) float32, bfloat16 or float16; weight (out_dim, in_dim) of the same type.
    """
    return backend_of("dense", rows).map_rows(rows, weight, out)


def map_back(gradient: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return gradient @ weight, the gradient of the rows that `map_rows` took; added to `out` where given."""
    return backend_of("dense", gradient).map_back(gradient, weight, out)


def weight_gradient(gradient: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return gradient.T @ rows as (out_dim, in_dim) float32, for gradient (n, out_dim) and rows (n, in_dim).

    Where the processor multiplies bfloat16, oneDNN makes the product of bfloat16 rows, and its result has their 8 bits.
    """
    return backend_of("dense", gradient).weight_gradient(gradient, rows)


def column_sums(rows: torch.Tensor) -> torch.Tensor:
    """Sum over the rows, (dim,) float32: the gradient of a bias."""
    return backend_of("dense", rows).column_sums(rows)


def column_magnitudes(rows: torch.Tensor) -> torch.Tensor:
    """Sum of |rows| over the rows, (dim,) float64 for (n, dim) float32: the same to float32 however rows are shared out
    among ranks.
    """
    check_rows(rows, len(rows), "column magnitudes", torch.float32)
    return backend_of("dense", rows).column_magnitudes(rows)
