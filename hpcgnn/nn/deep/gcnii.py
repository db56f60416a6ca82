"""GCNII: graph convolutions that mix in the first rows and the identity, and so train at any depth."""

from __future__ import annotations

import math

import torch
from torch import nn

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.batch_norm import normalized
from hpcgnn.nn.deep.propagation import known_hops, propagate, take_hops
from hpcgnn.nn.layers import of_input
from hpcgnn.nn.linear import NORMS, layer_norm_of, linear


class GCNII(nn.Module):
    """H_l = ReLU(((1 - alpha) A H_{l-1} + alpha H_0) ((1 - beta_l) I + beta_l W_l)) between two linear maps.

    H_0 = ReLU(x W_in + b_in), the logits are H_L W_out + b_out, and beta_l = log(theta / l + 1), theta the paper's
    lambda. Dropout is on the input of every layer and of both outer maps; H_0 is mixed in without dropout. The paper
    has no norm.

    Reference: Chen et al., ICML 2020, Eq. (5), and section 3 for beta.
    """

    reduction = "gcn"
    attends = False
    last_call = "activate"      # of the graph; it returns the rows that the last linear map reads

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, num_layers: int, dropout: float, norm: str,
                 alpha: float, theta: float, input_dropout: float = -1.0):
        super().__init__()
        self.num_steps, self.dropout, self.alpha = num_layers, dropout, alpha
        self.num_hops = known_hops(num_layers, norm)
        self.input_dropout = of_input(input_dropout, dropout)
        self.beta = [math.log(theta / layer + 1) for layer in range(1, num_layers + 1)]
        self.first, self.last = nn.Linear(in_dim, hidden_dim), nn.Linear(hidden_dim, out_dim)
        self.weights = nn.ParameterList(nn.init.xavier_uniform_(torch.empty(hidden_dim, hidden_dim))
                                        for _ in range(num_layers))
        self.norms = nn.ModuleList(NORMS[norm](hidden_dim) for _ in range(num_layers))

    def forward(self, graph: LocalGraph, x: torch.Tensor) -> torch.Tensor:
        """Collective: map (num_inner, in_dim) input rows to logits; see `ConvolutionStack.forward`."""
        hops = take_hops(graph, self.num_steps)
        z = linear(graph.dropout(x[:hops[0].num_in], self.input_dropout), self.first.weight, self.first.bias,
                   graph)
        h = first = graph.activate(z, None, 0.0, is_dropped=False)
        is_dropped = False
        for layer, hop in enumerate(hops):
            mixed = propagate(graph, h, hop, self.dropout, is_dropped, first, self.alpha)
            z = linear(mixed, self._map(layer), graph=graph)
            # Rows sent unmapped are masked by their receivers. After the last layer nothing is sent.
            is_dropped = graph.drops_first or layer == self.num_steps - 1
            z = normalized(graph, self.norms[layer], z)
            h = graph.activate(z, layer_norm_of(self.norms[layer]), self.dropout, is_dropped)
        return linear(h, self.last.weight, self.last.bias, graph)

    def _map(self, layer: int) -> torch.Tensor:
        # (1 - beta) I + beta W is one matrix, so rows take one product and no sum.
        weight = self.weights[layer]
        return torch.eye(len(weight), dtype=weight.dtype, device=weight.device).lerp(weight, self.beta[layer])

    def first_layer_parameters(self) -> list[nn.Parameter]:
        return list(self.first.parameters())
