"""LocalGraph over weighted arcs: every reduction against dense float64, degrees over ranks, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mpi4py import MPI
from reference_partition import random_dataset
from reference_weights import dense_weighted, draw_weights, open_weighted

from hpcgnn.errors import KernelError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.reductions import build_adjacency, store_loop_weights, weighted_degree
from hpcgnn.graph.rows import LocalRows

REDUCTIONS = ["sum", "mean", "gcn"]


@pytest.fixture
def opened():
    """Collective: (dataset, weights, this rank's graph)."""
    comm, dataset = MPI.COMM_WORLD, random_dataset(40, 150, seed=3, directed=True)
    weight = draw_weights(dataset)
    owner = (np.random.default_rng(1).permutation(40) % comm.size).astype(np.int32)
    return dataset, weight, open_weighted(comm, dataset, owner, weight)[0]


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_aggregate_and_its_gradient_are_those_of_the_whole_product(opened, reduction):
    dataset, weight, graph = opened
    whole = dense_weighted(dataset, weight, reduction)
    h = np.random.default_rng(4).normal(size=(40, 7)).astype(np.float32)
    leaf, inner = torch.from_numpy(h[graph.node_id]).requires_grad_(), graph.node_id[:graph.num_inner]
    out = graph.aggregate(leaf, reduction)
    gradient = np.random.default_rng(2).normal(size=out.shape).astype(np.float32)
    out.backward(torch.from_numpy(gradient))
    np.testing.assert_allclose(out.detach().numpy(), whole[inner] @ h.astype(np.float64), atol=2e-5)
    np.testing.assert_allclose(leaf.grad.numpy(), (whole[inner].T @ gradient.astype(np.float64))[graph.node_id],
                               atol=2e-5)


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_squares_of_a_halo_row_count_its_weights(opened, reduction):
    dataset, weight, graph = opened
    inner, halo = np.split(graph.node_id, [graph.num_inner])
    squares = (dense_weighted(dataset, weight, reduction)[np.ix_(inner, halo)] ** 2).sum(axis=0)
    assert len(halo) and np.ptp(squares) > 0
    np.testing.assert_allclose(graph.halo_squares(reduction), squares, rtol=1e-5)


@pytest.mark.parallel([1, 3])
def test_weights_lie_beside_the_edge_index(opened):
    dataset, weight, graph = opened
    source, target = (graph.node_id[rows] for rows in graph.edge_index.numpy())
    whole = dense_weighted(dataset, weight, "sum")
    assert graph.edge_weight.dtype == torch.float32
    np.testing.assert_array_equal(graph.edge_weight.numpy(), whole[target, source].astype(np.float32))


@pytest.mark.parallel([1, 3])
def test_weights_with_self_loops_lie_beside_the_adjacency(opened):
    dataset, weight, graph = opened
    matrix = graph.adjacency(with_self=True).matrix
    target = np.repeat(np.arange(graph.num_inner), matrix.end - matrix.begin)
    whole = dense_weighted(dataset, weight, "sum") + np.eye(40)
    expected = whole[graph.node_id[target], graph.node_id[matrix.indices]]
    np.testing.assert_array_equal(graph.looped_weight.numpy(), expected.astype(np.float32))


def test_a_stored_self_loop_weighs_one_like_the_others():
    indptr, indices = np.array([0, 3, 3, 5]), np.array([2, 0, 1, 4, 2], np.int32)
    weight = np.array([5, 6, 7, 8, 9], np.float32)
    assert store_loop_weights(indptr, indices, weight).tolist() == [1, 5, 7, 1, 1, 8]
    assert build_adjacency(indptr, indices, 5).matrix.indices.tolist() == [0, 2, 1, 1, 2, 4]


def test_degrees_of_rows_without_arcs_are_zero():
    degree = weighted_degree(np.array([0, 0, 2, 2]), np.array([0.5, 1.25], np.float32))
    assert degree.dtype == np.float32 and degree.tolist() == [0, 1.75, 0]


@pytest.mark.parametrize("weighs", [False, True])
def test_memory_counts_every_array_once(weighs):
    dataset = random_dataset(40, 150, seed=3, directed=True)
    weight = draw_weights(dataset)
    graph, _ = open_weighted(MPI.COMM_SELF, dataset, np.zeros(40, np.int32), weight)
    if not weighs:
        rows = LocalRows(dataset.indptr.copy(), dataset.indices.copy(), np.arange(40), dataset.in_degree(),
                         torch.ones(40, 3))
        graph = LocalGraph(rows, graph.exchange)
    graph.aggregate(torch.ones(40, 3), "gcn")
    ids_and_degrees, both_ways = 40 * (8 + graph.in_degree.itemsize), 2 * (8 * 41 + 4 * dataset.num_edges)
    factors, weights = 4 * 40, 2 * 4 * dataset.num_edges if weighs else 0
    assert graph.structure_bytes == ids_and_degrees + both_ways + factors + weights


@pytest.mark.parametrize("weight, degree, message", [
    (np.ones(2, np.float32), None, "are given together"),
    (np.ones(3, np.float32), np.ones(2, np.float32), r"edge_weight is float32 of shape \(3,\)"),
    (np.ones(2), np.ones(2, np.float32), "edge_weight is float64"),
    (np.ones(2, np.float32), np.ones(3, np.float32), "weighted_degree is float32 of shape"),
    (np.array([1, -1], np.float32), np.ones(2, np.float32), "edge_weight holds negative numbers"),
    (np.array([1, np.nan], np.float32), np.ones(2, np.float32), "edge_weight holds negative numbers or ones")])
def test_weights_that_do_not_fit_are_refused(weight, degree, message):
    with pytest.raises(KernelError, match=message):
        LocalRows(np.array([0, 1, 2]), np.array([1, 0], np.int32), np.arange(2), np.ones(2, np.int32),
                  torch.ones(2, 3), edge_weight=weight, weighted_degree=degree)
