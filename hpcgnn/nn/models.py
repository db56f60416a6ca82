"""Models by name. A model's class carries its traits, and its constructor names the settings that it takes.

None of them knows of training.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from torch import nn

from hpcgnn.errors import ConfigError
from hpcgnn.nn.names import MODEL_PATHS
from hpcgnn.settings import import_class

MODELS: dict[str, type[nn.Module]] = {name: import_class(path, "model", nn.Module)
                                      for name, path in MODEL_PATHS.items()}


@dataclass(frozen=True)
class ModelShape:
    """Gives the name of a model, and the sizes and options of which its constructor takes those that it names.

    Attributes
    ----------
    model : str                     a key of MODELS, or MODULE:CLASS
    in_dim, hidden_dim, out_dim : int
    num_layers : int                convolutions; propagation steps of dagnn, sgc and appnp
    dropout : float                 on the input of every layer
    norm : {"none", "layer"}        after every hidden layer
    heads, has_wide_sums, alpha, theta, jump       see the models that take them
    """

    model: str
    in_dim: int
    hidden_dim: int
    out_dim: int
    num_layers: int
    dropout: float
    norm: str = "none"
    heads: int = 4
    has_wide_sums: bool = True
    alpha: float = 0.1
    theta: float = 0.5
    jump: str = "concat"


@dataclass(frozen=True)
class ModelTraits:
    """Tells methods how a model sums its neighbors' rows.

    Attributes
    ----------
    reduction : {"gcn", "mean", "sum"}      how it sums its neighbors' rows; attention and a maximum count as means
    attends : bool                          it weighs rows by a softmax over them
    """

    reduction: str
    attends: bool


def find_model(name: str) -> type[nn.Module]:
    """Return the class of a model by its name, or by its import path, MODULE:CLASS.

    Raises
    ------
    ConfigError      an unknown model; see `hpcgnn.settings.import_class`
    """
    if ":" in name:
        return import_class(name, "model", nn.Module)
    if name not in MODELS:
        raise ConfigError(f"model must be one of {', '.join(MODELS)}, found {name!r}")
    return MODELS[name]


def settings_of(model: type[nn.Module]) -> tuple[str, ...]:
    """Return the attributes of a ModelShape that a model's constructor takes, by their names."""
    return tuple(name for name in inspect.signature(model).parameters if name in ModelShape.__dataclass_fields__)


def traits_of(name: str) -> ModelTraits:
    """Return what a model's class says; one of one's own that says nothing takes means without attention.

    Raises
    ------
    ConfigError      see `find_model`
    """
    model = find_model(name)
    return ModelTraits(getattr(model, "reduction", "mean"), getattr(model, "attends", False))


def build_model(shape: ModelShape) -> nn.Module:
    """Make a model with fresh weights from torch's generator; one of one's own, named MODULE:CLASS, is made as
    CLASS(in_dim, hidden_dim, out_dim, num_layers, dropout).

    It has `forward(graph, x)`, collective, from input rows to logits; `num_hops`, its aggregations, or None where it
    can't leave out rows that are farther from the loss; and `first_layer_parameters()`.

    Raises
    ------
    ConfigError      an unknown model; heads that can't share hidden_dim; an unknown jump
    """
    model = find_model(shape.model)
    if shape.model in MODELS:
        return model(**{name: getattr(shape, name) for name in settings_of(model)})
    try:
        return model(shape.in_dim, shape.hidden_dim, shape.out_dim, shape.num_layers, shape.dropout)
    except TypeError as error:
        raise ConfigError(f"model {shape.model} can't be made from in_dim, hidden_dim, out_dim, num_layers and "
                          f"dropout: {error}") from error
