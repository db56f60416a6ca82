"""Runs KaMinPar on neighbor lists, in a separate process.

When that process ends its memory returns to the system, and if KaMinPar crashes the user reads one sentence. The graph
goes there as a ParHIP file, the parts come back as int32.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hpcgnn.errors import ConfigError

PROGRAM = Path(__file__).with_name("kaminpar_process.py")
IMBALANCE = 0.03
# The first number of a ParHIP file, by bits: no edge weights, no node weights, 32-bit numbers of nodes.
NO_EDGE_WEIGHTS, NO_NODE_WEIGHTS, NODES_OF_32_BITS = 1, 2, 8
HEADER_BYTES = 24
BLOCK = 1 << 22


def kaminpar_parts(indptr: np.ndarray, indices: np.ndarray, num_parts: int, seed: int,
                   weight: np.ndarray | None = None, name: str = "the graph",
                   advice: str = "use --partitioner metis") -> np.ndarray:
    """Cut a graph into parts of about equal weight with few edges cut; (num_nodes,) int32, some part may be empty.

    The graph is undirected neighbor lists with at least one edge. KaMinPar runs on one thread: with several, its result
    depends on the order in which they meet. ConfigError, which ends with `advice`, if it is not installed, the
    temporary folder is full, or it gave up.

    Reference: Gottesbüren, Heuer, Sanders, Schulz, Seemaier, Deep Multilevel Graph Partitioning, ESA 2021.
    """
    if importlib.util.find_spec("kaminpar") is None:
        raise ConfigError(f"KaMinPar is not installed, so it can't partition {name}; pip install kaminpar, or {advice}")
    try:
        done, part = _run(indptr, indices, num_parts, seed, weight)
    except OSError as reason:
        raise ConfigError(f"KaMinPar reads {name} from a file in {tempfile.gettempdir()}, which can't be written: "
                          f"{reason.strerror or reason}; set TMPDIR to a folder with {4 * len(indices) / 1e9:.1f} GB "
                          f"to spare, or {advice}") from reason
    if done.returncode or len(part) != len(indptr) - 1:
        last = (done.stderr.strip().splitlines() or [f"its process ended with status {done.returncode}"])[-1]
        raise ConfigError(f"KaMinPar could not partition {name} ({last}); {advice}")
    return part


def _run(indptr: np.ndarray, indices: np.ndarray, num_parts: int, seed: int,
         weight: np.ndarray | None) -> tuple[subprocess.CompletedProcess, np.ndarray]:
    # Unnamed files: they disappear with the last process that has them open.
    with tempfile.TemporaryFile() as graph, tempfile.TemporaryFile() as result:
        write_parhip(graph, indptr, indices, weight)
        numbers = map(str, (graph.fileno(), result.fileno(), num_parts, IMBALANCE, seed))
        done = subprocess.run([sys.executable, "-I", str(PROGRAM), *numbers], stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
                              pass_fds=(graph.fileno(), result.fileno()))
        result.seek(0)
        return done, np.frombuffer(result.read(), np.int32).copy()


def write_parhip(file: BinaryIO, indptr: np.ndarray, indices: np.ndarray, weight: np.ndarray | None) -> None:
    """Write a graph for KaMinPar, block by block: header, first byte of each neighbor list, lists, node weights.

    Reference: KaHIP's user guide, "Binary Graph Format of ParHIP", with KaMinPar's bits for narrow numbers.
    """
    num_nodes = len(indptr) - 1
    form = NO_EDGE_WEIGHTS | (NO_NODE_WEIGHTS if weight is None else 0) | NODES_OF_32_BITS
    file.write(np.array([form, num_nodes, len(indices)], np.uint64).tobytes())
    start = HEADER_BYTES + 8 * (num_nodes + 1)
    for first in range(0, num_nodes + 1, BLOCK):
        file.write((start + 4 * indptr[first:first + BLOCK].astype(np.int64)).tobytes())
    for first in range(0, len(indices), BLOCK):
        file.write(indices[first:first + BLOCK].astype(np.uint32).tobytes())
    for first in range(0, 0 if weight is None else num_nodes, BLOCK):
        file.write(weight[first:first + BLOCK].astype(np.int64).tobytes())
    file.flush()
