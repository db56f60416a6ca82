"""Flight: the messages of one exchange of one epoch, on their way or arrived, and what is saved of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from hpcgnn.exchange.codec import Messages
from hpcgnn.exchange.kept import State, device_of, fill, joined, on_host, split
from hpcgnn.exchange.plan import NO_ROWS, RowList
from hpcgnn.exchange.ring import MessageArena
from hpcgnn.ops.quantization import Buffer, MessageLayout


class Travel(Protocol):
    """Messages on their way; see `hpcgnn.exchange.ring.Transfer`."""

    def poll(self) -> bool:
        """Tell whether all have arrived."""

    def wait(self) -> None:
        """Return when all have arrived."""


class Arrived:
    """Messages that have arrived before the program started; see `Travel`."""

    def poll(self) -> bool:
        """See `Travel`."""
        return True

    def wait(self) -> None:
        """See `Travel`."""


@dataclass
class Flight:
    """The messages of one exchange of one epoch.

    Attributes
    ----------
    messages : Messages
    receive : list of uint8 buffers, one a rank; received : the buffer that they lie in
    transfer : Travel
    epoch : int                  whose rows they are
    is_applied : bool            a table of received rows holds them
    """

    messages: Messages
    receive: list[Buffer]
    received: Buffer
    transfer: Travel
    epoch: int
    is_applied: bool = False

    @property
    def device(self) -> torch.device:
        """Return the device that the messages lie on."""
        return device_of(self.received)

    def state(self) -> State:
        """Return what arrived and its layout, without the bytes where a table holds them. All must have arrived."""
        messages = self.messages
        arrived = [buffer[:0] if self.is_applied else buffer for buffer in self.receive]
        return {
            "epoch": self.epoch, "is_applied": self.is_applied, "dim": messages.dim, "num_halo": messages.num_halo,
            "position": joined([rows.position for rows in messages.receive_rows]),
            "bit_width": joined([layout.bit_width for layout in messages.receive_layouts]),
            "bytes": joined([on_host(buffer) for buffer in arrived]),
        }

    @classmethod
    def restored(cls, state: State, incoming: tuple[RowList, ...], arena: MessageArena) -> Flight:
        """Rebuild the flight from what `state` returned, its bytes in an arena.

        Parameters
        ----------
        incoming : tuple of RowList, one a rank      all rows that can come, of which the messages held some
        """
        dim = int(state["dim"])
        receive_rows = tuple(rows.at(position) for rows, position in zip(incoming, split(state["position"]),
                                                                         strict=True))
        layouts = tuple(MessageLayout.build(widths, dim) for widths in split(state["bit_width"]))
        nothing = MessageLayout.build(np.empty(0, np.uint8), dim)
        messages = Messages((NO_ROWS,) * len(incoming), receive_rows, (nothing,) * len(incoming), layouts,
                            int(state["num_halo"]), dim)
        _, receive = arena.slices(messages.send_sizes, messages.receive_sizes)
        is_applied = bool(state["is_applied"])
        if not is_applied:
            for buffer, values in zip(receive, split(state["bytes"]), strict=True):
                fill(buffer, values)
        return cls(messages, receive, arena.received, Arrived(), int(state["epoch"]), is_applied)
