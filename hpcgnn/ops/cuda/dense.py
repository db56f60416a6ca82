"""Products on a device by torch (cuBLAS), summed in float32 throughout; column sums by kernels/column_sums.cu."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hpcgnn.ops.cuda.module import kernel
from hpcgnn.ops.cuda.segments import SUFFIX
from hpcgnn.ops.dense import combine_by_block

BLOCK_THREADS = 256
MAX_ROW_BLOCKS, LEAST_ROWS = 512, 256     # for column sums: blocks of rows, and rows of each but the last
JOINED_COLUMNS = 32                       # columns per block when few sums per column are left


def map_rows(rows: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    return _product(rows, weight.t(), out)


def map_back(gradient: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    return _product(gradient, weight, out)


def combine(rows: torch.Tensor, weight: torch.Tensor, own: torch.Tensor | None, own_weight: torch.Tensor | None,
            bias: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    if out is not None:
        return combine_by_block(rows, weight, own, own_weight, bias, out)
    with _float32_sums():
        made = torch.addmm(bias.detach().to(rows.dtype), rows, weight.t())      # cuBLAS adds the bias itself
        return made if own is None else made.addmm_(own, own_weight.t())


def weight_gradient(gradient: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    # Summed and returned in float32: a sum over all rows may overflow float16.
    if rows.dtype == torch.float32:
        return gradient.t() @ rows
    # On the CPU, where kernels are emulated, and in torch before 2.8, products have the type of their factors.
    if not (rows.is_cuda and "dtype" in torch.ops.aten.mm.overloads()):
        return gradient.float().t() @ rows.float()
    with _float32_sums():
        return torch.mm(gradient.t(), rows, out_dtype=torch.float32)


def column_sums(rows: torch.Tensor) -> torch.Tensor:
    # The order depends only on the numbers of rows and columns.
    num_rows, dim = rows.shape
    if not rows.numel():
        return torch.zeros(dim, device=rows.device)
    rows_a_block, num_blocks = row_blocks(num_rows)
    parts = _sum_blocks(rows, rows_a_block, num_blocks, min(dim, BLOCK_THREADS))
    return parts[0] if num_blocks == 1 else _sum_blocks(parts, num_blocks, 1, min(dim, JOINED_COLUMNS))[0]


def column_magnitudes(rows: torch.Tensor) -> torch.Tensor:
    return rows.detach().abs().sum(0, dtype=torch.float64)


def row_blocks(num_rows: int) -> tuple[int, int]:
    rows_a_block = max(LEAST_ROWS, -(-num_rows // MAX_ROW_BLOCKS))
    return rows_a_block, -(-num_rows // rows_a_block)


def _sum_blocks(rows: torch.Tensor, rows_a_block: int, num_blocks: int, columns_a_block: int) -> torch.Tensor:
    num_rows, dim = rows.shape
    sums = torch.empty(num_blocks, dim, device=rows.device)
    kernel("column_sums", f"sum_columns_{SUFFIX[rows.dtype]}")(
        (-(-dim // columns_a_block), num_blocks), (BLOCK_THREADS,), rows.detach(), num_rows, dim, rows_a_block,
        columns_a_block, sums)
    return sums


def _product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    with _float32_sums():
        return left @ right if out is None else torch.addmm(out, left, right, out=out)


@contextmanager
def _float32_sums() -> Iterator[None]:
    settings = torch.backends.cuda.matmul
    names = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")
    before = [getattr(settings, name) for name in names]
    try:
        for name in names:
            setattr(settings, name, False)
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(settings, name, value)
