"""Which models take the weights of arcs. How they weigh rows is the business of the graph and of each convolution."""

from __future__ import annotations

from torch import nn

from hpcgnn.errors import ConfigError

INTEGERS_REFUSE = ("models of integers take no edge weights, and this graph has them; train a model of floats, or "
                   "preprocess the graph without weights")


def check_edge_weights(model: nn.Module, name: str, has_weights: bool, is_quantized: bool = False) -> None:
    """Check that a model takes the weights of a graph's arcs, where it has any.

    Parameters
    ----------
    model : nn.Module           one that says nothing by `takes_edge_weights` is believed to take them
    name : str                  what users call it
    has_weights : bool          of the graph
    is_quantized : bool         whether it is trained as integers

    Raises
    ------
    ConfigError      a model that takes none
    """
    if not has_weights:
        return
    if is_quantized:
        raise ConfigError(INTEGERS_REFUSE)
    if not getattr(model, "takes_edge_weights", True):
        raise ConfigError(f"model {name} takes no edge weights, and this graph has them; take another model, or "
                          "preprocess the graph without weights")
