"""order_rows: every order is a permutation, brings neighbors together, and changes nothing but the numbering."""

from __future__ import annotations

import numpy as np
import pytest
from reference_partition import arcs_of, random_dataset

from hpcgnn.errors import ConfigError
from hpcgnn.partition import order
from hpcgnn.partition.build import build_partition
from hpcgnn.partition.choices import REORDERS
from hpcgnn.partition.order import inner_arcs, order_rows, undirected


@pytest.fixture
def small_clusters(monkeypatch):
    """Clusters of so few rows that a test's graph has several."""
    monkeypatch.setattr(order, "ROWS_A_CLUSTER", 16)
    monkeypatch.setattr(order, "ROWS_A_CONDENSED_CLUSTER", 16)


@pytest.mark.parametrize("reorder", REORDERS)
@pytest.mark.parametrize("directed", [False, True])
def test_every_node_of_a_part_has_one_row(small_clusters, reorder, directed):
    dataset = random_dataset(200, 600, seed=1, directed=directed)
    inner_id = np.flatnonzero(np.arange(200) % 3 == 1)
    ordered = order_rows(dataset, inner_id, reorder)
    assert ordered.dtype == np.int64
    np.testing.assert_array_equal(np.sort(ordered), inner_id)
    np.testing.assert_array_equal(ordered, order_rows(dataset, inner_id, reorder))


@pytest.mark.parametrize("reorder", REORDERS)
@pytest.mark.parametrize("num_inner", [0, 1, 2])
@pytest.mark.parametrize("num_arcs", [0, 40])
def test_parts_of_few_nodes_are_ordered_too(reorder, num_inner, num_arcs):
    inner_id = np.arange(num_inner)
    assert sorted(order_rows(random_dataset(20, num_arcs), inner_id, reorder)) == list(range(num_inner))


def test_metis_orders_a_part_without_inner_edges(small_clusters):
    np.testing.assert_array_equal(order_rows(random_dataset(50, 0), np.arange(50), "metis"), np.arange(50))


def test_without_an_order_ids_ascend():
    np.testing.assert_array_equal(order_rows(random_dataset(20, 40), np.arange(3, 17), "none"), np.arange(3, 17))


def test_degree_puts_rows_of_many_in_neighbors_first_and_ties_by_id():
    dataset = random_dataset(100, 300, seed=2, directed=True)
    ordered = order_rows(dataset, np.arange(100), "degree")
    assert ordered.tolist() == sorted(range(100), key=lambda v: (-dataset.in_degree()[v], v))


@pytest.mark.parametrize("reorder", ["nested", "metis", "rcm", "condense-edge"])
def test_neighbors_on_a_shuffled_grid_come_together(small_clusters, grid, reorder):
    dataset = grid(24, shuffle_seed=5)
    source, target = np.array(arcs_of(dataset)).T
    distance = {}
    for name in ("none", reorder):
        position = np.argsort(order_rows(dataset, np.arange(dataset.num_nodes), name))
        distance[name] = np.abs(position[source] - position[target]).mean()
    assert distance[reorder] < 0.25 * distance["none"]


def test_inner_graph_is_that_of_the_arcs_inside_taken_both_ways():
    dataset = random_dataset(60, 300, seed=4, directed=True)
    inner_id = np.flatnonzero(np.arange(60) % 2 == 0)
    inside = {(u, v) for u, v in arcs_of(dataset) if u % 2 == 0 and v % 2 == 0}
    graph = undirected(inner_arcs(dataset, inner_id)).tocoo()
    found = {(int(inner_id[v]), int(inner_id[u])) for v, u in zip(graph.row, graph.col, strict=True)}
    assert found == inside | {(v, u) for u, v in inside} and set(graph.data) == {1}


@pytest.mark.parametrize("reorder", REORDERS)
def test_ordered_part_is_the_same_graph_with_central_rows_first(small_clusters, reorder):
    dataset = random_dataset(120, 260, seed=6, directed=True)
    owner = (np.arange(120) >= 60).astype(np.int32)
    plain, ordered = (build_partition(dataset, owner, 0, 2, reorder=name) for name in ("none", reorder))
    assert ordered.num_central == plain.num_central > 0
    for rows in (slice(0, plain.num_central), slice(plain.num_central, None)):
        assert set(ordered.inner_id[rows]) == set(plain.inner_id[rows])
    np.testing.assert_array_equal(ordered.halo_id, plain.halo_id)
    # What is sent keeps its order, and a row its order of summation.
    np.testing.assert_array_equal(ordered.inner_id[ordered.boundary_index], plain.inner_id[plain.boundary_index])
    assert neighbor_ids(ordered) == neighbor_ids(plain)


def neighbor_ids(part):
    """Global id of each inner row -> global ids of its sources, in order."""
    known = part.node_id
    return {int(v): known[part.indices[part.indptr[row]:part.indptr[row + 1]]].tolist()
            for row, v in enumerate(part.inner_id)}


def test_unknown_order_is_refused():
    with pytest.raises(ConfigError, match="'hilbert'; choose one of none, nested, metis, degree, rcm, condense-edge"):
        order_rows(random_dataset(10, 20), np.arange(10), "hilbert")
