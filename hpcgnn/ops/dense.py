"""Products of rows with a weight matrix, forward and backward, in the rows' own storage type.

Sums are float32 whatever the storage; gradients of weights and biases come out as float32.

Host side of `hpcgnn.ops.dense`: our kernel, which widens blocks of rows to float32, sums in one order whatever the
number of rows and threads, and stores once; and oneDNN for bfloat16 where the processor multiplies it.
"""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn._ext import column_sums as sums
from hpcgnn._ext import dense as kernels
from hpcgnn.ops.arena import empty
from hpcgnn.ops.dispatch import by_device
from hpcgnn.ops.simd import multiplies_bfloat16
from hpcgnn.ops.storage import STORAGE_NUMBER, as_bytes, check_rows


def map_rows(rows: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return rows @ weight.T, added to `out` where given.

    rows (n, in_dim) and out (n, out_dim) float32, bfloat16 or float16; weight (out_dim, in_dim) of the same type.
    """
    return _map_rows.on(rows.device)(rows, weight, out)


def map_back(gradient: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return gradient @ weight, the gradient of the rows that `map_rows` took; added to `out` where given."""
    return _map_back.on(gradient.device)(gradient, weight, out)


def weight_gradient(gradient: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return gradient.T @ rows as (out_dim, in_dim) float32, for gradient (n, out_dim) and rows (n, in_dim).

    Where the processor multiplies bfloat16, oneDNN makes the product of bfloat16 rows, and its result has their 8 bits.
    """
    return _weight_gradient.on(gradient.device)(gradient, rows)


def column_sums(rows: torch.Tensor) -> torch.Tensor:
    """Sum over the rows, (dim,) float32: the gradient of a bias."""
    return _column_sums.on(rows.device)(rows)


def column_magnitudes(rows: torch.Tensor) -> torch.Tensor:
    """Sum of |rows| over the rows, (dim,) float64 for (n, dim) float32: the same to float32 however rows are shared out
    among ranks.
    """
    check_rows(rows, len(rows), "column magnitudes", torch.float32)
    return _column_magnitudes.on(rows.device)(rows)


# oneDNN spends 0.6 ms on a number of rows that it has not met, as those of steps are: it gets multiples of these.
ROWS_ALIKE = 64


@by_device("dense")
def _map_rows(rows: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """Return rows @ weight.T."""
    return _product(rows, weight, True, out)


@by_device("dense")
def _map_back(gradient: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """Return gradient @ weight."""
    return _product(gradient, weight, False, out)


@by_device("dense")
def _weight_gradient(gradient: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return gradient.T @ rows, float32."""
    if not _is_for_onednn(rows):
        return _own_gradient(gradient, rows)
    met = _rows_alike(rows)
    total = (gradient[:met].t() @ rows[:met]).float()
    return total if met == len(rows) else total.add_(_own_gradient(gradient[met:], rows[met:]))


def _own_gradient(gradient: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return gradient.T @ rows, float32, by our kernel."""
    total = torch.zeros(gradient.shape[1], rows.shape[1])
    if gradient.numel() and rows.numel():
        kernels.gradient(_bytes_of(gradient), _bytes_of(rows), STORAGE_NUMBER[rows.dtype], total.numpy())
    return total


@by_device("dense")
def _column_sums(rows: torch.Tensor) -> torch.Tensor:
    """Sums in float32, in an order that does not depend on the threads."""
    total = torch.zeros(rows.shape[1])
    sums.column_sums(as_bytes(rows), STORAGE_NUMBER[rows.dtype], total.numpy())
    return total


@by_device("dense")
def _column_magnitudes(rows: torch.Tensor) -> torch.Tensor:
    """Sums in float64, in an order that does not depend on the threads."""
    total = torch.zeros(rows.shape[1], dtype=torch.float64)
    sums.column_magnitudes(rows.detach().numpy(), total.numpy())
    return total


def _product(left: torch.Tensor, weight: torch.Tensor, is_transposed: bool, out: torch.Tensor | None) -> torch.Tensor:
    """Return left @ weight or left @ weight.T in new memory, or `out` after it was added there."""
    is_added = out is not None
    if out is None:
        out = empty((len(left), weight.shape[0 if is_transposed else 1]), left.dtype)
    if not left.shape[1]:
        return out if is_added else out.zero_()
    first = 0
    if _is_for_onednn(left):
        right, first = weight.t() if is_transposed else weight, _rows_alike(left)
        if is_added:
            torch.addmm(out[:first], left[:first], right, out=out[:first])
        else:
            torch.mm(left[:first], right, out=out[:first])
    if out[first:].numel():
        kernels.product(_bytes_of(left[first:]), _bytes_of(weight), STORAGE_NUMBER[left.dtype], is_transposed, is_added,
                        as_bytes(out[first:]))
    return out


def _rows_alike(rows: torch.Tensor) -> int:
    """Return how many of the first rows oneDNN gets."""
    return len(rows) - len(rows) % ROWS_ALIKE


def _is_for_onednn(rows: torch.Tensor) -> bool:
    return rows.dtype == torch.bfloat16 and multiplies_bfloat16()


def _bytes_of(rows: torch.Tensor) -> np.ndarray:
    return as_bytes(rows.contiguous())
