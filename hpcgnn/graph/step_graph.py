"""StepGraph: some rows of a LocalGraph, which looks to a model like the whole of it.

Its inner rows are those of a batch, its halo rows whatever these read beside each other. What only some models ask for
is made when they do.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
import torch

from hpcgnn.graph.batch import Batch
from hpcgnn.graph.hop import Exchange, Hop
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.ops.aggregation import SparseRows, multiply
from hpcgnn.ops.arena import empty
from hpcgnn.ops.counter import CounterKey
from hpcgnn.ops.cuda.resident import on_device
from hpcgnn.ops.pointwise import dropout


class EpochInput:
    """What the constant input of all rows sums to under the masks of one epoch: computed once for all its steps.

    Parameters
    ----------
    graph : LocalGraph      of all rows
    """

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


class StepGraph(LocalGraph):
    """The graph of some inner rows.

    Parameters
    ----------
    whole : LocalGraph
    batch : Batch
    exchange : Exchange      that brings the halo rows
    inputs : EpochInput      of `whole`
    """

    def __init__(self, whole: LocalGraph, batch: Batch, exchange: Exchange, inputs: EpochInput):
        row = np.concatenate([batch.rows, batch.far])
        weight = None if whole.edge_weight is None else np.asarray(whole._edge_weight)[batch.arc]
        self._inner = on_device(batch.rows, whole.x)
        super().__init__(batch.indptr, batch.indices, whole.node_id[row], whole.in_degree[row],
                         _rows_at(whole.x, self._inner), exchange, batch.num_within, overlaps=False,
                         has_half_sums=whole.has_half_sums, edge_weight=weight,
                         weighted_degree=None if weight is None else whole.degree[row], num_back=batch.num_back)
        self._whole_graph, self._batch, self._inputs = whole, batch, inputs
        self.stored_bits = whole.stored_bits
        self._scales: dict[str, np.ndarray | None] = {}      # of the columns in place, by reduction

    @cached_property
    def x_all(self) -> torch.Tensor:
        """Return the input rows, (num_inner + num_halo, num_features)."""
        return _rows_at(self._whole_graph.x_all, torch.cat([self._inner, on_device(self._batch.far, self.x)]))

    @property
    def whole(self) -> tuple[LocalGraph, torch.Tensor | None]:
        """See `LocalGraph.whole`."""
        return self._whole_graph, self._inner

    def input_aggregate(self, reduction: str, is_kept: bool = True) -> torch.Tensor:
        """See `LocalGraph.input_aggregate`; the next step reads it too."""
        return _rows_at(self._whole_graph.input_aggregate(reduction, is_kept), self._inner)

    def masked_input_aggregate(self, hop: Hop, reduction: str, probability: float, key: CounterKey) -> torch.Tensor:
        """See `LocalGraph.masked_input_aggregate`."""
        return _rows_at(self._inputs.aggregate(reduction, probability, key), self._inner[:hop.num_out])

    def hop(self, reduction: str, is_input: bool = False) -> Hop:
        """See `LocalGraph.hop`; here rows of the history are summed where they lie."""
        hop = super().hop(reduction, is_input)
        return replace(hop, in_place=self._in_place(hop.matrices.forward, reduction))

    def _in_place(self, forward: SparseRows, reduction: str) -> SparseRows:
        """Return a matrix of the batch's rows over these and, behind them, all rows of the whole graph."""
        if reduction not in self._scales:
            near, whole = forward.column_scale, self._whole_graph.matrix(reduction).column_scale
            self._scales[reduction] = None if near is None else np.concatenate([near[:self.num_inner], whole])
        return replace(forward, indices=self._indices_in_place, num_columns=self.num_inner + self._whole_graph.num_rows,
                       column_scale=self._scales[reduction])

    @cached_property
    def _indices_in_place(self) -> np.ndarray:
        """Return the columns of the arcs, (num_arcs,) int32, where the far ones are rows of the whole graph."""
        column = np.concatenate([np.arange(self.num_inner), self.num_inner + self._batch.far]).astype(np.int32)
        return column[self._batch.indices]


def _rows_at(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return a copy of the constant rows at `index` (n,) int64. New pages for it would cost more than the copy."""
    return torch.index_select(rows, 0, index, out=empty((len(index), rows.shape[1]), rows.dtype, rows.device))
