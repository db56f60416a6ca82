"""Builds one part of a graph in local numbering, from the owner of every node.

Example: nodes 0..3 form a ring, and rank 0 owns 0 and 1. Its inner rows are [0, 1], both marginal, as each has a
neighbor on rank 1. Its halo rows are [2, 3], local rows 2 and 3. The same edges make nodes 0 and 1 the halo of rank 1,
so rank 0 sends rows [0, 1] to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.data.dataset import GraphDataset, feature_rows
from hpcgnn.errors import ConfigError
from hpcgnn.partition.order import order_rows
from hpcgnn.partition.partition import Halo, Partition, find_halos, node_importance, row_blocks, row_positions


@dataclass(frozen=True)
class Cut:
    """A graph that is cut into parts: what all parts are built from.

    owner : (num_nodes,) int32
    halos : list of Halo                     halos of all parts
    cluster : (num_nodes,) int32 or None     cluster of each node, see cluster_nodes
    importance : (num_nodes,) float32        importance of each node, see node_importance
    """

    dataset: GraphDataset
    owner: np.ndarray
    halos: list[Halo]
    cluster: np.ndarray | None = None
    importance: np.ndarray | None = None

    @property
    def num_parts(self) -> int:
        return len(self.halos)


def build_partition(dataset: GraphDataset, owner: np.ndarray, part: int, num_parts: int,
                    halos: list[Halo] | None = None, reorder: str = "none", seed: int = 0,
                    cluster: np.ndarray | None = None) -> Partition:
    """Build one part of a graph: its inner rows, its halo rows, and the edges into its inner rows.

    Parameters
    ----------
    dataset : GraphDataset
    owner : (num_nodes,) int32          part of each node
    part, num_parts : int
    halos : list of Halo or None        of all parts; None: they are computed
    reorder : {"none", "nested", "metis", "degree", "rcm", "condense-edge"}      order of the inner rows
    seed : int                          of the partitioner that makes clusters for an order
    cluster : (num_nodes,) int32 or None     cluster of each node, for training in steps

    Raises
    ------
    ConfigError               part or owner does not fit num_parts, an unknown order, or more rows than 32-bit ids name
    """
    _check_owner(dataset, owner, part, num_parts)
    halos = find_halos(dataset, owner, num_parts) if halos is None else halos
    return partition_of(Cut(dataset, owner, halos, cluster, node_importance(dataset, halos)), part,
                        order_rows(dataset, np.flatnonzero(owner == part), reorder, seed))


def partition_of(cut: Cut, part: int, ordered: np.ndarray) -> Partition:
    """Build one part, its rows in the order `ordered`, (num_inner,) int64.

    Within a row, `indices` keep the global ascending order, so a row is summed in the same order for any number of
    parts. ConfigError for more rows than 32-bit ids can name.
    """
    dataset, halo = cut.dataset, cut.halos[part]
    inner_id, num_central = _central_first(dataset, cut.owner, part, ordered)
    local_index = _local_index(dataset.num_nodes, inner_id, halo.node_id)
    indptr, indices = _local_rows(dataset, inner_id, local_index)
    boundary_index, boundary_offset = _boundary(cut.halos, part, cut.num_parts, local_index)
    known_id = np.concatenate([inner_id, halo.node_id])
    return Partition(
        part=part, num_parts=cut.num_parts, num_nodes_global=dataset.num_nodes, num_central=num_central,
        inner_id=inner_id, halo_id=halo.node_id, halo_offset=halo.offset,
        boundary_index=boundary_index, boundary_offset=boundary_offset,
        indptr=indptr, indices=indices,
        in_degree=(dataset.indptr[known_id + 1] - dataset.indptr[known_id]).astype(np.int32),
        importance=cut.importance[known_id],
        features=feature_rows(dataset, inner_id),
        **{name: getattr(dataset, name)[inner_id] for name in ("labels", "train_mask", "val_mask", "test_mask")},
        **{name: _of_local_edges(dataset, inner_id, getattr(dataset, name))
           for name in ("edge_weight", "edge_type", "edge_attr")},
        inner_name=None if dataset.node_name is None else dataset.node_name[inner_id],
        cluster=None if cut.cluster is None else cut.cluster[inner_id],
        held_out=None if dataset.held_out is None else
        dataset.held_out[(cut.owner[dataset.held_out[:, :2]] == part).any(axis=1)],
    )


def _check_owner(dataset: GraphDataset, owner: np.ndarray, part: int, num_parts: int) -> None:
    if not 0 <= part < num_parts:
        raise ConfigError(f"part {part} does not exist; parts run from 0 to {num_parts - 1}")
    if owner.shape != (dataset.num_nodes,):
        raise ConfigError(f"owner has shape {owner.shape}; expected one entry for each of {dataset.num_nodes} nodes")
    if owner.min() < 0 or owner.max() >= num_parts:
        raise ConfigError(f"owner names parts {owner.min()} to {owner.max()}; parts run from 0 to {num_parts - 1}")


def _central_first(dataset: GraphDataset, owner: np.ndarray, part: int,
                   inner_id: np.ndarray) -> tuple[np.ndarray, int]:
    is_marginal = np.zeros(len(inner_id), bool)
    for first, degree, sources in row_blocks(dataset, inner_id):
        row = np.repeat(np.arange(first, first + len(degree)), degree)
        is_marginal[row[owner[sources] != part]] = True
    central, marginal = inner_id[~is_marginal], inner_id[is_marginal]
    return np.concatenate([central, marginal]), len(central)


def _local_index(num_nodes: int, inner_id: np.ndarray, halo_id: np.ndarray) -> np.ndarray:
    num_local = len(inner_id) + len(halo_id)
    if num_local > np.iinfo(np.int32).max:
        raise ConfigError(f"a part has {num_local} inner and halo rows, more than 32-bit ids can name; "
                          "use more --parts")
    local_index = np.full(num_nodes, -1, np.int32)
    local_index[inner_id] = np.arange(len(inner_id), dtype=np.int32)
    local_index[halo_id] = np.arange(len(inner_id), num_local, dtype=np.int32)
    return local_index


def _local_rows(dataset: GraphDataset, inner_id: np.ndarray, local_index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    indptr = np.zeros(len(inner_id) + 1, np.int64)
    np.cumsum(dataset.indptr[inner_id + 1] - dataset.indptr[inner_id], out=indptr[1:])
    indices = np.empty(indptr[-1], np.int32)
    for first, degree, sources in row_blocks(dataset, inner_id):
        indices[indptr[first]:indptr[first + len(degree)]] = local_index[sources]
    return indptr, indices


def _of_local_edges(dataset: GraphDataset, inner_id: np.ndarray, values: np.ndarray | None) -> np.ndarray | None:
    if values is None:
        return None
    num_edges = int((dataset.indptr[inner_id + 1] - dataset.indptr[inner_id]).sum())
    found, done = np.empty((num_edges, *values.shape[1:]), values.dtype), 0
    for _, _, position in row_positions(dataset, inner_id):
        found[done:done + len(position)] = values[position]
        done += len(position)
    return found


def _boundary(halos: list[Halo], part: int, num_parts: int, local_index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    asked = [halo.node_id[halo.offset[part]:halo.offset[part + 1]] for halo in halos]
    offset = np.zeros(num_parts + 1, np.int64)
    np.cumsum([len(ids) for ids in asked], out=offset[1:])
    return local_index[np.concatenate(asked)], offset
