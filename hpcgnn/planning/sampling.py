"""Estimate the loads of many parts from those of a region of the graph: a part of a coarse cut, cut again.

A part of the region is one that the whole graph's cut might have, and all rows that it needs are counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hpcgnn.datasets.dataset import GraphDataset
from hpcgnn.partition.owner import assign_owners
from hpcgnn.planning.loads import Pairs, PartLoads, count_loads

MOST_ARCS = 2e8       # of a graph that is cut as a whole
FEWEST_PARTS = 4      # of a region


@dataclass(frozen=True)
class Region:
    """Some nodes that lie together: node_id (n,) int64 ascending, and the share of all nodes that they are."""

    node_id: np.ndarray
    share: float


def least_share(share: float, num_parts: int) -> float:
    """Return the share of the graph to cut for so many parts: of 1 / k of it for a whole k, and FEWEST_PARTS at least.
    """
    pieces = min(int(1 / share), num_parts // FEWEST_PARTS)
    return 1.0 if pieces < 2 else 1 / pieces


def sample_region(dataset: GraphDataset, share: float, seed: int, balance: str | None, partitioner: str) -> Region:
    """Cut the graph into 1 / share pieces and take the one whose arcs are nearest to the mean."""
    pieces = round(1 / share)
    owner = assign_owners(dataset, pieces, partitioner, seed, balance)
    arcs = np.bincount(owner, weights=np.diff(dataset.indptr), minlength=pieces)
    node_id = np.flatnonzero(owner == np.abs(arcs - arcs.mean()).argmin())
    return Region(node_id, len(node_id) / dataset.num_nodes)


def loads_of_region(dataset: GraphDataset, region: Region, num_parts: int, hops: np.ndarray, num_hops: int, seed: int,
                    balance: str | None, partitioner: str) -> PartLoads:
    """Estimate the loads of num_parts parts of the whole graph.

    Parameters
    ----------
    hops : (num_nodes,) int32      of the whole graph, see `hops_to_loss`
    """
    own_parts = max(2, round(num_parts * region.share))
    inside = _induced(dataset, region.node_id)
    owner = np.full(dataset.num_nodes, -1, np.int32)
    owner[region.node_id] = assign_owners(inside, own_parts, partitioner, seed, balance)
    counted = count_loads(dataset.indptr, dataset.indices, dataset.train_mask, owner, own_parts, num_hops, hops)
    return spread(counted, num_parts, dataset.num_nodes / len(region.node_id))


def spread(counted: PartLoads, num_parts: int, times: float) -> PartLoads:
    """Repeat the parts of a region until there are num_parts, so many `times` as large in all.

    Each part's halo rows come from as many parts as it would need if rows from outside came in as large messages as
    those from inside; these parts are the nearest by number.
    """
    part = np.arange(num_parts) % counted.num_parts
    scale = times * counted.num_parts / num_parts
    known = {name: np.round(getattr(counted, name)[part] * scale).astype(np.int64)
             for name in ("num_inner", "num_halo", "num_edges", "rows_within", "arcs_within", "far_arcs_within",
                          "central_arcs_within")}
    return replace(counted, num_parts=num_parts, pairs=_spread_pairs(counted, part, scale), **known)


def _spread_pairs(counted: PartLoads, part: np.ndarray, scale: float) -> Pairs:
    pairs, num_parts = counted.pairs, len(part)
    is_inside = pairs.source < counted.num_parts
    inside = np.bincount(pairs.destination[is_inside], minlength=counted.num_parts)
    rows = np.bincount(pairs.destination[is_inside], weights=pairs.rows[is_inside], minlength=counted.num_parts)
    halo = counted.num_halo
    neighbors = np.ceil(inside * halo / np.maximum(rows, 1)).astype(np.int64)
    neighbors = np.minimum(np.where(halo > 0, np.maximum(neighbors, 1), 0), num_parts - 1)[part]
    within = np.stack([np.bincount(pairs.destination, weights=column, minlength=counted.num_parts)
                       for column in (*pairs.rows_within.T, pairs.rows)], axis=1)[part]
    destination = np.repeat(np.arange(num_parts), neighbors)
    number = np.arange(len(destination)) - np.repeat(np.cumsum(neighbors) - neighbors, neighbors)
    offset = np.where(number % 2 == 0, number // 2 + 1, -(number // 2 + 1))      # 1, -1, 2, -2, ..
    shared = np.round(within[destination] * scale / neighbors[destination][:, None]).astype(np.int64)
    source = (destination + offset) % num_parts
    order = np.lexsort((destination, source))
    return Pairs(source[order], destination[order], shared[order, :-1], shared[order, -1])


def _induced(dataset: GraphDataset, node_id: np.ndarray) -> GraphDataset:
    """Return the graph of some nodes and the arcs between them."""
    local = np.full(dataset.num_nodes, -1, np.int64)
    local[node_id] = np.arange(len(node_id))
    degree = np.diff(dataset.indptr)[node_id]
    position = np.arange(degree.sum()) + np.repeat(dataset.indptr[node_id] - np.cumsum(degree) + degree, degree)
    sources, target = local[dataset.indices[position]], np.repeat(np.arange(len(node_id)), degree)
    is_inside = sources >= 0
    indptr = np.concatenate([[0], np.cumsum(np.bincount(target[is_inside], minlength=len(node_id)))])
    return replace(dataset, indptr=indptr, indices=sources[is_inside].astype(dataset.indices.dtype),
                   features=np.empty((len(node_id), 0), np.float32), labels=dataset.labels[node_id],
                   edge_weight=None, node_name=None,
                   **{name: getattr(dataset, name)[node_id] for name in ("train_mask", "val_mask", "test_mask")})
