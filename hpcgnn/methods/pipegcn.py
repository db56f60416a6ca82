"""PipeGCN: every epoch computes with the halo rows of the epoch before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcgnn.methods.choosing import Pipelined
from hpcgnn.methods.method import DIFFERENCES, StoredRows
from hpcgnn.settings import Clash, setting

if TYPE_CHECKING:
    from hpcgnn.exchange.kinds import ExchangeKind

KEPT_TWICE = Clash("predict", DIFFERENCES, "with smoothing, both keep the rows that arrive, in different ways; "
                   "choose one")


@dataclass(frozen=True)
class PipeGCN(Pipelined, StoredRows):
    """Send rows unquantized, and compute with the rows of the epoch before."""

    name = "pipegcn"
    asynchrony = "always"
    smoothing: float = setting(0.0, "Weight of the past in the running mean of stale rows and gradients; 0 takes the "
                               "newest.", low=0.0, high=0.999, flag="none")

    def check(self, others: Mapping[str, Any]) -> None:
        super().check(others)
        if self.smoothing > 0:
            KEPT_TWICE.check(others, f"method {self.name}")

    def exchange(self) -> ExchangeKind:
        from hpcgnn.exchange.kinds import Kept

        return Kept(smoothing=self.smoothing)
