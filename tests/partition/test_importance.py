"""Importance of boundary nodes against a brute-force oracle, and what its definition promises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from reference_partition import expected_importance, random_dataset

from hpcgnn.partition.build import build_partition
from hpcgnn.partition.partition import (
    IMPORTANCE_BINS,
    boundary_nodes,
    degree_quantiles,
    find_halos,
    importance_histogram,
    measure_partition,
    node_importance,
)


def drawn_owner(num_nodes, num_parts, seed=0):
    return np.random.default_rng(seed).integers(0, num_parts, num_nodes).astype(np.int32)


def importance_of(dataset, owner, num_parts):
    return node_importance(dataset, find_halos(dataset, owner, num_parts))


def skewed_dataset(num_nodes=400, seed=0):
    """Arcs whose targets are drawn by the square of a uniform number: in-degrees have a long tail, and many ties."""
    dataset = random_dataset(num_nodes, 4 * num_nodes, seed)
    rng = np.random.default_rng(seed)
    target = (num_nodes * rng.random(6 * num_nodes) ** 3).astype(int)
    arcs = np.unique(np.stack([target, rng.integers(0, num_nodes, len(target))]), axis=1)
    arcs = arcs[:, arcs[0] != arcs[1]]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(arcs[0], minlength=num_nodes))])
    return replace(dataset, indptr=indptr, indices=arcs[1].astype(np.int32)).check()


@pytest.mark.parametrize("num_parts", [1, 2, 3, 4])
@pytest.mark.parametrize("num_arcs", [0, 20, 60, 250])
@pytest.mark.parametrize("directed", [False, True])
def test_importance_equals_the_oracle(num_parts, num_arcs, directed):
    dataset = random_dataset(40, num_arcs, seed=num_arcs, directed=directed)
    owner = drawn_owner(40, num_parts)
    importance = importance_of(dataset, owner, num_parts)
    assert importance.dtype == np.float32 and importance.shape == (40,)
    np.testing.assert_array_equal(importance, expected_importance(dataset, owner))


@pytest.mark.parametrize("percentile", [0.5, 0.8, 0.925, 0.98])
def test_nodes_above_a_percentile_are_no_more_than_it_leaves_but_for_ties_at_the_maximum(percentile):
    dataset = skewed_dataset(2000)
    halos = find_halos(dataset, drawn_owner(2000, 4), 4)
    pool = boundary_nodes(2000, halos)
    importance = node_importance(dataset, halos)[pool]
    below_the_maximum = importance[importance < 1]
    assert (below_the_maximum >= percentile).sum() <= (1 - percentile) * len(below_the_maximum) + 1e-6 * len(pool)


def test_distinct_degrees_are_spread_evenly():
    num_nodes = 6
    arcs = [(u, v) for v in range(num_nodes) for u in range(num_nodes) if u > v] + [(0, num_nodes - 1)]
    arcs.sort(key=lambda arc: (arc[1], arc[0]))
    dataset = random_dataset(num_nodes, 0)
    indptr = np.concatenate([[0], np.cumsum(np.bincount([v for _, v in arcs], minlength=num_nodes))])
    dataset = replace(dataset, indptr=indptr, indices=np.array([u for u, _ in arcs], np.int32))
    assert dataset.in_degree().tolist() == [5, 4, 3, 2, 1, 1]
    importance = importance_of(dataset, np.arange(num_nodes, dtype=np.int32), num_nodes)
    np.testing.assert_array_equal(importance, np.array([5, 4, 3, 2, 0, 0], np.float32) / 5)


def test_every_bin_of_the_histogram_begins_at_its_own_percentile():
    edges = (np.arange(IMPORTANCE_BINS + 1) / IMPORTANCE_BINS).astype(np.float32)
    expected = np.ones(IMPORTANCE_BINS, int)
    expected[-1] = 2
    np.testing.assert_array_equal(importance_histogram(edges), expected)
    just_below = importance_histogram(np.nextafter(edges[1:], np.float32(0)))
    np.testing.assert_array_equal(just_below, np.ones(IMPORTANCE_BINS, int))
    assert importance_histogram(np.empty(0, np.float32)).tolist() == [0] * IMPORTANCE_BINS


@pytest.mark.parametrize("num_nodes", [3, 60, 400])
def test_quantiles_of_the_degree_are_degrees_of_boundary_nodes(num_nodes):
    dataset = skewed_dataset(num_nodes)
    halos = find_halos(dataset, drawn_owner(num_nodes, 3, seed=1), 3)
    ordered = sorted(dataset.in_degree()[boundary_nodes(num_nodes, halos)].tolist())
    quantiles = degree_quantiles(dataset, halos).tolist()
    assert quantiles == [ordered[percent * (len(ordered) - 1) // 100] for percent in range(101)]


def test_degree_has_no_quantiles_where_no_node_crosses():
    dataset = random_dataset(40, 200)
    assert degree_quantiles(dataset, find_halos(dataset, np.zeros(40, np.int32), 1)).shape == (0,)


@pytest.mark.parametrize("num_parts", [1, 2, 4])
def test_statistics_count_rows_by_user_and_by_importance(num_parts):
    dataset, owner = skewed_dataset(), drawn_owner(400, num_parts)
    importance = np.array(expected_importance(dataset, owner))
    parts = [build_partition(dataset, owner, part, num_parts) for part in range(num_parts)]
    for part, row in zip(parts, map(measure_partition, parts), strict=True):
        assert row.sent_to == tuple(int((owner[user.halo_id] == part.part).sum()) for user in parts)
        sent = np.concatenate([user.halo_id[owner[user.halo_id] == part.part] for user in parts])
        bins = np.minimum((np.float64(importance) * IMPORTANCE_BINS + 1e-4).astype(int), IMPORTANCE_BINS - 1)
        assert row.sent_importance == tuple((bins[sent] == k).sum() for k in range(IMPORTANCE_BINS))
        assert row.boundary_importance == tuple((bins[np.unique(sent)] == k).sum() for k in range(IMPORTANCE_BINS))
