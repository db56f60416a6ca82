"""METIS k-way partitioning, and the undirected neighbor lists that it and other partitioners read."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from hpcgnn._ext import partition as kernels
from hpcgnn.data.arcs import RowsOfEntries, sort_arcs
from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.options import Progress, silent
from hpcgnn.errors import ConfigError

MAX_NODES = np.iinfo(np.int32).max


def symmetric_adjacency(dataset: GraphDataset, advice: str = "use --partitioner contiguous or random",
                        scratch: Path | None = None, progress: Progress = silent) -> tuple[np.ndarray, np.ndarray]:
    """Neighbor lists with every edge in both directions: (num_nodes + 1,) int64 and (num_neighbors,) int32, ascending.

    Parallel edges count once. A symmetric dataset without them keeps its own arrays. `scratch` is a folder for the
    edges of a large directed graph while they are sorted. ConfigError if the graph has more nodes than 32-bit ids can
    name.
    """
    if dataset.num_nodes > MAX_NODES:
        raise ConfigError(f"{dataset.name} has {dataset.num_nodes} nodes, metis and ldg take at most {MAX_NODES}; "
                          f"{advice}")
    indptr = np.ascontiguousarray(dataset.indptr, dtype=np.int64)
    indices = np.ascontiguousarray(dataset.indices, dtype=np.int32)
    if kernels.has_symmetric_rows(indptr, indices, np.empty(dataset.num_nodes, np.int64)) and not (
            has_parallel_edges(indptr, indices)):
        return indptr, indices
    task = progress("adding reverse edges", 2 * len(indices))
    both = sort_arcs(indices, RowsOfEntries(indptr, len(indices), dataset.name), dataset.num_nodes, True, scratch, task)
    return both.indptr, both.indices


def has_parallel_edges(indptr: np.ndarray, indices: np.ndarray) -> bool:
    """Whether a row of a CSR with ascending rows lists a source more than once."""
    is_again = indices[1:] == indices[:-1]
    starts = indptr[1:-1]
    is_again[starts[(starts > 0) & (starts < len(indices))] - 1] = False
    return bool(is_again.any())


# From metis.h.
METIS_NOPTIONS, METIS_OK = 40, 1
METIS_ERRORS = {-2: "it refuses the graph", -3: "it has not enough memory", -4: "it met an error"}


def metis_parts(indptr: np.ndarray, indices: np.ndarray, num_parts: int, objective: str, seed: int,
                weight: np.ndarray | None = None, name: str = "the graph",
                advice: str = "use --partitioner ldg") -> np.ndarray:
    """Cut a graph into parts of about equal weight with the fewest rows sent ("volume") or edges cut ("cut").

    The graph is undirected neighbor lists with at least one edge. Returns (num_nodes,) int32; some part may be empty on
    a tiny graph. ConfigError, which ends with `advice`, for more edges than this METIS can count, or if METIS gave up.
    """
    import pymetis

    index_type = np.dtype(pymetis.zero_copy_dtype())
    if len(indices) > np.iinfo(index_type).max:
        raise ConfigError(f"{name} has {len(indices)} edges, and this METIS was built for "
                          f"{8 * index_type.itemsize}-bit indices; {advice}")
    chosen = pymetis.ObjType.VOL if objective == "volume" else pymetis.ObjType.CUT
    indptr, indices = (np.ascontiguousarray(array, index_type) for array in (indptr, indices))
    weight = None if weight is None else np.ascontiguousarray(weight, index_type)
    part_graph = _find_function()
    try:
        with _term_held_back():
            if part_graph is not None and num_parts > 1:
                return _call(part_graph, indptr, indices, weight, num_parts, {"OBJTYPE": int(chosen), "SEED": seed})
            result = pymetis.part_graph(num_parts, pymetis.CSRAdjacency(indptr, indices), vweights=weight,
                                        recursive=False, options=pymetis.Options(objtype=chosen, seed=seed))
            return np.asarray(result.vertex_part, dtype=np.int32)
    except (RuntimeError, MemoryError) as error:
        raise ConfigError(f"METIS could not partition {name} ({error}); {advice}") from error


def _find_function() -> Callable[..., int] | None:
    # Called through ctypes, METIS does not hold the interpreter, so progress bars move. None if pymetis hides it.
    from pymetis import _internal

    return getattr(ctypes.CDLL(_internal.__file__), "METIS_PartGraphKway", None)


def _call(part_graph: Callable[..., int], indptr: np.ndarray, indices: np.ndarray, weight: np.ndarray | None,
          num_parts: int, settings: dict[str, int]) -> np.ndarray:
    # METIS_PartGraphKway(nvtxs, ncon, xadj, adjncy, vwgt, vsize, adjwgt, nparts, tpwgts, ubvec, options, objval, part)
    from pymetis._internal import options_indices  # type: ignore[attr-defined]  # pymetis' stub leaves it out

    index_type = indptr.dtype
    options = np.full(METIS_NOPTIONS, -1, index_type)     # -1 is METIS's default
    for name, value in settings.items():
        options[int(getattr(options_indices, name))] = value
    numbers = [np.array([number], index_type) for number in (len(indptr) - 1, 1, num_parts, 0)]
    num_nodes, num_weights, parts, cut = (number.ctypes.data_as(ctypes.c_void_p) for number in numbers)
    part = np.empty(len(indptr) - 1, index_type)
    pointers = [None if array is None else array.ctypes.data_as(ctypes.c_void_p)
                for array in (indptr, indices, weight, options, part)]
    status = part_graph(num_nodes, num_weights, *pointers[:3], None, None, parts, None, None, pointers[3], cut,
                        pointers[4])
    if status != METIS_OK:
        raise RuntimeError(METIS_ERRORS.get(status, f"it returned {status}"))
    return part.astype(np.int32, copy=False)


@contextmanager
def _term_held_back() -> Iterator[None]:
    # On SIGTERM, METIS gives up, or returns a partition with all nodes in one part as if it were a result. In a process
    # with other threads one of them may still take the signal in METIS's handler; then the process just ends.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
