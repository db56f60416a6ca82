"""Host side of `hpcgnn.ops.batch_tiles`, over the compiled kernels. Contracts are already checked."""

from __future__ import annotations

import numpy as np

from hpcgnn._ext import batch_tiles as kernels
from hpcgnn.ops.host.simd import simd_level


def stacked(tiles) -> kernels.Tiles:
    """Return the kernel's view of a BatchTiles."""
    return kernels.Tiles(tiles.row_begin, tiles.tile_row_begin, tiles.begin, tiles.column, tiles.words, tiles.indptr)


def sum_batches(tiles: kernels.Tiles, codes: np.ndarray, bit_width: int, first: int, end: int, out: np.ndarray) -> int:
    """Sums of some batches into out; the tiles that were multiplied."""
    simd_level()
    return tiles.sums(codes, bit_width, first, end, out)
