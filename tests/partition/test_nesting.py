"""nested_order: a permutation, by rows of the part alone, that brings clusters together at every size."""

from __future__ import annotations

import numpy as np
import pytest
from reference_partition import random_dataset

from hpcgnn._ext.nesting import propagate_clusters
from hpcgnn.errors import ConfigError
from hpcgnn.partition import order as nesting
from hpcgnn.partition.order import nested_order, order_rows


def communities(sizes, seed=0, shuffle_seed=1):
    """Dense groups without arcs between them, under shuffled ids: CSR, and the group of each node."""
    rng, rows, group = np.random.default_rng(seed), [], np.repeat(np.arange(len(sizes)), sizes)
    group = np.random.default_rng(shuffle_seed).permutation(group)
    for v, own in enumerate(group):
        others = np.flatnonzero((group == own) & (np.arange(len(group)) != v))
        rows.append(np.sort(rng.choice(others, max(1, len(others) // 2), replace=False)))
    return (np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64),
            np.concatenate(rows).astype(np.int32), group)


def test_rows_of_a_community_are_laid_out_together():
    indptr, indices, group = communities([40, 25, 60, 10])
    laid_out = group[nested_order(indptr, indices, 135, np.arange(135))]
    assert (np.diff(laid_out) != 0).sum() == 3


def test_larger_clusters_are_made_of_whole_smaller_ones(monkeypatch):
    indptr, indices, group = communities([40, 25, 60, 10])
    monkeypatch.setattr(nesting, "CAPACITIES", (8, 80))
    laid_out = group[nested_order(indptr, indices, 135, np.arange(135))]
    # Clusters of eight alone leave the groups of 25 and more in pieces, which need not lie together.
    assert (np.diff(laid_out) != 0).sum() <= 6


def test_arcs_from_outside_the_part_do_not_count():
    dataset = random_dataset(200, 900, seed=3, directed=True)
    inner_id = np.flatnonzero(np.arange(200) % 2 == 0)
    position = np.full(200, -1)
    position[inner_id] = np.arange(100)
    rows = [position[dataset.indices[dataset.indptr[v]:dataset.indptr[v + 1]]] for v in inner_id]
    rows = [row[row >= 0] for row in rows]
    alone = nested_order(np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64),
                         np.concatenate(rows).astype(np.int32), 100, np.arange(100))
    np.testing.assert_array_equal(nested_order(dataset.indptr, dataset.indices, 200, inner_id), alone)


@pytest.mark.parametrize("num_nodes, num_arcs", [(0, 0), (1, 0), (50, 0), (3, 2)])
def test_rows_without_neighbors_keep_their_order(num_nodes, num_arcs):
    if num_nodes == 0:
        assert nested_order(np.zeros(1, np.int64), np.empty(0, np.int32), 0, np.arange(0)).shape == (0,)
        return
    dataset = random_dataset(num_nodes, num_arcs)
    order = nested_order(dataset.indptr, dataset.indices, num_nodes, np.arange(num_nodes))
    assert sorted(order) == list(range(num_nodes))
    if not num_arcs:
        np.testing.assert_array_equal(order, np.arange(num_nodes))


def reference_propagation(near, unit_of, num_units, capacity, max_rounds):
    """The rule of the header, word for word, by units in ascending order."""
    cluster, weight = list(range(num_units)), [unit_of.count(unit) for unit in range(num_units)]
    size = list(weight)
    for _ in range(max_rounds):
        num_moves = 0
        for unit in range(num_units):
            found = [cluster[unit_of[u]] for v in range(len(near)) if unit_of[v] == unit for u in near[v]
                     if unit_of[u] != unit]
            count = {c: found.count(c) for c in found}
            fits = [c for c in count if c != cluster[unit] and size[c] + weight[unit] <= capacity]
            best = min(fits, key=lambda c: (-count[c], c), default=cluster[unit])
            if best != cluster[unit] and count[best] > count.get(cluster[unit], 0):
                size[cluster[unit]] -= weight[unit]
                size[best] += weight[unit]
                cluster[unit] = best
                num_moves += 1
        if not num_moves:
            break
    return cluster, num_moves


@pytest.mark.parametrize("capacity", [1, 7, 1000])
@pytest.mark.parametrize("num_units", [60, 20])
@pytest.mark.parametrize("max_rounds", [1, 4])
def test_kernel_equals_the_rule(capacity, num_units, max_rounds):
    dataset = random_dataset(60, 200, seed=4, directed=True)
    unit_of = (np.arange(60) % num_units).astype(np.int32)
    row = np.argsort(unit_of, kind="stable").astype(np.int32)
    start = np.concatenate([[0], np.cumsum(np.bincount(unit_of))]).astype(np.int64)
    cluster, size = np.arange(num_units, dtype=np.int32), np.diff(start)
    moves = propagate_clusters(dataset.indptr, dataset.indices, np.arange(60), unit_of, row, start, cluster, size,
                               np.zeros(num_units, np.int32), np.empty(num_units + 1, np.int32), capacity, max_rounds)
    near = [dataset.indices[dataset.indptr[v]:dataset.indptr[v + 1]].tolist() for v in range(60)]
    expected, last = reference_propagation(near, unit_of.tolist(), num_units, capacity, max_rounds)
    assert (cluster.tolist(), moves) == (expected, last)
    np.testing.assert_array_equal(size, np.bincount(cluster, weights=np.diff(start), minlength=num_units))


def test_more_nodes_than_clusters_can_number_are_refused():
    class Huge:
        name, num_nodes = "huge", 2**31 + 5

    with pytest.raises(ConfigError, match="huge has 2147483653 nodes, and nested clusters number at most 2147483647"):
        order_rows(Huge(), np.arange(3), "nested")
