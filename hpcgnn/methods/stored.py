"""Methods that send rows unquantized: all (Vanilla), a sample (BNS), those that moved (Sancus), or late (PipeGCN)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcgnn.methods.choosing import Pipelined
from hpcgnn.methods.method import DIFFERENCES, KEEPS_ALL_PEERS, NOTHING_TO_PREDICT, SENDS_SOME, Method, MethodContext
from hpcgnn.settings import Clash, setting

if TYPE_CHECKING:
    from hpcgnn.exchange.kinds import ExchangeKind
    from hpcgnn.methods.policies import WidthPolicy

KEPT_TWICE = Clash("predict", DIFFERENCES, "with smoothing, both keep the rows that arrive, in different ways; "
                   "choose one")


@dataclass(frozen=True)
class StoredRows(Method):
    """Sends rows in their storage type."""

    def width_policy(self, context: MethodContext) -> WidthPolicy:
        from hpcgnn.methods.policies import FixedWidths

        return FixedWidths(context.storage_bits)


@dataclass(frozen=True)
class Vanilla(StoredRows):
    """Send rows in their storage type, and wait for them."""

    name = "vanilla"
    may_leave_out = True

    def fixed_bits(self, storage_bits: int) -> int:
        return storage_bits


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


@dataclass(frozen=True)
class Sancus(StoredRows):
    """Send rows unquantized, but only from ranks with rows that have moved or grown too old."""

    name = "sancus"
    clashes = (NOTHING_TO_PREDICT, KEEPS_ALL_PEERS, SENDS_SOME)
    staleness: int = setting(4, "Largest age of a halo row, in epochs.", low=1, high=1000, flag="none")
    skip_change: float = setting(0.05, "Relative change of its rows below which a rank does not send them.", low=0.0,
                                 flag="none")

    def exchange(self) -> ExchangeKind:
        from hpcgnn.exchange.kinds import Skipped

        return Skipped(self.skip_change, self.staleness)


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
