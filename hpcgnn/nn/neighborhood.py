"""The two orders of a linear convolution as one differentiable step each: forward and backward written by hand.

out = A(x) W_neighbor + x W_self + b. What autograd would copy, add and keep is computed in place here: both products
of a row end in one buffer, halo rows lie in a table of their own, and masks are drawn again instead of kept.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from hpcgnn.graph.hop import Arrival, ExchangeSite, Hop, blocks
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.kept_rows import keep, kept_before, let_go, weight_gradient_of
from hpcgnn.ops.aggregation import add_product, multiply, multiply_span
from hpcgnn.ops.arena import empty
from hpcgnn.ops.counter import CounterKey
from hpcgnn.ops.dense import column_sums, map_back, map_rows, weight_gradient
from hpcgnn.ops.pointwise import Activation, drop_in_place, dropout
from hpcgnn.ops.streams import streams_of

Gradients = tuple[torch.Tensor | None, ...]


@dataclass
class Neighborhood:
    """Knows where one convolution stands in a pass, and aggregates for it.

    Attributes
    ----------
    is_input : bool             its rows are the constant input
    is_dropped : bool           its rows have been dropped out
    probability : float         of the dropout that comes first
    activation : Activation or None      what comes before that dropout, where the convolution does it to its rows
    before : tuple              what the activation keeps, once it is done
    """

    graph: LocalGraph
    hop: Hop
    is_input: bool
    is_dropped: bool
    reduction: str
    probability: float
    activation: Activation | None = None
    before: tuple[torch.Tensor | None, ...] = ()

    def __post_init__(self) -> None:
        self.key: CounterKey | None = None if self.is_dropped else self.graph.next_dropout(self.probability)
        self.has_backward = torch.is_grad_enabled()      # inside a torch.autograd.Function it never is
        self.site: ExchangeSite | None = None if self.is_input else self.graph.next_site(self.hop.reach)

    @property
    def is_constant(self) -> bool:
        """Tell whether the aggregate is the same in every epoch."""
        return self.is_input and self.key is None

    @property
    def redraws_input(self) -> bool:
        """Tell whether the masked input is made again in the backward pass, rather than kept: where memory is saved."""
        return self.is_input and self.graph.stored_bits is not None

    @property
    def makes_again(self) -> bool:
        """Tell whether the backward pass makes the rows again from what is kept of them before their activation."""
        return self.activation is not None and self.graph.stored_bits is None

    def activated(self, h: torch.Tensor) -> torch.Tensor:
        """Return the rows that the convolution reads; what the activation keeps is noted as `before`."""
        if self.activation is None:
            return h
        self.activation = self.graph.stored(self.activation, h)
        rows, self.before = self.activation.forward(h)
        return rows

    def take_before(self) -> tuple[torch.Tensor | None, ...]:
        """Return what the activation keeps, for the backward pass to hold; it is not held here any longer."""
        before, self.before = self.before, ()
        return before

    def near_again(self, before: tuple, num_rows: int) -> torch.Tensor:
        """Return the first masked inner rows as the forward pass had them, from what the activation kept or from the
        input.
        """
        if self.activation is None:
            return self.drop_inner(self.graph.x[:num_rows])
        return self._drop_in_place(self.activation.again(before, num_rows), 0, num_rows)

    def activation_back(self, of_rows: torch.Tensor, before: tuple) -> Gradients:
        """Turn the gradient of activated rows into that of rows before, in place; return those of weight and bias."""
        return (None, None) if self.activation is None else self.activation.backward(of_rows, before, of_rows)

    def mapped(self) -> Neighborhood:
        """Return the same neighborhood in the pass for rows that were activated and masked before they were mapped."""
        unmasked = copy.copy(self)
        unmasked.key = unmasked.activation = None
        return unmasked

    def drop_inner(self, h: torch.Tensor) -> torch.Tensor:
        """Mask inner rows."""
        return self._drop(h, 0, len(h))

    def drop_gradient(self, of_rows: torch.Tensor) -> torch.Tensor:
        """Mask the gradients of inner rows where they lie."""
        return self._drop_in_place(of_rows, 0, len(of_rows))

    @property
    def is_by_peer(self) -> bool:
        """Tell whether halo rows are here one peer at a time."""
        return self.hop.by_peer is not None

    def drop_halo(self, h: torch.Tensor, peer: int | None = None) -> torch.Tensor:
        """Mask halo rows of all peers or of one, as their owners do."""
        return self._drop(h, *self._halo_places(h, peer))

    def drop_halo_in_place(self, h: torch.Tensor, peer: int | None = None) -> torch.Tensor:
        """Mask halo rows where they lie, or the gradients of the first ones; see `drop_halo`."""
        return self._drop_in_place(h, *self._halo_places(h, peer))

    def input_halo(self) -> torch.Tensor:
        """Return the halo rows of the input, which are already here, masked."""
        return self.drop_halo(self.graph.x_all[self.graph.num_inner:])

    def input_halo_by_peer(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Each peer and the halo rows of the input that it owns, masked; a peer without any is left out."""
        for peer, (start, stop) in enumerate(self.graph.halo_spans):
            if start < stop:
                inner = self.graph.num_inner
                yield peer, self.drop_halo(self.graph.x_all[inner + start:inner + stop], peer)

    def aggregate(self, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Collective: return A(mask h), and the masked inner rows mask h, both before any map, of activated h.

        The rows cross as they stand, and the central ones, without a halo neighbor, are summed while they travel.
        Where no mask follows, halo rows of few bits are summed straight from their messages.

        Parameters
        ----------
        h : (hop.num_in, dim)

        Returns
        -------
        (hop.num_out, dim), (hop.num_in, dim)

        Reference: AdaQP, Section 3.4.
        """
        if self.is_by_peer:
            return self._aggregate_by_peer(h)
        matrix = self.hop.matrices.forward
        if self.is_input:
            near = self.drop_inner(h)
            of_epoch = None if self.key is None else self.graph.masked_input_aggregate(
                self.hop, self.reduction, self.probability, self.key)
            if of_epoch is not None:
                return of_epoch, near
            return multiply(matrix, near, self.input_halo()), near
        rows = self.activated(h)
        arrival = self.graph.start_fetch(rows, self.site)
        near = self._masked(rows)
        del rows                   # they are on their way: while sums are made the masked ones are enough
        if self.hop.in_place is not None and self.key is None:
            table = arrival.in_place()
            if table is not None:
                return multiply(self.hop.in_place, near, table), near
        out = empty((self.hop.num_out, h.shape[1]), h.dtype, h.device)
        far = empty((self.graph.num_halo, h.shape[1]), h.dtype, h.device)
        central_stream = streams_of(h.device).central
        with central_stream.after_computing():
            for span in self.hop.central:
                multiply_span(matrix, near, far, out, span)
                arrival.poll()
        packed = arrival.packed() if self.key is None else None
        if packed is None:
            arrival.finish(far)
            self.drop_halo_in_place(far)
        for span in self.hop.marginal:
            multiply_span(matrix, near, far if packed is None else packed, out, span)
        central_stream.join()
        return out, near

    def aggregate_back(self, gradient: torch.Tensor) -> tuple[torch.Tensor, Arrival]:
        """Collective: the gradient of the unmasked inner rows that this rank's own sums have, (hop.num_in, dim), and
        the arrival that adds what other ranks' sums have. The gradients of halo rows travel meanwhile.

        Parameters
        ----------
        gradient : (at least hop.back_out, dim)      of the sums; all others have none
        """
        gradient = gradient[:self.hop.back_out]
        arrival = self._start_take_home(gradient)
        of_rows = empty((self.hop.num_in, gradient.shape[1]), gradient.dtype, gradient.device)
        reached, of_rows[self.hop.back_in:] = of_rows[:self.hop.back_in], 0
        for span in blocks(0, self.hop.back_in):
            multiply_span(self.hop.matrices.near_back, gradient, None, reached, span)
            arrival.poll()
        return of_rows, arrival

    def _start_take_home(self, gradient: torch.Tensor) -> Arrival:
        if not self.is_by_peer:
            of_halo = self.drop_halo_in_place(multiply(self.hop.matrices.far_back, gradient))
            return self.graph.start_take_home(of_halo, self.site)
        return self.graph.start_take_home_by_peer(
            lambda peer: self.drop_halo_in_place(multiply(self.hop.by_peer.far_back[peer], gradient), peer), self.site)

    def _aggregate_by_peer(self, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Collective: `aggregate`, the sum of one peer's rows added after another's.

        Reference: Mostafa, MLSys 2022 (SAR: sequential aggregation and rematerialization).
        """
        if self.is_input:
            near = self.drop_inner(h)
            return self.sum_by_peer(multiply(self.hop.by_peer.near, near), self.input_halo_by_peer()), near
        h = self.activated(h)
        arrival = self.graph.start_fetch_by_peer(h, self.site)
        near, out = self.drop_inner(h), empty((self.hop.num_out, h.shape[1]), h.dtype, h.device)
        for span in blocks(0, self.hop.num_out):
            multiply_span(self.hop.by_peer.near, near, None, out, span)
            arrival.poll()
        return self.sum_by_peer(out, ((peer, self.drop_halo(rows, peer)) for peer, rows in arrival)), near

    def sum_by_peer(self, out: torch.Tensor, halo_rows: Iterable[tuple[int, torch.Tensor]]) -> torch.Tensor:
        """Add what each peer's halo rows sum to, to `out` (hop.num_out, dim)."""
        for peer, rows in halo_rows:
            add_product(self.hop.by_peer.far[peer], rows[:0], rows, out)
        return out

    def _halo_places(self, h: torch.Tensor, peer: int | None) -> tuple[int, int]:
        start, stop = (0, len(h)) if peer is None else self.graph.halo_spans[peer]
        return self.graph.num_inner + start, self.graph.num_inner + stop

    def _masked(self, rows: torch.Tensor) -> torch.Tensor:
        """Return masked inner rows that have been encoded for their way: where they lie if they are this layer's alone,
        but on a device, whose messages may still be written.
        """
        is_own = self.activation is not None and rows.device.type == "cpu"
        return self._drop_in_place(rows, 0, len(rows)) if is_own else self.drop_inner(rows)

    def _drop(self, h: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        return h if self.key is None else dropout(h, self.probability, self.graph.ids(start, stop), self.key)

    def _drop_in_place(self, h: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        return h if self.key is None else drop_in_place(h, self.probability, self.graph.ids(start, stop), self.key)


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
            aggregated, near = neighborhood.aggregate(h)
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
        """Collective: gradients of halo rows go home. Those of weights come first: what was kept for them is gone when
        the rows of the pass back are there.
        """
        neighborhood, hop, (weight_neighbor, weight_self) = ctx.neighborhood, ctx.neighborhood.hop, ctx.weights
        gradient, before, of_rows = gradient.contiguous()[:hop.back_out], kept_before(ctx), None
        of_neighbor = weight_gradient_of(ctx, 1, gradient)
        of_self = None if weight_self is None else _of_near(ctx, gradient)
        let_go(ctx)
        if ctx.needs_rows:
            of_rows, arrival = neighborhood.aggregate_back(map_back(gradient, weight_neighbor))
            if weight_self is not None:
                map_back(gradient, weight_self, out=of_rows[:hop.back_out])
            neighborhood.drop_gradient(of_rows)
            arrival.finish(of_rows)
        of_norm = neighborhood.activation_back(of_rows, before)
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
        gradient, of_rows, of_self = gradient.contiguous()[:hop.back_out], None, None
        if neighborhood.is_input:
            of_neighbor = _of_near(ctx, multiply(hop.matrices.near_back, gradient))
            if not neighborhood.is_by_peer:
                of_mapped_halo = multiply(hop.matrices.far_back, gradient)
                of_neighbor += weight_gradient(of_mapped_halo, neighborhood.input_halo()) \
                    if neighborhood.redraws_input else weight_gradient_of(ctx, 1, of_mapped_halo)
            else:
                for peer, rows in neighborhood.input_halo_by_peer():
                    of_neighbor += weight_gradient(multiply(hop.by_peer.far_back[peer], gradient), rows)
        else:
            of_mapped, arrival = neighborhood.mapped().aggregate_back(gradient)
        if weight_self is not None:
            of_self = _of_near(ctx, gradient)
        if not neighborhood.is_input:
            arrival.finish(of_mapped)
            of_neighbor = _of_near(ctx, of_mapped)
            of_rows = map_back(of_mapped, weight_neighbor)
            if weight_self is not None:
                map_back(gradient, weight_self, out=of_rows[:hop.back_out])
            neighborhood.drop_gradient(of_rows)
        of_norm = neighborhood.activation_back(of_rows, kept_before(ctx))
        return of_rows, *of_norm, of_neighbor, of_self, column_sums(gradient), None


def _of_near(ctx, gradient: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a weight that maps the first masked rows, (out_dim, in_dim) float32."""
    if ctx.makes_near_again:
        return weight_gradient(gradient, ctx.neighborhood.near_again(kept_before(ctx), len(gradient)))
    return weight_gradient_of(ctx, 0, gradient)


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
