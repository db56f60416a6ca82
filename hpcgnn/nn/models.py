"""Models by name: the table of model classes, how one is built from a `ModelShape`, and what wraps a user's own.

A model names the sizes and options it needs as parameters of its constructor. Class attributes (`reduction`, `attends`,
...) tell training methods how it sums its neighbors.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from hpcgnn.errors import ConfigError
from hpcgnn.nn.names import MODEL_PATHS
from hpcgnn.settings import NamedClasses, import_class

MODELS: Mapping[str, type[nn.Module]] = NamedClasses(MODEL_PATHS, "model", nn.Module)

INTEGERS_REFUSE = ("models of integers take no edge weights, and this graph has them; train a model of floats, or "
                   "preprocess the graph without weights")
# Constructors' names for the sizes of a ModelShape.
SIZE_NAMES = {"in_dim": ("in_dim", "in_channels", "in_feats"), "hidden_dim": ("hidden_dim", "hidden_channels"),
              "out_dim": ("out_dim", "out_channels", "num_classes"), "num_layers": ("num_layers",),
              "dropout": ("dropout",), "metadata": ("metadata",)}


@dataclass(frozen=True)
class ModelShape:
    """Name, sizes and options of a model. The constructor gets the ones that are among its parameters."""

    model: str                                               # a key of MODELS, or MODULE:CLASS
    in_dim: int
    hidden_dim: int
    out_dim: int
    num_layers: int                                          # convolutions; propagation steps of dagnn, sgc and appnp
    dropout: float                                           # on the input of every layer
    norm: str = "none"                                       # {"none", "layer", "batch"}, after every hidden layer
    # see the models that take them
    heads: int = 4
    has_wide_sums: bool = True
    alpha: float = 0.1
    theta: float = 0.5
    jump: str = "concat"
    residual: bool = False
    input_dropout: float = -1.0                              # on the input of the first layer; negative: `dropout`
    num_bases: int = 8                                       # see `hpcgnn.nn.relational.RGCNConvolution`
    num_blocks: int = 0                                      # 0: bases
    num_relations: int = 0                                   # of the graph's edges; 0: edges are of one kind
    metadata: Any = None                                     # types of nodes and kinds of edges, for a user's model
    arguments: dict[str, Any] = field(default_factory=dict)  # further arguments of a user's model, by name


class Distributed(nn.Module):
    """Computes a user's own `module` on a graph in parts, with the module's weights under their names."""

    module: nn.Module


def plain(model: nn.Module) -> nn.Module:
    """The user's own model inside a Distributed model; any other model unchanged."""
    return model.module if isinstance(model, Distributed) else model


def is_of_hpcgnn(model: nn.Module) -> bool:
    return type(model).__module__.startswith("hpcgnn.nn.")


@dataclass(frozen=True)
class ModelTraits:
    """How a model sums its neighbors' rows."""

    reduction: str             # {"gcn", "mean", "sum"}, attention and a maximum count as means
    attends: bool              # rows are weighted by a softmax
    num_layers: int            # exchanges of halo rows per pass
    weighs_self: bool = False  # each layer has separate weights for the row itself


def find_model(name: str) -> type[nn.Module]:
    """Return the class of a model, by name or MODULE:CLASS; ConfigError if there is none."""
    if ":" in name:
        return import_class(name, "model", nn.Module)
    if name not in MODELS:
        raise ConfigError(f"model must be one of {', '.join(MODELS)}, found {name!r}")
    return MODELS[name]


def settings_of(model: type[nn.Module]) -> tuple[str, ...]:
    """Return the attributes of a ModelShape that a model's constructor takes."""
    return tuple(name for name in inspect.signature(model).parameters if name in ModelShape.__dataclass_fields__)


def traits_of(model: nn.Module, num_layers: int) -> ModelTraits:
    """Return a model's traits; the default is means without attention in `num_layers` layers."""
    return ModelTraits(getattr(model, "reduction", "mean"), getattr(model, "attends", False),
                       getattr(model, "num_exchanges", num_layers),
                       getattr(model, "weighs_self", False))


def build_model(shape: ModelShape) -> nn.Module:
    """Make a model with fresh weights from torch's generator; ConfigError for sizes or options that it can't have.

    The model has `forward(graph, x)`, collective, from input rows to logits; `num_hops`, its number of aggregations, or
    None if every pass needs all rows; and `first_layer_parameters()`.
    """
    model = find_model(shape.model)
    if shape.model in MODELS:
        return model(**{name: getattr(shape, name) for name in settings_of(model)})
    named = own_arguments(model, shape)
    try:
        if named is None:
            return model(shape.in_dim, shape.hidden_dim, shape.out_dim, shape.num_layers, shape.dropout)
        return model(**named)
    except TypeError as error:
        what = "in_dim, hidden_dim, out_dim, num_layers and dropout" if named is None else ", ".join(
            f"{name}={value!r}" for name, value in named.items()) or "no argument"
        raise ConfigError(f"model {shape.model} can't be made from {what}: {error}; model_args gives what else its "
                          "constructor takes") from error


def own_arguments(model: type[nn.Module], shape: ModelShape) -> dict[str, Any] | None:
    """A user's model's constructor arguments by name, or None to pass the five sizes by position.

    Sizes are found by their usual names in hpcgnn or PyTorch Geometric (SIZE_NAMES), and `arguments` are added. None
    means that the constructor needs other names and no `arguments` are given.
    """
    parameters = inspect.signature(model).parameters.values()
    sizes = {name: getattr(shape, size) for size, names in SIZE_NAMES.items() for name in names
             if getattr(shape, size) is not None}
    needed = [own.name for own in parameters if own.default is own.empty and own.kind not in (own.VAR_POSITIONAL,
                                                                                              own.VAR_KEYWORD)]
    if not shape.arguments and not sizes.keys() >= set(needed):
        return None
    return {**{own.name: sizes[own.name] for own in parameters if own.name in sizes}, **shape.arguments}


def check_edge_weights(model: nn.Module, name: str, has_weights: bool, is_quantized: bool = False) -> None:
    """Raise ConfigError if edge weights are given to a model that does not support them, or to a model of integers."""
    if not has_weights:
        return
    if is_quantized:
        raise ConfigError(INTEGERS_REFUSE)
    if not getattr(model, "takes_edge_weights", True):
        raise ConfigError(f"model {name} takes no edge weights, and this graph has them; take another model, or "
                          "preprocess the graph without weights")
