"""A 0/1 matrix as tiles of 8 x 128 bits, and its product with lines of codes: the aggregation by bits.

Tiles of zeros need not be stored, nor multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.bit_gemm import BitLines, CodeRange, Rescaling, check_product
from hpcgnn.ops.cuda.resident import make_resident
from hpcgnn.ops.dispatch import backend_of

TILE_ROWS, TILE_COLUMNS = 8, 128


@dataclass(frozen=True)
class TileList:
    """Tiles of a 0/1 matrix by rows of tiles; in the dense form all of them, otherwise those with an entry.

    Attributes
    ----------
    num_rows, num_columns : int
    begin : (ceil(num_rows / 8) + 1,) int64      row r of tiles has the tiles begin[r] .. begin[r + 1] - 1
    column : (num_tiles,) int32                  of each tile, in tiles, ascending within a row
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
        """Count the tiles that are stored."""
        return len(self.column)

    @property
    def num_places(self) -> int:
        """Count the tiles of the whole matrix, with those of zeros."""
        return (len(self.begin) - 1) * -(-self.num_columns // TILE_COLUMNS)


def tiles_of_csr(indptr: np.ndarray, indices: np.ndarray, num_columns: int, is_dense: bool = False,
                 device: torch.device | str = "cpu") -> TileList:
    """Return tiles of a CSR pattern; an entry that is there twice counts once.

    Parameters
    ----------
    indptr : (num_rows + 1,) int64
    indices : (num_entries,) int32, in [0, num_columns)
    device : where the words shall lie

    Raises
    ------
    KernelError      the arrays are of another type, or no CSR of such a matrix
    """
    _check_csr(indptr, indices, num_columns)
    device = torch.device(device)
    return backend_of("tiles", device).tiles_of_csr(indptr, indices, num_columns, is_dense, device)


def count_entries(tiles: TileList) -> torch.Tensor:
    """Count the entries of each row, (num_rows,) int64: the in-degrees of an adjacency."""
    return backend_of("tiles", tiles.words).count_entries(tiles)


def multiply_tiles(tiles: TileList, right: BitLines, jump: bool = True, reuse: bool = True,
                   rescaling: Rescaling | None = None,
                   codes: CodeRange | None = None) -> tuple[torch.Tensor | BitLines, int]:
    """Return the 0/1 matrix times lines of codes, finished as in `hpcgnn.ops.bit_gemm.multiply_bits`.

    Parameters
    ----------
    jump : bool      tiles of zeros are found and left out; a list of tiles has none, and must be jumped
    reuse : bool     a tile is loaded once for all planes of the right side; otherwise once a plane

    Returns
    -------
    (tiles.num_rows, right.num_lines), as `hpcgnn.ops.bit_gemm.multiply_bits`
    number of tiles that were multiplied

    Raises
    ------
    KernelError      lengths that disagree, sums that could overflow, or jump=False for a list of tiles

    Reference: QGTC, Sections 4.3 and 4.4.
    """
    check_product(tiles.num_columns, 1, right)
    if not jump and not tiles.is_dense:
        raise KernelError("a list of tiles holds no tile of zeros that could be multiplied; "
                          "make the tiles with the dense form to switch jumping off")
    return backend_of("tiles", right.words).multiply_tiles(tiles, right, jump, reuse, rescaling, codes)


def _check_csr(indptr: np.ndarray, indices: np.ndarray, num_columns: int) -> None:
    if indptr.dtype != np.int64 or indices.dtype != np.int32 or indptr.ndim != 1 or indices.ndim != 1:
        raise KernelError(f"tiles need int64 indptr and int32 indices, found {indptr.dtype} and {indices.dtype}")
    is_rising = len(indptr) > 0 and indptr[0] == 0 and indptr[-1] == len(indices) and (np.diff(indptr) >= 0).all()
    if not is_rising:
        raise KernelError(f"tiles need an indptr that rises from 0 to the number of entries, {len(indices)}")
    if len(indices) and not 0 <= indices.min() <= indices.max() < num_columns:
        raise KernelError(f"tiles of {num_columns} columns have entries in columns {indices.min()} to {indices.max()}")
