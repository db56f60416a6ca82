"""assign_owners: balance, quality, reproducibility and faults of every partitioner."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from reference_partition import arcs_of, random_dataset

from hpcgnn._ext import ldg as kernels
from hpcgnn.data.dataset import GraphDataset
from hpcgnn.errors import ConfigError
from hpcgnn.partition.choices import BALANCES, EDGES_A_NODE, METIS_PARTITIONERS, PARTITIONERS
from hpcgnn.partition.metis import symmetric_adjacency
from hpcgnn.partition.owner import SLACK, assign_owners, fill_empty_parts, node_weight


def cut_arcs(dataset, owner):
    destination = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    return int((owner[dataset.indices] != owner[destination]).sum())


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("num_parts", [1, 2, 3, 5])
def test_parts_are_never_empty_and_balanced(partitioner, directed, num_parts):
    dataset = random_dataset(500, 2000, seed=1, directed=directed)
    owner = assign_owners(dataset, num_parts, partitioner, seed=0)
    size = np.bincount(owner, minlength=num_parts)
    assert owner.dtype == np.int32 and owner.shape == (500,) and len(size) == num_parts
    assert size.min() > 0 and size.max() <= 1.10 * 500 / num_parts


def lopsided(num_dense=400, num_sparse=1600):
    """A dense and a sparse random graph side by side: parts of equal nodes have most unequal edges."""
    dense, sparse = random_dataset(num_dense, 20 * num_dense, seed=1), random_dataset(num_sparse, num_sparse, seed=2)
    num_nodes = num_dense + num_sparse
    everywhere, nowhere = np.ones(num_nodes, bool), np.zeros(num_nodes, bool)
    return GraphDataset("lopsided", np.concatenate([dense.indptr, dense.num_edges + sparse.indptr[1:]]),
                        np.concatenate([dense.indices, num_dense + sparse.indices]),
                        np.zeros((num_nodes, 1), np.float32), np.zeros(num_nodes, np.int64), 1, everywhere, nowhere,
                        nowhere).check()


def largest_share(owner, weight, num_parts):
    """Largest part over mean part."""
    return np.bincount(owner, weights=weight, minlength=num_parts).max() * num_parts / weight.sum()


@pytest.mark.parametrize("partitioner", METIS_PARTITIONERS)
@pytest.mark.parametrize("num_parts", [2, 4])
def test_metis_balances_what_it_is_asked_to(partitioner, num_parts):
    dataset = lopsided()
    nodes, edges = np.ones(dataset.num_nodes), dataset.in_degree()
    load = {"nodes": nodes, "edges": edges, "both": EDGES_A_NODE * nodes + edges}
    load["training"] = load["both"]      # all nodes are trained on
    for balance in BALANCES:
        owner = assign_owners(dataset, num_parts, partitioner, balance=balance)
        assert largest_share(owner, load[balance], num_parts) < 1.06, balance
    assert largest_share(assign_owners(dataset, num_parts, partitioner, balance="nodes"), edges, num_parts) > 1.5


def test_node_weighs_its_in_edges_and_its_own_work():
    dataset = random_dataset(50, 100, directed=True)
    assert node_weight(dataset, "nodes") is None
    np.testing.assert_array_equal(node_weight(dataset, "edges"), np.maximum(np.diff(dataset.indptr), 1))
    np.testing.assert_array_equal(node_weight(dataset, "both"), np.diff(dataset.indptr) + EDGES_A_NODE)


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("num_nodes, num_arcs", [(1, 0), (2, 1), (5, 20), (8, 64), (8, 0)])
def test_as_many_parts_as_nodes_leave_no_part_empty(partitioner, num_nodes, num_arcs):
    dataset = random_dataset(num_nodes, num_arcs)
    for num_parts in range(max(1, num_nodes - 2), num_nodes + 1):
        size = np.bincount(assign_owners(dataset, num_parts, partitioner), minlength=num_parts)
        assert size.min() > 0 and size.sum() == num_nodes


@pytest.mark.parametrize("partitioner", ["metis", "metis-cut", "ldg"])
def test_grid_is_cut_at_far_fewer_arcs_than_at_random(grid, partitioner):
    dataset = grid(40, shuffle_seed=3)
    chance = cut_arcs(dataset, assign_owners(dataset, 4, "random"))
    bound = {"metis": 0.1, "metis-cut": 0.1, "ldg": 0.75}[partitioner]
    assert cut_arcs(dataset, assign_owners(dataset, 4, partitioner)) < bound * chance


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_same_seed_gives_same_owners(partitioner):
    dataset = random_dataset(300, 1500, seed=2)
    first, second = (assign_owners(dataset, 3, partitioner, seed=11) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("partitioner", ["ldg", "random"])
def test_other_seed_gives_other_owners(partitioner):
    dataset = random_dataset(300, 1500, seed=2)
    assert (assign_owners(dataset, 3, partitioner, seed=1) != assign_owners(dataset, 3, partitioner, seed=2)).any()


def reference_ldg(indptr, indices, order, num_parts, capacity):
    """The formula of Stanton and Kliot, word for word."""
    owner = np.full(len(order), -1)
    for v in order:
        neighbors = owner[indices[indptr[v]:indptr[v + 1]]]
        size = np.bincount(owner[owner >= 0], minlength=num_parts)
        score = np.array([(neighbors == p).sum() * (1 - size[p] / capacity) for p in range(num_parts)])
        score[size + 1 > capacity] = -np.inf
        best = np.flatnonzero(score == score.max())
        owner[v] = best[np.argmin(size[best])]
    return owner


@pytest.mark.parametrize("num_parts, slack", [(2, 1.0), (3, 1.05), (7, 1.3)])
def test_ldg_kernel_equals_the_formula(num_parts, slack):
    indptr, indices = symmetric_adjacency(random_dataset(120, 500, seed=4))
    order = np.random.default_rng(0).permutation(120).astype(np.int32)
    capacity = max(slack * 120 / num_parts, -(-120 // num_parts))
    owner = np.full(120, -1, np.int32)
    kernels.ldg_assign(indptr, indices, order, capacity, np.zeros(num_parts, np.int64), np.zeros(num_parts, np.int64),
                       owner)
    np.testing.assert_array_equal(owner, reference_ldg(indptr, indices, order, num_parts, capacity))


def test_ldg_never_passes_its_capacity():
    dataset = random_dataset(101, 3000, seed=6)
    size = np.bincount(assign_owners(dataset, 4, "ldg"))
    assert size.max() <= max(SLACK * 101 / 4, 26)


def test_directed_graph_is_symmetrized_for_the_partitioner():
    dataset = random_dataset(60, 200, seed=3, directed=True)
    indptr, indices = symmetric_adjacency(dataset)
    found = {(int(u), v) for v in range(60) for u in indices[indptr[v]:indptr[v + 1]]}
    assert found == {pair for u, v in arcs_of(dataset) for pair in ((u, v), (v, u))}
    assert indptr.dtype == np.int64 and indices.dtype == np.int32


def test_symmetric_graph_is_not_copied():
    dataset = random_dataset(60, 200, seed=3)
    indptr, indices = symmetric_adjacency(dataset)
    assert np.shares_memory(indptr, dataset.indptr) and np.shares_memory(indices, dataset.indices)


def test_one_missing_reverse_arc_is_noticed():
    dataset = random_dataset(60, 200, seed=3)
    destination = np.repeat(np.arange(60), np.diff(dataset.indptr))
    for gone in range(0, dataset.num_edges, 17):
        indptr = np.concatenate([[0], np.cumsum(np.bincount(np.delete(destination, gone), minlength=60))])
        torn = replace(dataset, indptr=indptr, indices=np.delete(dataset.indices, gone))
        assert len(symmetric_adjacency(torn)[1]) == torn.num_edges + 1


def test_empty_parts_get_nodes_of_the_largest():
    owner = fill_empty_parts(np.array([1, 1, 1, 1, 3, 3], np.int32), 4)
    np.testing.assert_array_equal(owner, [1, 1, 2, 0, 3, 3])


@pytest.mark.parametrize("settings, complaint", [
    ({"num_parts": 11}, "has 10 nodes and 11 parts were asked for"),
    ({"num_parts": 0}, "choose --parts between 1 and 10"),
    ({"num_parts": 2, "partitioner": "kahip"}, "unknown partitioner 'kahip'"),
    ({"num_parts": 2, "balance": "halo"}, "unknown balance 'halo'"),
    ({"num_parts": 2, "partitioner": "random", "balance": "edges"}, "partitioner random balances nodes only"),
])
def test_unfit_settings_are_refused(settings, complaint):
    with pytest.raises(ConfigError, match=complaint):
        assign_owners(random_dataset(10, 20), **settings)
