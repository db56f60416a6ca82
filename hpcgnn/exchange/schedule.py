"""Say what an epoch's exchanges do: one immutable plan an epoch, and the settings that hold for a whole run."""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.exchange.bits import BitPlan


@dataclass(frozen=True)
class Execution:
    """Hold the settings by which training exchanges run; the same on all ranks.

    Attributes
    ----------
    is_pipelined : bool             some epochs compute with the halo rows of the epoch before, while theirs travel
    predicts : bool                 messages hold the difference from what the receiver has
    smoothing : float               weight of the past in a running mean of what arrives; 0 takes what arrives
    share : float                   of the boundary rows that an epoch keeps
    skip_change : float or None     relative change of its rows below which a rank does not send them
    staleness : int                 epochs that a row may be old when it is read
    rematerializes : bool           halo rows come peer by peer, and again in the backward pass where it needs them
    link_bytes_per_second : float   pace of an imitated link; 0 is as fast as messages go
    """

    is_pipelined: bool = False
    predicts: bool = False
    smoothing: float = 0.0
    share: float = 1.0
    skip_change: float | None = None
    staleness: int = 0
    rematerializes: bool = False
    link_bytes_per_second: float = 0.0


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
