"""Graph attention (GAT). Rows are sent before or after the linear map, whichever is narrower; attention is not sent."""

from __future__ import annotations

import torch
from torch import nn

from hpcgnn.errors import ConfigError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.convolution import NarrowConvolution, rematerialized
from hpcgnn.nn.linear import add_bias, linear
from hpcgnn.ops.attention import attend, attend_shared, shares_rows

SLOPE = 0.2               # slope of LeakyReLU below 0, Section 3.3 of the paper


class GATConvolution(NarrowConvolution):
    """out[v] = sum over u of alpha[v, u] x[u] W + b, head by head, u over the in-neighbors of v and v itself.

    alpha[v, u] is the softmax over u of LeakyReLU(a_target . x[v] W + a_source . x[u] W). An edge weight multiplies
    alpha after the softmax; v's own weight is 1. `combine` "concatenate" gives each head out_dim / heads columns
    (hidden layers), "average" gives each head out_dim columns and takes the mean (last layer); ConfigError for others.

    Reference: Velickovic et al., ICLR 2018, Eq. (1)-(6). Deviation: no dropout of alpha, since draws would need two
    global node ids.
    """

    def __init__(self, in_dim: int, out_dim: int, dropout: float, heads: int = 4, combine: str = "concatenate"):
        super().__init__(in_dim, out_dim, dropout)
        if combine not in ("concatenate", "average"):
            raise ConfigError(f"heads are combined by 'concatenate' or 'average', found {combine!r}")
        if heads < 1 or (combine == "concatenate" and out_dim % heads):
            raise ConfigError(f"{heads} attention heads can't share {out_dim} columns evenly; "
                              f"choose a hidden width that is a multiple of the heads")
        self.heads, self.combine = heads, combine
        mapped_dim = out_dim if combine == "concatenate" else heads * out_dim
        self.maps_first = mapped_dim <= in_dim
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(mapped_dim, in_dim)))
        # Row 0 scores destinations, row 1 sources. Glorot's bound for (heads, columns), as PyTorch Geometric starts.
        bound = (6 / (heads + mapped_dim // heads)) ** 0.5
        self.attention = nn.Parameter(torch.empty(2, mapped_dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(out_dim))

    def forward(self, graph: LocalGraph, h: torch.Tensor, is_dropped: bool = False) -> torch.Tensor:
        """Collective: map (num_inner, in_dim) to (num_inner, out_dim) of h's type; sums are float32."""
        return rematerialized(graph, lambda rows: self._attended(graph, rows, is_dropped), h)

    def _attended(self, graph: LocalGraph, h: torch.Tensor, is_dropped: bool) -> torch.Tensor:
        rows, is_mapped = self._read(graph, h, is_dropped)
        adjacency = graph.adjacency(with_self=True)
        how = adjacency, self.heads, SLOPE, graph.halo_present(h), graph.looped_weight
        # A step reads several times as many rows as it computes, so it may be faster to map sums of rows.
        if (graph.reads_history and graph.stored_bits is None
                and shares_rows(rows, adjacency, len(self.weight), self.heads, graph.num_back)):
            out = attend_shared(rows, self.weight, self.attention, *how, num_back=graph.num_back)
        else:
            out = attend(rows if is_mapped else linear(rows, self.weight, graph=graph), self.attention, *how)
        if self.combine == "average":
            out = out.view(len(out), self.heads, self.out_dim).mean(dim=1, dtype=torch.float32).to(h.dtype)
        return add_bias(out, self.bias)

    def _read(self, graph: LocalGraph, h: torch.Tensor, is_dropped: bool) -> tuple[torch.Tensor, bool]:
        """Return inner and halo rows, and whether they are mapped."""
        if self.sends_mapped(graph) and not graph.is_input(h):
            h = h if is_dropped else graph.dropout(h, self.dropout)
            return graph.halo(linear(h, self.weight, graph=graph), is_scaled=False), True
        h_all = graph.halo(h, is_scaled=False)
        return h_all if is_dropped else graph.dropout(h_all, self.dropout), False
