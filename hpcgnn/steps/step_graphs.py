"""StepGraphs: the LocalGraph of each step of an epoch, one after another.

A step's graph looks to a model like a whole graph: its inner rows are the step's rows, its halo rows whatever these
read. `StepExchange` brings them: rows that other ranks compute in the same step come by the run's exchange, all others
from the history. So every model that runs on a LocalGraph trains in steps. Before the first step, one pass over the
whole graph fills the history, so that each row has been computed before it is read; epochs that leave things out
begin with zeros instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from hpcgnn.errors import ConfigError
from hpcgnn.exchange.arrival import Arrival
from hpcgnn.exchange.halo import Around, HaloExchange, PlanWithin
from hpcgnn.exchange.kinds.in_steps import KeptInSteps
from hpcgnn.exchange.plan import ExchangePlan, RowList
from hpcgnn.exchange.state import State
from hpcgnn.graph.batch import Batch, BatchCutter
from hpcgnn.graph.hop import AloneExchange, ExchangeSite, Hop
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.rows import LocalRows
from hpcgnn.ops.aggregation import PackedRows, SparseRows, multiply
from hpcgnn.ops.arena import empty
from hpcgnn.ops.counter import BACKWARD, FORWARD, CounterKey
from hpcgnn.ops.pointwise import dropout
from hpcgnn.ops.resident import on_device
from hpcgnn.steps.clusters import Clusters, deal, rests_in
from hpcgnn.steps.history import STORED, History, KeptRows
from hpcgnn.steps.late import LastGradients, LateMessages

NO_STEP = -1
BY_ROW = "by_row"    # in the state of an epoch that ended between two steps
# Names in `state`, next to the rows of the history.
BEGUN = "begun"      # that state
LATE = "late"        # the gradients that the next epoch reads
logger = logging.getLogger(__name__)


class StepGraphs:
    """Makes the graphs of steps, and keeps the rows that they read.

    Parameters
    ----------
    graph : LocalGraph                  graph of all rows
    exchange : HaloExchange or Around   exchange of the run
    cut : function                      collective: cuts the rows into clusters when first needed
    num_clusters : int                  expected number of clusters of all ranks
    kept : str                          how rows are kept, see `History`
    shared : callable or None           takes a model's outputs; returns the rows, (n, dim), of which the loss reads
                                        those of other ranks and steps; None: it reads none
    leaves_out : bool                   in epochs of rows dealt one by one, leave out what brings little: rows without
                                        a label in every second epoch, gradients along a step's few edges, and the
                                        pass over all rows before the first epoch
    """

    def __init__(self, graph: LocalGraph, exchange: HaloExchange | Around, cut: Callable[[], Clusters],
                 num_clusters: int, num_ranks: int, kept: str = STORED, leaves_out: bool = False,
                 shared: Callable[[Any], torch.Tensor] | None = None):
        self._cut, self.num_clusters = cut, num_clusters
        self._leaves_out, self._shared = leaves_out and graph.num_within is not None, shared
        self._graph, self._exchange, self._is_shared = graph, exchange, num_ranks > 1
        self._history = History(graph.node_id, kept)
        self._is_sent = self._shared_rows() if self._is_shared else None
        self._cutter = self._cutter_of(graph)
        self._late = self._late_messages() if self._is_shared else None
        self._place = np.full(graph.num_rows, -1, np.int32)
        self.begun: State | None = None      # state of an epoch that stopped between two steps

    @cached_property
    def clusters(self) -> Clusters:
        return self._cut()

    def steps(self, model: nn.Module, seed: int, epoch: int, num_steps: int, first: int = 0,
              by_row: bool = False, graph: LocalGraph | None = None) -> Iterator[Step]:
        """Collective: yield the steps of an epoch from `first` on; train each before asking for the next.

        `by_row` deals rows one by one instead of in clusters. `graph` has the edges of this epoch; None: all. An epoch
        computes each row in one step at most, so edges that are drawn for an epoch are drawn anew for each step.

        Reference: Fey et al., "GNNAutoScale", ICML 2021, Algorithm 1. Deviations: rows of other ranks that are computed
        in the same step are fresh, layer by layer, as are their gradients; each boundary row is sent once per epoch.
        The first epoch begins with a pass over the whole graph, so that no row is read before it was computed; if it
        leaves things out, such a row is read as zero.
        """
        if self._history.is_empty:
            if not (by_row and self._leaves_out):
                self._fill(model)
        elif self._is_shared and num_steps > 1 and first == 0:
            self._exchange.training.note_age(2 if by_row and self._leaves_out else 1)
        whole = self._graph if graph is None else graph
        cutter = self._cutter if whole is self._graph else self._cutter_of(whole)
        inputs = EpochInput(whole)
        inner, halo = self._dealt(seed, epoch, num_steps, by_row)
        for number in range(first, num_steps):
            batch = cutter.cut(np.flatnonzero(inner == number),
                               self._graph.num_inner + np.flatnonzero(halo == number), few_arcs=by_row,
                               reads_only=by_row and self._leaves_out)
            made = self._graph_of(whole, batch, inputs, number == first)
            yield Step(made, batch.rows)
            self._history.check(made.current_pass.num_halo_calls)

    def _cutter_of(self, graph: LocalGraph) -> BatchCutter:
        return BatchCutter(*graph.arcs, graph.num_rows, graph.num_within, self._is_sent)

    def _dealt(self, seed: int, epoch: int, num_steps: int, by_row: bool) -> tuple[np.ndarray, np.ndarray]:
        if by_row:
            step = deal(self._graph.node_id, seed, epoch, num_steps)
            if self._leaves_out:
                step[~self._is_labeled & rests_in(self._graph.node_id, seed, epoch)] = NO_STEP
            return step[:self._graph.num_inner], step[self._graph.num_inner:]
        step_of = self.clusters.steps(seed, epoch, num_steps)
        return step_of[self.clusters.inner], step_of[self.clusters.halo]

    @cached_property
    def _is_labeled(self) -> np.ndarray:
        """Collective: (num_rows,) bool, rows that the loss is over."""
        graph = self._graph
        own = np.arange(graph.num_inner) < graph.num_within[0]
        if not self._is_shared:
            return own
        told = self._exchange.input_rows(torch.from_numpy(own[:, None].astype(np.float32)).to(graph.x.device))
        return told[:, 0].cpu().numpy() > 0

    def take_begun(self, num_steps: int, by_row: bool = False) -> State | None:
        """Return the state of an epoch that stopped between two steps, once; None if rows were dealt differently."""
        begun, self.begun = self.begun, None
        if begun is None or (begun["num_steps"], bool(begun.get(BY_ROW, False))) == (num_steps, by_row):
            return begun
        logger.warning("the epoch that was stopped had %d steps, and this one has %d, or other rows in them; it begins "
                       "anew, with the weights as they are", begun["num_steps"], num_steps)
        return None

    def _shared_rows(self) -> np.ndarray:
        is_shared = np.zeros(self._graph.num_inner, bool)
        for rows in self._exchange.plan_within(None).boundary:
            is_shared[rows.index] = True
        return is_shared

    def _late_messages(self) -> LateMessages | None:
        """None if the method reads every row in the step that sends it. ConfigError if it can't train in steps."""
        kind = self._exchange.kind_of_steps
        if not isinstance(kind, KeptInSteps) or not kind.max_age:
            return None
        return LateMessages(kind, self._graph.node_id, self._shared_rows())

    def _graph_of(self, whole: LocalGraph, batch: Batch, inputs: EpochInput, is_first: bool) -> StepGraph:
        exchange = self._exchange.of_step(self._plans(batch), is_first) if self._is_shared else None
        return StepGraph(whole, batch, StepExchange(exchange, self._history, batch, self._late), inputs)

    def _plans(self, batch: Batch) -> PlanWithin:
        self._place.fill(-1)
        self._place[batch.rows], self._place[batch.fresh_halo] = np.arange(len(batch.rows)), np.arange(batch.num_fresh)
        return step_plans(self._exchange.plan_within, batch, self._place, self._graph.num_inner)

    @torch.no_grad()
    def _fill(self, model: nn.Module) -> None:
        whole = Batch.of_all(*self._graph.arcs, self._graph.num_rows)
        exchange = self._exchange if self._is_shared else None
        graph = self._graph.with_exchange(StepExchange(exchange, self._history, whole))
        model.eval()
        graph.begin_forward(seed=0, epoch=0, is_training=False)
        outputs = model(graph, graph.x)
        if self._shared is not None:
            graph.halo(self._shared(outputs).to(graph.x.dtype))
        model.train()

    @property
    def num_bytes(self) -> int:
        return self._history.num_bytes + (0 if self._late is None else self._late.num_bytes)

    def forget(self) -> None:
        self._history.forget()
        if self._late is not None:
            self._late.forget()
        self.begun = None

    def state(self) -> State:
        """Collective: the rows that the next step reads, and the state of an epoch that stopped between two steps."""
        begun = {} if self.begun is None else {BEGUN: self.begun}
        late = {} if self._late is None else {LATE: self._late.state()}     # what arrives late goes to the history
        return {**self._history.state(), **late, **begun}

    def restore(self, state: State) -> None:
        self.begun = state.get(BEGUN)
        device = self._graph.x.device
        self._history.restore({name: rows for name, rows in state.items() if name not in (BEGUN, LATE)}, device)
        if self._late is not None:
            self._late.restore(state[LATE], device)


@dataclass(frozen=True)
class Step:
    graph: StepGraph
    rows: np.ndarray  # (num_batch,) int64, inner rows of the whole graph that the step computes, ordered as in `graph`


class StepGraph(LocalGraph):
    """The graph of the rows of one batch; `exchange` brings the halo rows."""

    def __init__(self, whole: LocalGraph, batch: Batch, exchange: StepExchange, inputs: EpochInput):
        row = np.concatenate([batch.rows, batch.far])
        weight, kept = whole.rows.edge_weight, whole.rows.kept_degree
        of_edges = {name: values[batch.arc] for name, values in (
            ("edge_type", whole.rows.edge_type), ("edge_attr", whole.rows.edge_attr)) if values is not None}
        self._inner = on_device(batch.rows, whole.x)
        rows = LocalRows(batch.indptr, batch.indices, whole.node_id[row], whole.in_degree[row],
                         _rows_at(whole.x, self._inner), whole.num_nodes,
                         None if weight is None else weight[batch.arc], None if weight is None else whole.degree[row],
                         None if kept is None else kept[row], **of_edges)
        super().__init__(rows, exchange, batch.prefixes, has_half_sums=whole.has_half_sums,
                         stored_bits=whole.stored_bits)
        self._whole_graph, self._batch, self._inputs, self._rows_kept = whole, batch, inputs, exchange
        self._scales: dict[str, np.ndarray | None] = {}      # of the columns in place, by reduction

    @cached_property
    def whole_rows(self) -> torch.Tensor:
        """(num_rows,) int64, the numbers of this graph's rows, inner and halo, in the whole graph."""
        return torch.cat([self._inner, on_device(self._batch.far, self.x)])

    @cached_property
    def x_all(self) -> torch.Tensor:
        return _rows_at(self._whole_graph.x_all, self.whole_rows)

    def last_rows(self, like: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
        """Rows of the whole graph, (n,) int64, as they last were in the latest exchange of this pass; constants."""
        return self._rows_kept.last_rows(self.current_pass.num_halo_calls - 1, like, rows)

    def sum_of_pass(self, values: torch.Tensor) -> torch.Tensor:
        return self._whole_graph.sum_over_ranks(values)

    @property
    def whole(self) -> tuple[LocalGraph, torch.Tensor | None]:
        return self._whole_graph, self._inner

    def input_aggregate(self, reduction: str, is_kept: bool = True) -> torch.Tensor:
        return _rows_at(self._whole_graph.input_aggregate(reduction, is_kept), self._inner)

    def masked_input_aggregate(self, hop: Hop, reduction: str, probability: float, key: CounterKey) -> torch.Tensor:
        return _rows_at(self._inputs.aggregate(reduction, probability, key), self._inner[:hop.num_out])

    def hop(self, reduction: str, is_input: bool = False) -> Hop:
        hop = super().hop(reduction, is_input)
        return replace(hop, in_place=self._in_place(hop.matrices.forward, reduction))

    def _in_place(self, forward: SparseRows, reduction: str) -> SparseRows:
        # Columns are the batch's own rows, then all rows of the whole graph, which are in the history.
        if reduction not in self._scales:
            near, whole = forward.column_scale, self._whole_graph.matrix(reduction).column_scale
            self._scales[reduction] = None if near is None else np.concatenate([near[:self.num_inner], whole])
        return replace(forward, indices=self._indices_in_place, num_columns=self.num_inner + self._whole_graph.num_rows,
                       column_scale=self._scales[reduction])

    @cached_property
    def _indices_in_place(self) -> np.ndarray:
        column = np.concatenate([np.arange(self.num_inner), self.num_inner + self._batch.far]).astype(np.int32)
        return column[self._batch.indices]


class EpochInput:
    """Aggregates of the masked constant input, computed once per epoch for all steps."""

    def __init__(self, graph: LocalGraph):
        self._graph = graph
        self._made: dict[tuple[str, float, CounterKey], torch.Tensor] = {}

    def aggregate(self, reduction: str, probability: float, key: CounterKey) -> torch.Tensor:
        """Return the sums of all rows, (num_inner, num_features); see `LocalGraph.masked_input_aggregate`."""
        place = reduction, probability, key
        if place not in self._made:
            graph = self._graph
            masked = dropout(graph.x_all, probability, graph.ids(0, graph.num_rows), key)
            self._made[place] = multiply(graph.matrix(reduction), masked)
        return self._made[place]


def _rows_at(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    # Written to the arena: fresh pages would cost more than the copy.
    return torch.index_select(rows, 0, index, out=empty((len(index), rows.shape[1]), rows.dtype, rows.device))


class StepExchange:
    """The exchange of one step's LocalGraph; `exchange` brings rows of other ranks, None if there is no other rank."""

    is_alone = overlaps = False
    halo_spans = None
    reads_history = True

    def __init__(self, exchange: HaloExchange | Around | None, history: History, batch: Batch,
                 late: LateMessages | None = None):
        self._exchange, self._history, self._batch, self._late = exchange, history, batch, late
        self.num_returning = 0 if batch.reads_only else batch.num_fresh

    def takes_columns(self, site: ExchangeSite, dtype: torch.dtype) -> bool:
        return False      # the history has whole rows

    def start_fetch(self, h: torch.Tensor, site: ExchangeSite) -> FarRows:
        """Collective: keep the batch's rows in the history, and start to bring the far ones."""
        table = self._history.table(site.layer, h)
        key = CounterKey(site.seed, site.epoch, FORWARD, site.layer)
        table.keep(self._batch.rows, h.detach(), key)
        arrival = None if self._exchange is None else self._exchange.start_fetch(h, site)
        if self._late is not None:
            self._late.settle(site.layer, FORWARD)
            if self._late.is_late(site, FORWARD):
                self._late.expect_rows(arrival, site, self._batch, table, key, h.detach())
                arrival = None
        if arrival is not None:
            arrival.wait()
        return FarRows(table, key, self._batch, arrival, h.dtype)

    def start_take_home(self, gradient: torch.Tensor,
                        site: ExchangeSite) -> Arrival | LastGradients | AloneExchange:
        """Collective: send the gradients of fresh rows home; rows of the history are constants."""
        if self._exchange is None or self._batch.reads_only:
            return AloneExchange()
        arrival = self._exchange.start_take_home(gradient[:self.num_returning], site)
        if self._late is not None:
            self._late.settle(site.layer, BACKWARD)
            if self._late.is_late(site, BACKWARD):
                return self._late.expect_gradients(arrival, site, self._batch, gradient)
            return self._late.fresh_gradients(arrival, site, self._batch, gradient)
        arrival.wait()
        return arrival

    def last_rows(self, layer: int, like: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
        """Some rows, (n,) int64, of the history of a layer."""
        known = empty((len(rows), like.shape[1]), like.dtype, like.device)
        self._history.table(layer, like).read(rows, known)
        return known

    def input_rows(self, features: torch.Tensor) -> torch.Tensor:
        """Raise ConfigError: these rows would have to cross in every step."""
        raise ConfigError("this model shares rows of its own with all ranks once, which an epoch of several steps "
                          "can't; leave --steps out")

    def sum_over_ranks(self, values: torch.Tensor) -> None:
        """Raise ConfigError: a step has only some of the rows."""
        raise ConfigError("this model sums over all rows of the graph, such as for a batch norm, and a step computes "
                          "some of them; leave --steps out")

    def present(self, site: ExchangeSite) -> np.ndarray | None:
        pass


class FarRows:
    """The far rows of one layer, some of them on their way; see `hpcgnn.graph.hop.ArrivalInTable`.

    `arrival`, or None, brings the fresh rows, which come first; `dtype` is of the rows of the pass.
    """

    def __init__(self, table: KeptRows, key: CounterKey, batch: Batch, arrival: Arrival | None, dtype: torch.dtype):
        self._table, self._key, self._far, self._num_fresh = table, key, batch.far, batch.num_fresh
        self._arrival, self._dtype = arrival, dtype

    def poll(self) -> bool:
        return self._arrival is None or self._arrival.poll()

    def wait(self) -> None:
        if self._arrival is not None:
            self._arrival.wait()

    def packed(self) -> PackedRows | None:
        return None

    def rows_in_message(self, dtype: torch.dtype) -> None:
        pass

    def in_place(self) -> torch.Tensor | PackedRows | None:
        # Coded tables can't take fresh rows: a fresh row is read unrounded, as by its owner.
        rows = self._table.in_place(self._dtype)
        if self._arrival is None or rows is None:
            return rows
        if not isinstance(rows, torch.Tensor):
            return None
        self._receive(rows.index_select(0, on_device(self._far, rows)[:self._num_fresh]))
        return rows

    def finish(self, rows: torch.Tensor) -> None:
        self._table.read(self._far, rows)
        if self._arrival is not None:
            self._receive(rows[:self._num_fresh])

    def _receive(self, fresh: torch.Tensor) -> None:
        # Rows too far from the loss don't travel and keep their last values.
        self._arrival.finish(fresh)
        self._table.keep(self._far, fresh, self._key)


def step_plans(plan_within: PlanWithin, batch: Batch, place: np.ndarray, num_inner: int) -> PlanWithin:
    """Return a function that makes the plan of a step's rows, in the step's numbers, from the plan of all rows.

    `place`, (num_inner + num_halo,) int32, is the place of each batch row in `rows` and of each fresh halo row in
    `far`; else -1.
    """
    def of_step(hops: int | None) -> ExchangePlan:
        within = plan_within(hops)
        return replace(within, num_inner=len(batch.rows), num_halo=batch.num_fresh,
                       boundary=tuple(_placed(rows, place[:num_inner]) for rows in within.boundary),
                       halo=tuple(_placed(rows, place[num_inner:]) for rows in within.halo))

    return of_step


def _placed(rows: RowList, place: np.ndarray) -> RowList:
    at = place[rows.index]
    kept = at >= 0
    return RowList(at[kept], rows.node_id[kept], rows.position[kept])
