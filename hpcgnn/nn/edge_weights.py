"""Which models take the weights of arcs. How they weigh rows is the business of the graph and of each convolution."""

from __future__ import annotations

from hpcgnn.errors import ConfigError
from hpcgnn.nn.models import find_model

INTEGERS_REFUSE = ("models of integers take no edge weights, and this graph has them; train a model of floats, or "
                   "preprocess the graph without weights")


def check_edge_weights(has_weights: bool, model: str, is_quantized: bool = False) -> None:
    """Check that a model takes the weights of a graph's arcs, where it has any; one of one's own is believed to.

    Parameters
    ----------
    has_weights : bool          of the graph
    model : str                 a name of `hpcgnn.nn.models.MODELS`, or MODULE:CLASS
    is_quantized : bool         whether it computes on integers

    Raises
    ------
    ConfigError      a model that takes none, or an unknown one
    """
    if not has_weights:
        return
    if is_quantized:
        raise ConfigError(INTEGERS_REFUSE)
    if not getattr(find_model(model), "takes_edge_weights", True):
        raise ConfigError(f"model {model} takes no edge weights, and this graph has them; take another model, or "
                          "preprocess the graph without weights")
