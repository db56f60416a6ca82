"""Recipe: what a program brings to a run beside its settings. The command line brings none of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from hpcgnn.config import TrainConfig, parse_arguments
from hpcgnn.nn.models import ModelShape, build_model
from hpcgnn.pyg.distribute import distribute, is_pyg
from hpcgnn.shards.schema import GraphInfo
from hpcgnn.training.callbacks import Callback
from hpcgnn.training.objective import Loss
from hpcgnn.training.schedule import MakeSchedule
from hpcgnn.training.scores import Score

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Recipe:
    """Hold what a program brings; None is what the settings say.

    Attributes
    ----------
    model : nn.Module, or a function without arguments that makes one, or None
    loss : Loss or None                 sums the loss of some rows, see `own_loss`
    score : Score or None
    optimizer : function or None        from parameters to an optimizer of torch
    schedule : function or None         from an optimizer to a schedule of its learning rates
    callbacks : tuple of Callback
    """

    model: nn.Module | Callable[[], nn.Module] | None = None
    loss: Loss | None = None
    score: Score | None = None
    optimizer: MakeOptimizer | None = None
    schedule: MakeSchedule | None = None
    callbacks: tuple[Callback, ...] = ()

    def build(self, config: TrainConfig, info: GraphInfo) -> nn.Module:
        """Make the model on the host, with weights from torch's generator where it is not given with its own; one of
        PyTorch Geometric's kind is distributed.
        """
        if self.model is None:
            model = build_model(shape_of(config, info))
        elif isinstance(self.model, nn.Module):
            model = copy.deepcopy(self.model)
        else:
            model = self.model()
        return distribute(model) if is_pyg(model) else model


def shape_of(config: TrainConfig, info: GraphInfo) -> ModelShape:
    """Return the shape that the configured model is built from."""
    return ModelShape(config.model, info.num_features, config.hidden, info.num_classes, config.layers, config.dropout,
                      config.norm, config.heads, config.precision == "fp32", config.alpha, config.theta, config.jump,
                      parse_arguments(config.model_args))
