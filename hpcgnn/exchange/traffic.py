"""Traffic: what exchanges cost one rank, counted where it is spent."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from hpcgnn.exchange.codec import Messages
from hpcgnn.ops.quantization import Buffer
from hpcgnn.widths import BIT_WIDTHS


def _no_rows() -> np.ndarray:
    return np.zeros(len(BIT_WIDTHS), np.int64)


@dataclass
class Traffic:
    """Count what this rank handed to MPI, and the seconds that it took, since the last `take`.

    Attributes
    ----------
    payload_bytes, parameter_bytes, num_values : int
    exchange_seconds : float         in MPI's calls
    blocked_seconds : float          of those, waiting for messages
    travel_seconds : float           from posting messages to their arrival noticed, whatever was computed meanwhile
    quantize_seconds : float         encoding and decoding
    staleness : int                  epochs that the oldest row read was old
    width_rows : (len(BIT_WIDTHS),) int64        rows sent at each width
    sent_by_peer : dict              rank -> bytes sent to it
    """

    payload_bytes: int = 0
    parameter_bytes: int = 0
    num_values: int = 0
    exchange_seconds: float = 0.0
    blocked_seconds: float = 0.0
    travel_seconds: float = 0.0
    quantize_seconds: float = 0.0
    staleness: int = 0
    width_rows: np.ndarray = field(default_factory=_no_rows)
    sent_by_peer: dict[int, int] = field(default_factory=dict)

    def count(self, messages: Messages, send: list[Buffer]) -> None:
        """Count the messages of one exchange, and the bytes of each rank's buffer."""
        self.parameter_bytes += messages.parameter_bytes
        self.payload_bytes += messages.payload_bytes
        self.num_values += messages.num_values
        self.width_rows += messages.width_rows
        for peer, buffer in enumerate(send):
            if len(buffer):
                self.sent_by_peer[peer] = self.sent_by_peer.get(peer, 0) + len(buffer)

    def take(self) -> Traffic:
        """Return the counts so far and start again from zero."""
        taken = replace(self)
        self.__init__()
        return taken
