"""Hooks that training calls on a model, besides its forward pass.

Most models need no hook and use the defaults of `ModelHooks`. A model that is trained as integers (`--quantize`)
adds a penalty on its size to the loss, keeps its widths in their range after every step, and reports its size. Its
class is in `lowbit`, which the core does not import, so it is loaded by its import path, as the built-in models are.
"""

from __future__ import annotations

from typing import Any

import torch
from mpi4py import MPI
from torch import nn

from hpcgnn.config import TrainConfig
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.settings import import_class

QUANTIZED_MODEL = "hpcgnn.lowbit.training.models:QuantizedStack"


class ModelHooks:
    """Hooks that a model may override; the defaults suit a model in floats."""

    def with_penalty(self, loss: torch.Tensor, num_ranks: int) -> torch.Tensor:
        """The loss of a step, with this rank's share of the model's own penalty."""
        return loss

    def end_step(self) -> None:
        """Called after the optimizer has moved the weights."""

    def scale_parameters(self) -> list[nn.Parameter]:
        """Parameters that are trained at `quantize_lr`, without decay."""
        return []

    def width_parameters(self) -> list[nn.Parameter]:
        """Parameters that are trained at a small share of `quantize_lr`, without decay."""
        return []

    def feature_size(self) -> dict[str, Any]:
        """Sizes for metrics and evaluations (`feature_kb`, ...); empty if rows are stored as floats."""
        return {}

    def meets_target(self, feature_kb: float) -> bool:
        """Whether the model is small enough to count as the best one."""
        return True

    def summary(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        """Entries about the model for summary.json, other than scores, from the results of all seeds."""
        return {}

    def last_layer(self) -> nn.Module | None:
        """The module that reads the embeddings; None if it must be searched for."""
        return None

    @classmethod
    def from_settings(cls, model: nn.Module, config: TrainConfig, graph: LocalGraph, comm: MPI.Comm) -> nn.Module:
        """Collective: wrap `model` for training as `config` says, fitted to the rows of this graph.

        The wrapper trains the weights of `model`.
        """
        raise NotImplementedError


PLAIN = ModelHooks()


def hooks_of(model: nn.Module) -> ModelHooks:
    """The model's own hooks, or the default hooks, which do nothing."""
    return model if isinstance(model, ModelHooks) else PLAIN


def quantized(model: nn.Module, config: TrainConfig, graph: LocalGraph, comm: MPI.Comm) -> nn.Module:
    """Collective: the model that `--quantize` trains; CollectiveError for input rows that can't be quantized."""
    return import_class(QUANTIZED_MODEL, "quantized model", ModelHooks).from_settings(model, config, graph, comm)
