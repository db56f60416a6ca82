"""The program that kaminpar.py starts: reads a graph from one open file and writes its parts to another.

It is run with `python -I`, so it imports nothing from hpcgnn.
"""

import os
import signal
import sys

import kaminpar
import numpy as np

DIES_WITH_PARENT = 1     # Linux's PR_SET_PDEATHSIG
# Up to FEW_PARTS, a preset with hill climbing takes little longer; from MANY_PARTS on, slower presets give no
# smaller volume than the fastest one once the result is refined.
FEW_PARTS, MANY_PARTS = 4, 64
MANY_EDGES = 1 << 28     # from here on hill climbing takes longer than everything else (500 M: over 17 minutes)


def end_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)


def chosen_context(num_parts: int, num_edges: int) -> kaminpar.Context:
    if num_parts <= FEW_PARTS and num_edges < MANY_EDGES:
        return kaminpar.eco_context()
    return kaminpar.fast_context() if num_parts >= MANY_PARTS else kaminpar.default_context()


def main(graph: int, result: int, num_parts: int, imbalance: float, seed: int) -> None:
    """Partition the graph of one file descriptor on one thread and write (num_nodes,) int32 to the other."""
    end_with_parent()
    kaminpar.reseed(seed)
    loaded = kaminpar.load_graph(f"/dev/fd/{graph}", kaminpar.GraphFileFormat.PARHIP)
    part = kaminpar.KaMinPar(1, chosen_context(num_parts, loaded.m())).compute_partition(loaded, num_parts, imbalance)
    with os.fdopen(result, "wb", closefd=False) as file:
        file.write(np.array(part, np.int32).tobytes())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
