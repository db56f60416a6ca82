"""RowChecks: what a device noted of the rows that one exchange sends, read without a wait of its own."""

from __future__ import annotations

import torch

from hpcgnn.exchange.plan import RowList
from hpcgnn.ops.counter import CounterKey
from hpcgnn.ops.quantization import refuse_bad_row
from hpcgnn.ops.streams import Streams


class RowChecks:
    """Notes that cross to the host behind the kernels that write them. To be made among those, on the message stream.

    Parameters
    ----------
    found : (num_messages,) int32 tensor on the device, or None      see `start_quantizing`; None has nothing to read
    rows : tuple of RowList                                          of the messages
    key : CounterKey
    streams : Streams
    """

    def __init__(self, found: torch.Tensor | None, rows: tuple[RowList, ...], key: CounterKey, streams: Streams):
        self._rows, self._key, self._notes = rows, key, None
        if found is not None:
            self._notes = streams.pinned(found.nbytes)
            streams.message.copy(self._notes, found.view(torch.uint8))

    def read(self) -> None:
        """Look at the notes, once: the message stream has been waited for since they were queued.

        Raises
        ------
        KernelError      a row can't be quantized
        """
        notes, self._notes = self._notes, None
        if notes is not None:
            for found, rows in zip(notes.view(torch.int32).tolist(), self._rows, strict=True):
                refuse_bad_row(found, rows.node_id, self._key)
