"""Sampled boundary rows: an epoch sends a share of them; sender and receiver draw the same sample without a message."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import numpy as np
import torch

from hpcgnn.exchange.arrival import Arrival
from hpcgnn.exchange.bits import draw
from hpcgnn.exchange.kinds.kind import ExchangeKind
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.sender import Outgoing, Sender
from hpcgnn.graph.hop import ExchangeSite
from hpcgnn.ops.counter import SAMPLE, CounterKey
from hpcgnn.ops.resident import on_device


def kept_halo(plan: ExchangePlan, share: float, seed: int, epoch: int) -> np.ndarray:
    """Return which halo rows an epoch keeps, (num_halo,) bool: each with probability `share`, the same in all layers.

    Reference: BNS-GCN, Algorithm 1.
    """
    kept = np.zeros(plan.num_halo, bool)
    for rows in plan.halo:
        kept[rows.index] = draw(rows.node_id, share, CounterKey(seed, epoch, SAMPLE, 0))
    return kept


def sampled(plan: ExchangePlan, share: float, seed: int, epoch: int) -> ExchangePlan:
    """Return the plan of the rows that the epoch keeps; see `kept_halo`."""
    key = CounterKey(seed, epoch, SAMPLE, 0)
    sent = tuple(draw(rows.node_id, share, key) for rows in plan.boundary)
    return plan.restricted(sent, kept_halo(plan, share, seed, epoch))


class Sampled(ExchangeKind):
    """Send a share of the boundary rows, drawn anew in every epoch; sums stay unbiased.

    Reference: BNS-GCN, Algorithm 1. With `has_history`, as in steps, all other rows are read as they last were, so
    nothing is divided by the share.
    """

    def __init__(self, share: float, has_history: bool = False):
        self._share, self._has_history = share, has_history
        self._sample: tuple[Hashable, np.ndarray] | None = None

    def in_steps(self) -> Sampled:
        return Sampled(self._share, has_history=True)

    def drawn_for(self, site: ExchangeSite) -> Hashable:
        return site.seed, site.epoch

    def travelling(self, plan: ExchangePlan, site: ExchangeSite) -> ExchangePlan:
        return sampled(plan, self._share, site.seed, site.epoch)

    def present(self, plan: ExchangePlan, site: ExchangeSite) -> np.ndarray:
        drawn = self.drawn_for(site)
        if self._sample is None or self._sample[0] != drawn:
            self._sample = drawn, kept_halo(plan, self._share, site.seed, site.epoch)
        return self._sample[1]

    def start(self, sender: Sender, outgoing: Outgoing, site: ExchangeSite) -> Arrival:
        if self._has_history:
            return sender.send(outgoing)
        # Rows that are summed are divided by the share: on arrival, and gradients before they leave.
        if outgoing.is_gradient:
            return sender.send(replace(outgoing, rows=outgoing.rows / self._share) if site.is_scaled else outgoing)
        arrival = sender.send(outgoing)
        start, stop = outgoing.span or (0, sender.plan.num_halo)
        absent = np.flatnonzero(~self.present(sender.plan, site)[start:stop])

        def complete(rows: torch.Tensor) -> None:
            rows.index_fill_(0, on_device(absent, rows), 0)
            if site.is_scaled:
                rows /= self._share

        arrival.after = complete
        return arrival
