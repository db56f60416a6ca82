"""Propagation without weights: out = A dropout(h), or (1 - alpha) A dropout(h) + alpha h0.

GCNII, DAGNN, APPNP and SGC are made of these. Forward and backward of a propagation step are written by hand. They save
no rows for backward, which draws dropout masks again. Halo rows are read from a table of their own or from the packed
message.
"""

from __future__ import annotations

import torch

from hpcgnn.graph.hop import Hop
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.neighborhood import Neighborhood
from hpcgnn.ops.arena import empty

REDUCTION = "gcn"     # A is D^-1/2 (A + I) D^-1/2 in all these models


def known_hops(num_steps: int, norm: str) -> int | None:
    """A model's `num_hops`: None if a norm is over all rows, so that a pass can't leave any out."""
    return None if norm == "batch" else num_steps


def take_hops(graph: LocalGraph, num_hops: int, begins_at_input: bool = False) -> list[Hop]:
    """The hops of all aggregations of a pass, so that the rows the first one needs are known before it.

    `begins_at_input` says that the first hop aggregates the graph's input rows.
    """
    return [graph.hop(REDUCTION, begins_at_input and number == 0) for number in range(num_hops)]


def propagate(graph: LocalGraph, h: torch.Tensor, hop: Hop, dropout: float = 0.0, is_dropped: bool = False,
              first: torch.Tensor | None = None, alpha: float = 0.0) -> torch.Tensor:
    """Collective: return A dropout(h), or (1 - alpha) A dropout(h) + alpha first, with A = D^-1/2 (A + I) D^-1/2.

    h is (hop.num_in, dim) or the graph's input rows, `first` at least (hop.num_out, dim), the result (hop.num_out,
    dim). Rows are sent before dropout, and the receiver applies the owner's mask. `is_dropped`, which needs
    `graph.drops_first`, says that h already has the dropout of this call.
    """
    is_input = graph.is_input(h)
    if not is_input and not is_dropped:
        h, is_dropped = graph.dropped_to_send(h, dropout)
    neighborhood = Neighborhood(graph, hop, is_input, is_dropped, REDUCTION, dropout)
    return _Propagate.apply(h, first, alpha, neighborhood)


def neighbor_sums(graph: LocalGraph, h: torch.Tensor, reduction: str) -> torch.Tensor:
    """Collective: return `graph.aggregate(graph.halo(h), reduction)`, (num_inner, dim), without a table of all rows.

    h is (num_inner, dim), and not the graph's input rows.
    """
    neighborhood = Neighborhood(graph, graph.hop(reduction), is_input=False, is_dropped=True, reduction=reduction,
                                probability=0.0)
    return _Propagate.apply(h.contiguous(), None, 0.0, neighborhood)


@torch.no_grad()
def propagate_input(graph: LocalGraph, num_steps: int) -> torch.Tensor:
    """Collective: return A^num_steps x of all inner rows, (num_inner, num_features).

    Messages are sent as in evaluation, exact in the rows' storage type, whatever the current pass.
    """
    rows, position = graph.input_aggregate(REDUCTION), graph.current_pass
    graph.begin_forward(seed=0, epoch=0, is_training=False)
    for hop in take_hops(graph, num_steps - 1):
        neighborhood = Neighborhood(graph, hop, is_input=False, is_dropped=True, reduction=REDUCTION, probability=0.0)
        rows, _ = neighborhood.aggregate(rows)
    graph.go_back(position)
    return rows


class _Propagate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h: torch.Tensor, first: torch.Tensor | None, alpha: float,
                neighborhood: Neighborhood) -> torch.Tensor:
        """Collective. Keeps no rows."""
        ctx.neighborhood, ctx.alpha, ctx.num_first = neighborhood, alpha, None if first is None else len(first)
        num_out = neighborhood.hop.num_out
        if neighborhood.is_constant and first is None:
            return neighborhood.graph.input_aggregate(neighborhood.reduction)[:num_out].clone()
        out, _ = neighborhood.aggregate(h[:neighborhood.hop.num_in], wants_rows=False)
        return out if first is None else out.lerp_(first[:num_out], alpha)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Collective: gradients of halo rows are sent to their owners."""
        neighborhood, gradient, of_first, of_rows = ctx.neighborhood, gradient.contiguous(), None, None
        if ctx.num_first is not None:
            of_first = _padded(gradient * ctx.alpha, ctx.num_first)
            gradient = gradient * (1 - ctx.alpha)
        if not neighborhood.is_input:
            of_rows, arrival = neighborhood.aggregate_back(gradient)
            of_rows = neighborhood.drop_inner(of_rows)
            arrival.finish(of_rows)
        return of_rows, of_first, None, None


def _padded(rows: torch.Tensor, num_rows: int) -> torch.Tensor:
    if len(rows) == num_rows:
        return rows
    padded = empty((num_rows, rows.shape[1]), rows.dtype, rows.device)
    padded[:len(rows)], padded[len(rows):] = rows, 0
    return padded
