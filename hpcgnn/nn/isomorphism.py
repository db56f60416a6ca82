"""Graph isomorphism convolution (GIN). Its first linear map commutes with the sum, so narrow rows travel."""

from __future__ import annotations

import torch
from torch import nn

from hpcgnn.errors import ConfigError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.convolution import NarrowConvolution, rematerialized
from hpcgnn.nn.linear import add_bias, linear
from hpcgnn.nn.neighborhood import KeptRows, keep
from hpcgnn.ops.spans import MIN_DEVICE_BLOCK

NEIGHBOR_SCALE = {"sum": 1.0, "mean": 0.1}
ROWS_AT_ONCE = 8192       # 16-bit rows that are copied to float32 at once


class _ScaleRows(torch.autograd.Function):
    """(1 + epsilon) * rows; the gradient of epsilon sums over all elements, so it is taken in float32."""

    @staticmethod
    def forward(ctx, rows, epsilon, graph):
        keep(ctx, graph, rows, before=(epsilon,))
        return rows * (1 + epsilon[0])

    @staticmethod
    def backward(ctx, gradient):
        kept = KeptRows(ctx)
        rows, (epsilon,) = kept.rows(0), kept.before
        # A device takes longer to start a kernel than to sum so few rows.
        step = ROWS_AT_ONCE if rows.device.type == "cpu" else MIN_DEVICE_BLOCK
        spans = [(start, start + step) for start in range(0, max(len(rows), 1), step)]
        products = [(rows[start:stop].float() * gradient[start:stop].float()).sum(dtype=torch.float64)
                    for start, stop in spans]
        return gradient * (1 + epsilon[0]), torch.stack(products).sum(dim=0, keepdim=True).to(epsilon.dtype), None


class GINConvolution(NarrowConvolution):
    """out = MLP((1 + epsilon) x + scale * aggregate of the in-neighbors' x); MLP is linear, ReLU, linear, out_dim wide.

    `reduction` "sum" has scale 1 (Xu et al.). "mean" has scale 0.1 and divides by the global in-degree (HalfGNN), which
    keeps float16 rows of 50,000 neighbors finite. With edge weights, the sum or mean is weighted.

    Reference: Xu et al., ICLR 2019, Eq. (4.1), with epsilon learned from 0; HalfGNN, Eq. (4) with lambda = 0.1.
    """

    def __init__(self, in_dim: int, out_dim: int, dropout: float, reduction: str = "sum"):
        super().__init__(in_dim, out_dim, dropout)
        if reduction not in NEIGHBOR_SCALE:
            raise ConfigError(f"GIN reduces neighbors by one of {', '.join(NEIGHBOR_SCALE)}, found {reduction!r}")
        self.reduction = reduction
        self.epsilon = nn.Parameter(torch.zeros(1))
        self.first, self.second = nn.Linear(in_dim, out_dim), nn.Linear(out_dim, out_dim)

    def forward(self, graph: LocalGraph, h: torch.Tensor, is_dropped: bool = False) -> torch.Tensor:
        """Collective: map (num_inner, in_dim) to (num_inner, out_dim) of h's type; sums are float32."""
        mapped = rematerialized(graph, lambda rows: self._mapped(graph, rows, is_dropped), h)
        rows = add_bias(mapped, self.first.bias)
        hidden = torch.relu(rows) if graph.stored_bits is None else graph.activate(rows, None, 0.0, is_dropped=False)
        return linear(hidden, self.second.weight, self.second.bias, graph)

    def _mapped(self, graph: LocalGraph, h: torch.Tensor, is_dropped: bool) -> torch.Tensor:
        weight = self.first.weight
        if self.sends_mapped(graph) and not graph.is_input(h):
            return self._combined(graph, graph.halo(linear(self._drop(graph, h, is_dropped), weight, graph=graph)))
        h_all = self._drop(graph, graph.halo(h), is_dropped)
        if self.maps_first:
            # Input halo rows are already here, so mapping them too costs no message.
            return self._combined(graph, linear(h_all, weight, graph=graph))
        return linear(self._combined(graph, h_all), weight, graph=graph)

    def _drop(self, graph: LocalGraph, h: torch.Tensor, is_dropped: bool) -> torch.Tensor:
        return h if is_dropped else graph.dropout(h, self.dropout)

    def _combined(self, graph: LocalGraph, h_all: torch.Tensor) -> torch.Tensor:
        aggregated = graph.aggregate(h_all, self.reduction)
        inner = h_all[:graph.num_inner] if graph.num_halo else h_all      # the gradient of a part is padded in a copy
        own = _ScaleRows.apply(inner, self.epsilon, graph)
        return torch.add(own, aggregated, alpha=NEIGHBOR_SCALE[self.reduction])
