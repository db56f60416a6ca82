"""`ModelSize`: the layers of a model with the rows and edges of each part; `work_of` counts what they compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Generic, TypeVar

import numpy as np

from hpcgnn.errors import ConfigError
from hpcgnn.nn.layers import HALO, IN, LINEAR, OUT, ROW_BY_ROW, LinearLayer, Op, Shape, Step, operations
from hpcgnn.nn.names import MODEL_PATHS
from hpcgnn.planning.loads import PartLoads
from hpcgnn.settings import hint_of

Number = TypeVar("Number", int, np.ndarray)

ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
LEARNED = ("map", "join")      # operations before which no row has a gradient
OF_LINKS = -1                   # number of an exchange


@dataclass(frozen=True)
class Layer(Generic[Number]):
    """A layer, with what its training pass reads, sums and computes: numbers, or (num_parts,) int64 arrays."""

    number: int            # from 0
    linear: LinearLayer
    rows_in: Number        # inner rows that come in
    rows_out: Number
    num_halo: Number
    # edges into the computed rows: all, from halo rows, and into central rows
    arcs: Number
    far_arcs: Number
    central_arcs: Number
    reach: int             # hops from the input rows to the loss

    def rows_of(self, step: Step) -> Number:
        return {IN: self.rows_in, OUT: self.rows_out, HALO: self.num_halo}[step.rows]


def check_model(model: str) -> None:
    """Raise ConfigError for a model that can't be planned."""
    if model not in MODEL_PATHS:
        hint = "" if ":" in model else hint_of(model, MODEL_PATHS)
        raise ConfigError(f"hpcgnn plan knows what built-in models compute and send, not {model}; run mpirun -n P "
                          f"hpcgnn train SHARDS --dry-run, which forecasts any model from a few epochs{hint}")


@dataclass(frozen=True)
class ModelSize(Shape):
    """A model as hpcgnn trains it. Raises ConfigError for one that is not built in."""

    precision: str = "fp32"    # key of ITEM_BYTES
    has_average: bool = False  # a moving average of the weights
    has_clusters: bool = False      # steps are dealt clusters, not single rows
    history_bits: int = 32     # of a value that steps keep; below 16, rows have parameters too
    stored_bits: int = 32      # of a value that layers keep for the backward pass; 32: as it is
    sum_bits: int = 32         # of a gradient that is summed over the ranks
    edge_dropout: float = 0.0
    rematerializes: bool = False      # halo rows are there peer by peer, and layers that read them run again
    num_edge_features: int = 0
    num_drawn: int = 0         # nodes that a training of links draws in an epoch; 0: it is of labels
    decoder_weights: int = 0   # of a decoder of links
    link_share: float = 1.0    # of the questions about links, which an epoch draws
    draws_classes: bool = False      # an epoch asks for the classes of the nodes that it draws

    def __post_init__(self) -> None:
        check_model(self.model)

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.precision]

    @property
    def bytes_of_types(self) -> int:
        return 4 * ((self.num_relations > 0) + self.num_edge_features)

    @property
    def is_by_hand(self) -> bool:
        """Whether its layers are LinearLayers, whose backward pass is written by hand; else it has `operations`."""
        return self.model in LINEAR and not (self.residual or self.is_quantized or self.stored_bits < 32)

    @property
    def computes_all(self) -> bool:
        return (self.norm == "batch" or self.model in ROW_BY_ROW or self.is_quantized or self.embedding_dim > 0
                or self.num_drawn > 0)

    @property
    def propagates_once(self) -> bool:
        """Whether the input rows are propagated before the first epoch, which then sends nothing."""
        return self.model == "sgc" and not self.drops_input

    @property
    def linear_layers(self) -> list[LinearLayer]:
        dims = [self.columns] + [self.hidden_dim] * (self.num_layers - 1) + [self.out_dim]
        return [LinearLayer(*sides, *LINEAR[self.model], is_input=not number and not self.embedding_dim,
                            reads_history=self.num_steps > 1, is_learned=not number and self.embedding_dim > 0)
                for number, sides in enumerate(pairwise(dims))]

    def drops(self, linear: LinearLayer) -> bool:
        """Whether dropout is on the input of a layer."""
        return self.drops_input if linear.is_input or linear.is_learned else self.has_dropout

    @property
    def has_constant_sums(self) -> bool:
        """Whether the first layer's sums are the same in every epoch."""
        first = self.linear_layers[0]
        return self.is_by_hand and first.is_input and not (self.drops(first) or first.maps_first)

    @property
    def num_weights(self) -> int:
        """Weights that every rank has, so without the rows of `embedding_dim` columns of its own nodes."""
        if not self.is_by_hand:
            return self.decoder_weights + sum(op.weights for op in operations(self))
        norms = 2 * self.hidden_dim * (self.num_layers - 1) if self.norm != "none" else 0
        return self.decoder_weights + norms + sum(linear.num_weights for linear in self.linear_layers)

    @property
    def of_whole_graph(self) -> ModelSize:
        """The same model in a pass over all rows, as an evaluation is one."""
        return replace(self, num_steps=1, num_drawn=0)

    def layers(self, loads: PartLoads) -> list[Layer[np.ndarray]]:
        """The layers with what a training pass computes of each."""
        reached, halo = loads.rows_within, loads.num_halo
        return [Layer(number, linear, reached[:, hops + 1], reached[:, hops], halo,
                      loads.arcs_within[:, hops] + linear.has_loops * reached[:, hops],
                      loads.far_arcs_within[:, hops], loads.central_arcs_within[:, hops], hops + 1)
                for number, linear in enumerate(self.linear_layers) for hops in [self.num_layers - 1 - number]]


@dataclass(frozen=True)
class Exchange:
    """One exchange of halo rows, or of their gradients, in a training pass."""

    layer: int
    is_backward: bool
    dim: int
    reach: int
    times: int = 1      # how often a training pass makes this exchange


def exchanges_of(size: ModelSize) -> Iterator[Exchange]:
    """Yield the exchanges of a training pass, both ways; a layer that reads the input sends nothing."""
    # Rows of links' ends: the outputs are sent once more.
    yield from (Exchange(OF_LINKS, is_backward, size.out_dim, 1) for is_backward in (False, True)[:2 * size.num_drawn])
    if size.is_by_hand:
        for number, linear in enumerate(size.linear_layers):
            yield from (Exchange(number, is_backward, linear.sent_dim, size.num_layers - number)
                        for is_backward in (False, True) if not linear.is_input)
        return
    has_gradient = False      # of the rows: from the first weight on
    for number, op in enumerate(operations(size)):
        has_gradient = has_gradient or op.kind in LEARNED
        if op.sent_dim:
            yield from (Exchange(number, is_backward, op.sent_dim, op.hops + (op.kind == "aggregate"),
                                 1 + (size.rematerializes and op.is_again and not is_backward))
                        for is_backward in (False, True)[:1 + has_gradient])


class Work:
    """What a training pass computes, by kind; each entry has one number per part."""

    def __init__(self, num_parts: int):
        self.maps, self.gradients, self.drops, self.norms, self.norms_back = np.zeros((5, num_parts))
        # (values that are summed, rows of the table that they are read from, columns)
        self.sums: list[tuple[np.ndarray, np.ndarray, int]] = []
        self.window: dict[tuple[int, bool], np.ndarray] = {}      # values that are summed while messages travel

    def add(self, step: Step, layer: Layer[np.ndarray]) -> None:
        rows, dim = layer.rows_of(step), step.dim
        values, near, far = rows * dim, (layer.arcs - layer.far_arcs) * dim, layer.far_arcs * dim
        if step.kind == "map":
            self.maps += 2 * values * step.from_dim
        elif step.kind == "weigh":
            self.gradients += 2 * values * step.from_dim
        elif step.kind == "mask":
            self.drops += values
        elif step.kind == "activate":
            self.norms += values
        elif step.kind == "activate_back":
            self.norms_back += values
        elif step.kind == "aggregate":
            self.sums.append((near + far, layer.rows_in + layer.num_halo, dim))
            self.window[layer.number, False] = layer.central_arcs * dim
        elif step.kind == "aggregate_back":
            self.sums += [(far, layer.rows_out, dim), (near, layer.rows_out, dim)]
            self.window[layer.number, True] = near

    def add_op(self, op: Op, number: int, loads: PartLoads, returns: bool | None = None) -> None:
        """Add an operation, or its way back: then `returns` is whether the rows that it reads have a gradient."""
        rows, is_forward = rows_of(op, loads), returns is None
        values, ways = rows * op.dim, int(is_forward or bool(returns))
        if op.kind == "map":
            self.maps += ways * 2 * rows * op.weights
            self.gradients += 2 * rows * op.weights * (not is_forward)
        elif op.kind == "activate":
            self.norms, self.norms_back = self.norms + values * is_forward, self.norms_back + values * (not is_forward)
        elif op.kind in ("aggregate", "attend"):
            arcs, central = loads.arcs_within[:, op.hops], loads.central_arcs_within[:, op.hops]
            table = loads.rows_within[:, min(op.hops + 1, loads.num_hops)] + loads.num_halo
            self.sums += [((arcs + rows) * op.dim, table, op.dim)] * ways
            if op.kind == "aggregate" and op.sent_dim:
                self.window[number, not is_forward] = central * op.dim
        elif op.kind == "relate":
            # Sums are made twice, and each way back reads a row at every edge; of the map, two products return rows.
            arcs = loads.arcs_within[:, op.hops]
            table = loads.rows_within[:, min(op.hops + 1, loads.num_hops)] + loads.num_halo
            if op.num_matrices:      # every edge may need a product of its own
                products = np.minimum(arcs, rows * op.num_matrices) * op.weights / op.num_matrices
                self.maps += 2 * ways * products
                self.gradients += 2 * products * (not is_forward)
            else:
                self.maps += 2 * op.weights * (rows if is_forward else rows + table * ways)
                self.gradients += 2 * rows * op.weights * (not is_forward)
            again = 1 if op.num_matrices else 2
            dims = [op.from_dim] if is_forward else [*[op.from_dim] * again, *[op.dim] * ways]
            self.sums += [(arcs * dim, table, dim) for dim in dims]
        elif op.kind != "send":
            self.drops += ways * values

    def add_all(self, other: Work) -> None:
        for kind in ("maps", "gradients", "drops", "norms", "norms_back"):
            setattr(self, kind, getattr(self, kind) + getattr(other, kind))
        self.sums += other.sums
        self.window |= other.window


def rows_of(op: Op, loads: PartLoads) -> np.ndarray:
    """Rows that come out of an operation in each part, (num_parts,)."""
    if op.kind == "propagated":      # once, for all passes
        return loads.num_inner
    return loads.rows_within[:, op.hops] + loads.num_halo * op.has_halo


def work_of(size: ModelSize, loads: PartLoads) -> Work:
    work = Work(loads.num_parts)
    for piece, _ in works_in_order(size, loads):
        work.add_all(piece)
    return work


def works_in_order(size: ModelSize, loads: PartLoads) -> Iterator[tuple[Work, Exchange | None]]:
    """Yield what every part computes before each exchange of a training pass, with the exchange; None after the last.

    The sums that may go on while an exchange travels are in the `window` of the work that follows it.
    """
    exchanges = {(exchange.layer, exchange.is_backward): exchange for exchange in exchanges_of(size)}
    work = Work(loads.num_parts)
    for place, add in _pieces(size, loads):
        exchange = None if place is None else exchanges.get(place)
        for _ in range(exchange.times if exchange else 0):
            yield work, exchange
            work = Work(loads.num_parts)
        add(work)
    yield work, None


def _pieces(size: ModelSize, loads: PartLoads) -> Iterator[tuple[tuple[int, bool] | None, Callable[[Work], None]]]:
    # In the order of training: (layer, is_backward) of an exchange that must arrive first, or None; what to add.
    layers = size.layers(loads) if size.is_by_hand else []
    ops = [] if size.is_by_hand else list(enumerate(operations(size)))
    is_learned = list(accumulate((op.kind in LEARNED for _, op in ops), max, initial=False))     # before operation i
    for is_backward in (False, True):
        for of_links in (False, True)[:2 * is_backward]:      # between both ways
            yield (OF_LINKS, of_links), lambda work: None
        for layer in reversed(layers) if is_backward else layers:
            linear, place = layer.linear, (layer.number, is_backward)
            for step in (linear.backward if is_backward else linear.forward)(size.drops(linear)):
                yield place if step.kind.startswith("aggregate") else None, partial(Work.add, step=step, layer=layer)
        for number, op in reversed(ops) if is_backward else ops:
            yield ((number, is_backward) if op.sent_dim else None,
                   partial(Work.add_op, op=op, number=number, loads=loads,
                           returns=is_learned[number] if is_backward else None))
