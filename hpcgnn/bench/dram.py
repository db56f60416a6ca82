"""`hpcgnn bench dram`: bytes that an aggregation reads from DRAM by scheme and by order of rows, and its time by order.

The bytes are simulated, see hpcgnn.partition.condense_traffic; the seconds are those of the real aggregation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import scipy.sparse
import torch

from hpcgnn.bench.ceilings import gather_ceiling
from hpcgnn.bench.graphs import Topology
from hpcgnn.bench.memory import empty_rows, random_rows
from hpcgnn.bench.timing import CEILING, OURS, Effort, Measurement, measure
from hpcgnn.errors import ConfigError
from hpcgnn.ops.aggregation import SparseRows, from_csr, multiply_span
from hpcgnn.partition.condense import ClusteredRows, condensed_order, condensed_regions, lay_out, permute_rows
from hpcgnn.partition.condense_traffic import (
    Buffer,
    DramTraffic,
    condensed_traffic,
    direct_traffic,
    gather_traffic,
    pruned_traffic,
)
from hpcgnn.partition.order import REORDERS, ROWS_A_CONDENSED_CLUSTER, cluster_rows, order_rows

CONDENSED = "condense-edge"
SCHEMES, ORDERS = "schemes", "orders of preprocess"


def arcs_of(graph: Topology) -> scipy.sparse.csr_matrix:
    """A matrix of ones by destination, (num_nodes, num_nodes) int8."""
    return scipy.sparse.csr_matrix((np.ones(graph.num_edges, np.int8), graph.indices, graph.indptr),
                                   shape=(graph.num_nodes, graph.num_nodes))


def shuffled(graph: Topology, seed: int) -> Topology:
    """Renumber the graph, with ids drawn at random and rows ascending, so that no order of the source is left."""
    order = np.random.default_rng(seed).permutation(graph.num_nodes)
    moved = arcs_of(Topology(f"{graph.name}, shuffled", *permute_rows(arcs_of(graph), order)))
    moved.sort_indices()
    return Topology(f"{graph.name}, shuffled", moved.indptr.astype(np.int64), moved.indices)


@dataclass(frozen=True)
class DramBenchmark:
    """Runs the counts and measurements of `hpcgnn bench dram`.

    Attributes
    ----------
    graph : Topology
    row_bytes : int                       of a row that is read
    buffer : Buffer
    pruned_share : float                  of the arcs, see pruned_traffic
    seed : int                            of METIS
    widths : columns of the fp32 rows that are aggregated for time; none, and nothing is timed
    """

    graph: Topology
    row_bytes: int
    buffer: Buffer
    pruned_share: float
    seed: int
    widths: tuple[int, ...]
    effort: Effort

    @cached_property
    def arcs(self) -> scipy.sparse.csr_matrix:
        """The graph as a matrix of ones."""
        return arcs_of(self.graph)

    @cached_property
    def condensed_cluster(self) -> np.ndarray:
        """Cluster of each row in preprocess's condense-edge: METIS takes the most time of all here, so it is kept."""
        return cluster_rows(self.arcs, ROWS_A_CONDENSED_CLUSTER, self.seed, self.graph.name)

    @cached_property
    def orders(self) -> dict[str, np.ndarray]:
        """Rows in each order that preprocess knows."""
        nodes = np.arange(self.graph.num_nodes)
        return {reorder: condensed_order(self.arcs, self.condensed_cluster) if reorder == CONDENSED
                else order_rows(self.graph, nodes, reorder, self.seed) for reorder in REORDERS}

    def count(self) -> Iterator[tuple[str, str, DramTraffic]]:
        """Group, name and bytes of each scheme, then of each order, whose rows are read through the whole buffer."""
        for name, traffic in self._schemes():
            yield SCHEMES, name, traffic
        whole = np.array([0, self.graph.num_nodes])
        for reorder, order in self.orders.items():
            rows = ClusteredRows(whole, *permute_rows(self.arcs, order))
            yield ORDERS, reorder, gather_traffic(rows, self.row_bytes, self.buffer)

    def _schemes(self) -> Iterator[tuple[str, DramTraffic]]:
        rows_a_cluster = self.buffer.check().dense().num_bytes // self.row_bytes
        if rows_a_cluster == 0:
            raise ConfigError(f"a buffer of {self.buffer.num_bytes} bytes holds no row of {self.row_bytes} bytes; "
                              "choose a larger buffer")
        start = np.append(np.arange(0, self.graph.num_nodes, rows_a_cluster), self.graph.num_nodes)
        blocks = ClusteredRows(start, self.graph.indptr, self.graph.indices)
        _, clusters = lay_out(self.arcs, cluster_rows(self.arcs, rows_a_cluster, self.seed, self.graph.name))
        yield "naive", gather_traffic(blocks, self.row_bytes, self.buffer)
        yield "metis", gather_traffic(clusters, self.row_bytes, self.buffer)
        yield "metis, no reuse across", direct_traffic(clusters, self.row_bytes, self.buffer)
        yield "gcod", pruned_traffic(clusters, self.row_bytes, self.buffer, self.pruned_share)
        yield CONDENSED, condensed_traffic(clusters, self.row_bytes, self.buffer)
        yield f"{CONDENSED}, no metis", condensed_traffic(blocks, self.row_bytes, self.buffer)

    def measure(self) -> Iterator[Measurement]:
        """Seconds of the aggregation a width, fp32, in every order and from condensed regions; the ceiling gathers the
        rows of the condense-edge order.
        """
        _, condensed = permute_rows(self.arcs, self.orders[CONDENSED])
        for width in self.widths:
            rows, out = (make(self.graph.num_nodes, width) for make in (random_rows, empty_rows))
            contestants: dict[str, Callable] = {CEILING: gather_ceiling(rows, condensed)}
            contestants |= {OURS if reorder == CONDENSED else reorder: self._product(order, rows, out)
                           for reorder, order in self.orders.items()}
            contestants |= self._products_of_copies(rows, out)
            yield measure("aggregation", f"{self.graph.name} x{width} fp32, rows by {CONDENSED}",
                          self.graph.num_edges * width * rows.itemsize / 1e9, "GB/s", contestants, self.effort)

    def _product(self, order: np.ndarray, rows: torch.Tensor, out: torch.Tensor) -> Callable:
        matrix = from_csr(*permute_rows(self.arcs, order), self.graph.num_nodes)
        return partial(multiply_span, matrix, rows, None, out, (0, len(rows)))

    def _products_of_copies(self, rows: torch.Tensor, out: torch.Tensor) -> dict[str, Callable]:
        """Algorithm 1 on this machine: with the copies, and as if they were free."""
        _, clusters = lay_out(self.arcs, self.condensed_cluster)
        regions = condensed_regions(clusters)
        column = np.where(regions.place < 0, clusters.indices, len(rows) + regions.place).astype(np.int32)
        matrix = SparseRows(clusters.indptr[:-1], clusters.indptr[1:], column, len(rows) + regions.num_copies)
        copied_row, copies = torch.from_numpy(regions.copied_row), empty_rows(regions.num_copies, rows.shape[1])
        read = partial(multiply_span, matrix, rows, copies, out, (0, len(rows)))

        def copy_and_read() -> None:
            torch.index_select(rows, 0, copied_row, out=copies)
            read()

        return {"copied": copy_and_read, "copies free": read}
