"""Trace: the ranges of the rows that an exchange sent, read back from its messages.

What they are for is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.exchange.codec import Messages
from hpcgnn.exchange.kept import State, joined, split
from hpcgnn.ops.quantization import parameters_of


@dataclass(frozen=True)
class Trace:
    """Ranges of the rows that one exchange of an epoch sent.

    Attributes
    ----------
    dim : int
    position : tuple of (n,) int32, one a rank      see `RowList`
    row_range : tuple of (n,) float32               largest minus smallest value of each row, as the message rounds it
    """

    dim: int
    position: tuple[np.ndarray, ...]
    row_range: tuple[np.ndarray, ...]

    @classmethod
    def read(cls, messages: Messages, send: list[np.ndarray]) -> Trace:
        """Read the ranges of rows back from their messages (one uint8 array a rank), or from the parameters alone."""
        ranges = []
        for layout, buffer in zip(messages.send_layouts, send, strict=True):
            _, step = parameters_of(buffer, layout)
            ranges.append(step * (2.0 ** np.minimum(layout.bit_width, 8) - 1).astype(np.float32))
        return cls(messages.dim, tuple(rows.position for rows in messages.send_rows), tuple(ranges))

    def state(self) -> State:
        """Return the ranges as arrays, from which `restored` rebuilds them."""
        return {"dim": self.dim, "position": joined(self.position), "row_range": joined(self.row_range)}

    @classmethod
    def restored(cls, state: State) -> Trace:
        """Rebuild the trace from what `state` returned."""
        return cls(int(state["dim"]), tuple(split(state["position"])), tuple(split(state["row_range"])))

    def joined(self, other: Trace) -> Trace:
        """Join both traces: for each rank that of `other` where it sent rows there, else this one's."""
        last = [other if len(position) else self for position in other.position]
        return Trace(self.dim, tuple(trace.position[rank] for rank, trace in enumerate(last)),
                     tuple(trace.row_range[rank] for rank, trace in enumerate(last)))
