"""A 0/1 matrix stored as tiles of 8 x 128 bits, and its product with codes stored as bits (`BitLines`).

If the matrix is an adjacency, the product sums the codes of each row's neighbors.

Only tiles with an entry are stored and multiplied. An edge from node 200 to node 3 sets bit 72 of row 3 in the tile of
rows 0 to 7 and columns 128 to 255. `TileList` holds one matrix; `BatchTiles` holds the adjacencies of many small
batches, and each thread sums one batch at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from hpcgnn._ext import batch_tiles as batch_kernels
from hpcgnn._ext import bit_gemm
from hpcgnn._ext import tiles as kernels
from hpcgnn.errors import KernelError
from hpcgnn.ops.bit_gemm import LARGEST_SUM, BitLines, CodeRange, Rescaling, check_product, finish_product
from hpcgnn.ops.dispatch import by_device
from hpcgnn.ops.resident import make_resident
from hpcgnn.ops.simd import simd_level

TILE_ROWS, TILE_COLUMNS = 8, 128


@dataclass(frozen=True)
class TileList:
    """Tiles of a 0/1 matrix, sorted by tile row. The dense form stores all tiles, otherwise only tiles with an entry.

    num_rows, num_columns : int
    begin : (ceil(num_rows / 8) + 1,) int64      row r of tiles has the tiles begin[r] .. begin[r + 1] - 1
    column : (num_tiles,) int32                  column of each tile, in tiles, ascending within a row
    words : (num_tiles, 8, 4) int32              bit k % 32 of word k / 32 of a tile's row is its column k
    is_dense : bool
    """

    num_rows: int
    num_columns: int
    begin: np.ndarray
    column: np.ndarray
    words: torch.Tensor
    is_dense: bool

    def __post_init__(self):
        make_resident(self, "begin", "column")

    @property
    def num_tiles(self) -> int:
        return len(self.column)

    @property
    def num_places(self) -> int:
        return (len(self.begin) - 1) * -(-self.num_columns // TILE_COLUMNS)


def tiles_of_csr(indptr: np.ndarray, indices: np.ndarray, num_columns: int, is_dense: bool = False,
                 device: torch.device | str = "cpu") -> TileList:
    """Tiles of a CSR pattern, words on `device`; an entry given twice counts once.

    indptr is (num_rows + 1,) int64; indices is (num_entries,) int32, in [0, num_columns).
    """
    _check_csr(indptr, indices, num_columns)
    num_rows = len(indptr) - 1
    # Count the tiles of each row of tiles, then fill them.
    counts = np.zeros(-(-num_rows // TILE_ROWS), np.int64)
    if is_dense:
        counts[:] = -(-num_columns // TILE_COLUMNS)
    else:
        kernels.count_tiles(indptr, indices, num_columns, counts)
    begin = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    column = np.empty(begin[-1], np.int32)
    words = torch.zeros(int(begin[-1]), TILE_ROWS, TILE_COLUMNS // 32, dtype=torch.int32)
    kernels.fill_tiles(indptr, indices, num_columns, begin, column, words.numpy())
    return TileList(num_rows, num_columns, begin, column, words.to(device), is_dense)


def count_entries(tiles: TileList) -> torch.Tensor:
    return _count_entries.on(tiles.words.device)(tiles)


def multiply_tiles(tiles: TileList, right: BitLines, jump: bool = True, reuse: bool = True,
                   rescaling: Rescaling | None = None,
                   codes: CodeRange | None = None) -> tuple[torch.Tensor | BitLines, int]:
    """The product of the 0/1 matrix and `right`, and the number of tiles multiplied.

    The product is int32 sums; with `rescaling`, float32 values; with `codes` too, BitLines of their codes, one per row.
    `jump` skips tiles of zeros; `reuse` loads a tile once for all planes of the right side, otherwise once per plane.
    Raises KernelError for sums that could overflow, or jump=False for a list of tiles.

    Reference: QGTC, Sections 4.3 and 4.4.
    """
    check_product(tiles.num_columns, 1, right)
    if not jump and not tiles.is_dense:
        raise KernelError("jump=False multiplies tiles of zeros, which only the dense form stores; make the tiles by "
                          "tiles_of_csr with is_dense=True")
    return _multiply_tiles.on(right.words.device)(tiles, right, jump, reuse, rescaling, codes)


def _check_csr(indptr: np.ndarray, indices: np.ndarray, num_columns: int) -> None:
    if indptr.dtype != np.int64 or indices.dtype != np.int32 or indptr.ndim != 1 or indices.ndim != 1:
        raise KernelError(f"tiles need int64 indptr and int32 indices, found {indptr.dtype} and {indices.dtype}")
    is_rising = len(indptr) > 0 and indptr[0] == 0 and indptr[-1] == len(indices) and (np.diff(indptr) >= 0).all()
    if not is_rising:
        raise KernelError(f"tiles need an indptr that rises from 0 to the number of entries, {len(indices)}")
    if len(indices) and not 0 <= indices.min() <= indices.max() < num_columns:
        raise KernelError(f"tiles of {num_columns} columns have entries in columns {indices.min()} to {indices.max()}")


@by_device("bit_gemm")
def _count_entries(tiles: TileList) -> torch.Tensor:
    counts = torch.zeros(tiles.num_rows, dtype=torch.int64)
    kernels.count_entries(tiles.begin, tiles.words.numpy(), counts.numpy())
    return counts


@by_device("bit_gemm")
def _multiply_tiles(tiles: TileList, right: BitLines, jump: bool, reuse: bool, rescaling: Rescaling | None,
                    codes: CodeRange | None) -> tuple[torch.Tensor | BitLines, int]:
    num_padded, num_steps = TILE_ROWS * (len(tiles.begin) - 1), right.words.shape[2] // 4
    left = bit_gemm.Left(tiles.words.numpy(), num_padded, num_steps, tiles.begin, tiles.column,
                         jump and tiles.is_dense, reuse)
    return finish_product(left, tiles.num_rows, right, rescaling, codes)


@dataclass(frozen=True)
class BatchTiles:
    """Square adjacencies of batches as lists of tiles, one after the other.

    row_begin : (num_batches + 1,) int64          batch b has the rows row_begin[b] .. row_begin[b + 1] - 1
    tile_row_begin : (num_batches + 1,) int64     the same for rows of tiles
    begin : (num_tile_rows + 1,) int64            row r of tiles has the tiles begin[r] .. begin[r + 1] - 1
    column : (num_tiles,) int32                   column of each tile, in tiles from the batch's first row
    words : (num_tiles, 8, 4) int32               see `TileList`
    indptr : (num_rows + 1,) int64                row v has indptr[v + 1] - indptr[v] entries
    """

    row_begin: np.ndarray
    tile_row_begin: np.ndarray
    begin: np.ndarray
    column: np.ndarray
    words: np.ndarray
    indptr: np.ndarray

    @classmethod
    def stack(cls, lists: list[TileList], indptr: np.ndarray) -> BatchTiles:
        """Concatenate the tiles of all batches.

        Raises KernelError if a matrix is not square, or the length of indptr is not the number of rows plus 1.
        """
        if any(one.num_rows != one.num_columns for one in lists):
            raise KernelError("a batch's adjacency is square, found tiles of another shape")
        row_begin = _bounds([one.num_rows for one in lists])
        if indptr.dtype != np.int64 or indptr.shape != (row_begin[-1] + 1,):
            raise KernelError(f"batches of {row_begin[-1]} rows need an int64 indptr of length {row_begin[-1] + 1}, "
                              f"found {indptr.dtype} of shape {indptr.shape}")
        # Tile columns count from the first row of their batch, so they don't change; only `begin` is shifted.
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
        return np.diff(self.begin[self.tile_row_begin])

    @property
    def num_places(self) -> np.ndarray:
        num_rows = np.diff(self.row_begin)
        return -(-num_rows // TILE_ROWS) * -(-num_rows // TILE_COLUMNS)

    @cached_property
    def _kernel(self) -> batch_kernels.Tiles:
        return batch_kernels.Tiles(self.row_begin, self.tile_row_begin, self.begin, self.column, self.words,
                                   self.indptr)

    @cached_property
    def largest_batch(self) -> int:
        return int(np.diff(self.row_begin).max(initial=0))


def sum_batches(tiles: BatchTiles, codes: np.ndarray, bit_width: int, first: int, end: int, out: np.ndarray) -> int:
    """out[v, j] = sum of codes[u, j] over the in-neighbors u of v, for rows of the batches first .. end - 1.

    codes is (num_rows, dim) int8 of `bit_width` bits, sign included, for all batches; out is int32 with the rows of
    these batches, overwritten. Returns the number of tiles multiplied. Raises KernelError for sums that could overflow.
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
        raise KernelError(f"codes have {codes.shape[1]} columns, and `out` has {out.shape[1]}; expected equal numbers")
    if tiles.largest_batch * (2**bit_width - 1) > LARGEST_SUM:
        raise KernelError(f"sums over batches of {tiles.largest_batch} rows could pass 32 bits; cut smaller batches")
    simd_level()
    return tiles._kernel.sums(codes, bit_width, first, end, out)


def _bounds(counts: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.array(counts, np.int64))]).astype(np.int64)
