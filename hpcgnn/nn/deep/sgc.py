"""SGC: one linear map of propagated rows. Without dropout the propagated input is constant, and nothing travels."""

from __future__ import annotations

import torch
from torch import nn

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.deep.propagation import propagate, propagate_input, take_hops
from hpcgnn.nn.layers import maps_first, of_input
from hpcgnn.nn.linear import add_bias, linear


class SGC(nn.Module):
    """logits = A^K dropout(x) W + b, K = num_layers.

    Without dropout, as in the paper, A^K x is computed once, from full-precision messages that count as evaluation,
    whatever the training method. With dropout, rows are mapped before they are propagated if there are fewer classes
    than features, so that the narrower rows travel.

    Reference: Wu et al., ICML 2019, Eq. (8).
    """

    reduction = "gcn"
    attends = False
    is_one_map = True      # so there are no hidden rows

    def __init__(self, in_dim: int, out_dim: int, num_layers: int, dropout: float, input_dropout: float = -1.0):
        super().__init__()
        self.num_hops, self.dropout = num_layers, of_input(input_dropout, dropout)
        self.linear = nn.Linear(in_dim, out_dim)
        self._graph: LocalGraph | None = None
        self._constant: torch.Tensor | None = None

    @property
    def maps_first(self) -> bool:
        return maps_first(self.linear.in_features, self.linear.out_features)

    def forward(self, graph: LocalGraph, x: torch.Tensor) -> torch.Tensor:
        """Collective: map (num_inner, in_dim) input rows to logits; see `ConvolutionStack.forward`."""
        # Rows that don't depend on the weights may be older than the weights.
        sends_mapped = self.maps_first and not graph.reads_history
        hops = take_hops(graph, self.num_hops, begins_at_input=not sends_mapped)
        if self.dropout == 0.0:
            return linear(self._propagated_input(graph)[:hops[-1].num_out], self.linear.weight, self.linear.bias, graph)
        if sends_mapped:
            h = linear(graph.dropout(x[:hops[0].num_in], self.dropout), self.linear.weight, graph=graph)
            for hop in hops:
                h = propagate(graph, h, hop)
            return add_bias(h, self.linear.bias)
        h = propagate(graph, x, hops[0], self.dropout)
        for hop in hops[1:]:
            h = propagate(graph, h, hop)
        return linear(h, self.linear.weight, self.linear.bias, graph)

    def _propagated_input(self, graph: LocalGraph) -> torch.Tensor:
        whole, rows = graph.whole
        if self._graph is not whole:
            self._graph, self._constant = whole, propagate_input(whole, self.num_hops)
        return self._constant if rows is None else self._constant.index_select(0, rows)

    def first_layer_parameters(self) -> list[nn.Parameter]:
        return list(self.linear.parameters())
