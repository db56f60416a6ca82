"""What partitioners make of real graphs: rows sent, cut edges, imbalance, seconds. benchmark_partition.sh starts it.

    python jobs/benchmark_partition.py GRAPH.npz ... [--parts 2,16,128] [--partitioners kaminpar,metis,metis-cut]
        [--balances both,nodes] [--seed N] [--sums]

Ids are shuffled first, since crawls number neighbors alike. Processor seconds count all threads and the process of
KaMinPar; every partitioner here works on one thread, so on a quiet machine they are the seconds of the clock.
With --sums there are also the rows that pre-aggregation sends, and the seconds of its vertex covers.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import numpy as np
import scipy.sparse
from measurements.dram import shuffled

from hpcgnn.bench.graphs import Topology, read_topology
from hpcgnn.exchange.pre_aggregation import minimum_vertex_cover
from hpcgnn.partition.choices import WEIGHING_PARTITIONERS
from hpcgnn.partition.metis import symmetric_adjacency
from hpcgnn.partition.owner import choose_owners
from hpcgnn.partition.refinement import PartitionCounts, count_partition

HEADER = ("graph", "parts", "balance", "partitioner", "rows sent", "cut edges", "imbalance: nodes", "of edges", "s",
          "processor s")
OF_SUMS = ("rows with sums", "of rows sent", "s of covers")


class Graph(Topology):
    """A topology that a partitioner takes for a dataset."""

    def in_degree(self) -> np.ndarray:
        """Number of in-neighbors of every node, (num_nodes,) int64."""
        return np.diff(self.indptr)


def processor_seconds() -> float:
    """Seconds of this process and of those that it waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def cells(name: str, parts: int, balance: str, partitioner: str, counts: PartitionCounts,
          seconds: tuple[str, str]) -> str:
    """A line of the table."""
    return "| " + " | ".join((
        name, f"{parts:,}", balance, partitioner, f"{counts.volume:,}", f"{counts.num_cut_edges:,}",
        f"{counts.node_imbalance:.3f}", f"{counts.edge_imbalance:.3f}", *seconds)) + " |"


def rows_with_sums(indptr: np.ndarray, indices: np.ndarray, owner: np.ndarray, parts: int) -> int:
    """Rows that pre-aggregation sends in an exchange: for each pair of parts, those of a minimum vertex cover."""
    target = np.repeat(np.arange(len(owner), dtype=np.int32), np.diff(indptr))
    is_far = owner[indices] != owner[target]
    target, source = target[is_far], indices[is_far]
    pair = owner[source].astype(np.int64) * parts + owner[target]
    total = 0
    for arcs in np.split(np.argsort(pair, kind="stable"), np.flatnonzero(np.diff(np.sort(pair))) + 1):
        (sources, row), (targets, column) = (np.unique(ends[arcs], return_inverse=True) for ends in (source, target))
        between = scipy.sparse.csr_matrix((np.ones(len(arcs), bool), (row, column)), shape=(len(sources), len(targets)))
        total += sum(int(chosen.sum()) for chosen in minimum_vertex_cover(between))
    return total


def cells_of_sums(graph: Graph, owner: np.ndarray, parts: int, rows_sent: int) -> str:
    """The last cells of a line."""
    arcs, started = symmetric_adjacency(graph), processor_seconds()
    rows = rows_with_sums(*arcs, owner, parts)
    return f" {rows:,} | {rows / max(rows_sent, 1):.3f} | {processor_seconds() - started:.2f} |"


def lines(graph: Graph, parts: int, balance: str, partitioner: str, seed: int, has_sums: bool) -> list[str]:
    """The line of a partitioner; of kaminpar also one of its parts before the refinement, whose seconds are within."""
    clock, processor = time.perf_counter(), processor_seconds()
    owner, refinement = choose_owners(graph, parts, partitioner, seed, balance)
    seconds = (f"{time.perf_counter() - clock:.2f}", f"{processor_seconds() - processor:.2f}")
    if refinement is None:
        counts, before = count_partition(*symmetric_adjacency(graph), owner, parts), []
    else:
        counts = refinement.after
        before = [cells(graph.name, parts, balance, f"{partitioner}, not refined", refinement.before, ("", ""))
                  + (" | | |" if has_sums else "")]
    more = cells_of_sums(graph, owner, parts, counts.volume) if has_sums else ""
    return [*before, cells(graph.name, parts, balance, partitioner, counts, seconds) + more]


def main() -> None:
    """Print the table, a line as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("graphs", nargs="+", type=Path)
    parser.add_argument("--parts", default="2,16,128")
    parser.add_argument("--partitioners", default=",".join(WEIGHING_PARTITIONERS))
    parser.add_argument("--balances", default="both,nodes")
    parser.add_argument("--sums", action="store_true", help="count the rows that pre-aggregation sends")
    parser.add_argument("--seed", type=int, default=0, help="of the partitioners and of the shuffled ids")
    chosen = parser.parse_args()
    header = HEADER + OF_SUMS * chosen.sums
    print("| " + " | ".join(header) + " |\n|" + " --- |" * len(header))
    for path in chosen.graphs:
        found = shuffled(read_topology(path), chosen.seed)
        graph = Graph(path.stem, found.indptr, found.indices)
        for parts in map(int, chosen.parts.split(",")):
            for balance in chosen.balances.split(","):
                for partitioner in chosen.partitioners.split(","):
                    print("\n".join(lines(graph, parts, balance, partitioner, chosen.seed,
                                          chosen.sums)), flush=True)


if __name__ == "__main__":
    main()
