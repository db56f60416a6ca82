"""Products of rows with a weight matrix, forward and backward; rows may be float32, bfloat16 or float16.

Sums are float32 for rows of any type. On the host hpcgnn's kernel widens blocks of rows to float32 and sums in one
order for any number of rows and threads. If the processor multiplies bfloat16, oneDNN computes products of bfloat16
rows.
"""

from __future__ import annotations

import torch

from hpcgnn._ext import column_sums as sums
from hpcgnn._ext import dense as kernels
from hpcgnn.errors import KernelError
from hpcgnn.ops.arena import empty
from hpcgnn.ops.dispatch import STORAGE_NUMBER, as_bytes, by_device, check_rows
from hpcgnn.ops.simd import multiplies_bfloat16
from hpcgnn.ops.spans import blocks


def combine(rows: torch.Tensor, weight: torch.Tensor, own: torch.Tensor | None, own_weight: torch.Tensor | None,
            bias: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """bias + rows @ weight.T + own @ own_weight.T, (n, out_dim) in the type of `rows`; own may be None.

    rows and own are (n, in_dim) and may have different columns; bias is (out_dim,) float32. `out` may be `rows` itself,
    which then must have out_dim columns. KernelError if rows and own, or weights and columns, do not fit.
    """
    for side, mapped in ((rows, weight), (own, own_weight)):
        if side is not None and (side.shape[0] != rows.shape[0] or mapped.shape != (len(bias), side.shape[1])):
            raise KernelError(f"rows of shape {tuple(side.shape)} do not fit a weight of {tuple(mapped.shape)}, "
                              f"{len(rows)} rows and {len(bias)} biases")
    return _combine.on(rows.device)(rows, weight, own, own_weight, bias, out)


def column_magnitudes(rows: torch.Tensor) -> torch.Tensor:
    """Sum of |rows|, (dim,) float64; rounded to float32 it does not depend on how ranks share the float32 rows."""
    check_rows(rows, len(rows), "column magnitudes", torch.float32)
    return _column_magnitudes.on(rows.device)(rows)


# oneDNN needs 0.6 ms for each new number of rows, which differs between steps, so it gets multiples of this number.
ROWS_ALIKE = 64


@by_device("dense")
def map_rows(rows: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """rows @ weight.T, added to `out` if given; all of one type, (n, in_dim), (out_dim, in_dim) and (n, out_dim)."""
    return _product(rows, weight, True, out)


@by_device("dense")
def _combine(rows: torch.Tensor, weight: torch.Tensor, own: torch.Tensor | None, own_weight: torch.Tensor | None,
             bias: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    is_for_onednn = rows.dtype == torch.bfloat16 and multiplies_bfloat16()
    if is_for_onednn or not rows.numel() or (own is not None and not own.numel()):
        return combine_in_turn(rows, weight, own, own_weight, bias, out)
    if out is None:
        out = empty((rows.shape[0], bias.shape[0]), rows.dtype)
    kernels.combination(as_bytes(rows.contiguous()), as_bytes(weight.contiguous()),
                        None if own is None else as_bytes(own.contiguous()),
                        None if own_weight is None else as_bytes(own_weight.contiguous()), STORAGE_NUMBER[rows.dtype],
                        bias.detach().numpy(), as_bytes(out))
    return out


def combine_in_turn(rows: torch.Tensor, weight: torch.Tensor, own: torch.Tensor | None,
                    own_weight: torch.Tensor | None, bias: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    if out is not None:
        return combine_by_block(rows, weight, own, own_weight, bias, out)
    out = empty((len(rows), len(bias)), rows.dtype, rows.device)
    out[:] = bias
    map_rows(rows, weight, out=out)
    return out if own is None else map_rows(own, own_weight, out=out)


def combine_by_block(rows: torch.Tensor, weight: torch.Tensor, own: torch.Tensor | None,
                     own_weight: torch.Tensor | None, bias: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """`combine` into `out`, which may be `rows`: one block at a time, so that little more memory is needed."""
    for start, stop in blocks(0, len(rows), rows.device.type):
        out[start:stop] = combine(rows[start:stop], weight, None if own is None else own[start:stop], own_weight, bias)
    return out


@by_device("dense")
def map_back(gradient: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    return _product(gradient, weight, False, out)


@by_device("dense")
def weight_gradient(gradient: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """gradient.T @ rows, (out_dim, in_dim) float32; oneDNN rounds it to bfloat16 on the way."""
    if rows.dtype != torch.bfloat16 or not multiplies_bfloat16():
        return _own_gradient(gradient, rows)
    # oneDNN takes the first rows, a multiple of ROWS_ALIKE, and hpcgnn's kernel the rest.
    met = _rows_alike(rows)
    total = (gradient[:met].t() @ rows[:met]).float()
    return total if met == len(rows) else total.add_(_own_gradient(gradient[met:], rows[met:]))


def _own_gradient(gradient: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(gradient.shape[1], rows.shape[1])
    if gradient.numel() and rows.numel():
        kernels.gradient(as_bytes(gradient.contiguous()), as_bytes(rows.contiguous()), STORAGE_NUMBER[rows.dtype],
                         total.numpy())
    return total


@by_device("dense")
def column_sums(rows: torch.Tensor) -> torch.Tensor:
    """Sum over the rows, (dim,) float32: the gradient of a bias."""
    total = torch.zeros(rows.shape[1])
    sums.column_sums(as_bytes(rows), STORAGE_NUMBER[rows.dtype], total.numpy())
    return total


@by_device("dense")
def _column_magnitudes(rows: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(rows.shape[1], dtype=torch.float64)
    sums.column_magnitudes(rows.detach().numpy(), total.numpy())
    return total


def _product(left: torch.Tensor, weight: torch.Tensor, is_transposed: bool, out: torch.Tensor | None) -> torch.Tensor:
    is_added = out is not None
    if out is None:
        out = empty((left.shape[0], weight.shape[0 if is_transposed else 1]), left.dtype)
    if not left.shape[1]:
        return out if is_added else out.zero_()
    first = 0
    if left.dtype == torch.bfloat16 and multiplies_bfloat16():
        right, first = weight.t() if is_transposed else weight, _rows_alike(left)
        if is_added:
            torch.addmm(out[:first], left[:first], right, out=out[:first])
        else:
            torch.mm(left[:first], right, out=out[:first])
    if out[first:].numel():
        kernels.product(as_bytes(left[first:].contiguous()), as_bytes(weight.contiguous()), STORAGE_NUMBER[left.dtype],
                        is_transposed, is_added, as_bytes(out[first:]))
    return out


def _rows_alike(rows: torch.Tensor) -> int:
    return rows.shape[0] // ROWS_ALIKE * ROWS_ALIKE
