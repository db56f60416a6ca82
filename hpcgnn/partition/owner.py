"""Chooses the part that owns each node: by a partitioner, or from the user's array or file.

Partitioners: KaMinPar followed by a refinement (the default), METIS, streaming LDG, random, contiguous.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn._ext import ldg as kernels
from hpcgnn.data.columns import as_numbers
from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.ids import NodeRows
from hpcgnn.data.node_files import read_node_file
from hpcgnn.data.options import Progress, SourceOptions, silent
from hpcgnn.data.text_table import TextTable
from hpcgnn.errors import ConfigError
from hpcgnn.partition.choices import (
    BALANCES,
    DEFAULT_LAYERS,
    DEFAULT_PARTITIONER,
    EDGES_A_NODE,
    PARTITIONERS,
    TRAINING,
    WEIGHING_PARTITIONERS,
    default_balance,
)
from hpcgnn.partition.kaminpar import kaminpar_parts
from hpcgnn.partition.metis import metis_parts, symmetric_adjacency
from hpcgnn.partition.refinement import PASSES, Refinement, load_limits, refine_owners
from hpcgnn.partition.work import TrainingWork


def own_parts(partitioner: Any, owner: Any = None) -> Any:
    """The user's array, or path of a file or of shards, with the part of each node; None for a partitioner.

    Raises ConfigError for anything else.
    """
    given = partitioner if owner is None else owner
    if isinstance(given, Path) or (isinstance(given, str) and given not in PARTITIONERS):
        if not Path(given).exists():
            raise ConfigError(f"unknown partitioner {str(given)!r}; choose one of {', '.join(PARTITIONERS)}, or give a "
                              "file with the part of each node, or a folder of shards whose parts are kept")
        return Path(given)
    return None if isinstance(given, str) else given


def read_own_parts(given: Any, dataset: GraphDataset, num_parts: int) -> np.ndarray:
    """Read the part of each node, (num_nodes,) int32, from a column of any library or a file.

    A file is .npy, or text with one part per line in the order of nodes, or with lines id,part. ConfigError for another
    number of nodes, a part outside 0 .. num_parts - 1, or a part without a node; DatasetError for a file that is
    missing or malformed, or an unknown id.
    """
    what = f"the parts of nodes in {given}" if isinstance(given, Path) else "the parts of nodes"
    row = None
    if isinstance(given, Path):
        has_ids = True if given.suffix != ".npy" and not TextTable(given).num_unnamed else None     # if two columns
        file = read_node_file(given, np.float64, SourceOptions(), has_ids)
        given = np.asarray(file.values) if hasattr(file.values, "shape") else file.values
        if file.ids is not None:
            NodeRows(file.ids, str(file.path))      # raises an error if the file names an id twice
            rows = NodeRows(np.arange(dataset.num_nodes) if dataset.node_name is None else dataset.node_name,
                            dataset.name)
            row = rows.find(file.ids, f"a row of {file.path.name} that refers")
    part = as_numbers(given, what)
    part = part[:, 0] if part.ndim == 2 and part.shape[1] == 1 else part
    if part.shape != (dataset.num_nodes,):
        raise ConfigError(f"{what} have shape {part.shape}, and {dataset.name} has {dataset.num_nodes} nodes; expected "
                          "a part for each")
    if row is not None:
        ordered = np.empty_like(part)
        ordered[row] = part
        part = ordered
    is_bad = ~((part >= 0) & (part < num_parts) & (np.floor(part) == part))
    if is_bad.any():
        node = int(np.argmax(is_bad))
        from_one = "; these count from 1, so subtract 1" * bool(part.min() == 1 and part.max() == num_parts)
        raise ConfigError(f"{what} put node {dataset.name_of(node)} into part {part[node]:g}; expected whole numbers "
                          f"from 0 to {num_parts - 1}, as parts is {num_parts}{from_one}")
    count = np.bincount(part.astype(np.int64), minlength=num_parts)
    if (count == 0).any():
        raise ConfigError(f"{what} leave part {int(np.argmin(count))} of {num_parts} without a node; expected at least "
                          "one in each")
    return part.astype(np.int32)


SLACK = 1.05     # largest ratio of a part to the mean in ldg; more even parts would cut many more edges
REFINED_SLACK = 1.03     # the same ratio for the quantity that kaminpar balances, after its refinement


def assign_owners(dataset: GraphDataset, num_parts: int, partitioner: str = DEFAULT_PARTITIONER, seed: int = 0,
                  balance: str | None = None, work: TrainingWork | None = None) -> np.ndarray:
    """The owner of every node, without the counts of its refinement; see `choose_owners`."""
    return choose_owners(dataset, num_parts, partitioner, seed, balance, work=work)[0]


def choose_owners(dataset: GraphDataset, num_parts: int, partitioner: str = DEFAULT_PARTITIONER, seed: int = 0,
                  balance: str | None = None,
                  scratch: Path | None = None, progress: Progress = silent,
                  work: TrainingWork | None = None) -> tuple[np.ndarray, Refinement | None]:
    """Choose the owner of every node, (num_nodes,) int32. No part is empty; the same seed gives the same owners.

    Parameters
    ----------
    dataset : GraphDataset    a directed graph is taken as undirected here
    partitioner : {"kaminpar", "metis", "metis-cut", "ldg", "random", "contiguous"}
        kaminpar minimizes cut edges, then the rows sent; metis minimizes the rows sent, metis-cut the cut edges
    balance : {"nodes", "edges", "both", "training"} or None
        quantity that all parts share about equally: nodes, in-edges, EDGES_A_NODE x nodes + in-edges, or the work of
        `work`. None: both, or nodes if the partitioner takes no weights

    Returns
    -------
    owner : (num_nodes,) int32, values < num_parts
    refinement : Refinement   counts of kaminpar's refinement; None for other partitioners, or a graph without edges

    Raises
    ------
    ConfigError               more parts than nodes, an unknown partitioner or setting, or the partitioner gave up
    """
    balance = balance or default_balance(partitioner)
    _check_settings(dataset, num_parts, partitioner, balance)
    if num_parts == 1:
        return np.zeros(dataset.num_nodes, np.int32), None
    if partitioner == "contiguous":
        return contiguous_owners(dataset.num_nodes, num_parts), None
    if partitioner == "random":
        return np.random.default_rng(seed).permutation(contiguous_owners(dataset.num_nodes, num_parts)), None
    if partitioner == "ldg":
        return fill_empty_parts(_ldg_owners(dataset, num_parts, seed, scratch, progress), num_parts), None
    indptr, indices = symmetric_adjacency(dataset, scratch=scratch, progress=progress)
    if len(indices) == 0:     # nothing to minimize
        return contiguous_owners(dataset.num_nodes, num_parts), None
    weight = node_weight(dataset, balance, work)
    progress(f"partitioning with {partitioner}", None)     # neither library reports its progress
    if partitioner == "kaminpar":
        return _refined_owners(indptr, indices, num_parts, seed, weight, dataset.name, progress)
    objective = "volume" if partitioner == "metis" else "cut"
    return fill_empty_parts(metis_parts(indptr, indices, num_parts, objective, seed, weight, dataset.name),
                            num_parts), None


def _check_settings(dataset: GraphDataset, num_parts: int, partitioner: str, balance: str) -> None:
    if not 1 <= num_parts <= dataset.num_nodes:
        raise ConfigError(f"{dataset.name} has {dataset.num_nodes} nodes and {num_parts} parts were asked for; "
                          f"choose --parts between 1 and {dataset.num_nodes}")
    if partitioner not in PARTITIONERS:
        raise ConfigError(f"unknown partitioner {partitioner!r}; choose one of {', '.join(PARTITIONERS)}")
    if balance not in BALANCES:
        raise ConfigError(f"unknown balance {balance!r}; choose one of {', '.join(BALANCES)}")
    if balance != "nodes" and partitioner not in WEIGHING_PARTITIONERS:
        raise ConfigError(f"partitioner {partitioner} balances nodes only, and balance {balance} was asked for; "
                          "use --partitioner kaminpar or --balance nodes")


def contiguous_owners(num_nodes: int, num_parts: int) -> np.ndarray:
    """Blocks of ascending ids, equal in size up to one node, (num_nodes,) int32."""
    size = np.full(num_parts, num_nodes // num_parts)
    size[: num_nodes % num_parts] += 1
    return np.repeat(np.arange(num_parts, dtype=np.int32), size)


def _ldg_owners(dataset: GraphDataset, num_parts: int, seed: int, scratch: Path | None,
                progress: Progress) -> np.ndarray:
    # Make one pass of part(v) = argmax_i |N(v) ∩ P_i| (1 − |P_i| / C); ties go to the emptiest, then the lowest part.
    # Reference: Stanton and Kliot, KDD 2012, Linear Deterministic Greedy. Deviation: C is SLACK × the mean part, so
    # parts may be somewhat uneven where that cuts less.
    indptr, indices = symmetric_adjacency(dataset, scratch=scratch, progress=progress)
    progress("partitioning with ldg", None)
    order = np.arange(dataset.num_nodes, dtype=np.int32)
    np.random.default_rng(seed).shuffle(order)
    return _deal(indptr, indices, order, np.full(dataset.num_nodes, -1, np.int32), num_parts)


def _deal(indptr: np.ndarray, indices: np.ndarray, order: np.ndarray, owner: np.ndarray, num_parts: int) -> np.ndarray:
    # Gives the nodes of `order`, whose owner is -1, to parts, in place.
    capacity = max(SLACK * len(owner) / num_parts, -(-len(owner) // num_parts))
    size = np.bincount(owner[owner >= 0], minlength=num_parts)
    kernels.ldg_assign(indptr, indices, order, capacity, np.zeros(num_parts, np.int64), size, owner)
    return owner


def place_new_nodes(dataset: GraphDataset, owner: np.ndarray, num_parts: int) -> np.ndarray:
    """Give each node whose `owner`, (num_nodes,) int32, is -1 to the part with most of its neighbors that has room.

    As `ldg`, in the order of the nodes; the others keep their part. Returns owners without empty parts.
    """
    new = np.flatnonzero(owner < 0).astype(np.int32)
    if len(new):
        _deal(*symmetric_adjacency(dataset), new, owner, num_parts)
    return fill_empty_parts(owner, num_parts)


def _refined_owners(indptr: np.ndarray, indices: np.ndarray, num_parts: int, seed: int, weight: np.ndarray | None,
                    name: str, progress: Progress) -> tuple[np.ndarray, Refinement]:
    owner = fill_empty_parts(kaminpar_parts(indptr, indices, num_parts, seed, weight, name), num_parts)
    load = np.ones((len(owner), 1), np.int64) if weight is None else weight.astype(np.int64)[:, None]
    task = progress("refining parts", PASSES * len(owner))
    return refine_owners(indptr, indices, owner, num_parts, load, load_limits(load, num_parts, (REFINED_SLACK,)), task)


def node_weight(dataset: GraphDataset, balance: str, work: TrainingWork | None = None) -> np.ndarray | None:
    """Weight that each node adds to its part's load, (num_nodes,) int64; None if all weigh the same."""
    if balance == "nodes":
        return None
    if balance == TRAINING:
        return (work or TrainingWork(DEFAULT_LAYERS)).weight(dataset)
    # A node without in-edges counts as one edge, or one part might get all of them.
    return np.maximum(dataset.in_degree(), 1) if balance == "edges" else dataset.in_degree() + EDGES_A_NODE


def fill_empty_parts(owner: np.ndarray, num_parts: int) -> np.ndarray:
    """Give each empty part the largest part's last node, in place; partitioners leave parts empty on tiny graphs."""
    size = np.bincount(owner, minlength=num_parts)
    for part in np.flatnonzero(size == 0):
        donor = size.argmax()
        owner[np.flatnonzero(owner == donor)[-1]] = part
        size[donor] -= 1
        size[part] += 1
    return owner
