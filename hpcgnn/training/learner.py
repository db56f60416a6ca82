"""Learner: everything that training changes: weights, optimizer, gradients, and a copy of the best weights so far."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hpcgnn.config import TrainConfig
from hpcgnn.errors import CollectiveError, ConfigError, TrainingError
from hpcgnn.ops.adam import StepCheck, UnreadCheck, check_of, worst_of
from hpcgnn.run.launch import together
from hpcgnn.training.average import WeightAverage
from hpcgnn.training.checkpoint import Checkpoint, check_shapes
from hpcgnn.training.evaluate import check_reads
from hpcgnn.training.gradients import FlatGradients
from hpcgnn.training.model_hooks import hooks_of
from hpcgnn.training.optimizer import BUILT_IN, FlatAdam, OwnOptimizer, WeightGroup, name_of
from hpcgnn.training.own_loss import copies_of, write_into
from hpcgnn.training.precision import LossScale
from hpcgnn.training.recipe import Recipe
from hpcgnn.training.schedule import RateSchedule, choose_schedule
from hpcgnn.training.session import Session, is_built_in, share_from_rank_zero
from hpcgnn.training.tables import Tables

if TYPE_CHECKING:
    from hpcgnn.training.step_graph import StepGraph

# Share of quantize_lr; after the penalty ends, Adam's momentum must move a width by much less than one bit.
WIDTH_RATE = 0.2


@dataclass
class Learner:
    """Everything that training changes."""

    model: torch.nn.Module
    optimizer: FlatAdam | OwnOptimizer
    gradients: FlatGradients
    best_model: dict[str, torch.Tensor]
    loss_scale: LossScale
    average: WeightAverage
    schedule: RateSchedule | None = None
    clip_norm: float = 0.0      # largest norm of a step's gradient, or 0
    # Weights and buffers of a user's loss, by name.
    loss_tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    best_loss: dict[str, torch.Tensor] = field(default_factory=dict)      # their values at the best epoch so far
    first_frozen: frozenset[str] = frozenset()      # weights that required no gradient at the start
    # Parameters that the loss may read but no optimizer updates; empty after the first step.
    untrained: list[torch.nn.Parameter] = field(default_factory=list)
    tables: Tables | None = None      # tables with one row per node, held by the node's rank
    has_stepped: bool = False      # a user's optimizer has moved the weights
    step_graph: StepGraph | None = None      # takes the steps on a GPU, if the settings say so

    @classmethod
    def of(cls, session: Session, model: torch.nn.Module) -> Learner:
        """Collective: give a model the optimizer of the settings, or of the recipe.

        Raises CollectiveError: the recipe's optimizer or schedule can't be used, or settings ask for another schedule.
        """
        recipe, config = session.recipe, session.config
        loss_tensors = {} if recipe.loss is None else recipe.loss.tensors(model, session.graph.x.device)
        of_loss = {name: tensor for name, tensor in loss_tensors.items() if isinstance(tensor, torch.nn.Parameter)}
        changing = [one for one in recipe.callbacks if not one.changes_nothing]
        is_own = not is_built_in(model) or bool(of_loss) or bool(changing)
        gradients = together(session.comm, lambda: FlatGradients(model, of_loss, is_own, session.comm))
        if recipe.optimizer is None:
            groups = weight_groups(config, model, list(of_loss.values()))
            optimizer: FlatAdam | OwnOptimizer = FlatAdam(gradients, groups, config.optimizer == "adamw")
        else:
            optimizer = together(session.comm, lambda: _own_optimizer(recipe, gradients))
            loss_tensors |= {name: own for name, own in gradients.weights.items() if name.startswith(OF_OPTIMIZER)}
        if loss_tensors:
            share_from_rank_zero(session.comm, loss_tensors)
        make = together(session.comm, lambda: choose_schedule(recipe.schedule, config))
        schedule = None if make is None else together(session.comm, lambda: RateSchedule(make, optimizer, config.lr))
        return cls(model, optimizer, gradients, copy.deepcopy(model.state_dict()),
                   LossScale.of(config.precision), WeightAverage(model, config.average, config.ema), schedule,
                   config.clip_norm, loss_tensors, copies_of(loss_tensors), gradients.frozen(),
                   [] if recipe.loss is None else recipe.loss.forgotten(list(gradients.weights.values())),
                   Tables(session.comm, model, optimizer.held()),
                   step_graph=_step_graph(session, is_own) if config.step_graph == "on" else None)

    @classmethod
    def start(cls, session: Session, seed: int, checkpoint: Checkpoint | None) -> Learner:
        """Collective: begin with the seed's weights, or continue from the checkpoint.

        Raises CollectiveError: the checkpoint's weights do not fit the model, it has another optimizer or schedule, or
        it was trained on other relations or columns than the graph has.
        """
        learner = cls.of(session, session.new_model(seed))
        if checkpoint is not None:
            checkpoint = learner.tables.own(checkpoint)
            answers_with = checkpoint.answers_with or {}
            together(session.comm, lambda: check_reads(learner.model, session.info, answers_with))
            check_shapes(checkpoint, learner.best_model)
            learner.model.load_state_dict(checkpoint.model)
            learner.best_model = checkpoint.best_model
            check_brought(checkpoint, learner)
            write_into(learner.loss_tensors, checkpoint.loss)
            learner.best_loss = checkpoint.best_loss
            learner.freeze(checkpoint.frozen)
            learner.optimizer.load_state(checkpoint.optimizer)
            learner.loss_scale = checkpoint.loss_scale
            learner.average.restore(checkpoint.average)
            if checkpoint.own_optimizer is not None and isinstance(learner.optimizer, OwnOptimizer):
                learner.optimizer.load_groups(checkpoint.own_optimizer)
            if checkpoint.schedule is not None:
                learner.schedule.load_state(checkpoint.schedule)
        return learner

    def begin_step(self) -> bool:
        """Clear the gradients; return whether the user's program has frozen or unfrozen weights since the last step."""
        if self.gradients.finds_unused:
            self.gradients.check_same(self.model)
        if isinstance(self.optimizer, OwnOptimizer):
            self.optimizer.begin_step()
        is_new = self.gradients.zero()
        if is_new:
            self.optimizer.lay_out()
        return is_new

    def refuse_untrained(self) -> None:
        """Raise TrainingError if the first step gave a gradient to a weight that no optimizer updates."""
        untrained, self.untrained = self.untrained, []
        found = [parameter for parameter in untrained if parameter.grad is not None]
        if found:
            raise TrainingError(f"the loss depends on a weight of shape {tuple(found[0].shape)} that no optimizer "
                                "updates; give the module that holds it as loss=, have optimizer= hold it, or call "
                                "requires_grad_(False) on it")

    def freeze(self, names: Iterable[str] | None) -> None:
        """Let exactly these weights require no gradient; None changes nothing."""
        if names is not None:
            frozen = set(names)
            for name, parameter in self.gradients.weights.items():
                parameter.requires_grad_(name not in frozen)
            self.begin_step()

    def frozen_since(self) -> list[str] | None:
        """Weights that require no gradient, if the user's program has changed that since the start; else None."""
        frozen = self.gradients.frozen()
        return None if frozen == self.first_frozen else sorted(frozen)

    def note_best(self) -> None:
        self.best_model = copy.deepcopy(self.model.state_dict())
        self.best_loss = copies_of(self.loss_tensors)

    def end(self) -> None:
        """Give the weights back to the program: each in its own memory, without gradients."""
        self.gradients.release()

    def take_best(self) -> torch.nn.Module:
        """The model with the best weights; the loss gets its weights of the same moment."""
        self.model.load_state_dict(self.best_model)
        write_into(self.loss_tensors, self.best_loss)
        return self.model

    def step(self) -> StepCheck | UnreadCheck:
        """Update the weights from the summed gradients, unless they overflow; return a check of weights and gradients.

        All ranks hold the same sums, so they decide alike. FlatAdam checks in its own pass; for other optimizers the
        weights are read once more.
        """
        can_step = self._can_step()
        if can_step:
            self.gradients.call_hooks()
        if can_step and self.clip_norm:
            self.gradients.clip(self.clip_norm)
        check = self.optimizer.step() if can_step else getattr(self.optimizer, "last_check", None)
        if isinstance(check, (StepCheck, UnreadCheck)):
            return check
        if self.tables and not self.has_stepped:
            together(self.tables.comm, lambda: self.tables.check_moments(self.optimizer.state(), self.optimizer.held()))
        self.has_stepped = True
        flat, checks = self.gradients.flat, []
        for part in reversed(self.gradients.parts):
            weights = [parameter.detach().flatten().float() for parameter, place in self.gradients.places.items()
                       if part.start <= place.start and place.stop <= part.stop]
            # With float16, all ranks skip a step if its scaled gradients overflow; that is no fault.
            checks.append(check_of(torch.zeros_like(flat[:1]) if self.loss_scale.is_dynamic else flat[part],
                                   torch.cat(weights) if weights else flat[:0]))
        return worst_of(checks)

    def saved(self, folder: Path) -> dict[str, Any]:
        """Collective if the model has tables: a checkpoint's weights and optimizer, complete on rank 0.

        See `Tables.whole`.
        """
        rooms = {"model": self.model.state_dict(), "best_model": self.best_model, "optimizer": self.optimizer.state(),
                 "average": self.average.state()}
        return {**self.tables.whole(rooms, folder), "by_node": self.tables.record()}

    def _can_step(self) -> bool:
        if not self.loss_scale.is_dynamic:
            return True
        is_finite = self.gradients.unscale(self.loss_scale.value)
        self.loss_scale.update(is_finite)
        return is_finite

    def with_best_weights(self) -> torch.nn.Module:
        model = copy.deepcopy(self.model)
        model.load_state_dict(self.best_model)
        return model


OF_OPTIMIZER = "optimizer."


def _own_optimizer(recipe: Recipe, gradients: FlatGradients) -> OwnOptimizer:
    """A user's optimizer. Further weights that it updates are trained, too."""
    optimizer = OwnOptimizer(recipe.optimizer(list(gradients.weights.values())), gradients.weights)
    known = {id(parameter) for parameter in gradients.weights.values()}
    more = [parameter for parameter in optimizer.held() if id(parameter) not in known]
    gradients.add({f"{OF_OPTIMIZER}{number}": parameter for number, parameter in enumerate(more)})
    return optimizer


def check_brought(checkpoint: Checkpoint, learner: Learner) -> None:
    """Check that optimizer, loss weights and schedule are of the same kind as when the run began.

    Raises CollectiveError on all ranks.
    """
    written = BUILT_IN if checkpoint.own_optimizer is None else checkpoint.own_optimizer["name"]
    if written != name_of(learner.optimizer):
        raise CollectiveError(f"the checkpoint was written with {written} and can't go on with "
                              f"{name_of(learner.optimizer)}; give the same optimizer again, or choose another out")
    if {name: tensor.shape for name, tensor in checkpoint.loss.items()} != {
            name: tensor.shape for name, tensor in learner.loss_tensors.items()}:
        had, has = (", ".join(names) or "none" for names in (checkpoint.loss, learner.loss_tensors))
        raise CollectiveError(f"the checkpoint was written with the weights {had} of the loss, and this loss has "
                              f"{has}; give the same loss again, or choose another out")
    if (checkpoint.schedule is None) != (learner.schedule is None):
        had, has = ("no", "one") if checkpoint.schedule is None else ("a", "none")
        raise CollectiveError(f"the checkpoint was written with {had} schedule of the learning rate and can't go on "
                              f"with {has}; give the same again, or choose another out")


def _step_graph(session: Session, is_own: bool) -> StepGraph:
    """Raise CollectiveError for what settings can't tell: ranks, and parts of a user's program."""
    recipe, reason = session.recipe, ""
    if session.comm.size > 1:
        reason = f"on {session.comm.size} ranks, whose messages the host sends in a step"
    elif is_own or recipe.optimizer is not None or recipe.loss is not None or recipe.model is not None:
        reason = ("with a model, loss, optimizer or callback of your own, whose Python would not run again (a callback "
                  "can say changes_nothing = True)")
    if reason:
        raise CollectiveError(f"step_graph can't be used {reason}; use --set step_graph=off")
    from hpcgnn.training.step_graph import StepGraph

    return StepGraph(session.graph.x.device)


def weight_groups(config: TrainConfig, model: nn.Module, of_loss: Sequence[nn.Parameter]) -> list[WeightGroup]:
    """Weights by learning rate and decay; frozen ones come last.

    Decay is on all weights, including the loss's, or on the first layer's only. Steps and widths of a quantized model
    have their own rates and no decay.
    """
    scales, widths = hooks_of(model).scale_parameters(), hooks_of(model).width_parameters()
    is_scale = {id(parameter) for parameter in [*scales, *widths]}
    parameters = [parameter for parameter in model.parameters() if id(parameter) not in is_scale]
    if config.weight_decay_layers == "first" and not hasattr(model, "first_layer_parameters"):
        raise ConfigError(f"model {config.model} has no first_layer_parameters(), which weight_decay_layers first "
                          "needs; add it, or use all")
    decayed = parameters if config.weight_decay_layers == "all" else list(model.first_layer_parameters())
    chosen = {id(parameter) for parameter in decayed}
    others = [parameter for parameter in parameters if id(parameter) not in chosen]
    groups = [WeightGroup(decayed, config.lr, config.weight_decay), WeightGroup(others, config.lr),
              WeightGroup(scales, config.quantize_lr), WeightGroup(widths, WIDTH_RATE * config.quantize_lr)]
    decay = config.weight_decay if config.weight_decay_layers == "all" else 0.0
    return [*(replace(group, parameters=[one for one in group.parameters if one.requires_grad == is_trained])
              for is_trained in (True, False) for group in groups), WeightGroup(of_loss, config.lr, decay)]
