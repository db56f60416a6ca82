"""Exchanges around an exchange: each changes one thing, and everything else is the inner exchange's."""

from __future__ import annotations

import copy
from typing import Any

import torch

from hpcgnn.exchange.arrival import Arrival, PassedOn
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


class Unscaled(Around):
    """Sends float16 gradients without the loss scale, as float32: they are kept, and the scale may be another one when
    they are read.

    Values that overflowed are sent as 0, so that all that is kept is finite, and all ranks skip the step.
    """

    def __init__(self, exchange: HaloExchange | Around):
        super().__init__(exchange)
        self._overflows: list[torch.Tensor] = []     # of the current step, shared with the views of steps

    def start_take_home(self, gradient: torch.Tensor, site: ExchangeSite) -> ScaledGradients:
        self._overflows.append(torch.isfinite(gradient).all().logical_not_())
        rows = gradient.nan_to_num(0.0, 0.0, 0.0).float().div_(site.loss_scale)
        return ScaledGradients(self.exchange.start_take_home(rows, site), site.loss_scale)

    def spoil_if_overflowed(self, gradients: torch.Tensor) -> None:
        if self._overflows:
            gradients[:1].masked_fill_(torch.stack(self._overflows).any(), float("nan"))
            self._overflows.clear()


class ScaledGradients(PassedOn):
    """Gradients without a loss scale, which `finish` adds with the `scale` of the pass that reads them."""

    def __init__(self, arrival: Any, scale: float):
        self.arrival, self.messages, self.device, self._scale = arrival, arrival.messages, arrival.device, scale

    def finish(self, rows: torch.Tensor) -> None:
        # The scale is a power of two, so only the sum is rounded.
        unscaled = rows.float() / self._scale
        self.arrival.finish(unscaled)
        rows.copy_(unscaled.mul_(self._scale))


def _arrived(arrival: Arrival) -> Arrival:
    arrival.wait()
    return arrival
