"""Two linear maps of rows, with dropout before each: what DAGNN and APPNP predict from, before they propagate."""

from __future__ import annotations

import torch
from torch import nn

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.linear import linear
from hpcgnn.nn.normalization import NORMS, layer_norm_of


class Perceptron(nn.Module):
    """dropout → linear → norm → ReLU → dropout → linear.

    Parameters
    ----------
    in_dim, hidden_dim, out_dim : int
    dropout : float
    norm : {"none", "layer"}        of the hidden rows
    """

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, dropout: float, norm: str):
        super().__init__()
        self.dropout = dropout
        self.first, self.second = nn.Linear(in_dim, hidden_dim), nn.Linear(hidden_dim, out_dim)
        self.norm = NORMS[norm](hidden_dim)

    def forward(self, graph: LocalGraph, x: torch.Tensor) -> torch.Tensor:
        """Map (n, in_dim) rows, the first n inner ones, to (n, out_dim), as x."""
        h = linear(graph.dropout(x, self.dropout), self.first.weight, self.first.bias)
        h = graph.activate(h, layer_norm_of(self.norm), self.dropout)
        return linear(h, self.second.weight, self.second.bias)
