"""Fresh rows: every exchange brings the rows of its own epoch."""

from __future__ import annotations

from hpcgnn.exchange.arrival import Arrival
from hpcgnn.exchange.kinds.kind import ExchangeKind
from hpcgnn.exchange.sender import Outgoing, Sender
from hpcgnn.graph.hop import ExchangeSite


class Fresh(ExchangeKind):
    """Send all rows and read what arrives."""

    def start(self, sender: Sender, outgoing: Outgoing, site: ExchangeSite) -> Arrival:
        return sender.send(outgoing)

    def in_steps(self) -> Fresh:
        return self

    def predicting(self, picks: bool = False) -> ExchangeKind:
        from hpcgnn.exchange.kinds.kept import Kept

        return Kept(is_pipelined=False, predicts=True, picks=picks)
