"""OwnOptimizer: a user's torch optimizer, used instead of FlatAdam."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from hpcgnn.errors import CollectiveError, TrainingError
from hpcgnn.ops.adam import StepCheck

Moments = dict[int, dict[str, torch.Tensor]]
BUILT_IN = "the built-in Adam"


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
