"""Which part owns each node: METIS, streaming LDG, random or contiguous. No part is built here."""

from __future__ import annotations

import numpy as np

from hpcgnn._ext import ldg as kernels
from hpcgnn.datasets.dataset import GraphDataset
from hpcgnn.errors import ConfigError
from hpcgnn.partition.adjacency import symmetric_adjacency

PARTITIONERS = ("metis", "metis-cut", "ldg", "random", "contiguous")
STREAM_ORDERS = ("random", "natural")
DEFAULT_SLACK = 1.05


def assign_owners(dataset: GraphDataset, num_parts: int, partitioner: str = "metis", seed: int = 0,
                  slack: float = DEFAULT_SLACK, stream_order: str = "random") -> np.ndarray:
    """Choose the owner of every node. Parts are balanced in nodes and none is empty.

    Parameters
    ----------
    dataset : GraphDataset    a directed graph is taken as undirected, for this choice only
    num_parts : int, 1 <= num_parts <= num_nodes
    partitioner : {"metis", "metis-cut", "ldg", "random", "contiguous"}
        metis minimizes the rows sent (communication volume), metis-cut the cut edges; both k-way
    seed : int >= 0           of metis, random, and of ldg's random order; the same seed gives the same owners
    slack : float >= 1        ldg only: largest part over mean part
    stream_order : {"random", "natural"}    ldg only: natural visits nodes by ascending id

    Returns
    -------
    owner : (num_nodes,) int32, values < num_parts

    Raises
    ------
    ConfigError               more parts than nodes, an unknown partitioner or setting, or METIS gave up
    """
    _check_settings(dataset, num_parts, partitioner, slack, stream_order)
    if num_parts == 1:
        return np.zeros(dataset.num_nodes, np.int32)
    if partitioner == "contiguous":
        return contiguous_owners(dataset.num_nodes, num_parts)
    if partitioner == "random":
        return np.random.default_rng(seed).permutation(contiguous_owners(dataset.num_nodes, num_parts))
    if partitioner == "ldg":
        return fill_empty_parts(_ldg_owners(dataset, num_parts, seed, slack, stream_order), num_parts)
    return fill_empty_parts(_metis_owners(dataset, num_parts, seed, partitioner), num_parts)


def _check_settings(dataset: GraphDataset, num_parts: int, partitioner: str, slack: float, stream_order: str) -> None:
    if not 1 <= num_parts <= dataset.num_nodes:
        raise ConfigError(f"{dataset.name} has {dataset.num_nodes} nodes and {num_parts} parts were asked for; "
                          f"choose --parts between 1 and {dataset.num_nodes}")
    if partitioner not in PARTITIONERS:
        raise ConfigError(f"unknown partitioner {partitioner!r}; choose one of {', '.join(PARTITIONERS)}")
    if stream_order not in STREAM_ORDERS:
        raise ConfigError(f"unknown stream order {stream_order!r}; choose one of {', '.join(STREAM_ORDERS)}")
    if not 1.0 <= slack < float("inf"):
        raise ConfigError(f"the slack of ldg is {slack}; expected a number of at least 1")


def contiguous_owners(num_nodes: int, num_parts: int) -> np.ndarray:
    """Blocks of ascending ids whose sizes differ by at most one, (num_nodes,) int32."""
    size = np.full(num_parts, num_nodes // num_parts)
    size[: num_nodes % num_parts] += 1
    return np.repeat(np.arange(num_parts, dtype=np.int32), size)


def _ldg_owners(dataset: GraphDataset, num_parts: int, seed: int, slack: float, stream_order: str) -> np.ndarray:
    """One pass of part(v) = argmax_i |N(v) ∩ P_i| (1 − |P_i| / C), ties to the emptiest part, then the lowest number.

    Reference: Stanton and Kliot, KDD 2012, Linear Deterministic Greedy. Deviation: C is slack × the mean part, so
    parts may be somewhat uneven where that cuts less.
    """
    indptr, indices = symmetric_adjacency(dataset)
    order = np.arange(dataset.num_nodes, dtype=np.int32)
    if stream_order == "random":
        np.random.default_rng(seed).shuffle(order)
    capacity = max(slack * dataset.num_nodes / num_parts, -(-dataset.num_nodes // num_parts))
    owner = np.full(dataset.num_nodes, -1, np.int32)
    kernels.ldg_assign(indptr, indices, order, capacity,
                       np.zeros(num_parts, np.int64), np.zeros(num_parts, np.int64), owner)
    return owner


def _metis_owners(dataset: GraphDataset, num_parts: int, seed: int, partitioner: str) -> np.ndarray:
    """METIS k-way; a graph without edges has nothing to minimize and is cut into blocks."""
    import pymetis

    indptr, indices = symmetric_adjacency(dataset)
    if len(indices) == 0:
        return contiguous_owners(dataset.num_nodes, num_parts)
    index_type = pymetis.zero_copy_dtype()
    if len(indices) > np.iinfo(index_type).max:
        raise ConfigError(f"{dataset.name} has {len(indices)} edges, and this METIS was built for "
                          f"{8 * index_type.itemsize}-bit indices; use --partitioner ldg")
    objective = pymetis.ObjType.VOL if partitioner == "metis" else pymetis.ObjType.CUT
    graph = pymetis.CSRAdjacency(indptr.astype(index_type, copy=False), indices.astype(index_type, copy=False))
    try:
        result = pymetis.part_graph(num_parts, graph, options=pymetis.Options(objtype=objective, seed=seed),
                                    recursive=False)
    except (RuntimeError, MemoryError) as error:
        raise ConfigError(f"METIS could not partition {dataset.name} ({error}); use --partitioner ldg") from error
    return np.asarray(result.vertex_part, dtype=np.int32)


def fill_empty_parts(owner: np.ndarray, num_parts: int) -> np.ndarray:
    """Give every empty part the last node of the part that is then the largest. METIS leaves some on tiny graphs.

    Parameters
    ----------
    owner : (num_nodes,) int32, num_nodes >= num_parts; changed in place

    Returns
    -------
    owner : (num_nodes,) int32, every part occurs
    """
    size = np.bincount(owner, minlength=num_parts)
    for part in np.flatnonzero(size == 0):
        donor = size.argmax()
        owner[np.flatnonzero(owner == donor)[-1]] = part
        size[donor] -= 1
        size[part] += 1
    return owner
