"""Host side of `hpcgnn.ops.dense`: OpenBLAS for float32, oneDNN for bfloat16, and float32 blocks for float16.

SciPy's OpenBLAS comes near the AVX-512 peak on AMD too, where torch's MKL stays at half of it.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.linalg.blas import sgemm

from hpcgnn._ext import column_sums as kernels
from hpcgnn.ops.arena import empty
from hpcgnn.ops.host.storage import STORAGE_NUMBER, as_bytes

BLOCK_ROWS = 4096    # float16 rows widened at once; few processors multiply float16


def map_rows(rows: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """rows @ weight.T."""
    return _product(rows, weight.t(), out)


def map_back(gradient: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """gradient @ weight."""
    return _product(gradient, weight, out)


def weight_gradient(gradient: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """gradient.T @ rows, float32."""
    if rows.dtype == torch.bfloat16:
        return (gradient.t() @ rows).float()
    total = torch.zeros(gradient.shape[1], rows.shape[1])
    for part in _blocks(rows):
        _multiply(gradient[part].float().t(), rows[part].float(), total, is_added=True)
    return total


def column_sums(rows: torch.Tensor) -> torch.Tensor:
    """Sums in float32, in an order that does not depend on the threads."""
    total = torch.zeros(rows.shape[1])
    kernels.column_sums(as_bytes(rows), STORAGE_NUMBER[rows.dtype], total.numpy())
    return total


def column_magnitudes(rows: torch.Tensor) -> torch.Tensor:
    """Sums in float64, in an order that does not depend on the threads."""
    total = torch.zeros(rows.shape[1], dtype=torch.float64)
    kernels.column_magnitudes(rows.detach().numpy(), total.numpy())
    return total


def _blocks(rows: torch.Tensor) -> list[slice]:
    size = BLOCK_ROWS if rows.dtype == torch.float16 else max(1, len(rows))
    return [slice(start, start + size) for start in range(0, len(rows), size)]


def _product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """left @ right into `out`, or added to it; only `right` may be a transposed view."""
    is_added = out is not None
    if out is None:
        out = empty((len(left), right.shape[1]), left.dtype)
    if left.dtype == torch.bfloat16:
        return torch.addmm(out, left, right, out=out) if is_added else torch.mm(left, right, out=out)
    right = right.float()
    for part in _blocks(left):
        wide = out[part].float()    # float32 rows are not copied by this
        _multiply(left[part].float(), right, wide, is_added)
        if wide.dtype != out.dtype:
            out[part] = wide
    return out


def _multiply(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, is_added: bool) -> None:
    """The float32 product in place. BLAS counts columns first, so it is told to compute out.T = right.T @ left.T."""
    if out.numel() == 0:
        return
    first, is_first_transposed = _columns_first(right.t())
    second, is_second_transposed = _columns_first(left.t())
    sgemm(1.0, first, second, beta=float(is_added), c=out.t().numpy(), trans_a=is_first_transposed,
          trans_b=is_second_transposed, overwrite_c=True)


def _columns_first(matrix: torch.Tensor) -> tuple[np.ndarray, bool]:
    """The matrix in Fortran order, or its transposed and True where that is how it lies in memory."""
    array = matrix.detach().numpy()
    return (array, False) if array.flags.f_contiguous else (array.T, True)
