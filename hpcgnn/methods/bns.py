"""BNS-GCN: a random sample of the boundary in every epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcgnn.methods.method import NOTHING_TO_PREDICT, SENDS_SOME, StoredRows
from hpcgnn.settings import Clash, setting

if TYPE_CHECKING:
    from hpcgnn.exchange.kinds import ExchangeKind


@dataclass(frozen=True)
class BNS(StoredRows):
    """Send a share of the boundary rows in every epoch, unquantized, and wait for them."""

    name = "bns"
    may_leave_out = True
    clashes = (NOTHING_TO_PREDICT, SENDS_SOME, Clash("model", "sage-max", "a maximum over a sample of the neighbors "
                                                     "is biased, and no scaling corrects it; use sage"),
               Clash("task", "links", "rows that it leaves out are ends of links, too; use another method"))
    share: float = setting(0.1, "Share of the boundary rows that an epoch keeps.", low=0.01, high=1.0,
                           flag="none")

    def exchange(self) -> ExchangeKind:
        from hpcgnn.exchange.kinds import Fresh, Sampled

        return Sampled(self.share) if self.share < 1.0 else Fresh()
