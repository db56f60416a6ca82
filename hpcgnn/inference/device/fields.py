"""FieldExchange: rows of packed codes of a device to the ranks that need them, by pinned memory."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from hpcgnn.inference.code_exchange import CodeExchange
from hpcgnn.ops.streams import streams_of


class FieldExchange:
    """Exchanges of one rank's rows, one at a time, as the kernels have them.

    Parameters
    ----------
    exchange : CodeExchange      whose plan, communicator and counters these are
    num_inner : int
    device : torch.device
    """

    def __init__(self, exchange: CodeExchange, num_inner: int, device: torch.device):
        self._exchange, self._num_inner, self._streams = exchange, num_inner, streams_of(device)
        lists = [rows.index for rows in exchange.boundary]
        boundary = np.concatenate([np.empty(0, np.int32), *lists]).astype(np.int64)
        self._boundary = torch.from_numpy(boundary).to(device)

    def start(self, fields: torch.Tensor, dim: int) -> FieldArrival:
        """Collective: bring the boundary rows to pinned memory, behind all that the device has to do for them.

        Parameters
        ----------
        fields : (num_inner + num_halo, field_words) int32      whose halo rows are written when the exchange finishes
        dim : int                                               codes of a row
        """
        streams, row_bytes = self._streams, 4 * fields.shape[1]
        send = streams.pinned(len(self._boundary) * row_bytes)
        receive = streams.pinned(self._exchange.num_halo * row_bytes)
        # Halo rows are written behind this too, when all that reads what they were has been computed.
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
            if len(rows):      # those of one peer are neighbors
                place = fields[first + int(rows.index[0]):first + int(rows.index[-1]) + 1]
                self._streams.message.copy(place.view(torch.uint8).flatten(), arrival.receive[begin:begin + num_bytes])
            begin += num_bytes
        self._streams.message.join()


class FieldArrival:
    """Rows on their way, and the pinned memory that they travel by."""

    def __init__(self, exchange: FieldExchange, fields: torch.Tensor, dim: int, send: torch.Tensor,
                 receive: torch.Tensor, sent):
        self._exchange, self.fields, self.dim = exchange, fields, dim
        self.send, self.receive, self.sent = send, receive, sent

    def finish(self) -> None:
        """Collective: have the halo rows among the fields before anything that the device computes from here on."""
        self._exchange.finish(self)


def _cut(memory: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    bounds = np.cumsum([0, *sizes])
    return [memory[first:end] for first, end in pairwise(bounds)]
