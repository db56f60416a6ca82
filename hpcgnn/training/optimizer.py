"""Optimizers of a training: FlatAdam, over one buffer that holds all weights, and a user's own.

torch's own Adam imports its compiler first, which doubles a rank's start-up time, and updates all weights in one pass
on CPUs only from torch 2.4 on.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hpcgnn.errors import CollectiveError, TrainingError
from hpcgnn.ops.adam import AdamFactors, StepCheck, UnreadCheck, adam_step, check_of, worst_of
from hpcgnn.training.gradients import FlatGradients

Moments = dict[int, dict[str, torch.Tensor]]
BUILT_IN = "the built-in Adam"
MOST_STEPS = 2.0 ** 53       # largest count that a float holds exactly


@dataclass(frozen=True)
class WeightGroup:
    parameters: Sequence[nn.Parameter]
    lr: float
    weight_decay: float = 0.0


class FlatAdam:
    """Adam with L2 weight decay, as torch.optim.Adam computes it; the weights become views of one buffer.

    With `decouples`, the decay is as in torch.optim.AdamW: a step first scales the weights by 1 - lr decay, and their
    gradients stay as they are. Reference: Loshchilov and Hutter, ICLR 2019, algorithm 2.

    A weight without a gradient keeps its value, its moments and its step count, as in torch. Each weight, even a frozen
    one, is in exactly one of `groups`.
    """

    def __init__(self, gradients: FlatGradients, groups: Sequence[WeightGroup], decouples: bool = False):
        self._gradients, self._groups, self._factor, self._decouples = gradients, groups, 1.0, decouples
        self._numbers = {parameter: 0 for group in groups for parameter in group.parameters}      # steps so far
        self._place: dict[nn.Parameter, slice] = {}
        self._kept: dict[nn.Parameter, tuple[torch.Tensor, torch.Tensor]] = {}     # moments of frozen weights
        self.last_check: StepCheck | UnreadCheck = StepCheck()
        self.lay_out()

    def lay_out(self) -> None:
        """Adopt the layout of the gradients; it changes when weights are frozen or unfrozen."""
        for parameter in self._place:
            self._kept[parameter] = tuple(moment.clone() for moment in self._moments(parameter))
            parameter.data = parameter.data.clone()
        self._place = dict(self._gradients.places)
        self._weights, self._lr, self._decay, self._mean, self._square = (torch.zeros_like(self._gradients.flat)
                                                                          for _ in range(5))
        self._kept_share = torch.ones_like(self._gradients.flat) if self._decouples else None
        for group in self._groups:
            for parameter in group.parameters:
                place = self._place.get(parameter)
                if place is None:
                    continue
                self._set_rate(place, group)
                self._decay[place] = 0.0 if self._decouples else group.weight_decay
                self._weights[place] = parameter.detach().flatten()
                parameter.data = self._weights[place].view_as(parameter)
                if parameter in self._kept:
                    self._mean[place], self._square[place] = self._kept.pop(parameter)

    def _moments(self, parameter: nn.Parameter) -> tuple[torch.Tensor, torch.Tensor]:
        place = self._place.get(parameter)
        if place is not None:
            return self._mean[place], self._square[place]
        zeros = tuple(torch.zeros_like(parameter.detach()).flatten() for _ in range(2))
        return self._kept.setdefault(parameter, zeros)

    def follow_weights(self) -> None:
        """Take back weights that a user's program gave other memory, with their values."""
        for parameter, place in self._place.items():
            if parameter.data_ptr() != self._weights[place].data_ptr():
                self._weights[place] = parameter.detach().flatten()
                parameter.data = self._weights[place].view_as(parameter)

    def step(self) -> StepCheck | UnreadCheck:
        """Update all weights that have gradients; return a check that everything is finite, and which weights moved."""
        used = self._place if self._gradients.used is None else self._gradients.used
        for parameter in used:
            self._numbers[parameter] += 1
        for place in () if self._kept_share is None else self._places_of(used):
            self._weights[place].mul_(self._kept_share[place])
        numbers = {self._numbers[parameter] for parameter in used}
        if len(used) == len(self._place) and len(numbers) == 1:
            number = numbers.pop()
            self.last_check = worst_of([self._step_of(part, number) for part in reversed(self._gradients.parts)])
            return self.last_check
        for parameter in used:
            self._step_of(self._place[parameter], self._numbers[parameter])
        buffers = self._gradients.flat, self._weights, self._mean, self._square
        self.last_check = worst_of([check_of(*(buffer[part] for buffer in buffers))
                                    for part in reversed(self._gradients.parts)])
        return self.last_check

    def _places_of(self, used: Collection[nn.Parameter]) -> list[slice]:
        return [slice(None)] if len(used) == len(self._place) else [self._place[parameter] for parameter in used]

    def next_factors(self) -> AdamFactors | None:
        """Factors of the next step if it moves all weights, and each has taken as many steps; else None."""
        numbers = {self._numbers[parameter] for parameter in self._place}
        alike = self._gradients.used is None and len(numbers) == 1 and self._place
        return AdamFactors.of_step(numbers.pop() + 1) if alike else None

    def note_replay(self) -> None:
        """A captured step has been replayed, so that all weights have taken one step more."""
        for parameter in self._place:
            self._numbers[parameter] += 1

    def _step_of(self, place: slice, number: int) -> StepCheck | UnreadCheck:
        return adam_step(self._weights[place], self._gradients.flat[place], self._lr[place], self._decay[place],
                         self._mean[place], self._square[place], number)

    def held(self) -> list[nn.Parameter]:
        """Return the weights in the order in which `state` numbers them."""
        return list(self._numbers)

    def forget(self) -> None:
        self._mean.zero_()
        self._square.zero_()
        self._kept.clear()
        self._numbers = dict.fromkeys(self._numbers, 0)

    def scale_rate(self, factor: float) -> None:
        """Multiply every learning rate by `factor` from now on; it replaces the previous factor."""
        if factor != self._factor:
            self._factor = factor
            for group in self._groups:
                for parameter in group.parameters:
                    if parameter in self._place:
                        self._set_rate(self._place[parameter], group)

    def _set_rate(self, place: slice, group: WeightGroup) -> None:
        self._lr[place] = self._factor * group.lr
        if self._kept_share is not None:
            self._kept_share[place] = 1 - self._factor * group.lr * group.weight_decay

    def state(self) -> Moments:
        """Moments of each weight that has taken a step, numbered group by group."""
        found = {}
        for number, parameter in enumerate(self._numbers):
            if self._numbers[parameter]:
                mean, square = self._moments(parameter)
                found[number] = {"step": torch.tensor(float(self._numbers[parameter])),
                                 "exp_avg": mean.view_as(parameter), "exp_avg_sq": square.view_as(parameter)}
        return found

    def load_state(self, state: Moments) -> None:
        """Continue from a `state()`; raises CollectiveError if its moments do not fit these weights."""
        for number, parameter in enumerate(self._numbers):
            if number in state:
                _check_fit(state[number], parameter.numel())
                mean, square = self._moments(parameter)
                mean.copy_(state[number]["exp_avg"].flatten())
                square.copy_(state[number]["exp_avg_sq"].flatten())
                self._numbers[parameter] = _number_of_steps(float(state[number]["step"]))


def _check_fit(moments: dict[str, torch.Tensor], num_weights: int) -> None:
    found = {name: moments[name].numel() for name in ("step", "exp_avg", "exp_avg_sq") if name in moments}
    if found != {"step": 1, "exp_avg": num_weights, "exp_avg_sq": num_weights}:
        raise CollectiveError(f"the checkpoint's optimizer has {found} for {num_weights} weights of this model; this "
                              "run did not write the checkpoint, start without --resume")


def _number_of_steps(step: float) -> int:
    if not 1 <= step < MOST_STEPS or step != int(step):
        raise CollectiveError(f"the checkpoint's optimizer has taken {step:g} steps of a weight, and a positive whole "
                              "number is expected; this run did not write the checkpoint, start without --resume")
    return int(step)


class OwnOptimizer:
    """Steps like the user's optimizer, and keeps its state as a checkpoint stores it.

    All ranks hold the same weights and gradients, so an optimizer without random draws moves them alike everywhere; the
    trainer checks this. `weights`, by name, belong to model and loss; the optimizer must hold all trained ones.

    Raises TrainingError: not a torch optimizer, one that needs a closure, or one that holds other weights.
    """

    def __init__(self, torch_optimizer: torch.optim.Optimizer, weights: dict[str, nn.Parameter]):
        if not isinstance(torch_optimizer, torch.optim.Optimizer):
            raise TrainingError("optimizer must be a function that makes a torch.optim.Optimizer from parameters, such "
                                f"as torch.optim.AdamW; it made a {type(torch_optimizer).__name__}")
        if isinstance(torch_optimizer, torch.optim.LBFGS):
            raise TrainingError("optimizer LBFGS computes the loss several times per step, and an epoch is one pass; "
                                "use another one")
        try:
            inspect.signature(torch_optimizer.step).bind()
        except TypeError as error:
            raise TrainingError(f"{type(torch_optimizer).__name__}.step can't be called without arguments ({error}), "
                                "as hpcgnn calls it once per step; use an optimizer that needs no closure") from error
        self.torch_optimizer, self._weights = torch_optimizer, weights
        self.last_check = StepCheck()
        self.lay_out()

    def lay_out(self) -> None:
        """Check that the optimizer holds every weight that requires a gradient, after some were frozen or unfrozen."""
        held = {id(parameter) for parameter in self.held()}
        missing = [name for name, own in self._weights.items() if own.requires_grad and id(own) not in held]
        if missing:
            raise TrainingError(f"the optimizer does not hold {missing[0]}; make the "
                                "optimizer from all parameters that your function receives")

    def held(self) -> list[nn.Parameter]:
        """Parameters that the optimizer updates, perhaps more than it was given."""
        return [parameter for group in self.torch_optimizer.param_groups for parameter in group["params"]]

    def step(self) -> None:
        self.torch_optimizer.step()

    def begin_step(self) -> None:
        """Call the optimizer's own `zero_grad`, if it has one; TrainingError if that keeps gradients of earlier steps.
        """
        kind = type(self.torch_optimizer)
        if kind.zero_grad is torch.optim.Optimizer.zero_grad:
            return
        self.torch_optimizer.zero_grad()
        if any(one.grad is not None and bool(one.grad.any()) for one in self.held()):
            raise TrainingError(f"{kind.__name__}.zero_grad keeps gradients of earlier steps, and each step of hpcgnn "
                                "has the gradients of its own pass; use an optimizer that keeps its sums in its state")

    def forget(self) -> None:
        self.torch_optimizer.state.clear()

    def state(self) -> Moments:
        """State per weight, numbered as in torch; empty before the first step."""
        return {number: {name: torch.as_tensor(value) for name, value in memory.items() if value is not None}
                for number, memory in self.torch_optimizer.state_dict()["state"].items()}

    def record(self) -> dict[str, Any]:
        """Name of the optimizer, and the plain numbers and texts of its groups, which some optimizers change."""
        groups = [{name: value for name, value in group.items() if _is_plain(value)}
                  for group in self.torch_optimizer.state_dict()["param_groups"]]
        return {"name": name_of(self), "groups": groups}

    def load_groups(self, record: dict[str, Any]) -> None:
        for group, kept in zip(self.torch_optimizer.param_groups, record["groups"], strict=True):
            for name, value in kept.items():
                if name != "params" and name in group:
                    group[name] = tuple(value) if isinstance(group[name], tuple) else value

    def load_state(self, state: Moments) -> None:
        """Continue from a `state()`; raises CollectiveError if `state` belongs to another optimizer."""
        whole: dict[str, Any] = self.torch_optimizer.state_dict()
        num_weights = sum(len(group["params"]) for group in whole["param_groups"])
        if not state.keys() <= set(range(num_weights)):
            raise CollectiveError(f"the checkpoint's optimizer knows {len(state)} weights and this one {num_weights}; "
                                  "this run did not write the checkpoint, start without --resume")
        self.torch_optimizer.load_state_dict({**whole, "state": state})


def name_of(optimizer: Any) -> str:
    if not isinstance(optimizer, OwnOptimizer):
        return BUILT_IN
    kind = type(optimizer.torch_optimizer)
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))
