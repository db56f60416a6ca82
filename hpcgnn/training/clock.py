"""Modeled seconds of an epoch: the clock of runs that must not depend on one."""

from __future__ import annotations

from hpcgnn.config import TrainConfig
from hpcgnn.training.epoch_trace import EpochTrace

MEMORY_BYTES_PER_SECOND, LINK_BYTES_PER_SECOND = 1e10, 1e9
PASSES = 3     # forward, and two products backward


def modeled_seconds(trace: EpochTrace, num_edges: int, config: TrainConfig, num_ranks: int,
                    is_asynchronous: bool) -> float:
    """Seconds that an epoch would take on a machine of fixed bandwidths; messages cost nothing that computing hides.

    Parameters
    ----------
    num_edges : int      of the whole graph; every layer reads a float32 row for each, forward and backward
    """
    computing = PASSES * num_edges * config.layers * config.hidden * 4 / MEMORY_BYTES_PER_SECOND / num_ranks
    sending = (trace.sent_bytes_payload + trace.sent_bytes_parameters) / LINK_BYTES_PER_SECOND / num_ranks
    return max(computing, sending) if is_asynchronous else computing + sending
