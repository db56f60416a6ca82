"""What partitioners make of graphs: rows sent, cut edges, imbalance, memory, seconds. benchmark_partition.sh starts it.

    python jobs/benchmark_partition.py GRAPH ... [--parts 2,16,128] [--partitioners kaminpar,metis,metis-cut]
        [--balances both,nodes] [--seed N] [--sums]

GRAPH is an .npz file, or a graph to draw as in `hpcgnn preprocess synthetic:nodes=N,mean_degree=K`. Besides the
partitioners of hpcgnn there are mt-kahypar (rows sent) and mt-kahypar-cut (cut edges), with the package mtkahypar.
Ids are shuffled first, since crawls number neighbors alike. The work of a part is 64 x nodes + edges, which `both`
balances. Processor seconds count all threads and the process of KaMinPar; every partitioner here works on one thread,
so on a quiet machine they are the seconds of the clock. Each row is made in a process of its own: its memory is the
most that this process held, with Python, torch and the graph, plus the most that KaMinPar's process held.
With --sums there are also the rows that pre-aggregation sends, and the seconds of its vertex covers.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
from pathlib import Path

import numpy as np
import scipy.sparse
from measurements.dram import shuffled

from hpcgnn.bench.graphs import Topology, read_topology
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.exchange.pre_aggregation import minimum_vertex_cover
from hpcgnn.partition.choices import EDGES_A_NODE, WEIGHING_PARTITIONERS
from hpcgnn.partition.metis import symmetric_adjacency
from hpcgnn.partition.owner import choose_owners, fill_empty_parts, node_weight
from hpcgnn.partition.refinement import PartitionCounts, Refinement, count_partition

HEADER = ("graph", "parts", "balance", "partitioner", "rows sent", "cut edges", "imbalance: nodes", "of edges",
          "of work", "heaviest node / mean work", "GB", "s", "processor s")
SLACK = 0.03      # of mt-kahypar, as of the others
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
          costs: tuple[str, ...]) -> str:
    """A line of the table; `costs` are its last cells, from the imbalance of work on."""
    return "| " + " | ".join((
        name, f"{parts:,}", balance, partitioner, f"{counts.volume:,}", f"{counts.num_cut_edges:,}",
        f"{counts.node_imbalance:.3f}", f"{counts.edge_imbalance:.3f}", *costs)) + " |"


def mt_kahypar_owners(graph: Graph, parts: int, partitioner: str, seed: int, balance: str) -> np.ndarray:
    """Owners by Mt-KaHyPar on one thread, (num_nodes,) int32.

    mt-kahypar cuts the hypergraph with a net for each node and its neighbors: the connectivity of these nets is the
    number of rows sent. mt-kahypar-cut cuts the graph.
    """
    try:
        import mtkahypar
    except ImportError:
        sys.exit(f"hpcgnn: {partitioner} needs the package mtkahypar; pip install --no-deps mtkahypar")
    started = mtkahypar.initialize(1)
    mtkahypar.set_seed(seed)
    # The preset for 1,024 parts and more; the others hold a table of parts x nets.
    preset = mtkahypar.PresetType.LARGE_K if parts >= 1024 else mtkahypar.PresetType.DEFAULT
    is_cut = partitioner.endswith("-cut")
    objective = mtkahypar.Objective.CUT if is_cut else mtkahypar.Objective.KM1
    context = started.context_from_preset(preset)
    context.set_partitioning_parameters(parts, SLACK, objective)
    context.logging = False
    indptr, indices = symmetric_adjacency(graph)
    weight = node_weight(graph, balance)
    weights = (np.ones(graph.num_nodes, np.int64) if weight is None else weight).tolist()
    if is_cut:
        target = np.repeat(np.arange(graph.num_nodes, dtype=np.int32), np.diff(indptr))
        is_once = indices < target
        arcs = list(zip(indices[is_once].tolist(), target[is_once].tolist(), strict=True))
        made = started.create_graph(context, graph.num_nodes, len(arcs), arcs, weights, [1] * len(arcs))
    else:
        nets = [[node, *indices[indptr[node]:indptr[node + 1]].tolist()] for node in range(graph.num_nodes)]
        made = started.create_hypergraph(context, graph.num_nodes, len(nets), nets, weights, [1] * len(nets))
    return fill_empty_parts(np.array(made.partition(context).get_partition(), np.int32), parts)


def owners_of(graph: Graph, parts: int, partitioner: str, seed: int,
              balance: str) -> tuple[np.ndarray, Refinement | None]:
    """Owners by any of the partitioners, and what KaMinPar's refinement counted."""
    if partitioner.startswith("mt-kahypar"):
        return mt_kahypar_owners(graph, parts, partitioner, seed, balance), None
    return choose_owners(graph, parts, partitioner, seed, balance)


def work_imbalances(graph: Graph, owner: np.ndarray, parts: int) -> tuple[str, str]:
    """EDGES_A_NODE x nodes + edges of the largest part over the mean, and of the heaviest node over it."""
    work = EDGES_A_NODE + graph.in_degree()
    most = np.bincount(owner, weights=work, minlength=parts).max()
    return f"{most * parts / work.sum():.3f}", f"{work.max() * parts / work.sum():.3f}"


def peak_gigabytes() -> float:
    """The most that this process held, plus the most that one of its children held."""
    return sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1e6


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
    owner, refinement = owners_of(graph, parts, partitioner, seed, balance)
    seconds = (f"{time.perf_counter() - clock:.2f}", f"{processor_seconds() - processor:.2f}")
    costs = (*work_imbalances(graph, owner, parts), f"{peak_gigabytes():.2f}", *seconds)
    if refinement is None:
        counts, before = count_partition(*symmetric_adjacency(graph), owner, parts), []
    else:
        counts = refinement.after
        before = [cells(graph.name, parts, balance, f"{partitioner}, not refined", refinement.before, ("",) * 5)
                  + (" | | |" if has_sums else "")]
    more = cells_of_sums(graph, owner, parts, counts.volume) if has_sums else ""
    return [*before, cells(graph.name, parts, balance, partitioner, counts, costs) + more]


def read_graph(source: str, seed: int) -> Graph:
    """An .npz archive or a drawn graph, its ids shuffled."""
    if source.startswith("synthetic:"):
        drawn = load_source(source, SourceOptions(seed=seed))
        name, topology = f"{drawn.num_nodes:,} drawn nodes", Topology(source, drawn.indptr, drawn.indices)
    else:
        name, topology = Path(source).stem, read_topology(Path(source))
    found = shuffled(topology, seed)
    return Graph(name, found.indptr, found.indices)


def main() -> None:
    """Print the table, a line as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("graphs", nargs="+")
    parser.add_argument("--parts", default="2,16,128")
    parser.add_argument("--partitioners", default=",".join(WEIGHING_PARTITIONERS))
    parser.add_argument("--balances", default="both,nodes")
    parser.add_argument("--sums", action="store_true", help="count the rows that pre-aggregation sends")
    parser.add_argument("--seed", type=int, default=0, help="of the partitioners and of the shuffled ids")
    chosen = parser.parse_args()
    header = HEADER + OF_SUMS * chosen.sums
    print("| " + " | ".join(header) + " |\n|" + " --- |" * len(header))
    for source in chosen.graphs:
        graph = read_graph(source, chosen.seed)
        for parts in map(int, chosen.parts.split(",")):
            for balance in chosen.balances.split(","):
                for partitioner in chosen.partitioners.split(","):
                    # A process of its own, so that its memory is that of this row alone.
                    row = multiprocessing.get_context("fork").Process(target=lambda *case: print(
                        "\n".join(lines(*case)), flush=True), args=(graph, parts, balance, partitioner, chosen.seed,
                                                                    chosen.sums))
                    row.start()
                    row.join()
                    if row.exitcode:
                        sys.exit(row.exitcode)


if __name__ == "__main__":
    main()
