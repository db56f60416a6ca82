"""Brute-force oracle of Partition and small random graphs. Nothing of hpcgnn.partition is called."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse

from hpcgnn.data.dataset import CleaningReport, GraphDataset


def random_dataset(num_nodes: int, num_arcs: int, seed: int = 0, directed: bool = False, num_features: int = 3,
                   multi_label: bool = False, sparse: bool = False) -> GraphDataset:
    """A graph of uniformly drawn arcs without loops and duplicates; feature column 0 is the node id."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, num_nodes, (2, num_arcs))
    ends = ends[:, ends[0] != ends[1]]
    if not directed:
        ends = np.concatenate([ends, ends[::-1]], axis=1)
    arcs = scipy.sparse.coo_matrix((np.ones(ends.shape[1]), tuple(ends)), shape=(num_nodes, num_nodes)).tocsr()
    arcs.sort_indices()
    features = rng.normal(size=(num_nodes, num_features)).astype(np.float32)
    features[:, 0] = np.arange(num_nodes)
    if sparse:
        features[:, 1:] *= rng.random((num_nodes, num_features - 1)) < 0.1
        features = scipy.sparse.csr_matrix(features)
    split = rng.integers(0, 3, num_nodes)
    split[0] = 0
    labels = rng.integers(0, 2, (num_nodes, 4)).astype(np.uint8) if multi_label else rng.integers(0, 4, num_nodes)
    return GraphDataset(
        name="random", indptr=arcs.indptr.astype(np.int64), indices=arcs.indices.astype(np.int32), features=features,
        labels=labels, num_classes=4, train_mask=split == 0, val_mask=split == 1, test_mask=split == 2,
        cleaning=CleaningReport(source_edges=num_arcs, is_symmetric=not directed, remarks=("drawn at random",)),
    ).check()


def with_relations(dataset: GraphDataset, num_relations: int = 5, seed: int = 0) -> GraphDataset:
    """The graph with a relation drawn for each arc, the last one seldom; every fourth arc comes again by the next."""
    rng = np.random.default_rng(seed)
    share = np.append(np.ones(num_relations - 1), 0.1)
    relation = rng.choice(num_relations, dataset.num_edges, p=share / share.sum()).astype(np.int32)
    times = 1 + (rng.random(dataset.num_edges) < 0.25) * (relation < num_relations - 1)
    twice = np.repeat(relation, times)
    is_second = np.append(False, np.diff(np.repeat(np.arange(len(relation)), times)) == 0)
    indptr = np.append(0, np.cumsum(times))[dataset.indptr]
    return replace(dataset, indptr=indptr, indices=np.repeat(dataset.indices, times),
                   edge_type=(twice + is_second).astype(np.int32),
                   relation_names=tuple(f"r{number}" for number in range(num_relations))).check()


def arcs_of(dataset: GraphDataset) -> list[tuple[int, int]]:
    """Every arc (source, destination), row after row."""
    return [(int(u), v) for v in range(dataset.num_nodes)
            for u in dataset.indices[dataset.indptr[v]:dataset.indptr[v + 1]]]


def needed_ids(arcs: list[tuple[int, int]], owner: np.ndarray, part: int, of: int) -> list[int]:
    """Ascending ids owned by part `of` that part `part` needs."""
    return sorted({u for u, v in arcs if owner[v] == part and owner[u] == of and of != part})


def expected_partition(dataset: GraphDataset, owner: np.ndarray, part: int, num_parts: int) -> dict:
    """Every array of Partition as plain lists, by its definition."""
    arcs = arcs_of(dataset)
    marginal = {v for u, v in arcs if owner[v] == part and owner[u] != part}
    inner = [v for v in range(dataset.num_nodes) if owner[v] == part]
    inner_id = [v for v in inner if v not in marginal] + [v for v in inner if v in marginal]
    halo = [needed_ids(arcs, owner, part, q) for q in range(num_parts)]
    halo_id = [u for ids in halo for u in ids]
    local = {v: i for i, v in enumerate(inner_id + halo_id)}
    boundary = [needed_ids(arcs, owner, q, part) for q in range(num_parts)]
    rows = [[local[u] for u, w in arcs if w == v] for v in inner_id]
    importance = expected_importance(dataset, owner)
    degree = np.zeros(dataset.num_nodes, int)
    for _, v in arcs:
        degree[v] += 1
    return {
        "num_central": len(inner) - len(marginal), "inner_id": inner_id, "halo_id": halo_id,
        "halo_offset": offsets(halo), "boundary_index": [local[u] for ids in boundary for u in ids],
        "boundary_offset": offsets(boundary), "indptr": offsets(rows), "indices": [u for row in rows for u in row],
        "in_degree": [degree[v] for v in inner_id + halo_id],
        "importance": [importance[v] for v in inner_id + halo_id], "labels": dataset.labels[inner_id],
        "train_mask": dataset.train_mask[inner_id], "val_mask": dataset.val_mask[inner_id],
        "test_mask": dataset.test_mask[inner_id],
        "features": np.asarray(dataset.features[inner_id].todense() if scipy.sparse.issparse(dataset.features)
                               else dataset.features[inner_id]),
    }


def expected_importance(dataset: GraphDataset, owner: np.ndarray) -> list[np.float32]:
    """Importance of every node by its definition: pool nodes of smaller in-degree over the most that a node has."""
    arcs = arcs_of(dataset)
    degree = [sum(v == node for _, v in arcs) for node in range(dataset.num_nodes)]
    pool = {u for u, v in arcs if owner[u] != owner[v]}
    num_smaller = {u: sum(degree[other] < degree[u] for other in pool) for u in pool}
    most = max(num_smaller.values(), default=0)
    return [np.float32(num_smaller[v] / most) if v in pool and most else np.float32(0)
            for v in range(dataset.num_nodes)]


def offsets(groups: list[list]) -> list[int]:
    """Start of each group in their concatenation, and the end."""
    return [0, *np.cumsum([len(group) for group in groups]).tolist()]
