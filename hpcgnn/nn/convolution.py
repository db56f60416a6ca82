"""Graph convolutions on a LocalGraph. Each sends the narrower of its two sides and aggregates with global degrees.

A row that is sent as it stands crosses before dropout and the receiver applies the owner's mask; a row that is sent
after a linear map was masked by its owner.
"""

from __future__ import annotations

import torch
from torch import nn

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.linear import linear
from hpcgnn.nn.neighborhood import AggregateFirst, MapFirst, Neighborhood
from hpcgnn.nn.rematerialization import rematerialized
from hpcgnn.ops.pointwise import Activation


class Convolution(nn.Module):
    """out = A(x) W_neighbor + x W_self + b with a linear aggregation A, which may come before or after the map.

    Parameters
    ----------
    in_dim, out_dim : int
    dropout : float           on the input
    reduction : str           see `LocalGraph.aggregate`
    has_self : bool           whether a row is mapped by itself too, by a weight of its own
    """

    def __init__(self, in_dim: int, out_dim: int, dropout: float, reduction: str, has_self: bool):
        super().__init__()
        self.in_dim, self.out_dim, self.dropout, self.reduction = in_dim, out_dim, dropout, reduction
        self.weight_neighbor = nn.Parameter(torch.empty(out_dim, in_dim))
        self.weight_self = nn.Parameter(torch.empty(out_dim, in_dim)) if has_self else None
        self.bias = nn.Parameter(torch.zeros(out_dim))

    @property
    def maps_first(self) -> bool:
        """Tell whether A(xW) is computed rather than (Ax)W: it sends and sums less."""
        return self.out_dim < self.in_dim

    def takes_dropped(self, graph: LocalGraph) -> bool:
        """Return whether rows may come in already dropped out, as they may where no input row is sent as it stands."""
        return self._sends_mapped(graph) or graph.drops_first

    def _sends_mapped(self, graph: LocalGraph) -> bool:
        return self.maps_first and not graph.reads_history

    def forward(self, graph: LocalGraph, h: torch.Tensor, is_dropped: bool = False,
                activation: Activation | None = None) -> torch.Tensor:
        """Collective: map (num_in, in_dim) to (num_out, out_dim), both num_inner but where a pass leaves rows out.

        Parameters
        ----------
        h : float32, bfloat16 or float16, of whose type the result is
        is_dropped : bool       dropout has been applied to h and counted, or is part of the activation
        activation : Activation or None      of h, to apply before anything else, in a training pass: what is behind it
            is not kept; h is lost, here where the graph keeps codes of it, or in the backward pass
        """
        is_input = graph.is_input(h)
        if not is_input and not is_dropped and activation is None:
            h, is_dropped = graph.dropped_to_send(h, self.dropout)
        neighborhood = Neighborhood(graph, graph.hop(self.reduction, is_input), is_input, is_dropped, self.reduction,
                                    self.dropout, activation)
        norm = (None, None) if activation is None else (activation.weight, activation.bias)
        function = MapFirst if self._sends_mapped(graph) else AggregateFirst
        return function.apply(h, *norm, self.weight_neighbor, self.weight_self, self.bias, neighborhood)


class GCNConvolution(Convolution):
    """out = D^-1/2 (A + I) D^-1/2 x W + b, with D the global in-degree plus one. Where arcs have weights, they are the
    entries of A, and D is their sum over the in-neighbors plus one.

    Reference: Kipf and Welling, ICLR 2017, Eq. (2).
    """

    def __init__(self, in_dim: int, out_dim: int, dropout: float):
        super().__init__(in_dim, out_dim, dropout, "gcn", has_self=False)
        nn.init.xavier_uniform_(self.weight_neighbor)


class SAGEConvolution(Convolution):
    """out = x W_self + mean of the in-neighbors' x W_neighbor + b. Where arcs have weights the mean is sum of w x over
    sum of w.

    Reference: Hamilton et al., NeurIPS 2017, Algorithm 1 with the mean aggregator.
    """

    def __init__(self, in_dim: int, out_dim: int, dropout: float):
        super().__init__(in_dim, out_dim, dropout, "mean", has_self=True)
        # Uniform in ±1/sqrt(in_dim), as torch.nn.Linear and PyTorch Geometric's SAGEConv start.
        bound = in_dim ** -0.5
        nn.init.uniform_(self.weight_self, -bound, bound)
        nn.init.uniform_(self.weight_neighbor, -bound, bound)


class MaxPoolConvolution(nn.Module):
    """out = x W_self + (column-wise maximum of the in-neighbors' x) W_neighbor + b.

    Reference: Hamilton et al., NeurIPS 2017, Eq. (3), as PyTorch Geometric's SAGEConv(aggr="max"): without the map
    before the maximum. It takes no edge weights.
    """

    def __init__(self, in_dim: int, out_dim: int, dropout: float):
        super().__init__()
        self.in_dim, self.out_dim, self.dropout = in_dim, out_dim, dropout
        self.neighbor, self.own = nn.Linear(in_dim, out_dim), nn.Linear(in_dim, out_dim, bias=False)

    def takes_dropped(self, graph: LocalGraph) -> bool:
        """Return whether rows may come in already dropped out, as they may where no input row is sent as it stands."""
        return graph.drops_first

    def forward(self, graph: LocalGraph, h: torch.Tensor, is_dropped: bool = False) -> torch.Tensor:
        """Collective: map (num_inner, in_dim) to (num_inner, out_dim); see `Convolution.forward`."""
        return rematerialized(graph, lambda rows: self._pooled(graph, rows, is_dropped), h)

    def _pooled(self, graph: LocalGraph, h: torch.Tensor, is_dropped: bool) -> torch.Tensor:
        """Collective: see `forward`."""
        h_all = graph.halo(h)
        h_all = h_all if is_dropped else graph.dropout(h_all, self.dropout)
        mapped = linear(graph.aggregate(h_all, "max"), self.neighbor.weight, self.neighbor.bias)
        return mapped + linear(h_all[:graph.num_inner], self.own.weight)
