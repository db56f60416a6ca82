"""Models by name: a stack of convolutions, each followed by normalization and ReLU but for the last."""

from __future__ import annotations

import torch
from torch import nn

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.convolution import Convolution, GCNConvolution, SAGEConvolution

CONVOLUTIONS: dict[str, type[Convolution]] = {"gcn": GCNConvolution, "sage": SAGEConvolution}
NORMS: dict[str, type[nn.Module]] = {"none": nn.Identity, "layer": nn.LayerNorm}


class ConvolutionStack(nn.Module):
    """dropout → convolution → norm → ReLU, `num_layers` times; the last convolution's output are the logits.

    Parameters
    ----------
    model : {"gcn", "sage"}
    in_dim, hidden_dim, out_dim : int
    num_layers : int, at least 1
    dropout : float                 on the input of every convolution
    norm : {"none", "layer"}
    """

    def __init__(self, model: str, in_dim: int, hidden_dim: int, out_dim: int, num_layers: int, dropout: float,
                 norm: str):
        super().__init__()
        dims = [in_dim] + [hidden_dim] * (num_layers - 1) + [out_dim]
        convolution = CONVOLUTIONS[model]
        self.convolutions = nn.ModuleList(
            convolution(dims[i], dims[i + 1], dropout) for i in range(num_layers))
        self.norms = nn.ModuleList(NORMS[norm](hidden_dim) for _ in range(num_layers - 1))

    @property
    def num_hops(self) -> int:
        """Aggregations between input and logits: a training pass may leave out what is farther from the loss."""
        return len(self.convolutions)

    def forward(self, graph: LocalGraph, x: torch.Tensor) -> torch.Tensor:
        """Collective: (num_inner, in_dim) input rows to (num_inner, out_dim) logits.

        In a training pass whose reach the graph knows, only the rows of the loss come out; they are its first ones.
        """
        h, is_dropped = x, False
        for convolution, norm, following in zip(self.convolutions, self.norms, self.convolutions[1:], strict=False):
            z = convolution(graph, h, is_dropped)
            is_dropped = following.takes_dropped(graph)
            h = graph.activate(z, norm if isinstance(norm, nn.LayerNorm) else None,
                               following.dropout if is_dropped else 0.0, is_dropped)
        return self.convolutions[-1](graph, h, is_dropped)

    def first_layer_parameters(self) -> list[nn.Parameter]:
        """Parameters of the first convolution, the only ones that Kipf and Welling (2017) decay."""
        return list(self.convolutions[0].parameters())
