"""Models by name: a stack of convolutions, each followed by normalization and ReLU but for the last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.attention import GATConvolution
from hpcgnn.nn.convolution import Convolution, GCNConvolution, MaxPoolConvolution, SAGEConvolution
from hpcgnn.nn.isomorphism import GINConvolution

NORMS: dict[str, type[nn.Module]] = {"none": nn.Identity, "layer": nn.LayerNorm}


@dataclass(frozen=True)
class LayerShape:
    """What a convolution of a stack is built from: see `ConvolutionStack`."""

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
            h = graph.activate(z, norm if isinstance(norm, nn.LayerNorm) else None, following.dropout, is_dropped)
        return self.convolutions[-1](graph, h, is_dropped)

    def first_layer_parameters(self) -> list[nn.Parameter]:
        """Parameters of the first convolution, the only ones that Kipf and Welling (2017) decay."""
        return list(self.convolutions[0].parameters())
