"""Fresh rows: every exchange brings the rows of its own epoch."""

from __future__ import annotations

from hpcgnn.exchange.arrival import Arrival
from hpcgnn.exchange.kinds.kept import Kept
from hpcgnn.exchange.kinds.kind import ExchangeKind
from hpcgnn.exchange.sender import Outgoing, Sender
from hpcgnn.graph.hop import ExchangeSite


class Fresh(ExchangeKind):
    """Send all rows, and read those that arrive; nothing is kept."""

    def start(self, sender: Sender, outgoing: Outgoing, site: ExchangeSite) -> Arrival:
        """Collective: see `ExchangeKind`."""
        return sender.send(outgoing)

    def predicting(self) -> Kept:
        """See `ExchangeKind`."""
        return Kept(is_pipelined=False, predicts=True)
