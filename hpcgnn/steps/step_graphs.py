"""StepGraphs: the LocalGraph of each step of an epoch, one after another.

A step's graph looks to a model like a whole graph: its inner rows are the step's rows, its halo rows are the other rows
that these read. So every model that runs on a LocalGraph trains in steps. Before the first step, one pass over the
whole graph fills the history, so that each row has been computed before it is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import nn

from hpcgnn.exchange.halo import HaloExchange
from hpcgnn.exchange.state import State
from hpcgnn.graph.batch import Batch, BatchCutter
from hpcgnn.graph.hop import Exchange, Hop
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.ops.aggregation import SparseRows, multiply
from hpcgnn.ops.arena import empty
from hpcgnn.ops.counter import CounterKey
from hpcgnn.ops.cuda.resident import on_device
from hpcgnn.ops.pointwise import dropout
from hpcgnn.steps.clusters import Clusters
from hpcgnn.steps.dealing import deal
from hpcgnn.steps.exchange import PlanWithin, StepExchange, step_plans
from hpcgnn.steps.history import STORED, History

BY_ROW = "by_row"    # in the state of an epoch that ended between two steps
BEGUN = "begun"      # name of that state in `state`, next to the rows of the history
logger = logging.getLogger(__name__)


class StepGraphs:
    """Makes the graphs of steps, and keeps the rows that they read.

    Parameters
    ----------
    graph : LocalGraph           graph of all rows
    exchange : HaloExchange      exchange of the run
    cut : function               collective: cuts the rows into clusters when first needed
    num_clusters : int           expected number of clusters of all ranks
    kept : str                   how rows are kept, see `History`
    """

    def __init__(self, graph: LocalGraph, exchange: HaloExchange, cut: Callable[[], Clusters], num_clusters: int,
                 num_ranks: int, kept: str = STORED):
        self._cut, self.num_clusters = cut, num_clusters
        self._graph, self._exchange, self._is_shared = graph, exchange, num_ranks > 1
        self._history = History(graph.node_id, kept)
        self._cutter = BatchCutter(*graph.arcs, graph.num_rows, graph.num_within,
                                   self._shared_rows() if self._is_shared else None)
        self._place = np.full(graph.num_rows, -1, np.int32)
        self.begun: State | None = None      # state of an epoch that stopped between two steps

    @cached_property
    def clusters(self) -> Clusters:
        return self._cut()

    def steps(self, model: nn.Module, seed: int, epoch: int, num_steps: int, first: int = 0,
              by_row: bool = False) -> Iterator[Step]:
        """Collective: yield the steps of an epoch from `first` on; train each before asking for the next.

        `by_row` deals rows one by one instead of in clusters.

        Reference: Fey et al., "GNNAutoScale", ICML 2021, Algorithm 1. Deviations: rows of other ranks that are computed
        in the same step are fresh, layer by layer, as are their gradients; each boundary row is sent once per epoch.
        The first epoch begins with a pass over the whole graph, so that no row is read before it was computed.
        """
        if self._history.is_empty:
            self._fill(model)
        elif self._is_shared and num_steps > 1 and first == 0:
            self._exchange.training.staleness = 1      # age in epochs of the oldest row that is read
        inputs = EpochInput(self._graph)
        inner, halo = self._dealt(seed, epoch, num_steps, by_row)
        try:
            for number in range(first, num_steps):
                batch = self._cutter.cut(np.flatnonzero(inner == number),
                                         self._graph.num_inner + np.flatnonzero(halo == number), few_arcs=by_row)
                if self._is_shared:
                    self._exchange.begin_step(self._plans(batch), is_first=number == first)
                graph = self._graph_of(batch, inputs)
                yield Step(graph, batch.rows)
                self._history.check(graph.current_pass.num_halo_calls)
        finally:
            self._exchange.end_steps()

    def _dealt(self, seed: int, epoch: int, num_steps: int, by_row: bool) -> tuple[np.ndarray, np.ndarray]:
        if by_row:
            step = deal(self._graph.node_id, seed, epoch, num_steps)
            return step[:self._graph.num_inner], step[self._graph.num_inner:]
        step_of = self.clusters.steps(seed, epoch, num_steps)
        return step_of[self.clusters.inner], step_of[self.clusters.halo]

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

    def _graph_of(self, batch: Batch, inputs: EpochInput) -> StepGraph:
        exchange = StepExchange(self._exchange, self._history, batch, self._is_shared)
        return StepGraph(self._graph, batch, exchange, inputs)

    def _plans(self, batch: Batch) -> PlanWithin:
        self._place.fill(-1)
        self._place[batch.rows], self._place[batch.fresh_halo] = np.arange(len(batch.rows)), np.arange(batch.num_fresh)
        return step_plans(self._exchange.plan_within, batch, self._place, self._graph.num_inner)

    @torch.no_grad()
    def _fill(self, model: nn.Module) -> None:
        whole = Batch.of_all(*self._graph.arcs, self._graph.num_rows)
        graph = self._graph.with_exchange(StepExchange(self._exchange, self._history, whole, self._is_shared))
        model.eval()
        graph.begin_forward(seed=0, epoch=0, is_training=False)
        model(graph, graph.x)
        model.train()

    @property
    def num_bytes(self) -> int:
        return self._history.num_bytes

    def forget(self) -> None:
        self._history.forget()
        self.begun = None

    def state(self) -> State:
        """Return the rows that the next step reads, and the state of an epoch that stopped between two steps."""
        begun = {} if self.begun is None else {BEGUN: self.begun}
        return {**self._history.state(), **begun}

    def restore(self, state: State) -> None:
        self.begun = state.get(BEGUN)
        self._history.restore({name: rows for name, rows in state.items() if name != BEGUN}, self._graph.x.device)


@dataclass(frozen=True)
class Step:
    """One step of an epoch on one rank."""

    graph: StepGraph
    rows: np.ndarray  # (num_batch,) int64, inner rows of the whole graph that the step computes, ordered as in `graph`


class StepGraph(LocalGraph):
    """The graph of the rows of one batch; `exchange` brings the halo rows."""

    def __init__(self, whole: LocalGraph, batch: Batch, exchange: Exchange, inputs: EpochInput):
        row = np.concatenate([batch.rows, batch.far])
        weight = None if whole.edge_weight is None else np.asarray(whole._edge_weight)[batch.arc]
        self._inner = on_device(batch.rows, whole.x)
        super().__init__(batch.indptr, batch.indices, whole.node_id[row], whole.in_degree[row],
                         _rows_at(whole.x, self._inner), exchange, batch.num_within, overlaps=False,
                         has_half_sums=whole.has_half_sums, edge_weight=weight,
                         weighted_degree=None if weight is None else whole.degree[row], num_back=batch.num_back)
        self._whole_graph, self._batch, self._inputs = whole, batch, inputs
        self.stored_bits, self.num_nodes = whole.stored_bits, whole.num_nodes
        self._scales: dict[str, np.ndarray | None] = {}      # scales of the columns in place, by reduction

    @cached_property
    def whole_rows(self) -> torch.Tensor:
        """(num_rows,) int64, the numbers of this graph's rows, inner and halo, in the whole graph."""
        return torch.cat([self._inner, on_device(self._batch.far, self.x)])

    @cached_property
    def x_all(self) -> torch.Tensor:
        return _rows_at(self._whole_graph.x_all, self.whole_rows)

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
