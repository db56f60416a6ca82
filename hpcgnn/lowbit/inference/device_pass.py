"""DevicePass: an integer model on a device, over the rows of one rank's graph or over packed batches.

Rows, edges and weights stay on the device. Results equal those of `hpcgnn.lowbit.inference.host_pass` to the bit.
Packed codes of boundary rows are copied to pinned memory and sent to other ranks (`FieldExchange`), while the device
sums central rows.

`CopiedBatches` needs less device memory. A group is as many batches as fit a budget of rows. It is one buffer in pinned
memory, is copied to the device at once while the group before is computed, and takes one launch per step of a layer
(QGTC, Section 4.6).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from hpcgnn.errors import ConfigError
from hpcgnn.graph.reductions import degree_factor
from hpcgnn.lowbit.inference.batches import PackedBatches, Sections, runs_of_batches, section_of, sections
from hpcgnn.lowbit.inference.code_exchange import CodeExchange
from hpcgnn.lowbit.inference.coded_rows import CodedRows
from hpcgnn.lowbit.inference.host_pass import REDUCTIONS, AggregationCounts, Answer, is_summed, layers_of
from hpcgnn.lowbit.integer_model import IntegerModel
from hpcgnn.ops.bit_gemm import pack_codes
from hpcgnn.ops.device_layers import (
    DeviceLayer,
    DeviceLayers,
    DeviceNodes,
    Entries,
    RowPlanes,
    SlotTiles,
    result_dims,
    slots_of,
)
from hpcgnn.ops.streams import streams_of
from hpcgnn.ops.tiles import TILE_COLUMNS, TILE_ROWS
from hpcgnn.partition.partition import Partition

GROUP_ROWS = 1 << 17      # rows per group: its layers take some hundreds of MB
KEPT_GROUPS = 2
LEAST_ENTRIES = 3         # per tile and plane; from this density on, sums by tiles are faster


class DevicePass:
    """Passes over groups of rows; the rows of a graph are one group. Groups and results stay on the device."""

    def __init__(self, groups: list[DeviceLayers], exchange: FieldExchange | None = None, num_central: int = 0):
        self._groups, self._exchange, self._num_central = groups, exchange, num_central

    @classmethod
    def over_graph(cls, model: IntegerModel, part: Partition, exchange: CodeExchange, rows: CodedRows,
                   device: torch.device) -> DevicePass:
        """Raises KernelError for a layer, or a row of edges, that is too long for the kernels."""
        in_degree = part.in_degree[:part.num_inner]
        factors = [degree_factor(in_degree, REDUCTIONS[one.kind]) for one in model.convolutions]
        nodes = DeviceNodes(_copied(in_degree.astype(np.int32), device),
                            _copied(np.diff(part.indptr).astype(np.int32), device), copied_once(factors, device))
        layers = [DeviceLayer(one, device) for one in layers_of(model, factors)]
        planes = RowPlanes.of_lines(planes_of(rows).to(device), part.num_inner, rows.codes.shape[1],
                                    rows.codes.dtype == np.int8)
        group = DeviceLayers(layers, planes, nodes, Entries.of(part.indptr, part.indices, device), exchange.num_halo)
        return cls([group], FieldExchange(exchange, part.num_inner, device) if part.num_parts > 1 else None,
                   part.num_central)

    def forward(self) -> Answer:
        """Collective if made by `over_graph`: logits and embeddings; KernelError for NaN."""
        self.queue()
        bounds = np.cumsum([0, *(group.num_rows for group in self._groups)]).tolist()
        results = host_rows(bounds[-1], self._groups[0].result_dims, self._groups[0].device)
        for group, (first, stop) in zip(self._groups, pairwise(bounds), strict=True):
            group.copy_results(*(rows[first:stop] for rows in results))
        return tuple(rows.numpy() for rows in results)

    def queue(self) -> None:
        """Collective if made by `over_graph`: start a pass on the device; the host waits only for messages."""
        if self._exchange is None:
            for group in self._groups:
                group.queue()
            return
        [layers] = self._groups
        layers.begin()
        for number, (fields, dim) in enumerate(zip(layers.fields, layers.dims, strict=True)):
            finish = self._exchange.start(fields, dim)
            layers.convolve(number, 0, self._num_central)
            finish()
            layers.convolve(number, self._num_central, layers.num_rows)
            layers.end(number)

    def result(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [group.result() for group in self._groups]

    @property
    def row_bytes(self) -> int:
        return sum(group.row_bytes for group in self._groups)


def planes_of(rows: CodedRows) -> torch.Tensor:
    """Return rows as planes of bits, (bit_width, padded rows, words) int32; signed codes get half the range added."""
    offset = 1 << (rows.bit_width - 1) if rows.codes.dtype == np.int8 else 0
    codes = (rows.codes.view(np.uint8) + np.uint8(offset)) & np.uint8((1 << rows.bit_width) - 1)
    return pack_codes(torch.from_numpy(codes), rows.bit_width, False).words


def host_rows(num_rows: int, dims: tuple[int, ...], device: torch.device) -> tuple[torch.Tensor, ...]:
    memory = (streams_of(device).pinned(max(4 * num_rows * dim, 4)) for dim in dims)
    return tuple(one[:4 * num_rows * dim].view(torch.float32).view(num_rows, dim)
                 for one, dim in zip(memory, dims, strict=True))


def copied_once(arrays: list[np.ndarray | None], device: torch.device) -> list[torch.Tensor | None]:
    copies: list[tuple[np.ndarray, torch.Tensor]] = []
    found: list[torch.Tensor | None] = []
    for array in arrays:
        copy = None if array is None else next((there for one, there in copies if np.array_equal(one, array)), None)
        if array is not None and copy is None:
            copy = _copied(array, device)
            copies.append((array, copy))
        found.append(copy)
    return found


def _copied(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


class FieldExchange:
    """Exchanges of packed codes of one rank's rows, one at a time; `exchange` has plan, communicator and counters."""

    def __init__(self, exchange: CodeExchange, num_inner: int, device: torch.device):
        self._exchange, self._num_inner, self._streams = exchange, num_inner, streams_of(device)
        lists = [rows.index for rows in exchange.boundary]
        boundary = np.concatenate([np.empty(0, np.int32), *lists]).astype(np.int64)
        self._boundary = torch.from_numpy(boundary).to(device)

    def start(self, fields: torch.Tensor, dim: int) -> Callable[[], None]:
        """Collective: copy the boundary rows, of `dim` codes, to pinned memory, after the device has computed them.

        fields : (num_inner + num_halo, field_words) int32

        Returns a collective function that puts the halo rows in place before anything that the device computes from
        then on.
        """
        streams, row_bytes = self._streams, 4 * fields.shape[1]
        send = streams.pinned(len(self._boundary) * row_bytes)
        receive = streams.pinned(self._exchange.num_halo * row_bytes)
        # Also orders the later write of halo rows after all kernels that read their old values.
        with streams.message.after_computing():
            gathered = fields.index_select(0, self._boundary)
        if send.numel():
            streams.message.copy(send, gathered.view(torch.uint8).flatten())
            streams.message.keep(gathered)
        return partial(self._finish, fields, dim, send, receive, streams.message.mark())

    def _finish(self, fields: torch.Tensor, dim: int, send: torch.Tensor, receive: torch.Tensor, sent: Any) -> None:
        sent.synchronize()
        row_bytes = 4 * fields.shape[1]
        of_peers, from_peers = (
            [memory.numpy()[first:end] for first, end in pairwise(np.cumsum([0, *map(len, lists)]) * row_bytes)]
            for memory, lists in ((send, self._exchange.boundary), (receive, self._exchange.halo)))
        self._exchange.transfer(of_peers, from_peers, dim).wait()
        first, begin = self._num_inner, 0
        for rows in self._exchange.halo:
            num_bytes = len(rows) * row_bytes
            if len(rows):      # a peer's rows are contiguous
                place = fields[first + int(rows.index[0]):first + int(rows.index[-1]) + 1]
                self._streams.message.copy(place.view(torch.uint8).flatten(), receive[begin:begin + num_bytes])
            begin += num_bytes
        self._streams.message.join()


@dataclass(frozen=True)
class GroupBuffer:
    memory: torch.Tensor     # (num_bytes,) uint8 tensor, pinned
    places: Sections
    # the rows of the packed batches in this group
    first: int
    stop: int

    @classmethod
    def pack(cls, arrays: dict[str, np.ndarray], first: int, stop: int, device: torch.device) -> GroupBuffer:
        places, num_bytes = sections({name: (array.dtype.type, array.shape) for name, array in arrays.items()}, 0)
        memory = streams_of(device).pinned(max(num_bytes, 1))
        for name, array in arrays.items():
            section_of(memory.numpy(), *places[name])[...] = array
        return cls(memory, places, first, stop)

    def views(self, memory: torch.Tensor) -> dict[str, torch.Tensor]:
        found = {}
        for name, (start, kind, shape) in self.places.items():
            dtype = torch.from_numpy(np.empty(0, kind)).dtype
            found[name] = memory[start:start + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
        return found


def tiles_are_faster(num_entries: int, num_tiles: int, num_planes: int) -> bool:
    # A tile is multiplied in every plane, however few edges it has; a packed code is read once. On an H200, with 8.8
    # edges per tile, tiles took 0.7 to 1.04 of the time of gathering at 2 planes, 1.02 to 1.2 at 4 and 1.25 to 1.35
    # at 8 (data/benchmarks/gpu.md).
    return num_entries >= LEAST_ENTRIES * num_tiles * num_planes


class CopiedBatches:
    """Passes of one model over the same batches; `copies` and `copied_bytes` count copies from pinned memory so far.

    Raises ConfigError for tiles if a model attends, and KernelError for a layer, or a row of edges, that is too long
    for the kernels.
    """
    # "auto" asks `tiles_are_faster`, and gathers for attention, which weighs rows one by one.

    def __init__(self, model: IntegerModel, packed: PackedBatches, device: torch.device, aggregation: str = "auto",
                 group_rows: int = GROUP_ROWS):
        if aggregation == "tiles" and not is_summed(model):
            raise ConfigError("attention weighs neighbors one by one, which tiles of bits can't; use "
                              "aggregation=gather")
        self._packed, self._device = packed, device
        self._reductions = [REDUCTIONS[one.kind] for one in model.convolutions]
        factors = [degree_factor(packed.batches.in_degree, name) for name in self._reductions]
        self._layers = [DeviceLayer(one, device) for one in layers_of(model, factors)]
        num_planes = max(one.settings.mapped_bits for one in self._layers)
        self._takes_tiles = aggregation == "tiles" or (aggregation == "auto" and is_summed(model) and tiles_are_faster(
            len(packed.batches.indices), len(packed.tiles.column), num_planes))
        self._result_dims = result_dims(self._layers)
        self._groups = [self._group(first, end) for first, end in runs_of_batches(packed.batches.row_begin, group_rows)]
        self.counts, self.copies, self.copied_bytes = AggregationCounts(), 0, 0
        # Groups that are on the device together keep their memory, so their launches stay valid.
        self._kept: list[tuple[torch.Tensor, DeviceLayers]] = []

    @property
    def group_bytes(self) -> list[int]:
        return [one.memory.numel() for one in self._groups]

    def forward(self) -> Answer:
        self._count()
        memory = self._copy(0) if self._groups else None
        results = host_rows(self._packed.batches.num_rows, self._result_dims, self._device)
        for number, group in enumerate(self._groups):
            streams_of(self._device).message.join()
            layers = self._layers_of(number, memory)
            # Start the next group's copy before this group is computed.
            memory = self._copy(number + 1) if number + 1 < len(self._groups) else None
            layers.forward(*(rows[group.first:group.stop] for rows in results))
        return tuple(rows.numpy() for rows in results)

    def resident(self) -> DevicePass:
        return DevicePass([self._layers_over(group, group.views(group.memory.to(self._device)))
                           for group in self._groups])

    def _copy(self, number: int) -> torch.Tensor:
        streams, group = streams_of(self._device), self._groups[number]
        with streams.message.after_computing():
            memory = self._kept[number][0] if number < len(self._kept) else torch.empty(
                group.memory.numel(), dtype=torch.uint8, device=self._device)
        streams.message.copy(memory, group.memory)
        streams.message.keep(memory)
        self.copies += 1
        self.copied_bytes += memory.numel()
        return memory

    def _group(self, first_batch: int, end_batch: int) -> GroupBuffer:
        packed, batches, tiles = self._packed, self._packed.batches, self._packed.tiles
        row_begin = batches.row_begin[first_batch:end_batch + 1]
        first, stop = int(row_begin[0]), int(row_begin[-1])
        count = batches.in_degree[first:stop]
        arrays = {"planes": np.ascontiguousarray(packed.features.words.numpy()[:, first:stop]),
                  "degree": packed.in_degree[first:stop].astype(np.int32), "count": count.astype(np.int32)}
        for name in dict.fromkeys(self._reductions):
            factor = degree_factor(count, name)
            if factor is not None:
                arrays[f"factor {name}"] = factor
        if self._takes_tiles:
            slots, arrays["slot_row"] = slots_of(row_begin)
            tile_rows = slice(int(tiles.tile_row_begin[first_batch]), int(tiles.tile_row_begin[end_batch]))
            bounds = tiles.begin[tile_rows.start:tile_rows.stop + 1]
            some = slice(int(bounds[0]), int(bounds[-1]))
            per_batch = np.diff(tiles.tile_row_begin[first_batch:end_batch + 1])
            moved = np.repeat(slots[:-1] // TILE_ROWS - np.cumsum([0, *per_batch[:-1]]), per_batch)
            counts = np.zeros(int(slots[-1]) // TILE_ROWS, np.int64)
            counts[np.arange(len(bounds) - 1) + moved] = np.diff(bounds)
            arrays["begin"] = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
            steps = np.repeat(np.repeat(slots[:-1] // TILE_COLUMNS, per_batch), np.diff(bounds))
            arrays["column"] = (tiles.column[some] + steps).astype(np.int32)
            arrays["words"] = tiles.words[some]
        else:
            indptr = batches.indptr[first:stop + 1]
            arrays["indptr"] = indptr - indptr[0]
            arrays["indices"] = batches.indices[indptr[0]:indptr[-1]] - np.int32(first)
        return GroupBuffer.pack(arrays, first, stop, self._device)

    def _layers_of(self, number: int, memory: torch.Tensor) -> DeviceLayers:
        if number < len(self._kept):
            return self._kept[number][1]
        group = self._groups[number]
        layers = self._layers_over(group, group.views(memory))
        if number == len(self._kept) < KEPT_GROUPS and len(self._groups) <= KEPT_GROUPS:
            self._kept.append((memory, layers))
        return layers

    def _layers_over(self, group: GroupBuffer, views: dict[str, torch.Tensor]) -> DeviceLayers:
        rows = RowPlanes.of_lines(views["planes"], group.stop - group.first, self._packed.features.shape[1],
                                  self._packed.is_signed)
        nodes = DeviceNodes(views["degree"], views["count"],
                            [views.get(f"factor {name}") for name in self._reductions])
        if self._takes_tiles:
            sums: SlotTiles | Entries = SlotTiles(views["slot_row"], views["begin"], views["column"], views["words"])
        else:
            sums = Entries(views["indptr"], views["indices"])
        return DeviceLayers(self._layers, rows, nodes, sums)

    def _count(self) -> None:
        tiles, num_layers = self._packed.tiles, len(self._layers)
        if not self._takes_tiles:
            self.counts.by_gather += num_layers * tiles.num_batches
            return
        places = int(tiles.num_places.sum())
        self.counts.by_tiles += num_layers * tiles.num_batches
        self.counts.num_places += num_layers * places
        self.counts.num_jumped += num_layers * (places - int(tiles.num_tiles.sum()))
