"""The two orders of a linear convolution as one differentiable step each: forward and backward written by hand.

out = A(x) W_neighbor + x W_self + b. What autograd would copy, add and keep is computed in place here: both products
of a row end in one buffer, halo rows lie in a table of their own, masks are drawn and rows activated again instead of
kept.
"""

from __future__ import annotations

import torch

from hpcgnn.nn.kept_rows import KeptRows, keep
from hpcgnn.nn.neighborhood import Gradients, Neighborhood
from hpcgnn.ops.aggregation import multiply
from hpcgnn.ops.arena import empty
from hpcgnn.ops.dense import column_sums, map_back, map_rows, weight_gradient
from hpcgnn.ops.spans import blocks


class AggregateFirst(torch.autograd.Function):
    """(A x) W: rows are sent as they stand, (num_in, in_dim) to (num_out, out_dim)."""

    @staticmethod
    def forward(ctx, h, norm_weight, norm_bias, weight_neighbor, weight_self, bias,
                neighborhood: Neighborhood) -> torch.Tensor:
        """Collective. Keeps the aggregate of the masked rows, and these, or the rows before their activation."""
        hop, dtype = neighborhood.hop, h.dtype
        h = h[:hop.num_in]
        if neighborhood.is_constant:
            near, aggregated = h, neighborhood.graph.input_aggregate(neighborhood.reduction)[:hop.num_out]
        else:
            aggregated, near = neighborhood.aggregate(h, wants_rows=weight_self is not None)
        ctx.neighborhood, ctx.needs_rows = neighborhood, not neighborhood.is_input
        ctx.weights = weight_neighbor.to(dtype), None if weight_self is None else weight_self.to(dtype)
        near_out = near[:hop.num_out]
        ctx.makes_near_again = neighborhood.is_input or neighborhood.makes_again
        is_kept = weight_self is not None and not ctx.makes_near_again
        keep(ctx, None if neighborhood.is_constant else neighborhood.graph, near_out if is_kept else None, aggregated,
             before=neighborhood.take_before())
        keeps_sums = neighborhood.has_backward and neighborhood.graph.stored_bits is None
        if not keeps_sums and not neighborhood.is_input and aggregated.shape[1] == len(bias):
            return _combine_in_place(aggregated, near_out, *ctx.weights, bias)
        return _combine(aggregated, near_out, *ctx.weights, bias)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> Gradients:
        """Collective: gradients of halo rows go home. Sums are read, and their memory given back, before the rows of
        the pass back need as much; the other weight's gradient is made while messages travel, where anything is.
        """
        neighborhood, hop, (weight_neighbor, weight_self) = ctx.neighborhood, ctx.neighborhood.hop, ctx.weights
        kept, gradient, of_self, of_rows = KeptRows(ctx), gradient.contiguous()[:hop.back_out], None, None
        of_neighbor = kept.weight_gradient(1, gradient)
        kept.give_back(1)
        is_self_late = ctx.needs_rows and neighborhood.graph.overlaps
        if weight_self is not None and not is_self_late:
            of_self = _of_near(ctx, kept, gradient)
            kept.give_back(0)
        if ctx.needs_rows:
            if _maps_last(neighborhood, weight_neighbor):
                of_rows, arrival = neighborhood.aggregate_back(
                    gradient, lambda summed: _map_back_in_place(summed, weight_neighbor))
            else:
                of_rows, arrival = neighborhood.aggregate_back(map_back(gradient, weight_neighbor))
            if weight_self is not None:
                map_back(gradient, weight_self, out=of_rows[:hop.back_out])
                if is_self_late:
                    of_self = _of_near(ctx, kept, gradient)
            neighborhood.drop_gradient(of_rows)
            arrival.finish(of_rows)
        of_norm = neighborhood.activation_back(of_rows, kept.before)
        return of_rows, *of_norm, of_neighbor, of_self, column_sums(gradient), None


class MapFirst(torch.autograd.Function):
    """A (x W): rows are sent after the map, (num_in, in_dim) to (num_out, out_dim)."""

    @staticmethod
    def forward(ctx, h, norm_weight, norm_bias, weight_neighbor, weight_self, bias,
                neighborhood: Neighborhood) -> torch.Tensor:
        """Collective. Keeps the masked rows, or the rows before their activation."""
        hop, dtype = neighborhood.hop, h.dtype
        weight_neighbor, weight_self = weight_neighbor.to(dtype), None if weight_self is None else weight_self.to(dtype)
        h = h[:hop.num_in]
        near, far = neighborhood.drop_inner(neighborhood.activated(h)), None
        mapped = map_rows(near, weight_neighbor)
        if neighborhood.is_input and neighborhood.is_by_peer:
            mapped_halo = ((peer, map_rows(rows, weight_neighbor)) for peer, rows in neighborhood.input_halo_by_peer())
            out = neighborhood.sum_by_peer(multiply(hop.by_peer.near, mapped), mapped_halo)
        elif neighborhood.is_input:
            # Input halo rows are already here, so mapping them too costs no message.
            far = neighborhood.input_halo()
            out = multiply(hop.matrices.forward, mapped, map_rows(far, weight_neighbor))
        else:
            out, _ = neighborhood.mapped().aggregate(mapped)
        ctx.neighborhood, ctx.weights = neighborhood, (weight_neighbor, weight_self)
        ctx.makes_near_again = neighborhood.redraws_input or neighborhood.makes_again
        keep(ctx, neighborhood.graph, *((None, None) if ctx.makes_near_again else (near, far)),
             before=neighborhood.take_before())
        for start, stop in blocks(0, len(out)):      # torch adds float32 to rows of 16 bits in a copy of them
            out[start:stop] += bias
        return out if weight_self is None else map_rows(near[:hop.num_out], weight_self, out=out)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> Gradients:
        """Collective: gradients of halo rows go home."""
        neighborhood, hop, (weight_neighbor, weight_self) = ctx.neighborhood, ctx.neighborhood.hop, ctx.weights
        kept, gradient, of_rows, of_self = KeptRows(ctx), gradient.contiguous()[:hop.back_out], None, None
        if neighborhood.is_input:
            of_neighbor = _of_near(ctx, kept, multiply(hop.matrices.near_back, gradient))
            if not neighborhood.is_by_peer:
                of_mapped_halo = multiply(hop.matrices.far_back, gradient)
                of_neighbor += weight_gradient(of_mapped_halo, neighborhood.input_halo()) \
                    if neighborhood.redraws_input else kept.weight_gradient(1, of_mapped_halo)
            else:
                for peer, rows in neighborhood.input_halo_by_peer():
                    of_neighbor += weight_gradient(multiply(hop.by_peer.far_back[peer], gradient), rows)
        else:
            of_mapped, arrival = neighborhood.mapped().aggregate_back(gradient)
        if weight_self is not None:
            of_self = _of_near(ctx, kept, gradient)
        if not neighborhood.is_input:
            arrival.finish(of_mapped)
            of_neighbor = _of_near(ctx, kept, of_mapped)
            of_rows = map_back(of_mapped, weight_neighbor)
            if weight_self is not None:
                map_back(gradient, weight_self, out=of_rows[:hop.back_out])
            neighborhood.drop_gradient(of_rows)
        of_norm = neighborhood.activation_back(of_rows, kept.before)
        return of_rows, *of_norm, of_neighbor, of_self, column_sums(gradient), None


def _of_near(ctx, kept: KeptRows, gradient: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a weight that maps the first masked rows, (out_dim, in_dim) float32."""
    if ctx.makes_near_again:
        return weight_gradient(gradient, ctx.neighborhood.near_again(kept.before, len(gradient)))
    return kept.weight_gradient(0, gradient)


def _combine(aggregated: torch.Tensor, near: torch.Tensor, weight_neighbor: torch.Tensor,
             weight_self: torch.Tensor | None, bias: torch.Tensor) -> torch.Tensor:
    """Return aggregated W_neighbor + near W_self + b, each product added where the first one was stored."""
    out = empty((len(aggregated), len(bias)), aggregated.dtype, aggregated.device)
    out[:] = bias
    map_rows(aggregated, weight_neighbor, out=out)
    return out if weight_self is None else map_rows(near, weight_self, out=out)


def _combine_in_place(aggregated: torch.Tensor, near: torch.Tensor, weight_neighbor: torch.Tensor,
                      weight_self: torch.Tensor | None, bias: torch.Tensor) -> torch.Tensor:
    """Return what `_combine` does, block by block where the aggregate lay: one layer less is in memory."""
    for start, stop in blocks(0, len(aggregated)):
        rows = aggregated[start:stop]
        rows.copy_(_combine(rows, near[start:stop], weight_neighbor, weight_self, bias))
    return aggregated


def _maps_last(neighborhood: Neighborhood, weight: torch.Tensor) -> bool:
    """Tell whether gradients are mapped once they are summed, which takes a table less than before: where memory is
    saved, and gradients fit in place.
    """
    return (neighborhood.graph.stored_bits is not None and not neighborhood.is_by_peer
            and weight.shape[0] == weight.shape[1])


def _map_back_in_place(gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Turn gradients (n, dim) into gradients @ weight where they lie, block by block."""
    for start, stop in blocks(0, len(gradient)):
        gradient[start:stop] = map_back(gradient[start:stop], weight)
    return gradient
