"""Models by name, and the stack of convolutions that five of them are.

The deep ones lie in a file each; none of them knows of training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from hpcgnn.errors import ConfigError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.attention import GATConvolution
from hpcgnn.nn.convolution import Convolution, GCNConvolution, MaxPoolConvolution, SAGEConvolution
from hpcgnn.nn.deep.appnp import APPNP
from hpcgnn.nn.deep.dagnn import DAGNN
from hpcgnn.nn.deep.gcnii import GCNII
from hpcgnn.nn.deep.jknet import JKNet
from hpcgnn.nn.deep.sgc import SGC
from hpcgnn.nn.isomorphism import GINConvolution
from hpcgnn.nn.normalization import NORMS, layer_norm_of
from hpcgnn.settings import import_class


@dataclass(frozen=True)
class LayerShape:
    """Gives the sizes and options that a convolution of a stack is built from; see `ConvolutionStack`."""

    in_dim: int
    out_dim: int
    dropout: float
    is_last: bool
    heads: int
    has_wide_sums: bool


def _attention(shape: LayerShape) -> nn.Module:
    return GATConvolution(shape.in_dim, shape.out_dim, shape.dropout, shape.heads,
                          "average" if shape.is_last else "concatenate")


def _isomorphism(shape: LayerShape) -> nn.Module:
    # A sum over a hub's neighbors passes float16's largest number; HalfGNN's scaled mean does not.
    return GINConvolution(shape.in_dim, shape.out_dim, shape.dropout, "sum" if shape.has_wide_sums else "mean")


CONVOLUTIONS: dict[str, Callable[[LayerShape], nn.Module]] = {
    "gcn": lambda shape: GCNConvolution(shape.in_dim, shape.out_dim, shape.dropout),
    "sage": lambda shape: SAGEConvolution(shape.in_dim, shape.out_dim, shape.dropout),
    "sage-max": lambda shape: MaxPoolConvolution(shape.in_dim, shape.out_dim, shape.dropout),
    "gat": _attention,
    "gin": _isomorphism,
}


class ConvolutionStack(nn.Module):
    """dropout → convolution → norm → ReLU, `num_layers` times; the last convolution's output are the logits.

    Parameters
    ----------
    model : {"gcn", "sage", "sage-max", "gat", "gin"}
    in_dim, hidden_dim, out_dim : int
    num_layers : int, at least 1
    dropout : float                 on the input of every convolution
    norm : {"none", "layer"}
    heads : int                     of attention; they share hidden_dim
    has_wide_sums : bool            rows are float32, so that a sum over any number of neighbors is finite

    Raises
    ------
    ConfigError      heads that can't share hidden_dim
    """

    def __init__(self, model: str, in_dim: int, hidden_dim: int, out_dim: int, num_layers: int, dropout: float,
                 norm: str, heads: int = 4, has_wide_sums: bool = True):
        super().__init__()
        dims = [in_dim] + [hidden_dim] * (num_layers - 1) + [out_dim]
        self.convolutions = nn.ModuleList(
            CONVOLUTIONS[model](LayerShape(dims[i], dims[i + 1], dropout, i == num_layers - 1, heads, has_wide_sums))
            for i in range(num_layers))
        self.norms = nn.ModuleList(NORMS[norm](hidden_dim) for _ in range(num_layers - 1))

    @property
    def num_hops(self) -> int | None:
        """Aggregations between input and logits, where every layer can leave out rows that are farther from the loss;
        None where one can't.
        """
        can_leave_out = all(isinstance(convolution, Convolution) for convolution in self.convolutions)
        return len(self.convolutions) if can_leave_out else None

    def forward(self, graph: LocalGraph, x: torch.Tensor) -> torch.Tensor:
        """Collective: (num_inner, in_dim) input rows to (num_inner, out_dim) logits.

        In a training pass whose reach the graph knows, only the rows of the loss come out; they are its first ones.
        """
        h, is_dropped = x, False
        for convolution, norm, following in zip(self.convolutions, self.norms, self.convolutions[1:], strict=False):
            z = convolution(graph, h, is_dropped)
            is_dropped = following.takes_dropped(graph)
            h = graph.activate(z, layer_norm_of(norm), following.dropout, is_dropped)
        return self.convolutions[-1](graph, h, is_dropped)

    def first_layer_parameters(self) -> list[nn.Parameter]:
        """Parameters of the first convolution, the only ones that Kipf and Welling (2017) decay."""
        return list(self.convolutions[0].parameters())


@dataclass(frozen=True)
class ModelShape:
    """Gives the name, sizes and options that a model is built from.

    Attributes
    ----------
    model : str                     a key of MODELS
    in_dim, hidden_dim, out_dim : int
    num_layers : int                convolutions; propagation steps of dagnn, sgc and appnp
    dropout : float                 on the input of every layer
    norm : {"none", "layer"}        after every hidden layer
    heads : int                     of gat
    has_wide_sums : bool            rows are float32, so that a sum over any number of neighbors is finite
    alpha : float                   share of the first rows in every step of gcnii and appnp
    theta : float                   weight of gcnii's maps
    jump : {"concat", "max"}        how jknet joins its depths
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

    @property
    def common(self) -> tuple[int, int, int, int, float, str]:
        """Return what every model with hidden rows takes, in its order."""
        return self.in_dim, self.hidden_dim, self.out_dim, self.num_layers, self.dropout, self.norm


def _stack(shape: ModelShape) -> nn.Module:
    return ConvolutionStack(shape.model, *shape.common, shape.heads, shape.has_wide_sums)


MODELS: dict[str, Callable[[ModelShape], nn.Module]] = {
    **dict.fromkeys(CONVOLUTIONS, _stack),
    "gcnii": lambda shape: GCNII(*shape.common, shape.alpha, shape.theta),
    "dagnn": lambda shape: DAGNN(*shape.common),
    "sgc": lambda shape: SGC(shape.in_dim, shape.out_dim, shape.num_layers, shape.dropout),
    "jknet": lambda shape: JKNet(*shape.common, shape.jump),
    "appnp": lambda shape: APPNP(*shape.common, shape.alpha),
}

# How a model sums its neighbors' rows, which weighs the variance of a message; attention and a maximum count as means.
REDUCTIONS = {"gcn": "gcn", "sage": "mean", "sage-max": "mean", "gat": "mean", "gin": "sum", "gcnii": "gcn",
              "dagnn": "gcn", "sgc": "gcn", "jknet": "gcn", "appnp": "gcn"}
ATTENDING = ("gat",)      # models that weigh rows by a softmax over them


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


def traits_of(name: str) -> ModelTraits:
    """Traits of a model by its name; a class of one's own has them as attributes, a mean without attention otherwise.

    Raises
    ------
    ConfigError      see `hpcgnn.settings.import_class`
    """
    if name in REDUCTIONS:
        return ModelTraits(REDUCTIONS[name], name in ATTENDING)
    found = import_class(name, "model", nn.Module)
    return ModelTraits(getattr(found, "reduction", "mean"), getattr(found, "attends", False))


def build_model(shape: ModelShape) -> nn.Module:
    """A model with fresh weights from torch's generator; one of one's own, named MODULE:CLASS, is made as
    CLASS(in_dim, hidden_dim, out_dim, num_layers, dropout).

    It has `forward(graph, x)`, collective, from input rows to logits; `num_hops`, its aggregations, or None where it
    can't leave out rows that are farther from the loss; and `first_layer_parameters()`.

    Raises
    ------
    ConfigError      an unknown model; heads that can't share hidden_dim; an unknown jump
    """
    if ":" in shape.model:
        made = import_class(shape.model, "model", nn.Module)
        try:
            return made(*shape.common[:5])
        except TypeError as error:
            raise ConfigError(f"model {shape.model} can't be made from in_dim, hidden_dim, out_dim, num_layers and "
                              f"dropout: {error}") from error
    if shape.model not in MODELS:
        raise ConfigError(f"model must be one of {', '.join(MODELS)}, found {shape.model!r}")
    return MODELS[shape.model](shape)
