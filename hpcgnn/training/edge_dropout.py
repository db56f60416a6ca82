"""EdgeDropout: the graph of an epoch without a random share of its edges.

An edge's draw belongs to its source and destination, and to its place among parallel edges, so P ranks leave out the
same edges as one rank. Sums are over the thinned graph: means divide by the neighbors that are left, and A of gcn has
the thinned degrees, as after `dropout_edge` of PyTorch Geometric. The matrices of the thinned graph are built anew in
every epoch.
"""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.reductions import weighted_degree
from hpcgnn.graph.rows import LocalRows
from hpcgnn.ops.counter import EDGES, CounterKey
from hpcgnn.ops.pointwise import dropout

EDGES_AT_ONCE = 1 << 20


class EdgeDropout:
    """Leaves out edges with `probability`; `reads_halo_degrees` says that sums are scaled by degrees of halo rows.

    Reference: Rong et al., "DropEdge", ICLR 2020, section 4.1; each direction of an edge has its own draw.
    """

    def __init__(self, graph: LocalGraph, probability: float, reads_halo_degrees: bool):
        self._graph, self._probability, self._reads_halo_degrees = graph, probability, reads_halo_degrees
        rows = graph.rows
        is_typed = rows.edge_type is not None or rows.edge_attr is not None
        self._copy = place_among_parallel(rows.indptr, rows.indices) if is_typed else None

    def thinned(self, seed: int, epoch: int) -> LocalGraph:
        """Collective: the graph of an epoch, with the rows and the exchange of the whole one."""
        graph, rows = self._graph, self._graph.rows
        kept = self._kept(CounterKey(seed, epoch, EDGES, 0))
        indptr, weight = np.concatenate([[0], np.cumsum(kept)])[rows.indptr], rows.edge_weight
        weight = None if weight is None else weight[kept]
        own = np.diff(indptr).astype(np.float32) if weight is None else weighted_degree(indptr, weight)
        degree = self._with_halo(own)
        return LocalGraph(
            LocalRows(indptr, rows.indices[kept], rows.node_id, rows.in_degree, rows.features, rows.num_nodes, weight,
                      None if weight is None else degree, degree.astype(np.int32) if weight is None else None,
                      None if rows.edge_type is None else rows.edge_type[kept],
                      None if rows.edge_attr is None else rows.edge_attr[kept]),
            graph.exchange, graph.prefixes, has_half_sums=graph.has_half_sums, stored_bits=graph.stored_bits)

    def _kept(self, key: CounterKey) -> np.ndarray:
        indptr, indices = self._graph.rows.indptr, self._graph.rows.indices
        node_id, num_nodes = self._graph.node_id.astype(np.int64), self._graph.num_nodes
        kept = np.empty(len(indices), bool)
        for start in range(0, len(indices), EDGES_AT_ONCE):
            stop = min(start + EDGES_AT_ONCE, len(indices))
            first, last = np.searchsorted(indptr, start, "right") - 1, np.searchsorted(indptr, stop)
            target = np.repeat(node_id[first:last], np.diff(np.clip(indptr[first:last + 1], start, stop)))
            # A pair of nodes as one number stands for the node of a draw.
            pair = target * num_nodes + node_id[indices[start:stop]]
            if self._copy is not None:
                pair += self._copy[start:stop] * num_nodes ** 2
            kept[start:stop] = dropout(torch.ones(stop - start, 1), self._probability, pair, key)[:, 0].numpy() > 0
        return kept

    def _with_halo(self, own: np.ndarray) -> np.ndarray:
        # Only their owners know all edges of halo rows.
        graph = self._graph
        if not self._reads_halo_degrees:
            return np.concatenate([own, np.zeros(graph.num_halo, np.float32)])
        return graph.share(torch.from_numpy(own)[:, None].to(graph.x.device))[:, 0].cpu().numpy()


def place_among_parallel(indptr: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Number of edges right before each one in its row of a CSR that have its source, (num_edges,) int64."""
    place, is_first = np.arange(len(indices)), np.ones(len(indices), bool)
    is_first[1:] = indices[1:] != indices[:-1]
    starts = indptr[:-1]
    is_first[starts[starts < len(indices)]] = True
    return place - np.maximum.accumulate(np.where(is_first, place, 0))
