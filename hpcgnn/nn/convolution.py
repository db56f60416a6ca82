"""Graph convolutions with a linear aggregation (GCN, SAGE) or a maximum.

A convolution sends rows before or after its linear map, whichever is narrower. Example: from 256 hidden columns to 41
classes, rows are mapped first, and 41 columns travel. The owner applies dropout to rows that are sent after the map.
Rows that are sent before the map travel without dropout, and the receiver applies the owner's mask.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.layers import LINEAR, maps_first
from hpcgnn.nn.linear import linear
from hpcgnn.nn.neighborhood import AggregateFirst, MapFirst, Neighborhood
from hpcgnn.ops.pointwise import Activation


def rematerialized(graph: LocalGraph, layer: Callable[[torch.Tensor], torch.Tensor], h: torch.Tensor) -> torch.Tensor:
    """Collective: run `layer`, storing only `h` (num_inner, dim); backward recomputes the rest.

    Backward runs the layer at the same place in the pass, so that the same rows arrive, with the same random draws.
    Halo rows are sent twice. Reference: Mostafa, MLSys 2022 (SAR: sequential aggregation and rematerialization).
    """
    if graph.halo_spans is None or not torch.is_grad_enabled():
        return layer(h)
    position = graph.current_pass

    def run(rows: torch.Tensor) -> torch.Tensor:
        graph.go_back(position)
        return layer(rows)

    # Draws are keyed by their place in the pass, so torch's generator needs no saving.
    return checkpoint(run, h, use_reentrant=False, preserve_rng_state=False)


class NarrowConvolution(nn.Module):
    """A convolution that sends rows before or after its linear map, whichever is narrower. Dropout is on the input."""

    def __init__(self, in_dim: int, out_dim: int, dropout: float):
        super().__init__()
        self.in_dim, self.out_dim, self.dropout = in_dim, out_dim, dropout
        self.maps_first = maps_first(in_dim, out_dim)

    def takes_dropped(self, graph: LocalGraph) -> bool:
        """Whether dropout may already be applied to input rows; not if input rows are sent unmapped."""
        return self.sends_mapped(graph) or graph.drops_first

    def sends_mapped(self, graph: LocalGraph) -> bool:
        return self.maps_first and not graph.reads_history


class Convolution(NarrowConvolution):
    """The linear convolution of a `kind`; see `hpcgnn.nn.layers.LinearLayer`."""

    def __init__(self, kind: str, in_dim: int, out_dim: int, dropout: float):
        super().__init__(in_dim, out_dim, dropout)
        self.reduction, has_self = LINEAR[kind]
        self.weight_neighbor = nn.Parameter(torch.empty(out_dim, in_dim))
        self.weight_self = nn.Parameter(torch.empty(out_dim, in_dim)) if has_self else None
        self.bias = nn.Parameter(torch.zeros(out_dim))

    def forward(self, graph: LocalGraph, h: torch.Tensor, is_dropped: bool = False,
                activation: Activation | None = None) -> torch.Tensor:
        """Collective: map (num_in, in_dim) to (num_out, out_dim); both are num_inner unless the pass leaves rows out.

        The result has h's type. `is_dropped`: h already has the dropout of this call, or the activation applies it.
        `activation` is applied to h first, in training, and overwrites h: now if the graph keeps codes of h, else in
        the backward pass.
        """
        is_input = graph.is_input(h)
        if not is_input and not is_dropped and activation is None:
            h, is_dropped = graph.dropped_to_send(h, self.dropout)
        neighborhood = Neighborhood(graph, graph.hop(self.reduction, is_input), is_input, is_dropped, self.reduction,
                                    self.dropout, activation)
        norm = (None, None) if activation is None else (activation.weight, activation.bias)
        function = MapFirst if self.sends_mapped(graph) else AggregateFirst
        return function.apply(h, *norm, self.weight_neighbor, self.weight_self, self.bias, neighborhood)


class GCNConvolution(Convolution):
    """out = D^-1/2 (A + I) D^-1/2 x W + b, D the global in-degree plus one.

    With edge weights, these are the entries of A, and D is their sum over the in-neighbors plus one.

    Reference: Kipf and Welling, ICLR 2017, Eq. (2).
    """

    def __init__(self, in_dim: int, out_dim: int, dropout: float):
        super().__init__("gcn", in_dim, out_dim, dropout)
        nn.init.xavier_uniform_(self.weight_neighbor)


class SAGEConvolution(Convolution):
    """out = x W_self + mean of the in-neighbors' x W_neighbor + b; with edge weights, the weighted mean.

    Reference: Hamilton et al., NeurIPS 2017, Algorithm 1 with the mean aggregator.
    """

    def __init__(self, in_dim: int, out_dim: int, dropout: float):
        super().__init__("sage", in_dim, out_dim, dropout)
        # Uniform in ±1/sqrt(in_dim), as torch.nn.Linear and PyTorch Geometric's SAGEConv start.
        bound = in_dim ** -0.5
        nn.init.uniform_(self.weight_self, -bound, bound)
        nn.init.uniform_(self.weight_neighbor, -bound, bound)


class MaxPoolConvolution(nn.Module):
    """out = x W_self + (column-wise maximum of the in-neighbors' x) W_neighbor + b. Takes no edge weights.

    Reference: Hamilton et al., NeurIPS 2017, Eq. (3), as PyTorch Geometric's SAGEConv(aggr="max"): without the map
    before the maximum.
    """

    def __init__(self, in_dim: int, out_dim: int, dropout: float):
        super().__init__()
        self.in_dim, self.out_dim, self.dropout = in_dim, out_dim, dropout
        self.neighbor, self.own = nn.Linear(in_dim, out_dim), nn.Linear(in_dim, out_dim, bias=False)

    def takes_dropped(self, graph: LocalGraph) -> bool:
        return graph.drops_first

    def forward(self, graph: LocalGraph, h: torch.Tensor, is_dropped: bool = False) -> torch.Tensor:
        """Collective: map (num_inner, in_dim) to (num_inner, out_dim); see `Convolution.forward`."""
        return rematerialized(graph, lambda rows: self._pooled(graph, rows, is_dropped), h)

    def _pooled(self, graph: LocalGraph, h: torch.Tensor, is_dropped: bool) -> torch.Tensor:
        h_all = graph.halo(h)
        h_all = h_all if is_dropped else graph.dropout(h_all, self.dropout)
        mapped = linear(graph.aggregate(h_all, "max"), self.neighbor.weight, self.neighbor.bias, graph)
        return mapped + linear(h_all[:graph.num_inner], self.own.weight, graph=graph)
