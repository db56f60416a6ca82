"""Check that a model can use a graph's edge weights."""

from __future__ import annotations

from torch import nn

from hpcgnn.errors import ConfigError

INTEGERS_REFUSE = ("models of integers take no edge weights, and this graph has them; train a model of floats, or "
                   "preprocess the graph without weights")


def check_edge_weights(model: nn.Module, name: str, has_weights: bool, is_quantized: bool = False) -> None:
    """Raise ConfigError if edge weights are given to a model without support for them, or to one of integers."""
    if not has_weights:
        return
    if is_quantized:
        raise ConfigError(INTEGERS_REFUSE)
    if not getattr(model, "takes_edge_weights", True):
        raise ConfigError(f"model {name} takes no edge weights, and this graph has them; take another model, or "
                          "preprocess the graph without weights")
