"""How far the arena of one rank is filled: the large tensors of training passes and an evaluation, in the order in
which the program makes them and lets them go, laid out as the arena lays them out.

It follows `hpcgnn.nn.orders`, `hpcgnn.nn.neighborhood` and the exchange step by step; sizes alone are known here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpcgnn.ops.pieces import MIN_BYTES, Places
from hpcgnn.ops.spans import LEAST_CENTRAL, ROWS_AT_ONCE
from hpcgnn.planning.model import Exchange, Layer, ModelSize

ADDRESSES = 1 << 56
EPOCHS = 2      # the first ones; of those after an evaluation one is like another

Piece = tuple[int, int]


@dataclass(frozen=True)
class RankSize:
    """What a rank holds and exchanges.

    Attributes
    ----------
    layers : list of Layer            whose arrays are this rank's numbers
    num_inner, num_halo : int
    num_own : int                     inner rows that other ranks of the node read, where they share rows; else 0
    message_bytes : function          Exchange -> bytes sent and received in a training pass
    full_bytes : function             Exchange -> the same in an evaluation
    is_asynchronous : bool
    """

    layers: list[Layer]
    num_inner: int
    num_halo: int
    num_own: int
    message_bytes: Callable[[Exchange], tuple[float, float]]
    full_bytes: Callable[[Exchange], tuple[float, float]]
    is_asynchronous: bool


def arena_bytes(size: ModelSize, rank: RankSize) -> int:
    """Return the bytes of the arena that are used at least once in a training with evaluations."""
    run = _Run(size, rank)
    for _ in range(EPOCHS):
        run.train()
    run.evaluate()
    run.train()
    return run.places.num_filled


class _Run:
    """Replay of a run; `places` say how much memory was used."""

    def __init__(self, size: ModelSize, rank: RankSize):
        self._size, self._rank = size, rank
        self.places = Places(ADDRESSES)
        self._received: dict[Exchange | None, Piece | None] = {}
        first = rank.layers[0]
        is_constant = not (size.has_dropout or first.maps_first)
        self._sums_of_input = self._take(rank.num_inner, first.in_dim) if is_constant else None
        self._leaving: Piece | None = None

    def train(self) -> None:
        """Replay a training pass."""
        kept = [self._forward(layer) for layer in self._rank.layers]
        last = self._rank.layers[-1]
        gradient = self._take(last.rows_out, last.out_dim)
        logits = kept[-1][1]
        for layer in reversed(self._rank.layers):
            before = kept[layer.number - 1][1] if layer.number else None
            gradient = self._backward(layer, kept[layer.number][0], gradient, before)
        self._free(gradient, logits)

    def evaluate(self) -> None:
        """Replay a pass over all rows, of which nothing is kept."""
        inner, halo, h = self._rank.num_inner, self._rank.num_halo, None
        for layer in self._rank.layers:
            columns = layer.sum_dim
            if layer.number == 0 and not layer.maps_first:
                sums = self._take(inner, layer.in_dim) if self._sums_of_input is None else None
                h = self._take(inner, layer.out_dim)
                self._free(sums)
                continue
            near = self._take(inner, layer.in_dim) if layer.number else None
            self._free(h)
            mapped = self._take(inner, columns) if layer.maps_first else None
            if layer.number:
                sums = self._fetch(Exchange(layer.number, False, columns, 0), layer, inner, is_training=False)
            else:
                far = self._take(halo, columns)
                sums = self._take(inner, columns)
                self._free(far)
            if not layer.maps_first and layer.in_dim != layer.out_dim:
                sums, before = self._take(inner, layer.out_dim), sums
                self._free(before)
            self._free(mapped, near)
            h = sums
        self._free(h)

    def _forward(self, layer: Layer) -> tuple[list[Piece | None], Piece | None]:
        """Return what a layer keeps for its backward pass, and the rows that come out."""
        if layer.number == 0:
            return self._forward_input(layer)
        a_block = min(layer.rows_in, ROWS_AT_ONCE)
        near = self._take(a_block if layer.maps_first else layer.rows_in, layer.in_dim)
        mapped = self._take(layer.rows_in, layer.out_dim) if layer.maps_first else None
        of_self = None
        if layer.maps_first:
            of_self = self._take(layer.rows_out, layer.out_dim) if self._size.maps_a_layer == 2 else None
            self._free(near, self._take(a_block, layer.out_dim))
        exchange = Exchange(layer.number, False, layer.sum_dim, layer.reach)
        sums = self._fetch(exchange, layer, layer.rows_out, is_training=True)
        if layer.maps_first:
            self._free(mapped, of_self)
            return [], sums
        out = self._take(layer.rows_out, layer.out_dim)
        self._free(near)
        return [sums], out

    def _forward_input(self, layer: Layer) -> tuple[list[Piece | None], Piece | None]:
        has_mask, columns = self._size.has_dropout, layer.in_dim
        near = self._take(layer.rows_in, columns) if has_mask else None
        halo = self._take(self._rank.num_halo, columns) if has_mask else None
        if layer.maps_first:
            mapped = self._take(layer.rows_in, layer.out_dim)
            far = self._take(self._rank.num_halo, layer.out_dim)
            out = self._take(layer.rows_out, layer.out_dim)
            self._free(mapped, far)
            return [near, halo], out
        sums = self._take(layer.rows_out, columns) if has_mask else None
        self._free(halo)
        out = self._take(layer.rows_out, layer.out_dim)
        self._free(near)
        return [sums], out

    def _backward(self, layer: Layer, kept: list[Piece | None], gradient: Piece | None,
                  before: Piece | None) -> Piece | None:
        """Return the gradient of the rows that went in; all else that was kept and the gradient that came are gone."""
        has_self = self._size.maps_a_layer == 2
        if layer.number == 0:
            if layer.maps_first:
                mapped = self._take(layer.rows_in, layer.out_dim)
                far = self._take(self._rank.num_halo, layer.out_dim)
                self._free(far, mapped)
            self._free(*kept)
            if has_self and self._size.has_dropout:
                self._free(self._take(min(layer.rows_out, ROWS_AT_ONCE), layer.in_dim))
            self._free(gradient)
            return None
        exchange = Exchange(layer.number, True, layer.sum_dim, layer.reach)
        if layer.maps_first:
            finish, of_mapped = self._take_home(exchange, layer)
            if has_self:
                self._free(self._take(min(layer.rows_out, ROWS_AT_ONCE), layer.in_dim))
            finish()
            self._free(self._take(min(layer.rows_in, ROWS_AT_ONCE), layer.in_dim))
            self._free(of_mapped, gradient)
            return before
        self._free(*kept)
        of_sums = self._take(layer.rows_out, layer.in_dim)
        finish, of_rows = self._take_home(exchange, layer)
        self._free(of_sums)
        if has_self:
            self._free(self._take(min(layer.rows_out, ROWS_AT_ONCE), layer.in_dim))
        finish()
        self._free(gradient, before)
        return of_rows

    def _fetch(self, exchange: Exchange, layer: Layer, num_rows: int, is_training: bool) -> Piece | None:
        """Replay an exchange of halo rows; return the sums that they and the inner rows end in. Where all rows come as
        they are stored they are read where they arrived.
        """
        bytes_of = self._rank.message_bytes if is_training else self._rank.full_bytes
        is_asynchronous = is_training and self._rank.is_asynchronous
        sent, read = self._send(exchange, bytes_of, is_asynchronous)
        own, far = self._take(self._rank.num_own, exchange.dim), None
        has_central = layer.central_arcs > LEAST_CENTRAL * layer.arcs       # told by their arcs, not by rows
        is_early = is_training or has_central
        sums = self._take(num_rows, exchange.dim) if is_early else None
        if has_central:
            self._free(self._take(self._rank.num_halo, exchange.dim))
        self._free(sent)
        comes_whole = bytes_of(exchange)[1] >= self._bytes(self._rank.num_halo, exchange.dim)
        if is_asynchronous or self._rank.num_own or not comes_whole:
            far = self._take(self._rank.num_halo, exchange.dim)
        sums = sums if is_early else self._take(num_rows, exchange.dim)
        self._free(far, own, read)
        return sums

    def _take_home(self, exchange: Exchange, layer: Layer) -> tuple[Callable[[], None], Piece | None]:
        """Replay an exchange of gradients; return what ends it, and the gradient of this rank's rows."""
        of_halo, total = self._take(self._rank.num_halo, exchange.dim), None
        if self._rank.num_own:
            sent_rows = self._rank.message_bytes(exchange)[0] / (exchange.dim * self._size.item_bytes)
            total = self._take(self._rank.num_own + int(sent_rows), exchange.dim)
        sent, read = self._send(exchange, self._rank.message_bytes, self._rank.is_asynchronous)
        self._free(of_halo)
        of_rows = self._take(layer.rows_in, exchange.dim)
        return lambda: self._free(sent, read, total), of_rows

    def _send(self, exchange: Exchange, bytes_of: Callable[[Exchange], tuple[float, float]],
              is_asynchronous: bool) -> tuple[Piece | None, Piece | None]:
        """Return the message that leaves, and one that came an epoch ago and is read now; what comes is held."""
        place = exchange if is_asynchronous else None
        before = self._received.pop(place, None)
        if not is_asynchronous:      # a later exchange's message may lie where an earlier one's lay
            self._free(before)
            before = None
        sent, self._received[place] = map(self._take_bytes, bytes_of(exchange))
        self._free(self._leaving)
        self._leaving = None
        if is_asynchronous:          # nobody waits for it
            self._leaving, sent = sent, None
        return sent, before

    def _take(self, rows: int, columns: int) -> Piece | None:
        return self._take_bytes(self._bytes(rows, columns))

    def _bytes(self, rows: int, columns: int) -> int:
        return int(rows) * columns * self._size.item_bytes

    def _take_bytes(self, num_bytes: float) -> Piece | None:
        if num_bytes < MIN_BYTES:
            return None
        start, size, _ = self.places.take(int(num_bytes))
        return start, size

    def _free(self, *pieces: Piece | None) -> None:
        for piece in pieces:
            if piece is not None:
                self.places.give_back(*piece)
