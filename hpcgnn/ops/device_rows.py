"""Rows of integer models on a device: their planes of bits, and what each of them sums, as entries or as tiles.

What is computed of them is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.bit_gemm import LARGEST_SUM, WORD_BITS
from hpcgnn.ops.tiles import TILE_COLUMNS

HUB_ENTRIES = 512          # of a row; longer ones are summed in chunks of so many before the others
LARGEST_ENTRY = 255        # of a field, with what is added to it


@dataclass(frozen=True)
class RowPlanes:
    """Rows of codes as planes of bits with strides: word k of plane p of row i is words.flatten()[p * plane_stride +
    i * row_stride + k].

    Attributes
    ----------
    words : int32 tensor on the device
    num_rows, length, bit_width : int
    plane_stride, row_stride : int
    is_signed : bool                 2**(bit_width - 1) was added to every code
    """

    words: torch.Tensor
    num_rows: int
    length: int
    bit_width: int
    plane_stride: int
    row_stride: int
    is_signed: bool

    @classmethod
    def of_lines(cls, words: torch.Tensor, num_rows: int, length: int, is_signed: bool) -> RowPlanes:
        """Take planes (bit_width, at least num_rows, words of a line) as `hpcgnn.ops.bit_gemm.BitLines` has them."""
        bit_width, num_padded, line_words = words.shape
        return cls(words, num_rows, length, bit_width, num_padded * line_words, line_words, is_signed)

    @classmethod
    def empty(cls, num_rows: int, length: int, bit_width: int, is_signed: bool, device: torch.device) -> RowPlanes:
        """Make room for rows whose planes lie together, row by row, without padding but that of words."""
        line_words = words_a_plane(length)
        words = torch.empty(num_rows, bit_width, line_words, dtype=torch.int32, device=device)
        return cls(words, num_rows, length, bit_width, line_words, bit_width * line_words, is_signed)

    @property
    def offset(self) -> int:
        """Return what was added to every code."""
        return 1 << (self.bit_width - 1) if self.is_signed else 0


@dataclass(frozen=True)
class Entries:
    """Rows that each row sums, as CSR; those from num_rows on are others', whose codes the caller brings.

    Attributes
    ----------
    indptr : (num_rows + 1,) int64, indices : (num_entries,) int32      on the device
    hub : (num_rows,) int32 or None         place of each long row among hubs, or -1
    chunk_hub : (num_chunks,) int32 or None         the hub of each chunk of entries
    chunk_bounds : (num_chunks, 2) int64 or None    its entries
    chunk_row : (num_chunks,) int64 array or None   its row, ascending; on the host
    num_hubs : int
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    hub: torch.Tensor | None = None
    chunk_hub: torch.Tensor | None = None
    chunk_bounds: torch.Tensor | None = None
    chunk_row: np.ndarray | None = None
    num_hubs: int = 0

    @classmethod
    def of(cls, indptr: np.ndarray, indices: np.ndarray, device: torch.device) -> Entries:
        """Copy a CSR to the device, with its hubs.

        Raises
        ------
        KernelError      a row of so many entries that its sum could overflow
        """
        counts = np.diff(indptr)
        if counts.max(initial=0) * LARGEST_ENTRY > LARGEST_SUM:
            raise KernelError(f"a row has {counts.max()} entries; expected at most {LARGEST_SUM // LARGEST_ENTRY}")
        bounds, hubs = hub_chunks(indptr)
        arrays = [torch.from_numpy(np.ascontiguousarray(one)).to(device) for one in (indptr, indices)]
        if not len(hubs):
            return cls(*arrays)
        hub = np.full(len(counts), -1, np.int32)
        hub[hubs] = np.arange(len(hubs))
        chunk_row = np.searchsorted(indptr, bounds[:, 0], "right") - 1
        more = [torch.from_numpy(one).to(device) for one in (hub, hub[chunk_row], bounds)]
        return cls(*arrays, *more, chunk_row, len(hubs))

    def chunks(self, first: int, stop: int) -> slice:
        """Return the chunks of rows first .. stop - 1."""
        return slice(*np.searchsorted(self.chunk_row, (first, stop)).tolist())


@dataclass(frozen=True)
class SlotTiles:
    """Rows that each row sums, as one list of tiles over slots: a batch begins at a slot whose number is a multiple of
    128, so no tile has arcs of two.

    Attributes
    ----------
    slot_row : (num_slots,) int32        the row that a slot has, or -1
    begin : (num_slots / 8 + 1,) int64, column : (num_tiles,) int32, words : (num_tiles, 8, 4) int32
                                         see `hpcgnn.ops.tiles.TileList`; on the device
    """

    slot_row: torch.Tensor
    begin: torch.Tensor
    column: torch.Tensor
    words: torch.Tensor

    @property
    def num_slots(self) -> int:
        return len(self.slot_row)


@dataclass(frozen=True)
class DeviceNodes:
    """Describes rows: (num_rows,) int32 in-degrees in the whole graph and numbers of summed entries, and for each layer
    the (num_rows,) float32 factor of its reduction or None.
    """

    degree: torch.Tensor
    count: torch.Tensor
    factors: list[torch.Tensor | None]


def words_a_plane(length: int) -> int:
    """Count the 32-bit words of so many bits."""
    return -(-length // WORD_BITS)


def hub_chunks(indptr: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (first, end) of chunks of the entries of long rows, (num_chunks, 2) int64, and these rows."""
    counts = np.diff(indptr)
    hubs = np.flatnonzero(counts > HUB_ENTRIES)
    bounds = [np.stack([starts, np.minimum(starts + HUB_ENTRIES, indptr[row + 1])], axis=1)
              for row in hubs for starts in [np.arange(indptr[row], indptr[row + 1], HUB_ENTRIES)]]
    return (np.concatenate(bounds) if bounds else np.empty((0, 2), np.int64)), hubs


def slots_of(row_begin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first slot of each batch and their number, (num_batches + 1,) int64, and slot_row of `SlotTiles`."""
    counts = np.diff(row_begin)
    first = np.concatenate([[0], np.cumsum(-(-counts // TILE_COLUMNS) * TILE_COLUMNS)]).astype(np.int64)
    slot_row = np.full(first[-1], -1, np.int32)
    rows = np.arange(row_begin[-1] - row_begin[0], dtype=np.int32)
    slot_row[rows + np.repeat(first[:-1] - (row_begin[:-1] - row_begin[0]), counts)] = rows
    return first, slot_row
