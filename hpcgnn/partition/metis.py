"""METIS k-way on neighbor lists, for owners of nodes and for clusters of rows. No dataset and no part is known here."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from hpcgnn.errors import ConfigError


def metis_parts(indptr: np.ndarray, indices: np.ndarray, num_parts: int, objective: str, seed: int,
                weight: np.ndarray | None = None, name: str = "the graph",
                advice: str = "use --partitioner ldg") -> np.ndarray:
    """Return parts of about equal weight with the least rows sent or the least edges cut.

    Parameters
    ----------
    indptr, indices           undirected neighbor lists with at least one edge
    num_parts : int, 2 <= num_parts <= num_nodes
    objective : {"volume", "cut"}
    weight : (num_nodes,) integer, or None where every node weighs the same. METIS knows several weights a node, but
        pymetis hands it one only.
    name, advice : str        of the graph, and what to do where METIS can't; for messages

    Returns
    -------
    part : (num_nodes,) int32, values < num_parts; some part may be empty on a tiny graph

    Raises
    ------
    ConfigError               more edges than this METIS can count, or METIS gave up
    """
    import pymetis

    index_type = pymetis.zero_copy_dtype()
    if len(indices) > np.iinfo(index_type).max:
        raise ConfigError(f"{name} has {len(indices)} edges, and this METIS was built for "
                          f"{8 * index_type.itemsize}-bit indices; {advice}")
    chosen = pymetis.ObjType.VOL if objective == "volume" else pymetis.ObjType.CUT
    graph = pymetis.CSRAdjacency(indptr.astype(index_type, copy=False), indices.astype(index_type, copy=False))
    try:
        with _term_held_back():
            result = pymetis.part_graph(num_parts, graph, options=pymetis.Options(objtype=chosen, seed=seed),
                                        vweights=None if weight is None else weight.astype(index_type), recursive=False)
    except (RuntimeError, MemoryError) as error:
        raise ConfigError(f"METIS could not partition {name} ({error}); {advice}") from error
    return np.asarray(result.vertex_part, dtype=np.int32)


@contextmanager
def _term_held_back() -> Iterator[None]:
    """Hold SIGTERM back until METIS has ended: METIS takes it for an error of its own, and then gives up, or returns a
    partition with all nodes in one part as if nothing had been. Where the process has other threads, such as those of
    OpenBLAS, one of them takes the signal in METIS's handler and the process ends by a fault, which loses no more.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
