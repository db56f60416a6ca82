"""APPNP: a perceptron's predictions, propagated by personalized PageRank. Only class-wide rows travel."""

from __future__ import annotations

import torch
from torch import nn

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.deep.propagation import Perceptron, known_hops, propagate, take_hops


class APPNP(nn.Module):
    """Z_0 = H = perceptron(x), Z_k = (1 - alpha) A Z_{k-1} + alpha H; the last of `num_layers` Z is the logits.

    alpha in [0, 1] is the teleport probability. The paper has no norm.

    Reference: Klicpera et al., ICLR 2019, Eq. (4)-(5). Deviation: no dropout of the adjacency, since draws would need
    two global node ids.
    """

    reduction = "gcn"
    attends = False
    last_call = "activate"      # of the graph; it returns the rows that the last linear map reads

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, num_layers: int, dropout: float, norm: str,
                 alpha: float, input_dropout: float = -1.0):
        super().__init__()
        self.num_steps, self.num_hops, self.alpha = num_layers, known_hops(num_layers, norm), alpha
        self.perceptron = Perceptron(in_dim, hidden_dim, out_dim, dropout, norm, input_dropout)

    def forward(self, graph: LocalGraph, x: torch.Tensor) -> torch.Tensor:
        """Collective: map (num_inner, in_dim) input rows to logits; see `ConvolutionStack.forward`."""
        hops = take_hops(graph, self.num_steps)
        z = first = self.perceptron(graph, x[:hops[0].num_in])
        for hop in hops:
            z = propagate(graph, z, hop, first=first, alpha=self.alpha)
        return z

    def first_layer_parameters(self) -> list[nn.Parameter]:
        """Return the first linear map's parameters, the only ones that the paper decays."""
        return list(self.perceptron.first.parameters())
