"""RateSchedule: a torch schedule of the learning rate for any optimizer, and the schedules that settings name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import torch

from hpcgnn.config import TrainConfig
from hpcgnn.errors import TrainingError
from hpcgnn.training.evaluate import Evaluation
from hpcgnn.training.optimizer import FlatAdam, OwnOptimizer

MakeSchedule = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


class PlannedRate(torch.optim.lr_scheduler.LambdaLR):
    """Multiplies the rate by `planned_share` in each epoch; a continued run follows its present settings."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at the epoch of `state`, with the rates and the length of this run."""
        self.last_epoch, self._step_count = state["last_epoch"], state["_step_count"]

    def rates(self) -> list[float]:
        return [base * share(self.last_epoch) for base, share in zip(self.base_lrs, self.lr_lambdas, strict=True)]


def planned_share(epoch: int, schedule: str, warmup: int, epochs: int) -> float:
    """Share of `lr` in an epoch, counted from 0.

    During warm-up it is (epoch + 1) / warmup. Let p be the share of the epochs after warm-up that have passed: "linear"
    is 1 - p and "cosine" is (1 + cos(pi p)) / 2, so both would reach 0 in the epoch after the last.
    """
    if epoch < warmup:
        return (epoch + 1) / warmup
    passed = min(1.0, (epoch - warmup) / (epochs - warmup))
    return {"constant": 1.0, "linear": 1.0 - passed, "cosine": (1.0 + math.cos(math.pi * passed)) / 2.0}[schedule]


def choose_schedule(brought: MakeSchedule | None, config: TrainConfig) -> MakeSchedule | None:
    """The function that makes a run's schedule: the user's own, or one for the settings; None for a constant rate.

    Raises TrainingError: the program passes a schedule in and settings ask for another.
    """
    is_planned = config.schedule != "constant" or config.warmup > 0
    if brought is not None and is_planned:
        name = "warmup" if config.schedule == "constant" else "schedule"
        raise TrainingError(f"{name} = {getattr(config, name)} has no effect where the program gives a schedule of its "
                            "own; leave one out")
    if not is_planned:
        return brought
    return lambda optimizer: PlannedRate(
        optimizer, lambda epoch: planned_share(epoch, config.schedule, config.warmup, config.epochs))


class RateSchedule:
    """Changes the learning rate after every epoch, following one of torch's schedules.

    FlatAdam is no torch optimizer, so the schedule moves the rate of a stand-in, which begins at FlatAdam's first
    `rate`, and FlatAdam's rates follow in proportion. TrainingError if `make` returns no schedule, or one that can't
    move this optimizer.
    """

    def __init__(self, make: MakeSchedule, optimizer: FlatAdam | OwnOptimizer, rate: float):
        self._first_rate = rate
        self._scaled = optimizer if isinstance(optimizer, FlatAdam) else None      # in proportion to a stand-in
        if self._scaled is not None and rate <= 0:
            raise TrainingError(f"a schedule needs a positive lr to begin with, found {rate}")
        self._rated = torch.optim.SGD([torch.zeros(1)], lr=rate) if isinstance(optimizer, FlatAdam) \
            else optimizer.torch_optimizer
        self._schedule = make(self._rated)
        self._waits_for_plateau = isinstance(self._schedule, torch.optim.lr_scheduler.ReduceLROnPlateau)
        if not isinstance(self._schedule, (torch.optim.lr_scheduler.LRScheduler,
                                           torch.optim.lr_scheduler.ReduceLROnPlateau)):
            raise TrainingError("schedule must be a function that makes one of torch's schedules from an optimizer; it "
                                f"made a {type(self._schedule).__name__}")
        if self._scaled is not None and getattr(self._schedule, "cycle_momentum", False):
            raise TrainingError(f"{type(self._schedule).__name__} cycles the momentum, and the built-in Adam's stays; "
                                "pass cycle_momentum=False, or an optimizer")
        self._apply()

    @property
    def rate(self) -> float:
        return float(self._rated.param_groups[0]["lr"])

    def end_epoch(self, evaluation: Evaluation | None) -> None:
        """Move on; a plateau schedule gets the validation score if it waits for the highest value, else the loss."""
        if self._scaled is not None:
            self._rated.step()      # changes nothing, but a schedule warns if its optimizer has not stepped
        if not self._waits_for_plateau:
            try:
                self._schedule.step()
            except ValueError as error:      # OneCycleLR is made for a number of steps
                raise TrainingError(f"{type(self._schedule).__name__} can't step any more ({error}); it steps once "
                                    "after every epoch, so make it for as many steps as epochs") from error
        elif evaluation is not None:
            value = evaluation.val_score if self._schedule.mode == "max" else evaluation.val_loss
            # Else there is no validation node, or nothing to compare; links have no validation loss.
            if math.isfinite(evaluation.val_score) and math.isfinite(value):
                self._schedule.step(value)
        self._apply()

    def state(self) -> dict[str, Any]:
        """State of the schedule in plain numbers; raises TrainingError if it has other values."""
        state = {"schedule": self._schedule.state_dict(), "rates": [group["lr"] for group in self._rated.param_groups]}
        try:
            return json.loads(json.dumps(state))
        except TypeError as error:
            raise TrainingError(f"the state of {type(self._schedule).__name__} can't be kept in a checkpoint: {error}; "
                                "use another schedule") from error

    def load_state(self, state: dict[str, Any]) -> None:
        self._schedule.load_state_dict(state["schedule"])
        rates = self._schedule.rates() if isinstance(self._schedule, PlannedRate) else state["rates"]
        for group, rate in zip(self._rated.param_groups, rates, strict=True):
            group["lr"] = rate
        self._apply()

    def _apply(self) -> None:
        if self._scaled is not None:
            self._scaled.scale_rate(self.rate / self._first_rate)
