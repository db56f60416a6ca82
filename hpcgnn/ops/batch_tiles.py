"""Aggregation of signed codes by bits in many small batches at once: the tiles of all of them, a thread a batch.

How batches are cut and who chooses tiles is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpcgnn.errors import KernelError
from hpcgnn.ops.bit_gemm import LARGEST_SUM
from hpcgnn.ops.host import batch_tiles as host
from hpcgnn.ops.tiles import TILE_COLUMNS, TILE_ROWS, TileList


@dataclass(frozen=True)
class BatchTiles:
    """Square adjacencies of batches as lists of tiles, one after the other.

    Attributes
    ----------
    row_begin : (num_batches + 1,) int64          batch b has the rows row_begin[b] .. row_begin[b + 1] - 1
    tile_row_begin : (num_batches + 1,) int64     and so many rows of tiles
    begin : (num_tile_rows + 1,) int64            row r of tiles has the tiles begin[r] .. begin[r + 1] - 1
    column : (num_tiles,) int32                   in tiles, from the batch's first row
    words : (num_tiles, 8, 4) int32               see `hpcgnn.ops.tiles.TileList`
    indptr : (num_rows + 1,) int64                counts the entries of each row, each of which is in a tile
    """

    row_begin: np.ndarray
    tile_row_begin: np.ndarray
    begin: np.ndarray
    column: np.ndarray
    words: np.ndarray
    indptr: np.ndarray

    @classmethod
    def stack(cls, lists: list[TileList], indptr: np.ndarray) -> BatchTiles:
        """Return the tiles of one batch after the other.

        Raises
        ------
        KernelError      a matrix that is not square, or an indptr of another number of rows
        """
        if any(one.num_rows != one.num_columns for one in lists):
            raise KernelError("a batch's adjacency is square, found tiles of another shape")
        row_begin = _bounds([one.num_rows for one in lists])
        if indptr.dtype != np.int64 or indptr.shape != (row_begin[-1] + 1,):
            raise KernelError(f"batches of {row_begin[-1]} rows need an int64 indptr of one more, "
                              f"found {indptr.dtype} of shape {indptr.shape}")
        offset = _bounds([one.num_tiles for one in lists])
        begins = [one.begin[:-1] + start for one, start in zip(lists, offset, strict=False)]
        words = [one.words.numpy().reshape(-1, TILE_ROWS, 4) for one in lists]
        return cls(row_begin, _bounds([len(one.begin) - 1 for one in lists]),
                   np.concatenate([*begins, offset[-1:]]),
                   np.concatenate([np.empty(0, np.int32), *(one.column for one in lists)]),
                   np.concatenate([np.empty((0, TILE_ROWS, 4), np.int32), *words]), indptr)

    @property
    def num_batches(self) -> int:
        return len(self.row_begin) - 1

    @property
    def num_tiles(self) -> np.ndarray:
        """Count the tiles of each batch, (num_batches,) int64."""
        return np.diff(self.begin[self.tile_row_begin])

    @property
    def num_places(self) -> np.ndarray:
        """Count the tiles of each batch with those of zeros, (num_batches,) int64."""
        num_rows = np.diff(self.row_begin)
        return -(-num_rows // TILE_ROWS) * -(-num_rows // TILE_COLUMNS)

    @cached_property
    def kernel(self):
        """Return the backend's form of the tiles, made once."""
        return host.stacked(self)

    @cached_property
    def largest_batch(self) -> int:
        """Count the rows of the largest one."""
        return int(np.diff(self.row_begin).max(initial=0))


def sum_batches(tiles: BatchTiles, codes: np.ndarray, bit_width: int, first: int, end: int, out: np.ndarray) -> int:
    """out[v, j] = sum of codes[u, j] over the in-neighbors u of v, for the rows of the batches first .. end - 1.

    Codes enter the product as code + 2**(bit_width - 1), and what that adds is taken away again.

    Parameters
    ----------
    codes : (num_rows, dim) int8, in -2**(bit_width - 1) .. 2**(bit_width - 1) - 1, of all batches
    bit_width : int, 1 to 8
    out : (row_begin[end] - row_begin[first], dim) int32, overwritten

    Returns
    -------
    tiles that were multiplied

    Raises
    ------
    KernelError      types, shapes or a width outside these, or sums that could overflow
    """
    if not 1 <= bit_width <= 8 or not 0 <= first <= end <= tiles.num_batches:
        raise KernelError(f"sums over batches {first} to {end} of {tiles.num_batches}, of codes of {bit_width} bits; "
                          "expected batches that exist and 1 to 8 bits")
    num_summed = int(tiles.row_begin[end] - tiles.row_begin[first])
    for name, array, dtype, num_rows in (("codes", codes, np.int8, int(tiles.row_begin[-1])),
                                         ("sums", out, np.int32, num_summed)):
        if array.dtype != dtype or array.ndim != 2 or len(array) != num_rows or not array.flags.c_contiguous:
            raise KernelError(f"{name} of batches are contiguous {np.dtype(dtype).name} of {num_rows} rows, "
                              f"found {array.dtype} of shape {array.shape}")
    if codes.shape[1] != out.shape[1]:
        raise KernelError(f"sums of codes of {codes.shape[1]} columns were given an out of {out.shape[1]}")
    if tiles.largest_batch * (2**bit_width - 1) > LARGEST_SUM:
        raise KernelError(f"sums over batches of {tiles.largest_batch} rows could pass 32 bits; cut smaller batches")
    return host.sum_batches(tiles.kernel, codes, bit_width, first, end, out)


def _bounds(counts: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.array(counts, np.int64))]).astype(np.int64)
