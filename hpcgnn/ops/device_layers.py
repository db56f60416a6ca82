"""All convolutions of an integer model on a device, from planes of bits to planes of bits.

A convolution maps rows by products of bits, sums mapped codes of neighbors, either by gathering fields of 2, 4 or 8
bits or by tiles, and quantizes the result to planes for the next one. Only the last two layers write floats. The first
pass records what it launches; later passes launch it again on the same memory. The host computes the same bits in
`hpcgnn.ops.integer_rows`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.bit_gemm import LARGEST_SUM, WORD_BITS, BitLines, pack_codes, padded
from hpcgnn.ops.dispatch import device_kernels
from hpcgnn.ops.integer_layers import LARGEST_PRODUCT, DegreeScales, IntegerLayer
from hpcgnn.ops.integer_rows import fixed_vectors, refuse
from hpcgnn.ops.tiles import TILE_COLUMNS, TILE_ROWS

HUB_ENTRIES = 512          # rows with more entries (hubs) are summed first, in chunks of this size
LARGEST_ENTRY = 255        # largest value of a field, offset included


@dataclass(frozen=True)
class RowPlanes:
    """Rows of codes as strided planes on the device.

    words : int32     word k of plane p of row i is words.flatten()[p * plane_stride + i * row_stride + k]
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
        bit_width, num_padded, line_words = words.shape
        return cls(words, num_rows, length, bit_width, num_padded * line_words, line_words, is_signed)

    @classmethod
    def empty(cls, num_rows: int, length: int, bit_width: int, is_signed: bool, device: torch.device) -> RowPlanes:
        line_words = words_a_plane(length)
        words = torch.empty(num_rows, bit_width, line_words, dtype=torch.int32, device=device)
        return cls(words, num_rows, length, bit_width, line_words, bit_width * line_words, is_signed)

    @property
    def offset(self) -> int:
        return 1 << (self.bit_width - 1) if self.is_signed else 0


@dataclass(frozen=True)
class Entries:
    """Rows that each row sums, as CSR; rows from num_rows on belong to other ranks, and the caller brings their codes.

    indptr : (num_rows + 1,) int64, indices : (num_entries,) int32      on the device
    hub : (num_rows,) int32 or None         place of each long row among hubs, or -1
    chunk_hub : (num_chunks,) int32 or None         hub of each chunk of entries
    chunk_bounds : (num_chunks, 2) int64 or None    entries of each chunk
    chunk_row : (num_chunks,) int64 array or None   row of each chunk, ascending; this one on the host
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
        """Copy a CSR to the device, with its hubs. Raises KernelError if the sum of a row could overflow."""
        counts = np.diff(indptr)
        if counts.max(initial=0) * LARGEST_ENTRY > LARGEST_SUM:
            raise KernelError(f"a row has {counts.max()} entries; expected at most {LARGEST_SUM // LARGEST_ENTRY}")
        bounds, hubs = hub_chunks(indptr)
        starts, columns = (torch.from_numpy(np.ascontiguousarray(one)).to(device) for one in (indptr, indices))
        if not len(hubs):
            return cls(starts, columns)
        # Long rows are summed first, in chunks by many warps; the finishing kernel reads these sums.
        hub = np.full(len(counts), -1, np.int32)
        hub[hubs] = np.arange(len(hubs))
        chunk_row = np.searchsorted(indptr, bounds[:, 0], "right") - 1
        more = (torch.from_numpy(one).to(device) for one in (hub, hub[chunk_row], bounds))
        hub_of_row, hub_of_chunk, chunks = more
        return cls(starts, columns, hub_of_row, hub_of_chunk, chunks, chunk_row, len(hubs))

    def chunks(self, first: int, stop: int) -> slice:
        return slice(*np.searchsorted(self.chunk_row, (first, stop)).tolist())


@dataclass(frozen=True)
class SlotTiles:
    """Rows that each row sums, as tiles over slots. Batches begin at multiples of 128, so no tile mixes two batches.

    slot_row, (num_slots,) int32, is the row in each slot, or -1; begin, column and words are as in
    `hpcgnn.ops.tiles.TileList`, over slots, on the device.
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
    degree: torch.Tensor                  # (num_rows,) int32, in-degrees in the whole graph
    count: torch.Tensor                   # (num_rows,) int32, summed entries
    factors: list[torch.Tensor | None]    # factors of the rows, per layer


def words_a_plane(length: int) -> int:
    return -(-length // WORD_BITS)


def hub_chunks(indptr: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    counts = np.diff(indptr)
    hubs = np.flatnonzero(counts > HUB_ENTRIES)
    bounds = [np.stack([starts, np.minimum(starts + HUB_ENTRIES, indptr[row + 1])], axis=1)
              for row in hubs for starts in [np.arange(indptr[row], indptr[row + 1], HUB_ENTRIES)]]
    return (np.concatenate(bounds) if bounds else np.empty((0, 2), np.int64)), hubs


def slots_of(row_begin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First slot of each batch, then the number of all slots, (num_batches + 1,) int64; and slot_row of `SlotTiles`."""
    counts = np.diff(row_begin)
    first = np.concatenate([[0], np.cumsum(-(-counts // TILE_COLUMNS) * TILE_COLUMNS)]).astype(np.int64)
    slot_row = np.full(first[-1], -1, np.int32)
    rows = np.arange(row_begin[-1] - row_begin[0], dtype=np.int32)
    slot_row[rows + np.repeat(first[:-1] - (row_begin[:-1] - row_begin[0]), counts)] = rows
    return first, slot_row


WIDEST = 4096              # most columns: their sums of eight rows fit a block's shared memory


def field_bits_of(bit_width: int) -> int:
    return 2 if bit_width <= 2 else 4 if bit_width <= 4 else 8


class WeightPlanes:
    """Weight codes (num_outputs, in_dim) int8 in two's complement, as the fewest planes that hold them."""

    def __init__(self, codes: np.ndarray, device: torch.device):
        self.num_outputs, self.in_dim = codes.shape
        # A negative code c needs as many bits as -c - 1, plus one for the sign.
        bit_width = int(np.where(codes < 0, -1 - codes.astype(np.int16), codes).max(initial=0)).bit_length() + 1
        unsigned = (codes.view(np.uint8) & np.uint8((1 << bit_width) - 1)).astype(np.uint8)
        lines = pack_codes(torch.from_numpy(np.ascontiguousarray(unsigned)), bit_width, False)
        self.lines = BitLines(lines.words.to(device), lines.num_lines, lines.length)
        self._sums = torch.from_numpy(codes.sum(axis=1, dtype=np.int32)).to(device)
        self._corrections: dict[int, torch.Tensor] = {}

    def correction(self, offset: int) -> torch.Tensor:
        """Amount that an `offset` in every code of a row adds to each output, (num_outputs,) int32."""
        if offset not in self._corrections:
            self._corrections[offset] = self._sums * offset
        return self._corrections[offset]


@dataclass(frozen=True)
class DeviceScales:
    """`DegreeScales` as tensors on the device, with the width of the largest code."""

    step: torch.Tensor
    limit: torch.Tensor
    bit_width: int
    is_signed: bool

    @classmethod
    def of(cls, scales: DegreeScales, device: torch.device) -> DeviceScales:
        bits = int(scales.limit.max()).bit_length() + scales.is_signed
        step, limit = (torch.from_numpy(one).to(device) for one in (scales.step, scales.limit))
        return cls(step, limit, bits, scales.is_signed)


class DeviceLayer:
    def __init__(self, layer: IntegerLayer, device: torch.device):
        def column(array: np.ndarray | None, num_columns: int) -> torch.Tensor | None:
            return None if array is None else torch.from_numpy(np.ascontiguousarray(array[:num_columns])).to(device)

        dim, out_dim = len(layer.map), layer.out_dim
        if max(dim, out_dim) > WIDEST or layer.in_dim * LARGEST_PRODUCT > LARGEST_SUM:
            raise KernelError(f"a device runs layers of at most {WIDEST} columns, found {layer.in_dim} to {dim} to "
                              f"{out_dim}")
        self.settings, self.dim, self.out_dim = layer, dim, out_dim
        self.map = WeightPlanes(layer.map, device)
        self.own = None if layer.own is None else WeightPlanes(layer.own, device)
        self.second = None if layer.second is None else WeightPlanes(layer.second, device)
        self.ratio, self.mapped_step, self.own_scale = (
            column(one, dim) for one in (layer.ratio, layer.mapped_step, layer.own_scale))
        self.bias = column(layer.bias, out_dim if layer.second is None else dim)
        self.second_scale, self.second_bias, self.norm_weight, self.norm_bias = (
            column(one, out_dim) for one in (layer.second_scale, layer.second_bias, layer.norm_weight, layer.norm_bias))
        self.rows = DeviceScales.of(layer.rows, device)
        self.second_rows = None if layer.second_rows is None else DeviceScales.of(layer.second_rows, device)
        self.field_bits = field_bits_of(layer.mapped_bits)
        self.field_words = -(-dim // (WORD_BITS // self.field_bits))
        self.vectors = None
        if layer.attention is not None:
            fixed = fixed_vectors(layer.attention.vectors, layer.attention.heads)
            # Copied even if the host stands for a device, so that it is aligned like torch's memory.
            self.vectors = torch.from_numpy(fixed).to(device, torch.int64, copy=True)

    @property
    def needs_fields(self) -> bool:
        """Whether rows read their own mapped codes from fields although neighbors' codes are read from planes."""
        return self.settings.adds_near


class DeviceLayers:
    """Passes of the same layers over rows of one graph, or of some batches, convolution by convolution.

    `sums` are Entries or, if no layer has attention, SlotTiles; the caller brings mapped codes for num_others rows.
    result_dims are the columns of both results. `fields`, (num_rows + num_others, field_words) int32, are the mapped
    codes of each layer after its map; every second layer uses the same memory.
    """

    def __init__(self, layers: list[DeviceLayer], rows: RowPlanes, nodes: DeviceNodes, sums: Entries | SlotTiles,
                 num_others: int = 0):
        self._layers, self._nodes, self._sums = layers, nodes, sums
        self._rows = rows
        self._num_rows, self._device = rows.num_rows, rows.words.device
        self._kernels = device_kernels("device_layers", rows.words.device)
        if isinstance(sums, SlotTiles) and (num_others or any(one.vectors is not None for one in layers)):
            raise KernelError("tiles sum neighbors of the same rows, and attention weighs them one by one")
        self._faults = torch.zeros(1, dtype=torch.int32, device=self._device)
        size = max(one.field_words for one in layers)
        # Mapped codes of two layers exist at once: the layer being summed, and the next one.
        tables = [torch.zeros((self._num_rows + num_others) * size, dtype=torch.int32, device=self._device)
                  for _ in range(min(2, len(layers)))]
        self.fields = [tables[number % 2][:(self._num_rows + num_others) * one.field_words].view(-1, one.field_words)
                       for number, one in enumerate(layers)]
        self._planes: list[RowPlanes | None] = [None] * len(layers)      # planes that the next layer reads
        self.result_dims = result_dims(layers)
        self._logits, self._hidden = (torch.empty(self._num_rows, dim, device=self._device)
                                      for dim in self.result_dims)
        self._tapes: dict[tuple[int, ...] | str, Any] = {}
        self._made = [rows.words, *tables, self._logits, self._hidden]      # memory that all passes share

    @property
    def num_rows(self) -> int:
        return self._num_rows

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def dims(self) -> list[int]:
        return [one.dim for one in self._layers]

    @property
    def row_bytes(self) -> int:
        return sum(one.nbytes for one in self._made)

    def begin(self) -> None:
        self._again((), self._begin)

    def convolve(self, number: int, first: int, stop: int) -> None:
        """Sum neighbors of the rows first .. stop - 1 and finish them; tiles take all rows at once."""
        self._again((number, first, stop), lambda: self._convolve(number, first, stop))

    def end(self, number: int) -> None:
        self._again((number,), lambda: self._end(number))

    def _again(self, key: tuple[int, ...] | str, work: Callable[[], None]) -> None:
        if key in self._tapes:
            self._tapes[key].replay()
            return
        with self._kernels.recording() as tape:
            work()
        self._tapes[key] = tape

    def _begin(self) -> None:
        self._kernels.act(self._faults.zero_)
        self._map(0)

    def _map(self, number: int) -> None:
        layer, tiles = self._layers[number], self._sums if isinstance(self._sums, SlotTiles) else None
        self._columns = None
        if tiles is not None:
            self._columns = self._kernels.empty_columns(layer, tiles)
            self._made.append(self._columns.words)
        factor = self._nodes.factors[number] if layer.settings.scales_mapped else None
        fields = self.fields[number][:self._num_rows] if tiles is None or layer.needs_fields else None
        self._kernels.map_codes(layer, self._rows, self._nodes.degree, factor, fields, tiles, self._columns,
                                self._faults)
        # Maps of the row itself are computed while these rows' planes still exist.
        self._own = None if layer.own is None else self._kernels.map_sums(self._rows, layer.own)
        self._made += [] if self._own is None else [self._own]

    def _convolve(self, number: int, first: int, stop: int) -> None:
        layer, is_last = self._layers[number], number == len(self._layers) - 1
        if first == 0:
            self._begin_layer(number)
        target = None if is_last else self._planes[number]
        values = self._logits if is_last else self._hidden if number == len(self._layers) - 2 else None
        if first == stop:
            return
        if layer.second is None:
            self._sum(number, first, stop, values=values, target=target, ends_layer=True)
        else:
            between = self._between
            self._sum(number, first, stop, values=None, target=between, ends_layer=False)
            sums = self._kernels.map_sums(between, layer.second, first, stop)
            self._made.append(sums)
            scales = None if is_last else self._layers[number + 1].rows
            self._kernels.finish_second(self._kernels.RowEnd(
                layer, self._nodes, None, sums, None, values, target, scales, not is_last, not is_last, self._faults),
                first, stop)

    def _end(self, number: int) -> None:
        if number + 1 < len(self._layers):
            self._rows = self._planes[number]
            self._map(number + 1)

    def copy_results(self, logits: torch.Tensor, hidden: torch.Tensor) -> None:
        """Copy both results to float32 host rows of `result_dims` columns; KernelError for NaN."""
        logits.copy_(self._logits, non_blocking=True)
        hidden.copy_(self._hidden, non_blocking=True)
        refuse(int(self._faults.item()))      # this waits for everything queued before

    def result(self) -> tuple[torch.Tensor, torch.Tensor]:
        refuse(int(self._faults.item()))
        return self._logits, self._hidden

    def queue(self) -> None:
        self._again("pass", self._pass)

    def forward(self, logits: torch.Tensor, hidden: torch.Tensor) -> None:
        self.queue()
        self.copy_results(logits, hidden)

    def _pass(self) -> None:
        self._begin()
        for number in range(len(self._layers)):
            self._convolve(number, 0, self._num_rows)
            self._end(number)

    def _begin_layer(self, number: int) -> None:
        layer = self._layers[number]
        if number + 1 < len(self._layers):
            scales = self._layers[number + 1].rows
            self._planes[number] = self._empty_planes(layer.out_dim, scales)
        if layer.second is not None:
            scales = layer.second_rows
            self._between = self._empty_planes(layer.dim, scales)

    def _empty_planes(self, length: int, scales: DeviceScales) -> RowPlanes:
        planes = RowPlanes.empty(self._num_rows, length, scales.bit_width, scales.is_signed, self._device)
        self._made.append(planes.words)
        return planes

    def _sum(self, number: int, first: int, stop: int, values: torch.Tensor | None, target: RowPlanes | None,
             ends_layer: bool) -> None:
        layer, is_last = self._layers[number], number == len(self._layers) - 1
        scales = layer.second_rows if not ends_layer else None if is_last else self._layers[number + 1].rows
        end = self._kernels.RowEnd(
            layer, self._nodes, self._nodes.factors[number], self.fields[number], self._own, values, target, scales,
            rectifies=not (is_last and ends_layer), norms=ends_layer and not is_last, faults=self._faults)
        if isinstance(self._sums, SlotTiles):
            self._kernels.finish_tiles(end, self._sums, self._columns)
        elif layer.vectors is not None:
            self._kernels.finish_attended(end, self._sums, first, stop)
        else:
            self._kernels.finish_neighbors(end, self._sums, first, stop)


def result_dims(layers: list[DeviceLayer]) -> tuple[int, int]:
    return layers[-1].out_dim, layers[-1].map.in_dim if len(layers) > 1 else 0


def padded_outputs(num_outputs: int) -> int:
    return padded(num_outputs, TILE_ROWS)
