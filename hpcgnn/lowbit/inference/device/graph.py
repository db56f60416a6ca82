"""DeviceGraphPass: an integer model on one rank's rows on a device, with the bits of `hpcgnn.lowbit.inference.forward`.

Rows, edges and weights stay on the device. Packed codes of boundary rows cross to pinned memory and on to other ranks
(`FieldExchange`), while the device sums central rows.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from hpcgnn.graph.reductions import degree_factor
from hpcgnn.lowbit.inference.code_exchange import CodeExchange
from hpcgnn.lowbit.inference.coded_rows import CodedRows
from hpcgnn.lowbit.inference.graph_pass import layers_of
from hpcgnn.lowbit.inference.neighborhood import REDUCTIONS
from hpcgnn.lowbit.integer_model import IntegerModel
from hpcgnn.ops.bit_gemm import pack_codes
from hpcgnn.ops.device_layers import DeviceLayer, DeviceLayers, DeviceNodes, Entries, RowPlanes
from hpcgnn.ops.streams import streams_of
from hpcgnn.partition.partition import Partition


class DeviceGraphPass:
    """Passes of one model over the same rows; their bits, edges and weights stay on the device.

    Raises KernelError for a layer, or a row of edges, that is too long for the kernels.
    """

    def __init__(self, model: IntegerModel, part: Partition, exchange: CodeExchange, rows: CodedRows,
                 device: torch.device):
        self._part, self._num_layers, self._device = part, len(model.convolutions), device
        in_degree = part.in_degree[:part.num_inner]
        factors = [degree_factor(in_degree, REDUCTIONS[one.kind]) for one in model.convolutions]
        nodes = DeviceNodes(_copied(in_degree.astype(np.int32), device),
                            _copied(np.diff(part.indptr).astype(np.int32), device), copied_once(factors, device))
        layers = [DeviceLayer(one, device) for one in layers_of(model, factors)]
        planes = planes_of(rows).to(device)
        self._layers = DeviceLayers(layers, RowPlanes.of_lines(planes, part.num_inner, rows.codes.shape[1],
                                                               rows.codes.dtype == np.int8),
                                    nodes, Entries.of(part.indptr, part.indices, device), exchange.num_halo)
        self._exchange = FieldExchange(exchange, part.num_inner, device) if part.num_parts > 1 else None

    def forward(self) -> tuple[np.ndarray, np.ndarray]:
        """Collective: return what `hpcgnn.lowbit.inference.forward.forward` returns; KernelError for NaN."""
        self.queue()
        results = host_rows(self._part.num_inner, self._layers.result_dims, self._device)
        self._layers.copy_results(*results)
        return tuple(rows.numpy() for rows in results)

    def queue(self) -> None:
        """Collective: start a pass on the device; the host waits only for messages of other ranks."""
        part, layers = self._part, self._layers
        if self._exchange is None:
            layers.queue()
            return
        layers.begin()
        for number in range(self._num_layers):
            arrival = self._exchange.start(layers.fields[number], layers.dims[number])
            layers.convolve(number, 0, part.num_central)
            arrival.finish()
            layers.convolve(number, part.num_central, part.num_inner)
            layers.end(number)

    def result(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._layers.result()

    @property
    def row_bytes(self) -> int:
        return self._layers.row_bytes


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

    def start(self, fields: torch.Tensor, dim: int) -> FieldArrival:
        """Collective: copy the boundary rows, of `dim` codes, to pinned memory, after the device has computed them.

        fields, (num_inner + num_halo, field_words) int32, get their halo rows when the exchange finishes.
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
        return FieldArrival(self, fields, dim, send, receive, streams.message.mark())

    def finish(self, arrival: FieldArrival) -> None:
        """Collective: see `FieldArrival.finish`."""
        fields = arrival.fields
        arrival.sent.synchronize()
        sizes = [[len(rows) * 4 * fields.shape[1] for rows in lists]
                 for lists in (self._exchange.boundary, self._exchange.halo)]
        messages = [_cut(memory.numpy(), of_peers)
                    for memory, of_peers in zip((arrival.send, arrival.receive), sizes, strict=True)]
        self._exchange.transfer(*messages, arrival.dim).wait()
        first, begin = self._num_inner, 0
        for rows, num_bytes in zip(self._exchange.halo, sizes[1], strict=True):
            if len(rows):      # a peer's rows are contiguous
                place = fields[first + int(rows.index[0]):first + int(rows.index[-1]) + 1]
                self._streams.message.copy(place.view(torch.uint8).flatten(), arrival.receive[begin:begin + num_bytes])
            begin += num_bytes
        self._streams.message.join()


class FieldArrival:
    def __init__(self, exchange: FieldExchange, fields: torch.Tensor, dim: int, send: torch.Tensor,
                 receive: torch.Tensor, sent):
        self._exchange, self.fields, self.dim = exchange, fields, dim
        self.send, self.receive, self.sent = send, receive, sent

    def finish(self) -> None:
        """Collective: put the halo rows in place before anything that the device computes from here on."""
        self._exchange.finish(self)


def _cut(memory: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    bounds = np.cumsum([0, *sizes])
    return [memory[first:end] for first, end in pairwise(bounds)]
