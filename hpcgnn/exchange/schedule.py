"""EpochPlan: what rank 0 decides for the exchanges of one epoch."""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.exchange.bits import BitPlan


@dataclass(frozen=True)
class EpochPlan:
    """Hold what rank 0 decided for one epoch.

    Attributes
    ----------
    bit_plan : BitPlan
    is_asynchronous : bool       read the rows of the epoch before
    is_traced : bool             keep the range of every row that is sent
    fresh : frozenset            (layer, purpose) of exchanges that wait for their rows even so
    is_measured : bool           find out how far the rows that are sent have moved since the epochs before
    num_steps : int              optimizer steps; each computes some of the rows
    by_row : bool                these are dealt out one by one, not in clusters
    is_turn : bool               gradients are larger than before, so moments of the optimizer begin anew
    """

    bit_plan: BitPlan
    is_asynchronous: bool = False
    is_traced: bool = False
    fresh: frozenset[tuple[int, int]] = frozenset()
    is_measured: bool = False
    num_steps: int = 1
    by_row: bool = False
    is_turn: bool = False

    @property
    def in_clusters(self) -> bool:
        """Tell whether the epoch has several steps of whole clusters."""
        return self.num_steps > 1 and not self.by_row

    def reads_stale(self, layer: int, purpose: int) -> bool:
        """Tell whether an exchange reads the rows of the epoch before."""
        return self.is_asynchronous and (layer, purpose) not in self.fresh
