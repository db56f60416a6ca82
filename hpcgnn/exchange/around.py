"""Exchanges around an exchange: each changes one thing, and everything else is the inner exchange's."""

from __future__ import annotations

import copy
from typing import Any

import torch

from hpcgnn.exchange.arrival import Arrival
from hpcgnn.exchange.halo import HaloExchange, PlanWithin
from hpcgnn.graph.hop import ExchangeSite


class Around:
    """Base of wrappers of another `exchange`: passes on to it everything that a subclass does not define."""

    def __init__(self, exchange: HaloExchange | Around):
        self.exchange = exchange

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "exchange":
            raise AttributeError(name)
        return getattr(self.exchange, name)

    def of_step(self, plan_of_step: PlanWithin, is_first: bool) -> Around:
        view = copy.copy(self)
        view.exchange = self.exchange.of_step(plan_of_step, is_first)
        return view


class Waiting(Around):
    """Waits for all rows at the start, so that layers compute nothing meanwhile."""

    overlaps = False

    def start_fetch(self, h: torch.Tensor, site: ExchangeSite) -> Arrival:
        return _arrived(self.exchange.start_fetch(h, site))

    def start_take_home(self, gradient: torch.Tensor, site: ExchangeSite) -> Arrival:
        return _arrived(self.exchange.start_take_home(gradient, site))


def _arrived(arrival: Arrival) -> Arrival:
    arrival.wait()
    return arrival
