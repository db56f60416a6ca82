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
    """

    bit_plan: BitPlan
    is_asynchronous: bool = False
    is_traced: bool = False
