"""DAGNN: a perceptron's predictions, propagated to many depths and gated at each. Only class-wide rows travel."""

from __future__ import annotations

import torch
from torch import nn

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.deep.propagation import Perceptron, known_hops, propagate, take_hops


class DAGNN(nn.Module):
    """H_0 = perceptron(x), H_k = A H_{k-1}; per row, the logits are the sum over k of sigmoid(H_k s + b) H_k.

    `num_layers` is the paper's number of propagation steps k. The paper has no norm.

    Reference: Liu et al., KDD 2020, Eq. (8). The gate has a bias b, as in the authors' program.
    """

    reduction = "gcn"
    attends = False
    last_call = "activate"      # of the graph; it returns the rows that the last linear map reads

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, num_layers: int, dropout: float, norm: str,
                 input_dropout: float = -1.0):
        super().__init__()
        self.num_steps, self.num_hops = num_layers, known_hops(num_layers, norm)
        self.perceptron = Perceptron(in_dim, hidden_dim, out_dim, dropout, norm, input_dropout)
        self.gate = nn.Linear(out_dim, 1)

    def forward(self, graph: LocalGraph, x: torch.Tensor) -> torch.Tensor:
        """Collective: map (num_inner, in_dim) input rows to float32 logits; see `ConvolutionStack.forward`."""
        hops = take_hops(graph, self.num_steps)
        h, num_out = self.perceptron(graph, x[:hops[0].num_in]), hops[-1].num_out
        logits = self._gated(h[:num_out])
        for hop in hops:
            h = propagate(graph, h, hop)
            logits = logits + self._gated(h[:num_out])
        return logits

    def _gated(self, h: torch.Tensor) -> torch.Tensor:
        # In float32: a sum of many depths, and the gate's gradient a sum over all rows.
        h = h.float()
        return torch.sigmoid(self.gate(h)) * h

    def first_layer_parameters(self) -> list[nn.Parameter]:
        return list(self.perceptron.first.parameters())
