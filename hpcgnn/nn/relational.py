"""Graph convolution with a matrix for each relation (R-GCN). A row crosses once, however many relations read it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from hpcgnn.errors import ConfigError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.convolution import NarrowConvolution, rematerialized
from hpcgnn.nn.layers import bases_of, check_blocks, maps_bases_first
from hpcgnn.nn.linear import linear
from hpcgnn.nn.names import NEEDS_RELATIONS
from hpcgnn.ops.pointwise import dropout
from hpcgnn.ops.relations import block_diagonal_sum, relational_sum, sum_of_mapped


class RGCNConvolution(NarrowConvolution):
    """out[v] = x[v] W_self + sum over the relations r of the mean of x[u] W_r over v's in-neighbors u by r, + b.

    With `num_bases` below the number of relations, W_r = sum over b of coefficient[r, b] basis[b], so that relations
    with few edges share their weights with others. Otherwise, and with 0 bases, basis[r] is W_r itself.

    With `num_blocks` instead, W_r is block-diagonal: block b maps the b-th share of the columns to the b-th share.

    Rows are mapped by all bases before they are sent if these are fewer columns, and after they are summed otherwise.

    Raises ConfigError: a graph without relations, or num_blocks that do not divide in_dim and out_dim.

    Reference: Schlichtkrull et al., ESWC 2018, Eq. (2) to (4), with c_{i,r} = |N_i^r|.
    """

    def __init__(self, in_dim: int, out_dim: int, dropout: float, num_relations: int, num_bases: int = 8,
                 num_blocks: int = 0):
        super().__init__(in_dim, out_dim, dropout)
        if num_relations < 1:
            raise ConfigError(NEEDS_RELATIONS.format("rgcn"))
        self.num_relations = num_relations
        self.blocks = self.basis = self.coefficient = None
        if num_blocks:
            check_blocks(in_dim, out_dim, num_blocks)
            self.blocks = nn.Parameter(_glorot(num_relations, num_blocks, out_dim // num_blocks, in_dim // num_blocks))
        else:
            count = bases_of(num_relations, num_bases)
            self.basis = nn.Parameter(_glorot(count, out_dim, in_dim))
            self.coefficient = nn.Parameter(_glorot(num_relations, count)) if count < num_relations else None
        self.maps_first = self.basis is not None and maps_bases_first(in_dim, out_dim, len(self.basis))
        self.weight_self = nn.Parameter(_glorot(out_dim, in_dim))
        self.bias = nn.Parameter(torch.zeros(out_dim))

    def forward(self, graph: LocalGraph, h: torch.Tensor, is_dropped: bool = False) -> torch.Tensor:
        """Collective: map (num_inner, in_dim) to (num_inner, out_dim) of h's type; sums are float32."""
        return rematerialized(graph, lambda rows: self._summed(graph, rows, is_dropped), h)

    def _summed(self, graph: LocalGraph, h: torch.Tensor, is_dropped: bool) -> torch.Tensor:
        coefficient = torch.eye(self.num_relations, device=h.device) if self.coefficient is None else self.coefficient
        is_mapped, is_input = self.sends_mapped(graph), graph.is_input(h)
        rows = h if is_mapped and not is_input else graph.halo(h)
        with self._masked_input(graph, rows) if is_input and not is_dropped else nullcontext(rows) as rows:
            rows = rows if is_input or is_dropped else graph.dropout(rows, self.dropout)
            if self.blocks is not None:
                sums = block_diagonal_sum(rows, self.blocks, graph.relations, graph.num_back)
            elif is_mapped:
                # Input halo rows are already here, so mapping them too costs no message.
                mapped = linear(rows, self.basis.flatten(0, 1), graph=graph)
                sums = sum_of_mapped(mapped if is_input else graph.halo(mapped), coefficient, graph.relations)
            else:
                sums = relational_sum(rows, self.basis, coefficient, graph.relations, graph.num_back)
            return linear(rows[:graph.num_inner], self.weight_self, self.bias, graph, total=sums)

    @contextmanager
    def _masked_input(self, graph: LocalGraph, rows: torch.Tensor) -> Iterator[torch.Tensor]:
        # The backward pass masks the constant input again, so that no copy of it is kept.
        key = graph.next_dropout(self.dropout)
        if key is None:
            yield rows
            return
        masked = dropout(rows, self.dropout, graph.ids(0, len(rows)), key)

        def pack(kept: torch.Tensor) -> torch.Tensor | int:
            return len(kept) if kept.data_ptr() == address and kept.shape[1:] == rows.shape[1:] else kept

        def unpack(kept: torch.Tensor | int) -> torch.Tensor:
            return dropout(rows[:kept], self.dropout, graph.ids(0, kept), key) if isinstance(kept, int) else kept

        address = masked.data_ptr()
        with saved_tensors_hooks(pack, unpack):
            yield masked


def _glorot(*shape: int) -> torch.Tensor:
    # Of the last two axes, as PyTorch Geometric starts; nn.init would count the bases as a size of a kernel.
    bound = (6 / (shape[-2] + shape[-1])) ** 0.5
    return torch.empty(shape).uniform_(-bound, bound)
