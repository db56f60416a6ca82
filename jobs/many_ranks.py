"""Train by every method on more ranks than cores, on a small graph whose ranks have two neighbors; see many_ranks.sh.

Rows that wait for a rank that never meets them, and work that grows with the number of ranks, show here first.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import hpcgnn
from hpcgnn.run.launch import together

NODES_A_RANK, REACH, CLASSES = 40, 3, 4      # a node has the REACH nodes on each side of it as neighbors
COMMON = {"hidden": 8, "layers": 2, "epochs": 6, "eval_every": 3, "checkpoint_every": 0, "dropout": 0.2}
RUNS = (
    {"method": "vanilla"}, {"method": "vanilla", "exchange": "alltoallv"}, {"method": "vanilla", "rematerialize": True},
    {"method": "uniform", "bits": 2}, {"method": "uniform", "bits": 4, "predict": "previous"}, {"method": "random"},
    {"method": "sylvie"}, {"method": "sylvie-paper"},
    *({"method": "adaqp", "period": 2, "group_size": 5, "solver": solver}
      for solver in ("bisection", "greedy", "highs")),
    *({"method": "joint", "period": 2, "group_size": 5, "solver": solver} for solver in ("bisection", "greedy")),
    {"method": "pipegcn", "smoothing": 0.5}, {"method": "bns", "share": 0.5}, {"method": "sancus", "skip_change": 0.5},
)


def ring_lattice(num_ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Return arcs (2, E) and classes (n,) of nodes in a ring; the nodes of the last rank are apart from all others."""
    num_nodes = NODES_A_RANK * num_ranks
    node = np.arange(num_nodes)
    arcs = np.concatenate([np.stack([node, (node + step) % num_nodes]) for step in (*range(-REACH, 0),
                                                                                   *range(1, REACH + 1))], axis=1)
    is_last = arcs // NODES_A_RANK == num_ranks - 1
    return arcs[:, is_last[0] == is_last[1]], node // 10 % CLASSES


def losses_of(run: Path) -> list[float]:
    """Return the loss of every epoch."""
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def main() -> None:
    """Collective: see the module; the exit status is 1 where losses that must be equal differ."""
    comm = MPI.COMM_WORLD
    with tempfile.TemporaryDirectory() as own:
        folder = Path(comm.bcast(own))
        arcs, labels = ring_lattice(comm.size)
        hpcgnn.preprocess(arcs.T, comm.size, folder / "shards", labels=labels, features="structural",
                          partitioner="contiguous", reorder="none")
        graph, found = hpcgnn.open(folder / "shards"), {}
        if comm.rank == 0:
            print(f"{comm.size} ranks\n| settings | loss | seconds |\n|---|---|---|", flush=True)
        for number, settings in enumerate(RUNS):
            started = time.perf_counter()
            hpcgnn.fit("sage", graph, out=folder / str(number), **COMMON, **settings)
            if comm.rank == 0:
                found[number] = losses_of(folder / str(number))
                named = ", ".join(f"{name} {value}" for name, value in settings.items())
                print(f"| {named} | {found[number][-1]:.4f} | {time.perf_counter() - started:.1f} |", flush=True)
        comm.Barrier()
        together(comm, lambda: check(found))


def check(found: dict[int, list[float]]) -> None:
    """Check that a ring, an Alltoallv and a peer at a time bring the same rows.

    Raises
    ------
    HpcgnnError      they don't
    """
    if found and (found[0] != found[1] or not np.allclose(found[0], found[2], rtol=1e-5)):
        raise hpcgnn.HpcgnnError(f"the losses of {RUNS[0]}, {RUNS[1]} and {RUNS[2]} differ: "
                                 f"{found[0]}, {found[1]}, {found[2]}")


if __name__ == "__main__":
    sys.exit(main())
