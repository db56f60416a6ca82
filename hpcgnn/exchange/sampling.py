"""Sampled boundary rows: the share that one epoch keeps, which sender and receiver draw alike."""

from __future__ import annotations

import numpy as np

from hpcgnn.exchange.bits import draw
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.ops.counter import SAMPLE, CounterKey


def kept_halo(plan: ExchangePlan, share: float, seed: int, epoch: int) -> np.ndarray:
    """(num_halo,) bool, the halo rows that an epoch keeps: each with probability `share`, at all layers and in both
    directions.

    Reference: BNS-GCN, Algorithm 1.
    """
    kept = np.zeros(plan.num_halo, bool)
    for rows in plan.halo:
        kept[rows.index] = draw(rows.node_id, share, CounterKey(seed, epoch, SAMPLE, 0))
    return kept


def sampled(plan: ExchangePlan, share: float, seed: int, epoch: int) -> ExchangePlan:
    """Return the plan in which only the rows that the epoch keeps travel; see `kept_halo`."""
    key = CounterKey(seed, epoch, SAMPLE, 0)
    sent = tuple(draw(rows.node_id, share, key) for rows in plan.boundary)
    return plan.restricted(sent, kept_halo(plan, share, seed, epoch))
