"""One of GCNAX's two products with its matrices in DRAM, by panels of columns. No block is made here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.accelerators.compressed_rows import starts_of
from hpcgnn.accelerators.design import Design
from hpcgnn.accelerators.gcnax_tiles import ArcTiles, Ends, Tiles
from hpcgnn.accelerators.gcnax_tiling import Tiling
from hpcgnn.accelerators.row_requests import size_in_bytes
from hpcgnn.accelerators.schedule import AddressSpace


@dataclass(frozen=True)
class Panels:
    """A matrix of `num_rows` rows in DRAM, by panels of some columns.

    Attributes
    ----------
    row_bytes : (num_panels,) int64      of a panel
    address : (num_panels,) int64
    """

    num_rows: int
    row_bytes: np.ndarray
    address: np.ndarray

    @classmethod
    def reserved(cls, space: AddressSpace, num_rows: int, columns: np.ndarray, bit_width: int) -> Panels:
        """Return a new matrix whose panels have so many columns."""
        row_bytes = np.asarray(size_in_bytes(columns, bit_width), np.int64)
        start = starts_of(num_rows * row_bytes)
        return cls(num_rows, row_bytes, space.reserve(start[-1]) + start[:-1])

    def cut(self, first: int, last: int) -> Panels:
        """Return panels first to last - 1."""
        return Panels(self.num_rows, self.row_bytes[first:last], self.address[first:last])

    def tile(self, row_tile: np.ndarray, rows_a_tile: int, panel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return addresses and bytes of tiles: rows from row_tile * rows_a_tile on, of a panel."""
        rows = np.minimum(rows_a_tile, self.num_rows - row_tile * rows_a_tile)
        return self.address[panel] + row_tile * rows_a_tile * self.row_bytes[panel], rows * self.row_bytes[panel]


@dataclass(frozen=True)
class Phase:
    """A sparse matrix times a dense one.

    Attributes
    ----------
    columns : (num_panels,) int64            of each panel
    runs, ends                               tiles of the sparse matrix, see gcnax_tiles
    sparse_at, value_bytes : int             its address, and the bytes of a value with its position
    sparse_kind, dense_kind, result_kind : str      of KINDS
    dense, sums : Panels                     the dense matrix, and sums that leave early
    own : Panels or None                     what sums begin with
    result : Panels or (num_rows + 1,) int64       dense, or the address of each row and the end
    """

    design: Design
    tiling: Tiling
    columns: np.ndarray
    runs: list[Tiles] | ArcTiles
    ends: Ends
    sparse_at: int
    value_bytes: int
    sparse_kind: str
    dense_kind: str
    result_kind: str
    dense: Panels
    sums: Panels
    own: Panels | None
    result: Panels | np.ndarray
