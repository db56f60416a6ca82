"""Device side of `hpcgnn.ops.tiles`: launches of kernels/tiles.cu. Contracts are already checked.

Tiles are made on the host, once a batch, and cross once; where they lie in the matrix stays known to both sides.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from hpcgnn.ops.bit_gemm import BitLines, CodeRange, Rescaling
from hpcgnn.ops.cuda.bit_gemm import PRODUCT_WARPS, WARP, blocks_of, checked_form, product_end, right_arguments
from hpcgnn.ops.cuda.module import kernel
from hpcgnn.ops.cuda.resident import on_device
from hpcgnn.ops.host import tiles as host
from hpcgnn.ops.tiles import TileList

ROWS_A_BLOCK = 256      # whose entries are counted, a thread each

_kernel = partial(kernel, "tiles", is_exact=True)


def tiles_of_csr(indptr: np.ndarray, indices: np.ndarray, num_columns: int, is_dense: bool,
                 device: torch.device | str = "cuda") -> TileList:
    """Make the tiles on the host and copy their words to the device."""
    tiles = host.tiles_of_csr(indptr, indices, num_columns, is_dense)
    return replace(tiles, words=tiles.words.to(device))


def count_entries(tiles: TileList) -> torch.Tensor:
    """Return (num_rows,) int64."""
    counts = torch.empty(tiles.num_rows, dtype=torch.int64, device=tiles.words.device)
    _kernel("count_entries")((blocks_of(tiles.num_rows, ROWS_A_BLOCK),), (ROWS_A_BLOCK,),
                             on_device(tiles.begin, tiles.words), tiles.words, tiles.num_rows, counts)
    return counts


def multiply_tiles(tiles: TileList, right: BitLines, jump: bool, reuse: bool, rescaling: Rescaling | None,
                   codes: CodeRange | None, form: str | None = None) -> tuple[torch.Tensor | BitLines, int]:
    """The product of tiles, finished as the arguments say; `form` as in `hpcgnn.ops.cuda.bit_gemm.multiply_bits`.

    A list holds no tile of zeros, so nothing is looked for in it, and nothing has to be counted on the device.
    """
    num_tile_rows, is_jumping = len(tiles.begin) - 1, jump and tiles.is_dense
    form = checked_form(form, right.words.device, is_small=tiles.num_tiles < 2 * num_tile_rows)
    end = product_end(tiles.num_rows, right, rescaling, codes)
    num_multiplied = torch.zeros(num_tile_rows, dtype=torch.int32, device=right.words.device)
    _kernel(f"multiply_{form}")(
        (tile_blocks(num_tile_rows, end.num_column_groups),), (PRODUCT_WARPS * WARP,),
        on_device(tiles.begin, right.words), on_device(tiles.column, right.words), tiles.words, num_tile_rows,
        *right_arguments(right), end.num_column_groups, is_jumping, reuse, num_multiplied, *end.arguments)
    if is_jumping:
        return end.result, int(num_multiplied.sum())
    return end.result, tiles.num_tiles if right.num_lines else 0


def tile_blocks(num_tile_rows: int, num_column_groups: int) -> int:
    """Count the blocks of a product of tiles: a warp has a row of tiles and a group of columns."""
    return blocks_of(num_tile_rows * num_column_groups, PRODUCT_WARPS)
