"""Choose the part that owns each node: METIS, streaming LDG, random or contiguous. No part is built here."""

from __future__ import annotations

import numpy as np

from hpcgnn._ext import ldg as kernels
from hpcgnn.datasets.dataset import GraphDataset
from hpcgnn.errors import ConfigError
from hpcgnn.partition.adjacency import symmetric_adjacency
from hpcgnn.partition.choices import BALANCES, EDGES_A_NODE, METIS_PARTITIONERS, PARTITIONERS, default_balance
from hpcgnn.partition.metis import metis_parts

SLACK = 1.05     # largest part over mean part that ldg may make; balanced parts cost it many more cut arcs


def assign_owners(dataset: GraphDataset, num_parts: int, partitioner: str = "metis", seed: int = 0,
                  balance: str | None = None) -> np.ndarray:
    """Choose the owner of every node. No part is empty.

    Parameters
    ----------
    dataset : GraphDataset    a directed graph is taken as undirected, for this choice only
    num_parts : int, 1 <= num_parts <= num_nodes
    partitioner : {"metis", "metis-cut", "ldg", "random", "contiguous"}
        metis minimizes the rows sent (communication volume), metis-cut the cut edges; both k-way
    seed : int >= 0           of metis, of random and of the order in which ldg visits nodes; the same
        seed gives the same owners
    balance : {"nodes", "edges", "both"}    what the parts have about equally much of: nodes, in-edges, or the work of
        both, EDGES_A_NODE x nodes + in-edges; None is default_balance(partitioner)

    Returns
    -------
    owner : (num_nodes,) int32, values < num_parts

    Raises
    ------
    ConfigError               more parts than nodes, an unknown partitioner or setting, or METIS gave up
    """
    balance = balance or default_balance(partitioner)
    _check_settings(dataset, num_parts, partitioner, balance)
    if num_parts == 1:
        return np.zeros(dataset.num_nodes, np.int32)
    if partitioner == "contiguous":
        return contiguous_owners(dataset.num_nodes, num_parts)
    if partitioner == "random":
        return np.random.default_rng(seed).permutation(contiguous_owners(dataset.num_nodes, num_parts))
    if partitioner == "ldg":
        return fill_empty_parts(_ldg_owners(dataset, num_parts, seed), num_parts)
    return fill_empty_parts(_metis_owners(dataset, num_parts, seed, partitioner, balance), num_parts)


def _check_settings(dataset: GraphDataset, num_parts: int, partitioner: str, balance: str) -> None:
    if not 1 <= num_parts <= dataset.num_nodes:
        raise ConfigError(f"{dataset.name} has {dataset.num_nodes} nodes and {num_parts} parts were asked for; "
                          f"choose --parts between 1 and {dataset.num_nodes}")
    if partitioner not in PARTITIONERS:
        raise ConfigError(f"unknown partitioner {partitioner!r}; choose one of {', '.join(PARTITIONERS)}")
    if balance not in BALANCES:
        raise ConfigError(f"unknown balance {balance!r}; choose one of {', '.join(BALANCES)}")
    if balance != "nodes" and partitioner not in METIS_PARTITIONERS:
        raise ConfigError(f"partitioner {partitioner} balances nodes only, and balance {balance} was asked for; "
                          "use --partitioner metis or --balance nodes")


def contiguous_owners(num_nodes: int, num_parts: int) -> np.ndarray:
    """Return blocks of ascending ids whose sizes differ by at most one, (num_nodes,) int32."""
    size = np.full(num_parts, num_nodes // num_parts)
    size[: num_nodes % num_parts] += 1
    return np.repeat(np.arange(num_parts, dtype=np.int32), size)


def _ldg_owners(dataset: GraphDataset, num_parts: int, seed: int) -> np.ndarray:
    """Make one pass of part(v) = argmax_i |N(v) ∩ P_i| (1 − |P_i| / C); ties go to the emptiest, then the lowest part.

    Reference: Stanton and Kliot, KDD 2012, Linear Deterministic Greedy. Deviation: C is SLACK × the mean part, so
    parts may be somewhat uneven where that cuts less.
    """
    indptr, indices = symmetric_adjacency(dataset)
    order = np.arange(dataset.num_nodes, dtype=np.int32)
    np.random.default_rng(seed).shuffle(order)
    capacity = max(SLACK * dataset.num_nodes / num_parts, -(-dataset.num_nodes // num_parts))
    owner = np.full(dataset.num_nodes, -1, np.int32)
    kernels.ldg_assign(indptr, indices, order, capacity,
                       np.zeros(num_parts, np.int64), np.zeros(num_parts, np.int64), owner)
    return owner


def _metis_owners(dataset: GraphDataset, num_parts: int, seed: int, partitioner: str, balance: str) -> np.ndarray:
    """Return METIS's k-way cut; a graph without edges has nothing to minimize and is cut into blocks."""
    indptr, indices = symmetric_adjacency(dataset)
    if len(indices) == 0:
        return contiguous_owners(dataset.num_nodes, num_parts)
    objective = "volume" if partitioner == "metis" else "cut"
    return metis_parts(indptr, indices, num_parts, objective, seed, node_weight(dataset, balance), dataset.name)


def node_weight(dataset: GraphDataset, balance: str) -> np.ndarray | None:
    """Return what each node adds to its part's load, (num_nodes,) int64, or None where all nodes weigh the same."""
    if balance == "nodes":
        return None
    # A node without in-edges counts as one edge, or one part might get all of them.
    return np.maximum(dataset.in_degree(), 1) if balance == "edges" else dataset.in_degree() + EDGES_A_NODE


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
