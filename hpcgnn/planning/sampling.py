"""Estimates loads: of many parts from a region of the graph, and of a larger graph from a smaller one.

A region is one part of a coarse cut, which is cut again. Each of its parts could be a part of the whole graph's cut,
and all rows that it needs are counted.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import scipy.sparse

from hpcgnn.data.dataset import GraphDataset
from hpcgnn.errors import ConfigError
from hpcgnn.partition.owner import assign_owners
from hpcgnn.planning.loads import Pairs, PartLoads, count_loads


@dataclass(frozen=True)
class GraphSizes:
    """Sizes of a graph. Edges count both directions; `train` 0 means the smaller graph's share of training nodes."""

    nodes: int
    edges: int
    features: int
    classes: int
    train: int = 0


def parse_sizes(text: str) -> GraphSizes:
    """Read "nodes=111059956,edges=3228124712,features=128,classes=172".

    Raises
    ------
    ConfigError      a size is missing, unknown, given twice or not a positive whole number
    """
    names, found = [own.name for own in fields(GraphSizes)], {}
    for item in text.split(","):
        name, _, number = item.strip().partition("=")
        if name not in names:
            raise ConfigError(f"--as has {item.strip()!r}; expected {', '.join(f'{known}=N' for known in names)}")
        if name in found or not number.isdigit() or int(number) == 0:
            raise ConfigError(f"--as has {item.strip()!r}; expected {name}=N once, with a positive whole number N")
        found[name] = int(number)
    missing = [name for name in names if name not in found and name != "train"]
    if missing:
        raise ConfigError(f"--as lacks {missing[0]}=N; expected {', '.join(f'{name}=N' for name in names)}")
    return GraphSizes(**found)


def drawn_training_nodes(num_nodes: int, larger: GraphSizes, seed: int) -> np.ndarray:
    """Draw as large a share of a smaller graph's nodes as the larger graph trains on, (num_nodes,) bool."""
    chosen = np.zeros(num_nodes, bool)
    count = max(1, round(num_nodes * min(1.0, larger.train / larger.nodes)))
    chosen[np.random.default_rng(seed).choice(num_nodes, count, replace=False)] = True
    return chosen


def scaled_loads(loads: PartLoads, larger: GraphSizes, smaller: GraphSizes) -> PartLoads:
    """Even the parts out and grow them: rows with the nodes, edges with the edges, and halo rows with the rows.

    The larger graph is taken to look the same at its own size, cut into as many parts, so a part keeps its ratio of
    halo rows to rows. Denser graphs have more halo rows, up to all; graphs of local structure have fewer, the larger
    their parts. All parts get the mean's rows and edges, since a part that a hub fills alone says nothing about one
    that is hundreds of times as large: how uneven a cut of the larger graph would be is not predicted.
    """
    loads = evened(loads)
    rows, arcs = larger.nodes / smaller.nodes, larger.edges / smaller.edges
    growth = {"num_inner": rows, "num_halo": rows, "rows_within": rows, "num_edges": arcs, "arcs_within": arcs,
              "far_arcs_within": arcs, "central_arcs_within": arcs}
    grown: dict[str, Any] = {name: _times(getattr(loads, name), factor) for name, factor in growth.items()}
    pairs = loads.pairs
    return replace(loads, pairs=Pairs(pairs.source, pairs.destination, _times(pairs.rows_within, rows),
                                      _times(pairs.rows, rows)), **grown)


def evened(loads: PartLoads) -> PartLoads:
    """Give all parts the mean's rows and edges; each receives from the same parts as before, in proportion."""
    amounts = {own.name: getattr(loads, own.name) for own in fields(loads)
               if isinstance(getattr(loads, own.name), np.ndarray)}
    means: dict[str, Any] = {
        name: np.repeat(amount.mean(axis=0, keepdims=True), loads.num_parts, axis=0)
        for name, amount in amounts.items()}
    pairs = loads.pairs
    shares = [column * _ratio(column, pairs.destination, loads.num_parts)[pairs.destination]
              for column in (*pairs.rows_within.T, pairs.rows)]
    even = Pairs(pairs.source, pairs.destination, np.stack(shares[:-1], axis=1), shares[-1])
    return replace(loads, pairs=even, shared=None, **means)


def _ratio(rows: np.ndarray, destination: np.ndarray, num_parts: int) -> np.ndarray:
    received = np.bincount(destination, weights=rows, minlength=num_parts)
    return received.mean() / np.maximum(received, 1)


def _times(amount: np.ndarray, factor: float) -> np.ndarray:
    return np.round(amount * factor).astype(np.int64)


MOST_ARCS = 2e8       # most edges of a graph that is cut as a whole
FEWEST_PARTS = 4      # fewest parts of a region


@dataclass(frozen=True)
class Region:
    """Nodes that lie together: node_id (n,) int64 ascending, and their share of all nodes."""

    node_id: np.ndarray
    share: float


def least_share(share: float, num_parts: int) -> float:
    """Share of the graph to cut for `num_parts` parts: at least `share` and FEWEST_PARTS, 1 / k for a whole k."""
    pieces = min(int(1 / share), num_parts // FEWEST_PARTS)
    return 1.0 if pieces < 2 else 1 / pieces


def sample_region(dataset: GraphDataset, share: float, seed: int, balance: str | None, partitioner: str) -> Region:
    """Cut the graph into 1 / share pieces and take the one with edges nearest to the mean."""
    pieces = round(1 / share)
    owner = assign_owners(dataset, pieces, partitioner, seed, balance)
    arcs = np.bincount(owner, weights=np.diff(dataset.indptr), minlength=pieces)
    node_id = np.flatnonzero(owner == np.abs(arcs - arcs.mean()).argmin())
    return Region(node_id, len(node_id) / dataset.num_nodes)


def loads_of_region(dataset: GraphDataset, region: Region, num_parts: int, hops: np.ndarray, num_hops: int, seed: int,
                    balance: str | None, partitioner: str) -> PartLoads:
    """Estimate the loads of `num_parts` parts of the whole graph; `hops`, (num_nodes,) int32, are the whole graph's."""
    own_parts = max(2, round(num_parts * region.share))
    inside = _induced(dataset, region.node_id)
    owner = np.full(dataset.num_nodes, -1, np.int32)
    owner[region.node_id] = assign_owners(inside, own_parts, partitioner, seed, balance)
    counted = count_loads(dataset.indptr, dataset.indices, dataset.train_mask, owner, own_parts, num_hops, hops)
    return spread(counted, num_parts, dataset.num_nodes / len(region.node_id))


def spread(counted: PartLoads, num_parts: int, times: float) -> PartLoads:
    """Repeat the parts of a region until there are `num_parts`, `times` as large in all.

    A part's halo rows come from the parts that are nearest by number. Their count follows from the size of a message,
    which is taken to be the same from inside and outside the region.
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
    arcs = scipy.sparse.csr_matrix((np.ones(dataset.num_edges, np.int8), dataset.indices, dataset.indptr),
                                   shape=2 * (dataset.num_nodes,))[node_id][:, node_id]
    return replace(dataset, indptr=arcs.indptr.astype(np.int64), indices=arcs.indices.astype(dataset.indices.dtype),
                   features=np.empty((len(node_id), 0), np.float32), labels=dataset.labels[node_id],
                   edge_weight=None, edge_type=None, edge_attr=None, relation_names=(), node_name=None,
                   **{name: getattr(dataset, name)[node_id] for name in ("train_mask", "val_mask", "test_mask")})
