"""What partitioners make of real graphs: rows sent, cut edges, imbalance, seconds. benchmark_partition.sh starts it.

    python jobs/benchmark_partition.py GRAPH.npz ... [--parts 2,16,128] [--partitioners kaminpar,metis,metis-cut]
        [--balances both,nodes] [--seed N]

Ids are shuffled first, since crawls number neighbors alike. Processor seconds count all threads and the process of
KaMinPar; every partitioner here works on one thread, so on a quiet machine they are the seconds of the clock.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import numpy as np

from hpcgnn.bench.dram import shuffled
from hpcgnn.bench.graphs import Topology, read_topology
from hpcgnn.partition.adjacency import symmetric_adjacency
from hpcgnn.partition.choices import WEIGHING_PARTITIONERS
from hpcgnn.partition.owner import choose_owners
from hpcgnn.partition.refinement import PartitionCounts, count_partition

HEADER = ("graph", "parts", "balance", "partitioner", "rows sent", "cut edges", "imbalance: nodes", "of edges", "s",
          "processor s")


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


def lines(graph: Graph, parts: int, balance: str, partitioner: str, seed: int) -> list[str]:
    """The line of a partitioner; of kaminpar also one of its parts before the refinement, whose seconds are within."""
    clock, processor = time.perf_counter(), processor_seconds()
    owner, refinement = choose_owners(graph, parts, partitioner, seed, balance)
    seconds = (f"{time.perf_counter() - clock:.2f}", f"{processor_seconds() - processor:.2f}")
    if refinement is None:
        counts = count_partition(*symmetric_adjacency(graph), owner, parts)
        return [cells(graph.name, parts, balance, partitioner, counts, seconds)]
    return [cells(graph.name, parts, balance, f"{partitioner}, not refined", refinement.before, ("", "")),
            cells(graph.name, parts, balance, partitioner, refinement.after, seconds)]


def main() -> None:
    """Print the table, a line as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("graphs", nargs="+", type=Path)
    parser.add_argument("--parts", default="2,16,128")
    parser.add_argument("--partitioners", default=",".join(WEIGHING_PARTITIONERS))
    parser.add_argument("--balances", default="both,nodes")
    parser.add_argument("--seed", type=int, default=0, help="of the partitioners and of the shuffled ids")
    chosen = parser.parse_args()
    print("| " + " | ".join(HEADER) + " |\n|" + " --- |" * len(HEADER))
    for path in chosen.graphs:
        found = shuffled(read_topology(path), chosen.seed)
        graph = Graph(path.stem, found.indptr, found.indices)
        for parts in map(int, chosen.parts.split(",")):
            for balance in chosen.balances.split(","):
                for partitioner in chosen.partitioners.split(","):
                    print("\n".join(lines(graph, parts, balance, partitioner, chosen.seed)), flush=True)


if __name__ == "__main__":
    main()
