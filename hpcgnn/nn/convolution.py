"""Graph convolutions on a LocalGraph. Each sends the narrower of its two sides and aggregates with global degrees.

A row that is sent as it stands crosses before dropout and the receiver applies the owner's mask; a row that is sent
after a linear map was masked by its owner.
"""

from __future__ import annotations

import torch
from torch import nn

from hpcgnn.graph.local_graph import LocalGraph


class Convolution(nn.Module):
    """A linear map W and a linear aggregation A: A(xW) = (Ax)W, computed in the order that sends and sums less.

    Parameters
    ----------
    in_dim, out_dim : int
    dropout : float           on the input
    reduction : str           see `LocalGraph.aggregate`
    """

    def __init__(self, in_dim: int, out_dim: int, dropout: float, reduction: str):
        super().__init__()
        self.in_dim, self.out_dim, self.dropout, self.reduction = in_dim, out_dim, dropout, reduction

    def neighborhood(self, graph: LocalGraph, h: torch.Tensor, weight: torch.Tensor):
        """Collective: dropped-out inner rows, and A(dropout(h)) W.

        Parameters
        ----------
        h : (num_inner, in_dim) float32
        weight : (out_dim, in_dim) float32

        Returns
        -------
        dropped : (num_inner, in_dim) float32
        aggregated : (num_inner, out_dim) float32
        """
        maps_first = self.out_dim < self.in_dim
        if maps_first and not graph.is_input(h):
            dropped = graph.dropout(h, self.dropout)
            return dropped, graph.aggregate(graph.halo(dropped @ weight.t()), self.reduction)
        h_all = graph.dropout(graph.halo(h), self.dropout)
        dropped = h_all[:graph.num_inner]
        if maps_first:
            # Input halo rows are already here, so mapping them too costs no message.
            return dropped, graph.aggregate(h_all @ weight.t(), self.reduction)
        return dropped, graph.aggregate(h_all, self.reduction) @ weight.t()


class GCNConvolution(Convolution):
    """out = D^-1/2 (A + I) D^-1/2 x W + b, with D the global in-degree plus one.

    Reference: Kipf and Welling, ICLR 2017, Eq. (2).
    """

    def __init__(self, in_dim: int, out_dim: int, dropout: float):
        super().__init__(in_dim, out_dim, dropout, "gcn")
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(out_dim, in_dim)))
        self.bias = nn.Parameter(torch.zeros(out_dim))

    def forward(self, graph: LocalGraph, h: torch.Tensor) -> torch.Tensor:
        """Collective: (num_inner, in_dim) to (num_inner, out_dim)."""
        _, aggregated = self.neighborhood(graph, h, self.weight)
        return aggregated + self.bias


class SAGEConvolution(Convolution):
    """out = x W_self + mean of the in-neighbors' x W_neighbor + b.

    Reference: Hamilton et al., NeurIPS 2017, Algorithm 1 with the mean aggregator.
    """

    def __init__(self, in_dim: int, out_dim: int, dropout: float):
        super().__init__(in_dim, out_dim, dropout, "mean")
        # Uniform in ±1/sqrt(in_dim), as torch.nn.Linear and PyTorch Geometric's SAGEConv start.
        bound = in_dim ** -0.5
        self.weight_self = nn.Parameter(torch.empty(out_dim, in_dim).uniform_(-bound, bound))
        self.weight_neighbor = nn.Parameter(torch.empty(out_dim, in_dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(out_dim))

    def forward(self, graph: LocalGraph, h: torch.Tensor) -> torch.Tensor:
        """Collective: (num_inner, in_dim) to (num_inner, out_dim)."""
        dropped, aggregated = self.neighborhood(graph, h, self.weight_neighbor)
        return torch.addmm(self.bias, dropped, self.weight_self.t()) + aggregated
