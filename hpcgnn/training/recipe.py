"""Recipe: the objects that a user's program passes to a run, in addition to settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from hpcgnn.config import TrainConfig, parse_arguments
from hpcgnn.errors import ConfigError
from hpcgnn.nn.linear import BatchNorm
from hpcgnn.nn.models import MODELS, Distributed, ModelShape, build_model, is_of_hpcgnn
from hpcgnn.nn.node_embedding import Embedded, Nodes
from hpcgnn.shards.schema import GraphInfo
from hpcgnn.training.own_loss import OwnLoss, copies_of
from hpcgnn.training.scores import Score

if TYPE_CHECKING:
    from hpcgnn.training.callbacks import Callback
    from hpcgnn.training.schedule import MakeSchedule

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Recipe:
    """Objects that a user's program passes in; None leaves the choice to the settings."""

    model: nn.Module | Callable[[], nn.Module] | None = None
    loss: OwnLoss | None = None
    score: Score | None = None
    optimizer: MakeOptimizer | None = None      # makes a torch optimizer from parameters
    schedule: MakeSchedule | None = None      # makes a schedule of learning rates from an optimizer
    callbacks: tuple[Callback, ...] = ()

    @contextmanager
    def kept_as_it_is(self, is_tried: bool) -> Iterator[None]:
        """After the block, a given model has the same weights and buffers as before."""
        given = self.model if isinstance(self.model, nn.Module) and is_tried else None
        state = None if given is None else copies_of(given.state_dict())
        yield
        if given is not None:
            given.load_state_dict(state)
            given.zero_grad(set_to_none=True)

    def callbacks_of(self, config: TrainConfig) -> tuple[Callback, ...]:
        """The program's callbacks, and the tracker that the settings name."""
        if config.track == "none":
            return self.callbacks
        from hpcgnn.training.trackers import TRACKERS

        return (*self.callbacks, TRACKERS[config.track]())

    def build(self, config: TrainConfig, info: GraphInfo, node_index: torch.Tensor | None = None) -> nn.Module:
        """The given model itself, or a new one on the host, with weights from torch's generator.

        node_index : (num_inner,) int64      this rank's nodes, for a model with a learned row of each node

        A PyTorch Geometric model is wrapped for distribution and left unchanged; ConfigError if wrapping or making
        fails.
        """
        if self.model is None:
            model = build_model(shape_of(config, info))
            if config.node_embedding:
                model = Embedded(model, Nodes(node_index, info.num_nodes), config.node_embedding)
        elif isinstance(self.model, nn.Module):
            model = self.model
        else:
            model = _made(self.model)
        if is_of_hpcgnn(model):
            return model
        from hpcgnn.pyg.distribute import DistributedModel, is_pyg

        return DistributedModel(model, info=info) if is_pyg(model) else model


def _made(make: Callable[[], nn.Module]) -> nn.Module:
    try:
        model = make()
    except TypeError as error:
        raise ConfigError(f"the function that makes the model fails: {error}; give one without arguments, such as "
                          "lambda: GraphSAGE(..)") from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f"the function that makes the model gives a {type(model).__name__}, no torch.nn.Module")
    return model


def check_statistics(model: nn.Module, num_ranks: int) -> None:
    """Refuse a model with batch statistics over one rank's rows only. Raises ConfigError: names the module."""
    if num_ranks == 1 or isinstance(model, Distributed):
        return
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and not isinstance(module, BatchNorm):
            raise ConfigError(f"{name} is a {type(module).__name__}, and its statistics would cover one rank's rows "
                              "only; use LayerNorm, or a model of PyTorch Geometric's kind, in which hpcgnn sums them "
                              "over ranks")


def shape_of(config: TrainConfig, info: GraphInfo) -> ModelShape:
    in_dim = info.num_features + (info.num_classes if config.label_inputs else 0) + config.node_embedding
    return ModelShape(config.model, in_dim, config.hidden, info.num_classes, config.layers, config.dropout,
                      config.norm, config.heads, config.precision == "fp32", config.alpha, config.theta, config.jump,
                      config.residual, config.input_dropout, config.num_bases, config.num_blocks,
                      len(info.relation_names),
                      info.metadata if info.node_types and config.model not in MODELS else None,
                      parse_arguments(config.model_args))
