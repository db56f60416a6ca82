"""Learner: all that training changes."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch

from hpcgnn.errors import CollectiveError
from hpcgnn.launch import together
from hpcgnn.ops.adam import StepCheck, check_of
from hpcgnn.training.adam import FlatAdam
from hpcgnn.training.average import WeightAverage
from hpcgnn.training.checkpoint import Checkpoint, check_shapes
from hpcgnn.training.gradients import FlatGradients
from hpcgnn.training.own_optimizer import BUILT_IN, OwnOptimizer, name_of
from hpcgnn.training.precision import LossScale
from hpcgnn.training.schedule import RateSchedule, choose_schedule
from hpcgnn.training.session import Session


@dataclass
class Learner:
    """Hold what training changes: weights, optimizer, gradients, and a copy of the best weights so far.

    Attributes
    ----------
    clip_norm : float      largest norm of a step's gradient, or 0
    """

    model: torch.nn.Module
    optimizer: FlatAdam | OwnOptimizer
    gradients: FlatGradients
    best_model: dict[str, torch.Tensor]
    loss_scale: LossScale
    average: WeightAverage
    schedule: RateSchedule | None = None
    clip_norm: float = 0.0

    @classmethod
    def of(cls, session: Session, model: torch.nn.Module) -> Learner:
        """Collective: give a model the optimizer that the session's settings describe, or its recipe.

        Raises
        ------
        CollectiveError      the recipe makes an optimizer or a schedule that can't be used, or settings ask for
                             another schedule
        """
        gradients, recipe = FlatGradients(model), session.recipe
        if recipe.optimizer is None:
            optimizer = FlatAdam(gradients, session.weight_groups(model))
        else:
            optimizer = together(session.comm, lambda: OwnOptimizer(recipe.optimizer(list(gradients.places)), model))
        config = session.config
        make = together(session.comm, lambda: choose_schedule(recipe.schedule, config))
        schedule = None if make is None else together(session.comm, lambda: RateSchedule(make, optimizer, config.lr))
        return cls(model, optimizer, gradients, copy.deepcopy(model.state_dict()),
                   LossScale.of(config.precision), WeightAverage(model, config.average), schedule, config.clip_norm)

    @classmethod
    def start(cls, session: Session, seed: int, checkpoint: Checkpoint | None) -> Learner:
        """Begin with the weights of the seed, or go on from the checkpoint.

        Raises
        ------
        CollectiveError      its weights don't fit the model, or its optimizer or schedule are others
        """
        learner = cls.of(session, session.new_model(seed))
        if checkpoint is not None:
            check_shapes(checkpoint, learner.best_model)
            learner.model.load_state_dict(checkpoint.model)
            learner.best_model = checkpoint.best_model
            check_brought(checkpoint, learner)
            learner.optimizer.load_state(checkpoint.optimizer)
            learner.loss_scale = checkpoint.loss_scale
            learner.average.restore(checkpoint.average)
            if checkpoint.own_optimizer is not None:
                learner.optimizer.load_groups(checkpoint.own_optimizer)
            if checkpoint.schedule is not None:
                learner.schedule.load_state(checkpoint.schedule)
        return learner

    def step(self) -> StepCheck:
        """Move the weights by the sums of their gradients, unless these overflow, and return a check of both.

        All ranks hold the same sums, so they decide alike. FlatAdam makes the check in its own pass; for any other
        optimizer the weights are read once more.
        """
        can_step = self._can_step()
        if can_step and self.clip_norm:
            self.gradients.clip(self.clip_norm)
        check = self.optimizer.step() if can_step else getattr(self.optimizer, "last_check", None)
        if isinstance(check, StepCheck):
            return check
        weights = [parameter.detach().flatten().float() for parameter in self.gradients.places]
        # With float16 a step whose scaled gradients overflow is left out, on all ranks; that is no fault.
        flat = self.gradients.flat
        return check_of(torch.zeros_like(flat[:1]) if self.loss_scale.is_dynamic else flat, torch.cat(weights))

    def _can_step(self) -> bool:
        """Unscale the gradients where they are scaled, and tell whether they are finite."""
        if not self.loss_scale.is_dynamic:
            return True
        is_finite = self.gradients.unscale(self.loss_scale.value)
        self.loss_scale.update(is_finite)
        return is_finite

    def with_best_weights(self) -> torch.nn.Module:
        """Copy the model with the best weights so far."""
        model = copy.deepcopy(self.model)
        model.load_state_dict(self.best_model)
        return model


def check_brought(checkpoint: Checkpoint, learner: Learner) -> None:
    """Check that a program brings again what its run was begun with; all ranks see the same.

    Raises
    ------
    CollectiveError      another optimizer, or a schedule where there was none, or none where there was one
    """
    written = BUILT_IN if checkpoint.own_optimizer is None else checkpoint.own_optimizer["name"]
    if written != name_of(learner.optimizer):
        raise CollectiveError(f"the checkpoint was written with {written} and can't go on with "
                              f"{name_of(learner.optimizer)}; give the same optimizer again, or choose another out")
    if (checkpoint.schedule is None) != (learner.schedule is None):
        had, has = ("no", "one") if checkpoint.schedule is None else ("a", "none")
        raise CollectiveError(f"the checkpoint was written with {had} schedule of the learning rate and can't go on "
                              f"with {has}; give the same again, or choose another out")
