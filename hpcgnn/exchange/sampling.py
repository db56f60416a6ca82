"""Sampled boundary rows: the share that one epoch keeps, which sender and receiver draw alike."""

from __future__ import annotations

import numpy as np

from hpcgnn.exchange.bits import draw
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.ops.counter import SAMPLE, CounterKey


def sampled(plan: ExchangePlan, share: float, seed: int, epoch: int) -> tuple[ExchangePlan, np.ndarray]:
    """The plan in which each boundary node's rows travel with probability `share`, at all layers and in both
    directions, and (num_halo,) bool of the halo rows that it keeps.

    Reference: Wan et al., MLSys 2022 (BNS-GCN), Algorithm 1.
    """
    key = CounterKey(seed, epoch, SAMPLE, 0)
    received = np.zeros(plan.num_halo, bool)
    for rows in plan.halo:
        received[rows.index] = draw(rows.node_id, share, key)
    sent = tuple(draw(rows.node_id, share, key) for rows in plan.boundary)
    return plan.restricted(sent, received), received
