"""Host side of `hpcgnn.ops.tiles`, over the compiled kernels. Contracts are already checked."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn._ext import bit_gemm
from hpcgnn._ext import tiles as kernels
from hpcgnn.ops.bit_gemm import BitLines, CodeRange, Rescaling
from hpcgnn.ops.host.bit_gemm import finish
from hpcgnn.ops.tiles import TILE_COLUMNS, TILE_ROWS, TileList


def tiles_of_csr(indptr: np.ndarray, indices: np.ndarray, num_columns: int, is_dense: bool,
                 device: torch.device | str = "cpu") -> TileList:
    """Count the tiles, then fill them; the device is the host."""
    num_rows = len(indptr) - 1
    counts = np.zeros(-(-num_rows // TILE_ROWS), np.int64)
    if is_dense:
        counts[:] = -(-num_columns // TILE_COLUMNS)
    else:
        kernels.count_tiles(indptr, indices, num_columns, counts)
    begin = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    column = np.empty(begin[-1], np.int32)
    words = torch.zeros(int(begin[-1]), TILE_ROWS, TILE_COLUMNS // 32, dtype=torch.int32)
    kernels.fill_tiles(indptr, indices, num_columns, begin, column, words.numpy())
    return TileList(num_rows, num_columns, begin, column, words, is_dense)


def count_entries(tiles: TileList) -> torch.Tensor:
    """Return (num_rows,) int64."""
    counts = torch.zeros(tiles.num_rows, dtype=torch.int64)
    kernels.count_entries(tiles.begin, tiles.words.numpy(), counts.numpy())
    return counts


def multiply_tiles(tiles: TileList, right: BitLines, jump: bool, reuse: bool, rescaling: Rescaling | None,
                   codes: CodeRange | None) -> tuple[torch.Tensor | BitLines, int]:
    """The product of tiles, finished as the arguments say. A list holds no zeros, so nothing is looked for in it."""
    num_padded, num_steps = TILE_ROWS * (len(tiles.begin) - 1), right.words.shape[2] // 4
    left = bit_gemm.Left(tiles.words.numpy(), num_padded, num_steps, tiles.begin, tiles.column,
                         jump and tiles.is_dense, reuse)
    return finish(left, tiles.num_rows, right, rescaling, codes)
