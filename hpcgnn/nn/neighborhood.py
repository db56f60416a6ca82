"""The forward and backward pass of a linear convolution, out = A(x) W_neighbor + x W_self + b, written by hand.

Autograd would keep every intermediate. Here both products end in one buffer, halo rows have their own table, and the
backward pass draws dropout masks again and recomputes activations instead of keeping them.

Forward (`AggregateFirst`, rows travel as they are; `MapFirst` maps them before):
1. `Neighborhood.aggregate` starts to send the boundary rows,
2. sums central rows, which have no halo neighbor, while messages travel,
3. waits, then sums the marginal rows from near and halo rows.
Backward runs in reverse: gradients of halo rows are sent first, and gradients of inner rows are computed meanwhile.

`keep` stores what backward needs, as rows or as codes of few bits; `KeptRows` reads it block by block.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from hpcgnn.errors import KernelError
from hpcgnn.graph.hop import Arrival, ArrivalInTable, ExchangeSite, GradientArrival, Hop, PeerExchange
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.layers import backward_reads
from hpcgnn.ops.aggregation import FarRows, add_product, multiply, multiply_span
from hpcgnn.ops.arena import empty, in_memory, set_aside
from hpcgnn.ops.column_ranges import ColumnRange, columns_at_once, cut, join, product, sum_ranges
from hpcgnn.ops.counter import CounterKey
from hpcgnn.ops.dense import column_sums, combine, map_back, map_rows, weight_gradient
from hpcgnn.ops.pointwise import Activation, drop
from hpcgnn.ops.spans import blocks, short_blocks
from hpcgnn.ops.streams import streams_of

Gradients = tuple[torch.Tensor | None, ...]


class AggregateFirst(torch.autograd.Function):
    """(A x) W: rows are sent unmapped."""

    @staticmethod
    def forward(ctx, h, norm_weight, norm_bias, weight_neighbor, weight_self, bias,
                neighborhood: Neighborhood) -> torch.Tensor:
        """Collective. Keeps the aggregate, and the masked rows or the activation's inputs."""
        hop, dtype = neighborhood.hop, h.dtype
        h = h[:hop.num_in]
        if neighborhood.is_constant:
            near, aggregated = h, neighborhood.graph.input_aggregate(neighborhood.reduction)[:hop.num_out]
        else:
            aggregated, near = neighborhood.aggregate(h, wants_rows=weight_self is not None)
        ctx.neighborhood, ctx.needs_rows = neighborhood, not neighborhood.is_input
        ctx.weights = weight_neighbor.to(dtype), None if weight_self is None else weight_self.to(dtype)
        near_out, has_self = near[:hop.num_out], weight_self is not None
        reads = backward_reads(False, has_self, neighborhood.is_input, neighborhood.makes_again)
        ctx.makes_near_again = "near" not in reads
        keep(ctx, None if neighborhood.is_constant else neighborhood.graph, near_out if "near" in reads else None,
             aggregated, before=neighborhood.take_before())
        keeps_sums = neighborhood.has_backward and neighborhood.graph.stored_bits is None
        # Sums that nothing else reads are overwritten: one layer less in memory.
        in_place = not keeps_sums and not neighborhood.is_input and aggregated.shape[1] == len(bias)
        return combine(aggregated, ctx.weights[0], None if weight_self is None else near_out, ctx.weights[1], bias,
                       out=aggregated if in_place else None)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> Gradients:
        """Collective: gradients of halo rows are sent to their owners."""
        neighborhood, hop, (weight_neighbor, weight_self) = ctx.neighborhood, ctx.neighborhood.hop, ctx.weights
        kept, gradient, of_self, of_rows = KeptRows(ctx), gradient.contiguous()[:hop.back_out], None, None
        # Kept sums are read and freed before the rows of this pass are allocated.
        of_neighbor = kept.weight_gradient(1, gradient)
        kept.give_back(1)
        is_self_late = ctx.needs_rows and neighborhood.graph.exchange.overlaps
        if weight_self is not None and not is_self_late:
            of_self, = _of_near(ctx, kept, gradient)
            kept.give_back(0)
        if ctx.needs_rows:
            if _maps_last(neighborhood, weight_neighbor):
                of_rows, arrival = neighborhood.aggregate_back(
                    gradient, lambda summed: _map_back_in_place(summed, weight_neighbor))
            else:
                # A matrix without entries reads no row. Nothing here holds the gradients of the sums.
                of_rows, arrival = neighborhood.aggregate_back(
                    empty((len(gradient), weight_neighbor.shape[1]), gradient.dtype, gradient.device)
                    if hop.matrices.is_forward_only else map_back(gradient, weight_neighbor))
            if weight_self is not None:
                map_back(gradient, weight_self, out=of_rows[:hop.back_out])
                # While messages travel, the gradient of W_self is computed.
                if is_self_late:
                    of_self, = _of_near(ctx, kept, gradient)
            neighborhood.drop_gradient(of_rows)
            arrival.finish(of_rows)
        of_norm = neighborhood.activation_back(of_rows, kept.before)
        return of_rows, *of_norm, of_neighbor, of_self, column_sums(gradient), None


class MapFirst(torch.autograd.Function):
    """A (x W): rows are sent mapped."""

    @staticmethod
    def forward(ctx, h, norm_weight, norm_bias, weight_neighbor, weight_self, bias,
                neighborhood: Neighborhood) -> torch.Tensor:
        """Collective. Keeps the masked rows or the activation's inputs."""
        hop, dtype = neighborhood.hop, h.dtype
        weight_neighbor, weight_self = weight_neighbor.to(dtype), None if weight_self is None else weight_self.to(dtype)
        h = h[:hop.num_in]
        near = far = of_self = None
        if not neighborhood.makes_again:
            near = neighborhood.drop_inner(neighborhood.activated(h))
        if neighborhood.is_input:      # only here mapped rows may be wide
            mapped = map_rows(near, weight_neighbor)
        else:
            mapped, of_self = _map_both(neighborhood.near_blocks(h, near), hop, weight_neighbor, weight_self, bias)
        if neighborhood.is_input and neighborhood.is_by_peer:
            mapped_halo = ((peer, map_rows(rows, weight_neighbor)) for peer, rows in neighborhood.input_halo_by_peer())
            out = neighborhood.sum_by_peer(multiply(hop.by_peer.near, mapped), mapped_halo)
        elif neighborhood.is_input:
            # Input halo rows are already here, so mapping them too costs no message.
            far = neighborhood.input_halo()
            out = product(hop.matrices.forward, mapped, map_rows(far, weight_neighbor))
        else:
            out, _ = neighborhood.mapped().aggregate(mapped)
        ctx.neighborhood, ctx.weights = neighborhood, (weight_neighbor, weight_self)
        reads = set() if neighborhood.redraws_input else backward_reads(
            True, weight_self is not None, neighborhood.is_input, neighborhood.makes_again)
        ctx.makes_near_again = "near" not in reads
        keep(ctx, neighborhood.graph, near if "near" in reads else None, far if "far" in reads else None,
             before=neighborhood.take_before())
        if of_self is not None:
            return out.add_(of_self)
        # By block, since torch adds float32 to 16-bit rows in a copy.
        for start, stop in blocks(0, len(out), out.device.type):
            out[start:stop] += bias
        return out if weight_self is None else map_rows(near[:hop.num_out], weight_self, out=out)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> Gradients:
        """Collective: gradients of halo rows are sent to their owners."""
        neighborhood, hop, (weight_neighbor, weight_self) = ctx.neighborhood, ctx.neighborhood.hop, ctx.weights
        kept, gradient, of_rows, of_norm = KeptRows(ctx), gradient.contiguous()[:hop.back_out], None, (None, None)
        own = [] if weight_self is None else [gradient]
        if neighborhood.is_input:
            of_neighbor, *of_self = _of_near(ctx, kept, product(hop.matrices.near_back, gradient), *own)
            of_neighbor += _of_input_halo(ctx, kept, gradient)
        else:
            of_mapped, arrival = neighborhood.mapped().aggregate_back(gradient)
            # Rows are recomputed once for both weights, unless one weight's gradient is computed while messages travel.
            early, late = (own, []) if neighborhood.graph.exchange.overlaps else ([], own)
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
    neighborhood, hop = ctx.neighborhood, ctx.neighborhood.hop
    if neighborhood.is_by_peer:
        return sum(weight_gradient(multiply(hop.by_peer.far_back[peer], gradient), rows)
                   for peer, rows in neighborhood.input_halo_by_peer())
    of_mapped = product(hop.matrices.far_back, gradient)
    return weight_gradient(of_mapped, neighborhood.input_halo()) if neighborhood.redraws_input \
        else kept.weight_gradient(1, of_mapped)


def _of_near(ctx, kept: KeptRows, *gradients: torch.Tensor) -> list[torch.Tensor]:
    if not gradients or not ctx.makes_near_again:
        return [kept.weight_gradient(0, gradient) for gradient in gradients]
    # Each block of masked rows is recomputed once, for all weights that map it.
    totals: list[torch.Tensor] = []
    num_rows = max(gradients[0].shape[0], gradients[-1].shape[0])      # one or two
    for start, rows, _ in ctx.neighborhood.near_again(kept.before, num_rows):
        for place, gradient in enumerate(gradients):
            part = gradient[start:start + rows.shape[0]]
            of_block = weight_gradient(part, rows[:part.shape[0]])
            if start == 0:
                totals.append(of_block)
            else:
                totals[place] += of_block
    return totals


def _map_both(near_blocks: Iterable[tuple[int, torch.Tensor]], hop: Hop, weight_neighbor: torch.Tensor,
              weight_self: torch.Tensor | None, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    mapped = of_self = None
    for start, rows in near_blocks:
        if len(rows) == hop.num_in and rows.device.type != "cpu":      # all rows in one block, as on a device
            mapped = map_rows(rows, weight_neighbor)
            of_self = None if weight_self is None else combine(rows[:hop.num_out], weight_self, None, None, bias)
            continue
        if mapped is None:
            mapped = empty((hop.num_in, len(bias)), rows.dtype, rows.device)
            of_self = None if weight_self is None else empty((hop.num_out, len(bias)), rows.dtype, rows.device)
        mapped[start:start + len(rows)] = map_rows(rows, weight_neighbor)
        if of_self is not None:
            here = of_self[start:start + len(rows)]
            here[:] = bias
            map_rows(rows[:len(here)], weight_self, out=here)
    return mapped, of_self


def _maps_last(neighborhood: Neighborhood, weight: torch.Tensor) -> bool:
    return (neighborhood.graph.stored_bits is not None and not neighborhood.is_by_peer
            and weight.shape[0] == weight.shape[1])


def _map_back_in_place(gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    for start, stop in blocks(0, len(gradient), gradient.device.type):
        gradient[start:stop] = map_back(gradient[start:stop], weight)
    return gradient


@dataclass
class Neighborhood:
    """One convolution within a pass: activates, masks, sends and sums its rows."""

    graph: LocalGraph
    hop: Hop
    is_input: bool                                # rows are the constant input
    is_dropped: bool                              # dropout was already applied to the rows
    reduction: str
    probability: float                            # probability of the first dropout
    activation: Any = None                        # an Activation, maybe stored in codes, before that dropout
    before: tuple[torch.Tensor | None, ...] = ()  # inputs of the activation, for backward

    def __post_init__(self) -> None:
        self.key: CounterKey | None = None if self.is_dropped else self.graph.next_dropout(self.probability)
        self.has_backward = torch.is_grad_enabled()      # inside a torch.autograd.Function it never is
        self.is_constant = self.is_input and self.key is None      # the aggregate is the same in every epoch
        # With codes of rows backward masks the input again, to save memory; else it recomputes rows from the
        # activation's inputs.
        has_codes = self.graph.stored_bits is not None
        self.redraws_input = self.is_input and has_codes
        self.makes_again = self.activation is not None and not has_codes
        self.is_by_peer = self.hop.by_peer is not None
        self.site: ExchangeSite | None = None if self.is_input else self.graph.next_site(
            self.hop.reach, reduction=self.reduction)
        if self.key is not None and not self.is_input and self.graph.sends_sums:
            raise KernelError("rows that are sent as sums are masked before; see LocalGraph.dropped_to_send")

    def activated(self, h: torch.Tensor) -> torch.Tensor:
        """Return activated rows; the activation's inputs go to `before`."""
        if self.activation is None:
            return h
        self.activation = self.graph.stored(self.activation, h)
        rows, self.before = self.activation.forward(h)
        return rows

    def take_before(self) -> tuple[torch.Tensor | None, ...]:
        before, self.before = self.before, ()
        return before

    def near_blocks(self, h: torch.Tensor, near: torch.Tensor | None) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield (start, masked rows) block by block: slices of `near`, or computed if None, which sets `before`."""
        if near is not None:
            for start, stop in self._spans(near):
                yield start, near[start:stop]
            return
        moments = []
        for start, rows, of_block in self._made_of(h):
            moments.append(of_block)
            yield start, rows
        self.before = h, moments[0] if len(moments) == 1 else torch.cat(moments)

    def near_again(self, before: tuple, num_rows: int) -> Iterator[tuple[int, torch.Tensor, torch.Tensor | None]]:
        """Yield the first blocks of `near_blocks` once more, with the moments of their normalization, from the
        activation's inputs or the input rows.
        """
        return self._made_of((self.graph.x if self.activation is None else before[0])[:num_rows])

    def activation_back(self, of_rows: torch.Tensor, before: tuple) -> Gradients:
        """Turn gradients of activated rows into gradients of inputs, in place; return gradients of weight and bias."""
        return (None, None) if self.activation is None else self.activation.backward(of_rows, before, of_rows)

    def rows_back(self, gradient_of: Callable[[int, int], torch.Tensor], before: tuple) -> Gradients:
        """Return gradients of the activation's inputs, weight and bias; the first overwrites the inputs.

        `gradient_of(start, stop)` returns a new tensor: the gradient of the masked rows start .. stop.
        """
        rows, moments = before
        of_rows, of_norm = rows.detach() if rows.device.type == "cpu" else torch.empty_like(rows), []
        for start, stop in self._spans(rows):
            made = self._drop_in_place(gradient_of(start, stop), start, stop)
            kept = rows[start:stop], moments[start:stop]
            of_norm.append(self._activation_of(start, stop).backward(made, kept, of_rows[start:stop]))
        if len(of_norm) == 1 or of_norm[0][0] is None:
            return of_rows, *of_norm[0]
        return of_rows, *(torch.stack(parts).sum(0) for parts in zip(*of_norm, strict=True))

    def mapped(self) -> Neighborhood:
        """Return a copy for rows that were activated and masked before they were mapped."""
        unmasked = copy.copy(self)
        unmasked.key = unmasked.activation = None
        return unmasked

    def drop_inner(self, h: torch.Tensor) -> torch.Tensor:
        return self._drop(h, 0, h.shape[0])

    def drop_gradient(self, of_rows: torch.Tensor) -> torch.Tensor:
        return self._drop_in_place(of_rows, 0, of_rows.shape[0])

    @property
    def _peer_exchange(self) -> PeerExchange:
        return cast(PeerExchange, self.graph.exchange)      # only of an exchange with `halo_spans` a hop is by peer

    def drop_halo(self, h: torch.Tensor, peer: int | None = None) -> torch.Tensor:
        """Mask halo rows, of all peers or one, as their owners do."""
        return self._drop(h, *self._halo_places(h, peer))

    def drop_halo_in_place(self, h: torch.Tensor, peer: int | None = None) -> torch.Tensor:
        return self._drop_in_place(h, *self._halo_places(h, peer))

    def input_halo(self) -> torch.Tensor:
        return self.drop_halo(self.graph.x_all[self.graph.num_inner:])

    def input_halo_by_peer(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield each peer and the masked input rows that it owns; peers without rows are skipped."""
        for peer, (start, stop) in enumerate(self.graph.halo_spans):
            if start < stop:
                inner = self.graph.num_inner
                yield peer, self.drop_halo(self.graph.x_all[inner + start:inner + stop], peer)

    def aggregate(self, h: torch.Tensor, wants_rows: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        """Collective: return A(mask h), (hop.num_out, dim), and the masked rows mask h, both after h's activation.

        h is (hop.num_in, dim), as mask h is, which may be empty without `wants_rows`. Reference: AdaQP, Section 3.4.
        """
        if self.is_by_peer:
            return self._aggregate_by_peer(h)
        width, matrix = self.columns_at_once(h), self.hop.matrices.forward
        if self.is_input:
            of_epoch = None if self.key is None else self.graph.masked_input_aggregate(
                self.hop, self.reduction, self.probability, self.key)
            if of_epoch is not None:
                return of_epoch, self.drop_inner(h if wants_rows else h[:0])
            near = self.drop_inner(h)
            if width is not None:
                ranges, others = cut(set_aside(near), width), cut(self.graph.x_all[self.graph.num_inner:], width)
                return sum_ranges(matrix, ranges, lambda _: self._masked_halo(others.pop(0))), near
            return multiply(matrix, near, self.input_halo()), near
        if width is not None:
            near = set_aside(self._masked(self.activated(set_aside(h))))
            return sum_ranges(matrix, cut(near, width), self._fetched), near
        rows = self.activated(h)
        arrival = self.graph.exchange.start_fetch(rows, self.site)
        near = self._masked(rows)
        del rows                   # sent; from here on the masked rows are enough
        # Without a mask, halo rows can be summed straight from their messages.
        if self.hop.in_place is not None and self.key is None:
            table = cast(ArrivalInTable, arrival).in_place()      # only its exchange gives a hop this matrix
            if table is not None:
                return multiply(self.hop.in_place, near, table), near
        # Central rows have no halo neighbor, so they are summed while messages travel.
        central_stream, out = streams_of(h.device).central, None
        if self.hop.central or self.has_backward:
            out = self._empty_out(h)
        if self.hop.central:
            no_row = self._empty_halo(h)   # only addresses; central rows read none of them
            with central_stream.after_computing():
                for span in self.hop.central:
                    multiply_span(matrix, near, no_row, out, span)
                    arrival.poll()
            del no_row
        far = self._arrived(arrival, h)
        if out is None:                    # an evaluation's messages were as long as a table, and are gone now
            out = self._empty_out(h)
        for span in self.hop.marginal:
            multiply_span(matrix, near, far, out, span)
        if self.hop.central:
            central_stream.join()
        return out, near

    def columns_at_once(self, h: torch.Tensor) -> int | None:
        """How many columns of rows such as `h` are sent and summed at a time; None: all."""
        width = None if self.is_by_peer else columns_at_once(h)
        if width is None or self.site is None or self.graph.exchange.takes_columns(self.site, h.dtype):
            return width
        return None

    def _masked_halo(self, columns: ColumnRange) -> torch.Tensor:
        return self._drop_in_place(columns.rows, *self._halo_places(columns.rows, None), columns.first)

    def _fetched(self, columns: ColumnRange) -> torch.Tensor:
        # These columns are masked by their owner, unlike whole rows: the values are the same.
        site = replace(self.site, first_column=columns.first)
        arrival, far = self.graph.exchange.start_fetch(columns.rows, site), self._empty_halo(columns.rows)
        arrival.finish(far)
        return far

    def _arrived(self, arrival: Arrival, h: torch.Tensor) -> FarRows:
        far = arrival.packed() if self.key is None else None
        if far is not None:
            return far
        far = arrival.rows_in_message(h.dtype)
        if far is None:
            arrival.wait()
            far = self._empty_halo(h)
            arrival.finish(far)
        return self.drop_halo_in_place(far)

    def aggregate_back(
            self, gradient: torch.Tensor,
            then: Callable[[torch.Tensor], torch.Tensor] | None = None) -> tuple[torch.Tensor, GradientArrival]:
        """Collective: this rank's part of the gradient of unmasked inner rows, and the arrival of the rest.

        `gradient` is at least (hop.back_out, dim). `then` maps summed gradients in place before they are masked; it is
        None if rows come by peer.
        """
        gradient = gradient[:self.hop.back_out]
        width = self.columns_at_once(gradient)
        if width is not None:
            ranges = cut(set_aside(gradient), width)
            del gradient
            return self._aggregate_ranges_back(ranges, then)
        arrival = self._start_take_home(gradient, then)
        of_rows = empty((self.hop.num_in, gradient.shape[1]), gradient.dtype, gradient.device)
        if self.hop.matrices.is_forward_only:
            return of_rows.zero_(), arrival
        reached, of_rows[self.hop.back_in:] = of_rows[:self.hop.back_in], 0
        for span in blocks(0, self.hop.back_in, gradient.device.type):
            multiply_span(self.hop.matrices.near_back, gradient, None, reached, span)
            if then is not None:
                then(reached[slice(*span)])
            arrival.poll()
        return of_rows, arrival

    def _aggregate_ranges_back(self, ranges: list[ColumnRange], then: Callable[[torch.Tensor], torch.Tensor] | None,
                               ) -> tuple[torch.Tensor, GradientArrival]:
        reached = sum_ranges(self.hop.matrices.near_back, list(ranges))
        if then is not None:
            for start, stop in blocks(0, self.hop.back_in):
                then(reached[start:stop])
            of_halo = then(sum_ranges(self.hop.matrices.far_back, list(ranges)))
            ranges = cut(set_aside(of_halo), ranges[0].rows.shape[1])
        arrival = GradientsByRange(self, ranges, are_of_halo=then is not None)
        if self.hop.back_in == self.hop.num_in:
            return reached, arrival
        set_aside(reached)
        of_rows = empty((self.hop.num_in, reached.shape[1]), reached.dtype)
        of_rows[:self.hop.back_in], of_rows[self.hop.back_in:] = reached, 0
        return of_rows, arrival

    def take_home(self, columns: ColumnRange, are_of_halo: bool) -> GradientArrival:
        """Collective: start to send columns of the gradients of halo rows, made of those of the sums if they aren't."""
        of_halo = columns if are_of_halo else ColumnRange(
            columns.first, multiply(self.hop.matrices.far_back, columns.rows))
        site = replace(self.site, first_column=columns.first)
        return self.graph.exchange.start_take_home(self._masked_halo(of_halo), site)

    def _start_take_home(self, gradient: torch.Tensor,
                         then: Callable[[torch.Tensor], torch.Tensor] | None) -> GradientArrival:
        if not self.is_by_peer:
            of_halo = multiply(self.hop.matrices.far_back, gradient)
            of_halo = of_halo if then is None else then(of_halo)
            return self.graph.exchange.start_take_home(self.drop_halo_in_place(of_halo), self.site)
        return self._peer_exchange.start_take_home_by_peer(
            lambda peer: self.drop_halo_in_place(multiply(self.hop.by_peer.far_back[peer], gradient), peer), self.site)

    def _aggregate_by_peer(self, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Collective: `aggregate`, one peer's rows after another's. Reference: Mostafa, MLSys 2022 (SAR)."""
        if self.is_input:
            near = self.drop_inner(h)
            return self.sum_by_peer(multiply(self.hop.by_peer.near, near), self.input_halo_by_peer()), near
        h = self.activated(h)
        arrival = self._peer_exchange.start_fetch_by_peer(h, self.site)
        near, out = self.drop_inner(h), empty((self.hop.num_out, h.shape[1]), h.dtype, h.device)
        for span in blocks(0, self.hop.num_out, h.device.type):
            multiply_span(self.hop.by_peer.near, near, None, out, span)
            arrival.poll()
        return self.sum_by_peer(out, ((peer, self.drop_halo(rows, peer)) for peer, rows in arrival)), near

    def sum_by_peer(self, out: torch.Tensor, halo_rows: Iterable[tuple[int, torch.Tensor]]) -> torch.Tensor:
        """Add the sums over each peer's halo rows to `out` (hop.num_out, dim)."""
        for peer, rows in halo_rows:
            add_product(self.hop.by_peer.far[peer], rows[:0], rows, out)
        return out

    def _halo_places(self, h: torch.Tensor, peer: int | None) -> tuple[int, int]:
        start, stop = (0, h.shape[0]) if peer is None else self.graph.halo_spans[peer]
        return self.graph.num_inner + start, self.graph.num_inner + stop

    def _empty_out(self, h: torch.Tensor) -> torch.Tensor:
        return empty((self.hop.num_out, h.shape[1]), h.dtype, h.device)

    def _empty_halo(self, h: torch.Tensor) -> torch.Tensor:
        return empty((self.hop.num_halo, h.shape[1]), h.dtype, h.device)

    def _masked(self, rows: torch.Tensor) -> torch.Tensor:
        # Rows of this layer alone can be masked in place once encoded; on a device, messages may still be unwritten.
        is_own = self.activation is not None and rows.device.type == "cpu"
        return self.drop_gradient(rows) if is_own else self.drop_inner(rows)

    def _made_of(self, h: torch.Tensor) -> Iterator[tuple[int, torch.Tensor, torch.Tensor | None]]:
        spans = self._spans(h)
        if self.activation is None:
            for start, stop in spans:
                yield start, self._drop(h[start:stop], start, stop), None
            return
        # One buffer for all blocks: each block overwrites the one before.
        room = empty((spans[0][1] - spans[0][0], h.shape[1]), h.dtype, h.device)      # the first is the longest
        for start, stop in spans:
            rows, (_, moments) = self._activation_of(start, stop).forward(h[start:stop], room[:stop - start])
            yield start, self._drop_in_place(rows, start, stop), moments

    def _activation_of(self, start: int, stop: int) -> Activation:
        return self.activation.part(start, stop, self.graph.ids(start, stop))

    def _spans(self, h: torch.Tensor) -> list[tuple[int, int]]:
        num_rows, device = h.shape[0], h.device.type
        return short_blocks(num_rows) if device == "cpu" else blocks(0, num_rows, device) or [(0, 0)]

    def _drop(self, h: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        return h if self.key is None else drop(h.contiguous(), self.probability, self.graph.ids(start, stop), self.key)

    def _drop_in_place(self, h: torch.Tensor, start: int, stop: int, first_column: int = 0) -> torch.Tensor:
        return h if self.key is None else drop(h, self.probability, self.graph.ids(start, stop), self.key, h,
                                               first_column)


@dataclass
class GradientsByRange:
    """Gradients of halo rows that leave range by range of their columns, and only when they are waited for.

    ranges : of the gradients of the sums, (hop.back_out, dim), or of halo rows
    """

    neighborhood: Neighborhood
    ranges: list[ColumnRange]
    are_of_halo: bool

    def poll(self) -> bool:
        return True

    def finish(self, rows: torch.Tensor) -> None:
        """Collective: send, wait, then add the gradients to the first, inner rows of `rows`."""
        totals = cut(set_aside(rows), self.ranges[0].rows.shape[1])
        for total in totals:
            self._add(self.ranges.pop(0), total.rows)
        join(totals, rows)

    def _add(self, columns: ColumnRange, total: torch.Tensor) -> None:
        with in_memory(columns.rows):
            arrival = self.neighborhood.take_home(columns, self.are_of_halo)
        arrival.finish(total)


def keep(ctx, graph: LocalGraph | None, *rows: torch.Tensor | None,
         before: tuple[torch.Tensor | None, ...] = ()) -> None:
    """Save rows (n, dim) of the first n inner nodes for the backward pass, as `graph` stores them (None: unchanged).

    `before` are the inputs of an activation, kept unchanged.
    """
    ctx.stores, kept = [], []
    for values in rows:
        is_stored = graph is not None and values is not None and not graph.is_there(values)
        store = graph.next_store(values) if is_stored else None
        ctx.stores.append(store)
        kept.append(values if store is None else store.encode(values))
    ctx.save_for_backward(*kept, *before)


class KeptRows:
    """Tensors that `keep` saved, taken over by the backward pass; each can be freed once read."""

    def __init__(self, ctx) -> None:
        saved, self._stores = ctx.saved_tensors, ctx.stores
        self._values = list(saved[:len(self._stores)])
        self.before = saved[len(self._stores):]
        ctx.maybe_clear_saved_tensors()

    def weight_gradient(self, place: int, gradient: torch.Tensor) -> torch.Tensor:
        """Return gradient.T @ rows, (out_dim, dim) float32, for gradient (n, out_dim) and the rows kept at `place`."""
        values, store = self._values[place], self._stores[place]
        if store is None:
            return weight_gradient(gradient, values[:len(gradient)].contiguous())
        # Codes are decoded block by block, so the whole rows never exist.
        total = torch.zeros(gradient.shape[1], store.dim, device=gradient.device)
        for span, rows in store.decode(values):
            part = gradient[span]
            total += weight_gradient(part, rows[:len(part)])
        return total

    def rows(self, place: int) -> torch.Tensor:
        values, store = self._values[place], self._stores[place]
        if store is None:
            return values
        whole = empty((len(store.node_id), store.dim), store.dtype, values.device)
        for span, rows in store.decode(values):
            whole[span] = rows
        return whole

    def give_back(self, place: int) -> None:
        self._values[place] = None
