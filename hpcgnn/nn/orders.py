"""The two orders of a linear convolution as one differentiable step each: forward and backward written by hand.

out = A(x) W_neighbor + x W_self + b. What autograd would copy, add and keep is computed in place here: both products
of a row end in one buffer, halo rows lie in a table of their own, masks are drawn and rows activated again instead of
kept.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from hpcgnn.graph.hop import Hop
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
            of_self, = _of_near(ctx, kept, gradient)
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
                    of_self, = _of_near(ctx, kept, gradient)
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
        near = far = of_self = None
        if not neighborhood.makes_again:
            near = neighborhood.drop_inner(neighborhood.activated(h))
        if neighborhood.is_input:      # the only one whose mapped rows may be wide
            mapped = map_rows(near, weight_neighbor)
        else:
            mapped, of_self = _map_both(neighborhood.near_blocks(h, near), hop, weight_neighbor, weight_self, bias)
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
        if of_self is not None:
            return out.add_(of_self)
        # torch adds float32 to rows of 16 bits in a copy of them.
        for start, stop in blocks(0, len(out), out.device.type):
            out[start:stop] += bias
        return out if weight_self is None else map_rows(near[:hop.num_out], weight_self, out=out)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> Gradients:
        """Collective: gradients of halo rows go home. Rows are made again once for both weights, unless one of these
        has its turn while messages travel.
        """
        neighborhood, hop, (weight_neighbor, weight_self) = ctx.neighborhood, ctx.neighborhood.hop, ctx.weights
        kept, gradient, of_rows, of_norm = KeptRows(ctx), gradient.contiguous()[:hop.back_out], None, (None, None)
        own = [] if weight_self is None else [gradient]
        if neighborhood.is_input:
            of_neighbor, *of_self = _of_near(ctx, kept, multiply(hop.matrices.near_back, gradient), *own)
            of_neighbor += _of_input_halo(ctx, kept, gradient)
        else:
            of_mapped, arrival = neighborhood.mapped().aggregate_back(gradient)
            early, late = (own, []) if neighborhood.graph.overlaps else ([], own)
            of_self = _of_near(ctx, kept, *early)
            arrival.finish(of_mapped)
            of_neighbor, *of_self_late = _of_near(ctx, kept, of_mapped, *late)
            of_self += of_self_late

            def gradient_of(start: int, stop: int) -> torch.Tensor:
                rows, direct = map_back(of_mapped[start:stop], weight_neighbor), gradient[start:stop]
                if weight_self is not None:
                    map_back(direct, weight_self, out=rows[:len(direct)])
                return rows

            if neighborhood.makes_again:
                of_rows, *of_norm = neighborhood.rows_back(gradient_of, kept.before)
            else:
                of_rows = neighborhood.drop_gradient(gradient_of(0, len(of_mapped)))
                of_norm = neighborhood.activation_back(of_rows, kept.before)
        return of_rows, *of_norm, of_neighbor, *(of_self or [None]), column_sums(gradient), None


def _of_input_halo(ctx, kept: KeptRows, gradient: torch.Tensor) -> torch.Tensor:
    """Return what the halo rows of the input add to the gradient of the weight that maps them, which is done here."""
    neighborhood, hop = ctx.neighborhood, ctx.neighborhood.hop
    if neighborhood.is_by_peer:
        return sum(weight_gradient(multiply(hop.by_peer.far_back[peer], gradient), rows)
                   for peer, rows in neighborhood.input_halo_by_peer())
    of_mapped = multiply(hop.matrices.far_back, gradient)
    return weight_gradient(of_mapped, neighborhood.input_halo()) if neighborhood.redraws_input \
        else kept.weight_gradient(1, of_mapped)


def _of_near(ctx, kept: KeptRows, *gradients: torch.Tensor) -> list[torch.Tensor]:
    """Return the gradients of weights that map the first masked rows, (out_dim, in_dim) float32 each, from gradients of
    what these were mapped to, (n, out_dim) each.
    """
    if not gradients or not ctx.makes_near_again:
        return [kept.weight_gradient(0, gradient) for gradient in gradients]
    totals = [0.0] * len(gradients)
    for start, rows in ctx.neighborhood.near_again(kept.before, max(map(len, gradients))):
        for place, gradient in enumerate(gradients):
            part = gradient[start:start + len(rows)]
            totals[place] += weight_gradient(part, rows[:len(part)])
    return totals


def _map_both(near_blocks: Iterable[tuple[int, torch.Tensor]], hop: Hop, weight_neighbor: torch.Tensor,
              weight_self: torch.Tensor | None, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Map masked rows (hop.num_in, in_dim) block by block: return those that are summed, (hop.num_in, out_dim), and
    what the rows' own map and the bias add to the sums, (hop.num_out, out_dim); None where there is no such map.
    """
    mapped = of_self = None
    for start, rows in near_blocks:
        if mapped is None:
            mapped = empty((hop.num_in, len(bias)), rows.dtype, rows.device)
            of_self = None if weight_self is None else empty((hop.num_out, len(bias)), rows.dtype, rows.device)
        mapped[start:start + len(rows)] = map_rows(rows, weight_neighbor)
        if of_self is not None:
            here = of_self[start:start + len(rows)]
            here[:] = bias
            map_rows(rows[:len(here)], weight_self, out=here)
    return mapped, of_self


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
    for start, stop in blocks(0, len(aggregated), aggregated.device.type):
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
    for start, stop in blocks(0, len(gradient), gradient.device.type):
        gradient[start:stop] = map_back(gradient[start:stop], weight)
    return gradient
