"""Cache misses of the aggregation by order of rows: cachegrind runs the compiled kernel over graphs of shuffled ids.

    python jobs/benchmark_cache_misses.py GRAPH.npz ... [--dim 64] [--last-level BYTES,WAYS,LINE] [--orders metis,...]

Counts are those of data alone, of one aggregation of float32 rows on one thread with AVX2, which valgrind knows; what
starting Python costs is counted in a run without an aggregation and taken off. Needs valgrind on the PATH.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

COUNTS = {"reads": r"D\s+refs:.*?\(\s*([\d,]+) rd", "first": r"D1\s+misses:.*?\(\s*([\d,]+) rd",
          "last": r"LLd misses:.*?\(\s*([\d,]+) rd"}
HEADER = ("graph", "order", "M rows read", "M reads", "M L1 misses", "M last-level misses", "those a row read")


def aggregate(file: Path, times: int) -> None:
    """What cachegrind watches: the kernel alone, without torch, which takes minutes to start there."""
    from hpcgnn._ext import aggregation

    with np.load(file) as saved:
        begin, end, tasks, indices, dim = (saved[name] for name in ("begin", "end", "tasks", "indices", "dim"))
    rows = np.ones((len(begin), int(dim)), np.float32).view(np.uint8)
    out = np.empty_like(rows)
    for _ in range(times):
        aggregation.aggregate_rows(begin, end, tasks, indices, None, None, None, None, 0, 0, int(dim), len(rows), rows,
                                   None, False, out)


def counted(file: Path, times: int, last_level: str) -> dict[str, int]:
    """Reads and read misses of data of a process that aggregates so many times."""
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=yes", "--cachegrind-out-file=/dev/null",
               f"--LL={last_level}", sys.executable, __file__, "--aggregate", str(times), str(file)]
    environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", HPCGNN_SIMD="avx2")
    text = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stderr
    return {name: int(re.search(pattern, text)[1].replace(",", "")) for name, pattern in COUNTS.items()}


def row(graph, order: str, dim: int, last_level: str, folder: Path) -> tuple[str, ...]:
    """The line of one order."""
    from measurements.dram import arcs_of

    from hpcgnn.ops.aggregation import from_csr
    from hpcgnn.partition.condense import permute_rows
    from hpcgnn.partition.order import order_rows

    matrix = from_csr(*permute_rows(arcs_of(graph), order_rows(graph, np.arange(graph.num_nodes), order)),
                      graph.num_nodes)
    file = folder / "matrix.npz"
    np.savez(file, begin=matrix.begin, end=matrix.end, tasks=matrix.tasks, indices=matrix.indices, dim=dim)
    before, after = (counted(file, times, last_level) for times in (0, 1))
    counts = [(after[name] - before[name]) / 1e6 for name in COUNTS]
    share = counts[-1] * 1e6 / len(matrix.indices)
    return graph.name, order, *(f"{count:.2f}" for count in (len(matrix.indices) / 1e6, *counts, share))


def main() -> None:
    """Print the table."""
    from measurements.dram import shuffled

    from hpcgnn.bench.graphs import read_topology

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("graphs", nargs="+", type=Path)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--last-level", default="2097152,16,64", help="the cache before DRAM: a core's second level")
    parser.add_argument("--orders", default="none,degree,rcm,metis,condense-edge")
    parser.add_argument("--seed", type=int, default=0, help="of the shuffled ids")
    chosen = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("hpcgnn: there is no valgrind; install it (Debian: apt-get install valgrind)")
    print("| " + " | ".join(HEADER) + " |\n|" + " --- |" * len(HEADER))
    with tempfile.TemporaryDirectory() as folder:
        for path in chosen.graphs:
            graph = shuffled(read_topology(path), chosen.seed)
            for order in chosen.orders.split(","):
                line = row(graph, order, chosen.dim, chosen.last_level, Path(folder))
                print("| " + " | ".join(line) + " |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--aggregate"]:
        aggregate(Path(sys.argv[3]), int(sys.argv[2]))
    else:
        main()
