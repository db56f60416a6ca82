"""SANCUS: a rank sends its rows only when they have moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcgnn.methods.method import KEEPS_ALL_PEERS, NOTHING_TO_PREDICT, SENDS_SOME, StoredRows
from hpcgnn.settings import setting

if TYPE_CHECKING:
    from hpcgnn.exchange.kinds import ExchangeKind


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
