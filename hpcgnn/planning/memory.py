"""Bytes that a rank holds at its fullest moment, by kind.

`arena_bytes` simulates the arena: it goes through the steps of each layer (`hpcgnn.nn.layers`), and allocates and frees
their tensors and messages in the same order as training. For a model that autograd goes back through, `tensors_of` adds
up the tensors that are alive at each operation. For the kinds see `hpcgnn.training.forecast.Memory`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hpcgnn.nn.layers import LINEAR, Op, Step, operations
from hpcgnn.nn.names import RELATIONAL
from hpcgnn.ops.evictions import Evictions, columns_of_a_range
from hpcgnn.ops.pieces import MIN_BYTES, Places
from hpcgnn.ops.spans import LEAST_CENTRAL, ROWS_AT_ONCE
from hpcgnn.planning.cluster import Cluster
from hpcgnn.planning.loads import Pairs, PartLoads
from hpcgnn.planning.messages import Messages
from hpcgnn.planning.model import LEARNED, Exchange, Layer, ModelSize, exchanges_of, rows_of
from hpcgnn.planning.stages import total

ADDRESSES = 1 << 56
GAPS = 2.0      # steps differ in their rows, so memory that one frees is too short for the next; measured: 1.6 to 2.2
GLIBC = 2.0     # measured: 1.3 to 2.5
BY_TORCH = ("bias", "relu", "add", "average", "join", "gate", "norm", "round")      # operations that torch does itself
STEPS = 2       # steps simulated of an epoch of several; all have the same sizes here
EPOCHS = 2      # epochs simulated before an evaluation, and again after it; further epochs need no more memory

Piece = tuple[int, int]
Ranges = list[tuple[int, Piece | None]]      # numbers of columns


def memory_of(size: ModelSize, loads: PartLoads, messages: Messages, cluster: Cluster) -> dict[str, np.ndarray]:
    """Bytes of each of KINDS, (num_parts,) each.

    - `reading`: memory of the part while it is read, beyond what training later reuses.
    - `structure`: edges, and the places of rows in messages.
    - `features`: with the halo rows.
    - `gradients`: the rest of the arena: rows of the backward pass, rows that are recomputed for it, unused ends of
      chunks.
    - `shared_rows`: a rank's pages of the table that the ranks of its node share.
    - `method_state`: what is kept between epochs, the history of steps and what codes of sums lack too,
      and their copy for a checkpoint.

    In an epoch of several steps, activations, gradients, halo rows and messages are of one step.

    If the ranks of a machine share rows, the rows of `loads.shared` are sent instead of `loads.pairs`.
    """
    known, none = loads.num_inner + loads.num_halo, np.zeros(loads.num_parts)
    exchanges = list(exchanges_of(size))
    widest, links = max((exchange.dim for exchange in exchanges), default=0), _of_links(size, loads)
    sent, own, shared_rows = sharing(size, loads, messages, cluster)
    step = loads.of_step(size.num_steps)
    if size.rematerializes and size.is_by_hand:      # one peer's halo rows at a time
        most = _sums_of_ends(sent, sent.rows, loads.num_parts, of_one=True)[1]
        step = loads = replace(loads, num_halo=most.astype(np.int64))
    by_exchange = _by_exchange(size, messages, sent, loads.num_parts)
    sent_bytes = np.max([ahead + back for ahead, back in by_exchange.values()], axis=0) if exchanges else none
    sums = none if loads.inputs is None else _sums_of_ends(sent, sent.rows, loads.num_parts)[0]
    state = sum((both[1] for both in by_exchange.values()), none) if messages.keeps else none
    of_sums = FLOAT * size.num_weights * (size.sum_bits < 8 * FLOAT and loads.num_parts > 1)     # what codes lack
    halo_rows, of_norms, around_norms = step.num_halo * widest * size.item_bytes, none, none
    if size.is_by_hand:
        layers, kept = size.layers(step), _activations(size, step)
        arena = (GAPS if size.num_steps > 1 else 1) * np.array(
            [arena_bytes(size, rank) for rank in rank_sizes(size, loads, messages, sent, own)])
        of_norms, around_norms = _of_batch_norms(size, layers, loads)
        rest = np.maximum(0, arena - (kept - _moments(layers)) - halo_rows - sent_bytes - state)
        # Features and learned rows side by side, and the learned rows' gradient.
        rest = rest + (size.item_bytes * size.columns + FLOAT * size.embedding_dim) * layers[0].rows_in * float(
            size.embedding_dim > 0)
    else:
        kept, most = tensors_of(size, step)
        _, evaluated = tensors_of(size.of_whole_graph, loads.of_evaluation, is_training=False)
        arena = np.maximum(most, evaluated) + sent_bytes + state
        rest = np.maximum(0, arena - kept - halo_rows - sent_bytes - state)
    reading = loads.num_inner * FLOAT * size.in_dim + (known * FLOAT * size.in_dim if size.item_bytes < FLOAT else 0)
    return {
        "process": none + cluster.process_bytes,
        "reading": loads.num_inner * BYTES_A_NODE + np.maximum(0, reading - arena),
        "features": known * size.in_dim * size.item_bytes,
        "structure": (loads.num_edges * BYTES_A_ARC + known * BYTES_A_ROW
                      + layout_bytes(exchanges, messages, sent, loads) + _more_structure(size, loads) + links[0]),
        "weights": FLOAT * (ARRAYS_OF_WEIGHTS + ARRAYS_OF_AVERAGE * size.has_average) * (
            size.num_weights + loads.num_inner * size.embedding_dim),
        "activations": kept + of_norms + links[1],
        "gradients": rest + around_norms,
        "halo_rows": halo_rows,
        "messages": sent_bytes + sums * widest * size.item_bytes,
        "shared_rows": shared_rows * widest * size.item_bytes,
        "method_state": COPIES_OF_STATE * (state + _tables(size, messages, sent, loads.num_parts)
                                           + history_bytes(size, loads) + of_sums)}


def _tables(size: ModelSize, messages: Messages, sent: Pairs, num_parts: int) -> np.ndarray:
    return sum((messages.table_bytes(exchange, *ends[::-1 if exchange.is_backward else 1]) for exchange in
                exchanges_of(size) for ends in [_sums_of_ends(sent, messages.rows(exchange, sent), num_parts)]),
               np.zeros(num_parts))


def tensors_of(size: ModelSize, loads: PartLoads, is_training: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of the tensors that a forward pass keeps, and of all tensors at the fullest moment, (num_parts,) each.

    What torch itself allocates lies outside the arena, and neither gives memory to the other; glibc takes GLIBC times
    as much, since no aligned tensor fits where one of its size was.
    """
    ops, item = operations(size), size.item_bytes
    rows = [rows_of(op, loads) for op in ops]
    edges = loads.arcs_within[:, 0] + loads.num_inner
    places = np.array([[op.kind in BY_TORCH] for op in ops]) == [False, True]

    stored = item if size.stored_bits == 32 else size.stored_bits / 8      # bytes of a value that is kept

    def at(place: np.ndarray, amount: np.ndarray) -> np.ndarray:
        return np.outer(place, amount)      # (2, num_parts)

    made = [at(places[0], 0.0 * loads.num_inner),
            *(at(place, item * op.dim * own) for op, own, place in zip(ops, rows, places, strict=True))]
    beside = [at(place, item * op.beside * own) for op, own, place in zip(ops, rows, places, strict=True)]
    if not is_training:      # nothing is kept, and no mask is drawn
        most = np.max([made[number] + made[number + 1] * (op.kind != "mask") + beside[number]
                       for number, op in enumerate(ops)], axis=0)
        return 0.0 * loads.num_inner, most[0] + GLIBC * most[1]
    besides = [at(place, stored * op.kept * own) + at(np.array([op.kind != "activate", op.kind == "activate"]),
                                                    FLOAT * (op.moments * own + op.per_edge * edges))
               for op, own, place in zip(ops, rows, places, strict=True)]
    reads = [op.keeps.split() for op in ops]
    stays = [made[number + 1] * ("stays" in words) for number, words in enumerate(reads)]
    is_kept = [False, *("out" in words for words in reads)]      # of made
    is_kept = [known or (number < len(ops) and "in" in reads[number]) for number, known in enumerate(is_kept)]
    again = [op.is_again and size.rematerializes for op in ops]
    is_kept = [known or (number < len(ops) and again[number] and not (number and again[number - 1]))
               for number, known in enumerate(is_kept)]
    held = [tensor * known for tensor, known in zip(made, is_kept, strict=True)]
    if size.stored_bits < 32:
        held = [kept * _stored_share(size, ops, number, item) for number, kept in enumerate(held)]
        # A sum's backward pass reads inner rows only, so only they are kept as codes, even of a tensor with halo rows.
        held = [kept * (np.minimum(1, loads.num_inner / rows[number - 1]) if number and op.kind == "aggregate" else 1)
                for number, (kept, op) in enumerate(zip(held, [*ops, ops[-1]], strict=True))]
        # Signs tell which activated elements passed.
        held = [kept + made[number] / (8 * item) * (number < len(ops) and ops[number].kind in ("activate", "relu"))
                for number, kept in enumerate(held)]
    live, most, inside, remade = made[0], made[0], made[0], [made[0]] * len(ops)
    for number in range(len(ops)):
        live = live + made[number + 1] + besides[number]
        most = np.maximum(most, live + beside[number])
        if not (number and "stays" in reads[number - 1]):
            live = live - made[number] + held[number]
        if again[number]:
            inside = inside + besides[number]
            if number + 1 < len(ops) and again[number + 1]:
                inside = inside + held[number + 1]
            else:
                live, remade[number], inside = live - inside, inside, made[0]
    kept, gradient = live - (made[-1] - held[-1]) - sum(stays), made[-1]
    first = next(number for number, op in enumerate(ops) if op.kind in LEARNED)
    live = live + gradient      # gradients are added up where tensors had stayed
    for number in reversed(range(len(ops))):
        op, live = ops[number], live + remade[number]
        place = places[number] if op.kind != "send" else np.array([False, True])      # a copy of the inner rows
        of_in = gradient if op.kind == "bias" else at(place, made[number].sum(axis=0)) * (number > first)
        around = beside[number] + at(np.array([False, True]), item * op.back * rows[number])
        around = around + at(np.array([True, False]), 2 * FLOAT * op.per_edge * edges)
        most = np.maximum(most, live + of_in * (op.kind != "bias") + around)
        live = live + of_in - gradient - besides[number] - stays[number]
        live = live - held[number + 1]
        gradient = of_in
    return kept.sum(axis=0), most[0] + GLIBC * most[1]


def _stored_share(size: ModelSize, ops: list[Op], number: int, item: int) -> float:
    """Bytes of the codes of what operation `number` reads, relative to its values."""
    op = ops[number] if number < len(ops) else None
    if size.model in (*LINEAR, "jknet") and all(before.kind == "mask" for before in ops[:number]):
        return 0.0      # the masked input is drawn again
    if op is None or "in" not in op.keeps.split() or op.kind in ("attend", "relate"):
        return 1.0
    if op.kind == "activate" and not op.moments:
        return 0.0      # the signs are enough
    dim = ops[number - 1].dim if number else size.in_dim
    return (size.stored_bits / 8 + BYTES_OF_PARAMETERS / dim) / item


def _of_links(size: ModelSize, loads: PartLoads) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of the questions of links, and of what their loss keeps, (num_parts,) each.

    An edge asks both of its ends, the most that it may, and relations are taken to be equally frequent.
    """
    known = loads.num_inner + loads.num_halo
    if not size.num_drawn:
        return 0.0 * known, 0.0 * known
    questions = _ends_by_relation(size, loads)
    share, is_drawn = size.link_share, size.link_share < 1
    structure = 2 * BYTES_OF_A_LINK * loads.num_edges * (1 + share * is_drawn)
    structure = structure + BYTES_A_QUESTION * questions * ((size.num_relations > 0) + share * is_drawn)
    # Where questions are not one per row in order, their nodes' rows are copied.
    of_question = 1 + (is_drawn or size.num_relations > 0) + ROWS_OF_A_DECODER * (size.decoder_weights > 0)
    # The rows of drawn nodes, and their gradient from the questions about each end.
    tables = share * of_question * questions + known + 3 * size.num_drawn
    numbers = 2 * BYTES_OF_A_PRODUCT * share * loads.num_edges + BYTES_A_QUESTION * (share * questions + size.num_drawn)
    return structure, numbers + FLOAT * size.out_dim * tables


def _ends_by_relation(size: ModelSize, loads: PartLoads) -> np.ndarray:
    """Number of different pairs of an edge's relation and one of its ends, of both ends in all, (num_parts,)."""
    kinds = max(1, size.num_relations)
    return sum(rows * kinds * (1 - (1 - 1 / kinds) ** (loads.num_edges / np.maximum(rows, 1)))
               for rows in (loads.num_inner, loads.num_inner + loads.num_halo))


def history_bytes(size: ModelSize, loads: PartLoads) -> np.ndarray:
    """Bytes of the rows that steps keep, of inner and halo nodes and every layer but the first, (num_parts,)."""
    if size.num_steps == 1:
        return np.zeros(loads.num_parts)
    of_codes = (BYTES_OF_PARAMETERS + BYTES_A_PLACE) * (size.history_bits < FEWEST_STORED_BITS)
    of_row = sum((size.history_bits * exchange.dim + 7) // 8 + of_codes for exchange in exchanges_of(size)
                 if not exchange.is_backward)
    return (loads.num_inner + loads.num_halo) * float(of_row)


def _more_structure(size: ModelSize, loads: PartLoads) -> np.ndarray:
    # Edges sorted by peer, with the end of each row's edges per peer; edges that an epoch draws; for attention, edges
    # in the order in which it reads them.
    peers = np.bincount(loads.pairs.destination, minlength=loads.num_parts)
    by_peer = loads.num_edges * 4 + loads.num_inner * 8 * (1 + peers)
    of_types = loads.num_edges * size.bytes_of_types
    drawn = loads.num_edges * BYTES_A_ARC * (1 - size.edge_dropout) + loads.num_inner * BYTES_A_ROW
    drawn = drawn + of_types * (1 - size.edge_dropout) + loads.num_edges * BYTES_A_COPY * (size.bytes_of_types > 0)
    of_sums = BYTES_A_ARC * loads.num_edges * float(loads.inputs is not None)
    found = (of_sums + by_peer * float(size.rematerializes) + drawn * (size.edge_dropout > 0)
             + loads.num_edges * 2 * BYTES_A_ARC * (size.model == "gat")
             + of_types + loads.num_edges * BYTES_OF_RELATIONS * (size.model in RELATIONAL))
    if size.num_blocks:
        found = found + 2 * BYTES_A_ARC * loads.num_edges + BYTES_A_SUM * _ends_by_relation(size, loads)
    if size.num_steps == 1:
        return found
    # Edges of a step: their numbers in the part, and the columns in a step's rows and in the history.
    return found + (loads.num_edges * BYTES_A_STEP_ARC + of_types + loads.num_inner * BYTES_A_ROW) / size.num_steps


def arena_bytes(size: ModelSize, rank: RankSize) -> int:
    """Bytes of the arena that are used at least once in a training with evaluations."""
    run = Replay(size, rank)
    for _ in range(EPOCHS):
        run.train()
    run.evaluate()
    run.train()
    return run.places.num_filled


@dataclass(frozen=True)
class RankSize:
    layers: list[Layer[int]]                                    # of a step, with this rank's numbers
    evaluated: list[Layer[int]]                                 # of an evaluation, in which all rows are computed
    num_inner: int
    num_halo: int
    num_fresh: int  # halo rows that a step gets; all halo rows if an epoch has one step
    num_own: int  # inner rows that other ranks of the node read, if they share rows; else 0
    message_bytes: dict[Exchange, tuple[float, float]]          # sent and received in a training pass
    full_bytes: dict[int, tuple[float, float]]                  # of each layer's exchange in an evaluation
    is_asynchronous: bool
    num_sent: int                                               # rows of an exchange
    takes_columns: bool                                         # whether columns may travel apart, in a training pass


class Replay:
    """A training of one rank, by the tables that it makes, keeps and frees; it has `room` bytes of memory for them."""

    def __init__(self, size: ModelSize, rank: RankSize, room: float = math.inf, row_bytes: int | None = None):
        self._size, self._rank, self._row_bytes = size, rank, row_bytes
        self._below: Piece | None = None
        self._returning: Ranges = []      # those of gradients that leave when they are waited for
        self.places, self.tables, self._freed = Places(ADDRESSES), Evictions(room), list[Piece]()
        self._received: dict[Exchange | None, Piece | None] = {}
        self._leaving: Piece | None = None
        self._waiting: tuple[Piece | None, ...] = ()      # pieces of an exchange until its rows have arrived
        self._input: Piece | None = None
        if room < math.inf:      # else features are torch's own
            self._read_features()
        if size.has_constant_sums:
            self._sum_input()

    def _read_features(self) -> None:
        # Read, put into order, converted, and joined with the halo rows; the table before is freed after each.
        inner, read = self._rank.num_inner * self._size.in_dim, None
        for num_bytes in (FLOAT * inner, FLOAT * inner, self._size.item_bytes * inner,
                          self._bytes(self._rank.num_inner + self._rank.num_halo, self._size.in_dim)):
            before, read = read, self._take_bytes(num_bytes)
            self._last(read)
            self._free(before)
        self._input = read

    def _sum_input(self) -> Piece | None:
        # While the features are summed, they are in memory.
        inner, dim = self._rank.num_inner, self._size.in_dim
        width = self._width(dim)
        if width is None:
            self._pin(self._input)
            sums = self._take(inner, dim)
            self._unpin(self._input)
        else:
            sums = self._sum_ranges(self._cut(inner + self._rank.num_halo, dim, width), inner)
        self._last(sums)
        return sums

    def train(self) -> None:
        if self._size.num_steps == 1:
            return self._step()
        sums = None
        if not (self._size.has_constant_sums or self._size.embedding_dim):      # of an epoch's masked input
            masked = self._take(self._rank.num_inner + self._rank.num_halo, self._size.in_dim)
            sums = self._take(self._rank.num_inner, self._size.in_dim)
            self._free(masked)
        for _ in range(STEPS):
            rows = self._take(self._rank.layers[0].rows_in, self._size.in_dim)
            of_rows = self._take(self._rank.layers[0].rows_in, self._size.in_dim)
            self._step()
            self._free(rows, of_rows)
        self._free(sums)

    def _step(self) -> None:
        held = list[dict[str, Piece | None]]()
        for layer in self._rank.layers:
            self._below = below = held[-1]["rows"] if held else None
            held.append(self._walk(layer, layer.linear.forward(self._size.drops(layer.linear)), {}))
            self._keep(*(piece for name, piece in held[-1].items() if name != "rows"), below)
        last, logits = self._rank.layers[-1], held[-1].pop("rows")
        self._keep(logits)
        self._fetch_back(logits)
        gradient = self._take(last.rows_out, last.linear.out_dim)
        self._free(logits)
        for layer in reversed(self._rank.layers):
            names = held.pop() | {"gradient": gradient}
            if held:
                names["below"] = held[-1].pop("rows")
            self._fetch_back(*(piece for name, piece in names.items() if name != "gradient"))
            steps = layer.linear.backward(self._size.drops(layer.linear))
            gradient = self._walk(layer, steps, names).pop("gradient", None)

    def evaluate(self) -> None:
        inner, self._below = self._rank.num_inner, None
        names: dict[str, Piece | None] = {}
        for layer in self._rank.evaluated:
            steps = layer.linear.forward(self._size.drops(layer.linear), is_training=False)
            names = self._walk(replace(layer, rows_in=inner, rows_out=inner), steps, names, is_training=False)
            names = {"below": names.pop("rows")}
        logits = list(names.values())
        if self._size.item_bytes < FLOAT:      # are scored in float32
            logits.append(self._take_bytes(FLOAT * inner * self._size.out_dim))
        self._free(*logits)

    def _walk(self, layer: Layer[int], steps: list[Step], held: dict[str, Piece | None],
              is_training: bool = True) -> dict[str, Piece | None]:
        for step in steps:
            if step.kind == "rename":
                held[step.makes] = held.pop(*step.frees)
                continue
            width = self._width(step.dim) if step.kind in ("aggregate", "aggregate_back", "mask", "hold") else None
            if not layer.linear.is_input and not (self._rank.takes_columns if is_training else not self._rank.num_own):
                width = None
            if step.kind == "arrive":
                self._arrive(held.get("of rows") or held.get("of mapped"))
            elif width is not None and step.kind in ("aggregate", "aggregate_back"):
                held[step.makes] = self._of_ranges(layer, step, held, width, is_training)
            elif width is not None and step.makes == "far" and not layer.linear.maps_first:
                continue      # masked range by range
            elif width is not None and step.makes == "of far":
                self._keep(held["gradient"])
                held[step.makes] = self._sum_ranges(self._cut(layer.rows_out, step.dim, width), layer.rows_of(step))
            elif step.kind == "aggregate" and not layer.linear.is_input:
                held[step.makes] = self._fetch(layer, step, is_training)
            elif step.kind == "aggregate" and not is_training and not layer.linear.maps_first:
                held[step.makes] = self._sum_input()
            elif step.kind == "aggregate_back" and not layer.linear.is_input:
                held[step.makes] = self._take_home(layer, step)
            elif step.makes:
                rows = layer.rows_of(step)
                held[step.makes] = self._take(min(rows, ROWS_AT_ONCE) if step.by_block else rows, step.dim)
            self._free(*(held.pop(name, None) for name in step.frees))
        return held

    def _fetch(self, layer: Layer[int], step: Step, is_training: bool) -> Piece | None:
        # If all halo rows arrive unquantized, they are read in the receive buffer.
        exchange = Exchange(layer.number, False, step.dim, layer.reach)
        num_bytes = self._rank.message_bytes[exchange] if is_training else self._rank.full_bytes[layer.number]
        is_asynchronous = is_training and self._rank.is_asynchronous
        sent, read = self._send(exchange, num_bytes, is_asynchronous)
        own, far = self._take(self._rank.num_own, exchange.dim), None
        num_halo = self._rank.num_fresh if is_training else self._rank.num_halo
        has_central = layer.central_arcs > LEAST_CENTRAL * layer.arcs       # judged by their edges, not by rows
        is_early = is_training or has_central
        sums = self._take(layer.rows_out, exchange.dim) if is_early else None
        if has_central:
            self._free(self._take(num_halo, exchange.dim))
        self._free(sent)
        comes_whole = num_bytes[1] >= self._bytes(num_halo, exchange.dim)
        if is_asynchronous or self._rank.num_own or not comes_whole:
            far = self._take(num_halo, exchange.dim)
        sums = sums if is_early else self._take(layer.rows_out, exchange.dim)
        self._free(far, own, read)
        return sums

    def _take_home(self, layer: Layer[int], step: Step) -> Piece | None:
        exchange = Exchange(layer.number, True, step.dim, layer.reach)
        of_halo, total = self._take(self._rank.num_fresh, exchange.dim), None
        if self._rank.num_own:
            sent_rows = self._rank.message_bytes[exchange][0] / (exchange.dim * self._size.item_bytes)
            total = self._take(self._rank.num_own + int(sent_rows), exchange.dim)
        num_bytes = self._rank.message_bytes[exchange]
        self._waiting = (*self._send(exchange, num_bytes, self._rank.is_asynchronous), total)
        self._free(of_halo)
        return self._take(layer.rows_in, exchange.dim)

    def _send(self, exchange: Exchange | None, num_bytes: tuple[float, float],
              is_asynchronous: bool) -> tuple[Piece | None, Piece | None]:
        # Returns the message that is sent and, if asynchronous, the message of an epoch ago that is read now.
        place = exchange if is_asynchronous else None
        before = self._received.pop(place, None)
        if not is_asynchronous:      # a later exchange's message may take the memory of an earlier one
            self._free(before)
            before = None
        sent, self._received[place] = map(self._take_bytes, num_bytes)
        self._free(self._leaving)
        self._leaving = None
        if is_asynchronous:          # nobody waits for the exchange
            self._leaving, sent = sent, None
        return sent, before

    def _width(self, dim: int) -> int | None:
        """Columns that are sent and summed at a time, see `hpcgnn.ops.column_ranges`; None: all."""
        width = columns_of_a_range(self._row_bytes, dim, self._size.item_bytes)
        return None if width == dim or self._size.num_steps > 1 else width

    def _of_ranges(self, layer: Layer[int], step: Step, held: dict[str, Piece | None], width: int,
                   is_training: bool) -> Piece | None:
        is_input, dim = layer.linear.is_input, step.dim
        if step.kind == "aggregate":
            if is_input and not is_training and not layer.linear.maps_first:
                return self._sum_input()
            far, near = held.get("mapped far"), held.get("mapped" if layer.linear.maps_first else "near")
            self._keep(*([] if is_input or layer.linear.maps_first else [self._below]), near)
            num_bytes = (0.0, 0.0) if is_input else self._rank.full_bytes[layer.number]
            if is_training and not is_input:
                num_bytes = self._rank.message_bytes[Exchange(layer.number, False, dim, layer.reach)]
            ranges, others = self._cut(layer.rows_in, dim, width), Ranges()
            if is_input:
                self._keep(far)
                others = self._cut(self._rank.num_halo, dim, width)
            return self._sum_ranges(ranges, layer.rows_out, lambda columns: (
                others.pop(0)[1] if others else self._far(columns, num_bytes, columns / dim)))
        self._keep(held.get("of sums", held.get("gradient")))
        ranges = self._cut(layer.rows_out, dim, width)
        rows = self._sum_ranges(ranges, layer.rows_in, stays=not is_input)
        if not is_input:
            self._returning = ranges
            self._coming = self._rank.message_bytes[Exchange(layer.number, True, dim, layer.reach)], dim, layer.rows_in
        return rows

    def _far(self, columns: int, num_bytes: tuple[float, float], share: float) -> Piece | None:
        sent, _ = self._send(None, (num_bytes[0] * share, num_bytes[1] * share), is_asynchronous=False)
        far = self._take(self._rank.num_halo, columns)
        self._free(sent)
        return far

    def _arrive(self, rows: Piece | None) -> None:
        self._free(*self._waiting)
        ranges, self._waiting, self._returning = self._returning, (), []
        if not ranges:
            return
        num_bytes, dim, num_rows = self._coming
        self._keep(rows)
        totals = self._cut(num_rows, dim, ranges[0][0])
        for (columns, piece), (_, added) in zip(ranges, totals, strict=True):
            self._pin(piece)
            of_halo = self._take(self._rank.num_halo, columns)
            sent, _ = self._send(None, (num_bytes[0] * columns / dim, num_bytes[1] * columns / dim),
                                 is_asynchronous=False)
            self._unpin(piece)
            self._free(of_halo)
            self._pin(added)
            self._unpin(added)
            self._free(sent, piece)
        self._free(*(piece for _, piece in totals))

    def _cut(self, rows: int, dim: int, width: int) -> Ranges:
        ranges = [(min(width, dim - first), self._take(rows, min(width, dim - first)))
                  for first in range(0, dim, width)]
        self._keep(*(piece for _, piece in reversed(ranges)))
        return ranges

    def _sum_ranges(self, ranges: Ranges, rows: int, far_of: Callable[[int], Piece | None] | None = None,
                    stays: bool = False) -> Piece | None:
        sums = list[Piece | None]()
        for columns, piece in ranges:
            self._pin(piece)
            far = None if far_of is None else far_of(columns)
            self._pin(far)
            sums.append(self._take(rows, columns))
            self._unpin(far)
            self._unpin(piece)
            self._keep(sums[-1])
            self._free(far, *([] if stays else [piece]))
        joined = self._take(rows, sum(columns for columns, _ in ranges))
        self._free(*sums)
        return joined

    def _pin(self, piece: Piece | None) -> None:
        if piece is not None:
            self._forget_freed()
            self.tables.pin(piece[0])

    def _unpin(self, piece: Piece | None) -> None:
        if piece is not None:
            self.tables.unpin()

    def _take(self, rows: int, columns: int) -> Piece | None:
        return self._take_bytes(self._bytes(rows, columns))

    def _bytes(self, rows: int, columns: int) -> int:
        return int(rows) * columns * self._size.item_bytes

    def _take_bytes(self, num_bytes: float) -> Piece | None:
        if num_bytes < MIN_BYTES:
            return None
        self._forget_freed()
        start, size, _ = self.places.take(int(num_bytes))
        self.tables.add(start, size)
        return start, size

    def _forget_freed(self) -> None:
        # As in `LimitedArena`, what was freed makes room for the next table that is made or pinned, and not before.
        for piece in self._freed:
            _, place = self.tables.forget(piece[0])
            self.places.give_back(*piece, has_memory=place is None)
        self._freed.clear()

    def _free(self, *pieces: Piece | None) -> None:
        self._freed += [piece for piece in pieces if piece is not None]

    def _last(self, piece: Piece | None) -> None:
        if piece is not None:
            self.tables.last(piece[0])

    def _keep(self, *pieces: Piece | None) -> None:
        for piece in pieces:
            if piece is not None:
                self.tables.keep(piece[0])

    def _fetch_back(self, *pieces: Piece | None) -> None:
        for piece in pieces:
            if piece is not None:
                self.tables.fetch(piece[0])


KINDS = ("process", "reading", "features", "structure", "weights", "activations", "gradients", "halo_rows", "messages",
         "shared_rows", "method_state")
ARRAYS_OF_WEIGHTS = 7      # weights, their best copy, gradients, two moments, a rate and a decay per weight
ARRAYS_OF_AVERAGE = 2      # the average, and the weights while it takes their place in an evaluation
BYTES_A_ARC = 8            # by destination and by source
BYTES_OF_RELATIONS = 16    # per edge: its scale by destination, scale and relation by source, its end by source again
BYTES_OF_A_LINK = 16       # per edge and end: answers by question and by node, and the place of one in the other
BYTES_A_SUM = 16           # its row, and where its edges begin
BYTES_A_QUESTION = 16      # its node and its relation
BYTES_OF_A_PRODUCT = 4     # per edge and end: the gradient of the product
ROWS_OF_A_DECODER = 2      # per question: its relation and the query, beside the query's gradient
BYTES_A_COPY = 8           # per edge: its place among parallel ones, by which edges are dropped
BYTES_A_ROW = 32           # ids, degrees, CSR offsets by destination and by source, a scale
BYTES_A_LISTED_ROW = 16    # per row of a message: id, local row, place in the whole list
BYTES_A_PLACE = 17         # per row: place in the message, two offsets and the width; per coded row of the history
BYTES_A_NODE = 11          # labels and masks
BYTES_OF_MOMENTS = 8       # per normalized row
FLOAT = 4
PAGE_BYTES = 4096
BYTES_A_STEP_ARC = 16
BYTES_OF_PARAMETERS, FEWEST_STORED_BITS = 4, 16      # of a row of the history that is kept as codes
COPIES_OF_STATE = 2        # the messages that the next epoch reads, and their copy for a checkpoint


def layout_bytes(exchanges: list[Exchange], messages: Messages, sent: Pairs, loads: PartLoads) -> np.ndarray:
    """Bytes of the lists of rows, one list per number of hops to the loss, and of each row's position in its message.

    Counts messages to send and to receive, in a training pass and in an evaluation, which sends all rows.
    """
    def of_ends(rows: np.ndarray) -> np.ndarray:
        return total(_sums_of_ends(sent, rows, loads.num_parts))

    travelling = {exchange: messages.rows(exchange, sent) for exchange in exchanges}
    by_reach = {exchange.reach: rows for exchange, rows in travelling.items()}
    evaluated = [sent.rows for exchange in exchanges if not exchange.is_backward]
    return (BYTES_A_LISTED_ROW * sum(map(of_ends, by_reach.values()), of_ends(sent.rows))
            + BYTES_A_PLACE * sum(map(of_ends, [*travelling.values(), *evaluated]), np.zeros(loads.num_parts)))


def rank_sizes(size: ModelSize, loads: PartLoads, messages: Messages, sent: Pairs, own: np.ndarray) -> list[RankSize]:
    """What each part's arena holds tables of.

    Parameters
    ----------
    sent : Pairs                   rows of the messages
    own : (num_parts,) number      inner rows that other ranks of the node read, if they share rows; else 0
    """
    full = replace(messages, bits=8 * size.item_bytes, least_bits=None, share=1.0, rotated=())
    parts, step = loads.num_parts, loads.of_step(size.num_steps)
    layers, evaluated = size.layers(step), size.of_whole_graph.layers(loads)
    training, (num_sent, _) = _by_exchange(size, messages, sent, parts), _sums_of_ends(sent, sent.rows, parts)
    is_plain = (messages.bits == 8 * size.item_bytes and messages.is_exact and messages.send_share == 1
                and not messages.keeps and loads.inputs is None)
    evaluation = {exchange.layer: _sums_of_ends(sent, sent.rows * full.row_bytes(exchange), parts, size.rematerializes)
                  for exchange in exchanges_of(size.of_whole_graph) if not exchange.is_backward}

    return [RankSize([_of_part(layer, part) for layer in layers], [_of_part(layer, part) for layer in evaluated],
                     int(loads.num_inner[part]), int(loads.num_halo[part]), int(step.num_halo[part]), int(own[part]),
                     {exchange: (sent[part], coming[part]) for exchange, (sent, coming) in training.items()},
                     {layer: (sent[part], coming[part]) for layer, (sent, coming) in evaluation.items()},
                     messages.keeps, int(num_sent[part]), is_plain and not own[part]) for part in range(parts)]


def sharing(size: ModelSize, loads: PartLoads, messages: Messages,
            cluster: Cluster) -> tuple[Pairs, np.ndarray, np.ndarray]:
    """Rows of the messages; of each part, (num_parts,), inner rows that other ranks of the node read, and rows in its
    pages of the tables that they share.
    """
    none, dims = np.zeros(loads.num_parts), [exchange.dim for exchange in exchanges_of(size)]
    if not messages.shares_rows or loads.shared is None:
        return loads.pairs, none, none
    own, in_pages = _shared(loads, loads.shared, cluster, max(dims) * size.item_bytes) if dims else (none, none)
    return loads.shared, own, in_pages


def _shared(loads: PartLoads, sent: Pairs, cluster: Cluster, row_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    # First result: inner rows that other ranks of the machine read, an upper bound, since a row may have several
    # readers there. Second: rows in the pages that this rank touches of the machine's two shared tables (rows forward,
    # gradients backward); these pages count as the rank's memory.
    node, parts = np.arange(loads.num_parts) // cluster.network.ranks_per_node, loads.num_parts
    near = loads.pairs.where(node[loads.pairs.source] == node[loads.pairs.destination])
    own = np.minimum(np.bincount(near.source, weights=near.rows, minlength=parts), loads.num_inner)
    come = np.bincount(sent.destination, weights=sent.rows, minlength=parts)
    in_table, of_gradients = (np.bincount(node, weights=rows)[node] for rows in (own + come, loads.num_halo))
    rows_a_page = max(1, PAGE_BYTES // row_bytes)
    return own, (_rows_of_pages(own + come, loads.num_halo - come, in_table, rows_a_page)
                 + _rows_of_pages(loads.num_halo, own + come, of_gradients, rows_a_page))


def _rows_of_pages(written: np.ndarray, read: np.ndarray, table: np.ndarray, rows_a_page: int) -> np.ndarray:
    # A rank writes some rows of the table one after the other, and reads others at random places of the rest.
    rest = np.maximum(table - written, 1)
    return written + rest * (1 - (1 - np.clip(read / rest, 0, 1)) ** rows_a_page)


def _by_exchange(size: ModelSize, messages: Messages, sent: Pairs,
                 num_parts: int) -> dict[Exchange, tuple[np.ndarray, np.ndarray]]:
    # Bytes of each part in a step, sent and received.
    of_one = size.rematerializes and size.is_by_hand
    whole = {exchange: _both_ways(exchange, messages, sent, num_parts, of_one) for exchange in exchanges_of(size)}
    return {exchange: (ahead / size.num_steps, back / size.num_steps) for exchange, (ahead, back) in whole.items()}


def _both_ways(exchange: Exchange, messages: Messages, pairs: Pairs, num_parts: int,
               of_one: bool) -> tuple[np.ndarray, np.ndarray]:
    ends = _sums_of_ends(pairs, messages.num_bytes(exchange, pairs), num_parts, of_one)
    return ends[::-1] if exchange.is_backward else ends


def _sums_of_ends(pairs: Pairs, values: np.ndarray, num_parts: int,
                  of_one: bool = False) -> tuple[np.ndarray, np.ndarray]:
    # The sum over all peers, or with `of_one` the largest of one peer.
    found = np.zeros((2, num_parts))
    for side, of_parts in zip((pairs.source, pairs.destination), found, strict=True):
        (np.maximum if of_one else np.add).at(of_parts, side, values)
    return found[0], found[1]


def _of_part(layer: Layer[np.ndarray], part: int) -> Layer[int]:
    return Layer(layer.number, layer.linear, int(layer.rows_in[part]), int(layer.rows_out[part]),
                 int(layer.num_halo[part]), int(layer.arcs[part]), int(layer.far_arcs[part]),
                 int(layer.central_arcs[part]), layer.reach)


def _activations(size: ModelSize, loads: PartLoads) -> np.ndarray:
    # Tensors that the forward pass makes and keeps, and kept sums of the input (constant, or for an epoch's steps).
    layers = size.layers(loads)
    has_sums = size.has_constant_sums or (size.num_steps > 1 and not size.embedding_dim)
    kept = _moments(layers) + has_sums * size.item_bytes * size.in_dim * loads.num_inner
    for layer in layers:
        held: dict[str, np.ndarray] = {}
        for step in layer.linear.forward(size.drops(layer.linear)):
            held |= {step.makes: layer.rows_of(step) * step.dim} if step.makes else {}
            held = {name: values for name, values in held.items() if name not in step.frees}
        kept = kept + size.item_bytes * sum(held.values())
    return kept


def torchs_own(size: ModelSize, loads: PartLoads) -> np.ndarray:
    """Bytes that torch allocates outside of the arena in a step of a linear model, (num_parts,)."""
    layers = size.layers(loads)
    return sum(_of_batch_norms(size, layers, loads), _moments(layers))


def _of_batch_norms(size: ModelSize, layers: list[Layer[np.ndarray]],
                    loads: PartLoads) -> tuple[np.ndarray, np.ndarray]:
    # Outside of the arena, each keeps a table of rows; two float32 tables exist while one of them computes.
    tables = loads.num_inner / size.num_steps * size.hidden_dim * float(size.norm == "batch")
    return size.item_bytes * tables * (len(layers) - 1), 2.0 * FLOAT * tables * (len(layers) > 1)


def _moments(layers: list[Layer[np.ndarray]]) -> np.ndarray:
    return BYTES_OF_MOMENTS * sum((layer.rows_in for layer in layers[1:]), 0.0 * layers[0].rows_in)
