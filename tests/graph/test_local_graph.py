"""LocalGraph with a recorded exchange: what it aggregates, drops, asks of the exchange, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import DROPOUT, dense_matrix, draws_of, dropout, stream_of
from reference_partition import random_dataset

from hpcgnn.errors import KernelError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.rows import LocalRows
from hpcgnn.partition.build import build_partition

DIMS = [1, 7, 41, 128, 129, 257]


class ZeroRows:
    """An arrival of zeros."""

    def poll(self):
        return True

    def packed(self):
        return None

    def rows_in_message(self, dtype):
        return None

    def finish(self, rows):
        rows.zero_()


class RecordedExchange:
    """Gives zeros as halo rows and remembers what it was asked."""

    is_alone = overlaps = False
    num_returning = halo_spans = None

    def __init__(self):
        self.calls = []

    def start_fetch(self, h, site):
        self.calls.append((site.layer, site.epoch, site.seed, site.is_training))
        return ZeroRows()


def graph_of(dataset, owner, part):
    """LocalGraph of one part, its halo features zero, and its exchange."""
    piece = build_partition(dataset, owner, part, int(owner.max()) + 1)
    exchange = RecordedExchange()
    features = torch.cat([torch.from_numpy(piece.features), torch.zeros(piece.num_halo, dataset.num_features)])
    rows = LocalRows(piece.indptr, piece.indices, piece.node_id, piece.in_degree, features)
    return LocalGraph(rows, exchange), exchange


@pytest.fixture(params=[False, True], ids=["undirected", "directed"])
def dataset(request):
    return random_dataset(40, 150, seed=3, directed=request.param)


@pytest.fixture
def owner(dataset):
    return np.random.default_rng(1).integers(0, 3, dataset.num_nodes).astype(np.int32)


@pytest.mark.parametrize("reduction", ["sum", "mean", "gcn"])
@pytest.mark.parametrize("dim", DIMS)
def test_aggregate_of_every_part_is_its_rows_of_the_whole_product(dataset, owner, reduction, dim):
    whole = dense_matrix(dataset.indptr, dataset.indices, dataset.in_degree(), reduction)
    h = np.random.default_rng(dim).normal(size=(dataset.num_nodes, dim)).astype(np.float32)
    for part in range(3):
        graph, _ = graph_of(dataset, owner, part)
        leaf = torch.from_numpy(h[graph.node_id]).requires_grad_()
        out = graph.aggregate(leaf, reduction)
        weight = np.random.default_rng(2).normal(size=out.shape).astype(np.float32)
        out.backward(torch.from_numpy(weight))
        inner = graph.node_id[:graph.num_inner]
        np.testing.assert_allclose(out.detach().numpy(), whole[inner] @ h.astype(np.float64), atol=2e-5)
        backward = whole[inner].T @ weight.astype(np.float64)
        np.testing.assert_allclose(leaf.grad.numpy(), backward[graph.node_id], atol=2e-5)


@pytest.mark.parametrize("reduction", ["sum", "mean", "gcn"])
def test_squares_of_a_halo_row_are_those_of_its_column_of_the_whole_matrix(dataset, owner, reduction):
    whole = dense_matrix(dataset.indptr, dataset.indices, dataset.in_degree(), reduction)
    for part in range(3):
        graph, _ = graph_of(dataset, owner, part)
        inner, halo = np.split(graph.node_id, [graph.num_inner])
        squares = (whole[np.ix_(inner, halo)] ** 2).sum(axis=0)
        assert len(halo) and np.ptp(squares) > 0
        np.testing.assert_allclose(graph.halo_squares(reduction), squares, rtol=1e-5)


@pytest.mark.parametrize("reduction", ["sum", "mean", "gcn"])
def test_isolated_nodes_and_no_halo(reduction):
    dataset = random_dataset(12, 4, seed=0)
    graph, _ = graph_of(dataset, np.zeros(12, np.int32), 0)
    is_isolated = dataset.in_degree()[graph.node_id] == 0
    h = torch.from_numpy(np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32))
    out = graph.aggregate(h, reduction)
    assert graph.num_halo == 0 and is_isolated.any()
    # A gcn row without neighbors keeps itself: D = 1.
    assert torch.equal(out[is_isolated], h[is_isolated] if reduction == "gcn" else torch.zeros_like(h[is_isolated]))


def test_edge_index_lists_the_part_s_arcs_by_local_rows(dataset, owner):
    arcs = set()
    for part in range(3):
        graph, _ = graph_of(dataset, owner, part)
        source, target = graph.edge_index.numpy()
        assert graph.edge_index.dtype == torch.int64 and target.max() < graph.num_inner
        arcs |= set(zip(graph.node_id[source].tolist(), graph.node_id[target].tolist(), strict=True))
    targets = np.repeat(np.arange(dataset.num_nodes), dataset.in_degree())
    assert arcs == set(zip(dataset.indices.tolist(), targets.tolist(), strict=True))


def test_halo_of_the_input_costs_no_message(dataset, owner):
    graph, exchange = graph_of(dataset, owner, 0)
    assert graph.halo(graph.x) is graph.x_all
    assert exchange.calls == []


def test_what_the_input_aggregates_to_is_kept_where_training_reads_it(dataset, owner):
    graph, _ = graph_of(dataset, owner, 0)
    whole = dense_matrix(dataset.indptr, dataset.indices, dataset.in_degree(), "mean")[graph.node_id[:graph.num_inner]]
    found = []
    for is_training in (False, False, True, False):
        graph.begin_forward(seed=0, epoch=0, is_training=is_training)
        found.append(graph.input_aggregate("mean"))
        np.testing.assert_allclose(found[-1].numpy(), whole[:, graph.node_id] @ graph.x_all.numpy().astype(np.float64),
                                   atol=2e-5)
    memory = [aggregate.data_ptr() for aggregate in found]
    assert len(set(memory)) == 3 and memory[2] == memory[3]
    graph.begin_forward(seed=0, epoch=0, is_training=False)
    assert graph.input_aggregate("sum", is_kept=True).data_ptr() == graph.input_aggregate("sum").data_ptr()


def test_halo_calls_are_numbered_in_each_forward_pass(dataset, owner):
    graph, exchange = graph_of(dataset, owner, 0)
    for epoch, is_training in [(4, True), (5, False)]:
        graph.begin_forward(seed=9, epoch=epoch, is_training=is_training)
        graph.halo(graph.x)
        for _ in range(2):
            graph.halo(torch.zeros(graph.num_inner, 2))
    assert exchange.calls == [(0, 4, 9, True), (1, 4, 9, True), (0, 5, 9, False), (1, 5, 9, False)]


def test_dropout_masks_are_the_owners_and_differ_by_layer(dataset, owner):
    masks = {}
    for part in range(3):
        graph, _ = graph_of(dataset, owner, part)
        graph.begin_forward(seed=1, epoch=2, is_training=True)
        ones = torch.ones(graph.num_rows, 20)
        for layer, rows in enumerate([ones, ones[:graph.num_inner]]):
            draws = draws_of(graph.node_id[:len(rows)], 20, 1, 2, stream_of(DROPOUT, layer))
            dropped = graph.dropout(rows, 0.5).numpy()
            np.testing.assert_array_equal(dropped, dropout(rows.numpy(), 0.5, draws))
            for node, row in zip(graph.node_id.tolist(), dropped, strict=False):
                assert np.array_equal(masks.setdefault((layer, node), row), row)
    assert any(not np.array_equal(masks[0, v], masks[1, v]) for v in range(dataset.num_nodes))


def test_dropout_rests_in_evaluation_and_at_probability_zero(dataset, owner):
    graph, _ = graph_of(dataset, owner, 0)
    graph.begin_forward(0, 0, is_training=False)
    assert graph.dropout(graph.x, 0.5) is graph.x
    graph.begin_forward(0, 0, is_training=True)
    assert graph.dropout(graph.x, 0.0) is graph.x


def test_an_unknown_reduction_and_missing_rows_are_refused(dataset, owner):
    graph, _ = graph_of(dataset, owner, 0)
    with pytest.raises(KernelError, match="'median'"):
        graph.aggregate(graph.x_all, "median")
    with pytest.raises(KernelError, match="one row per inner node"):
        graph.halo(torch.zeros(graph.num_inner + 1, 2))
    with pytest.raises(KernelError, match=f"{graph.num_rows} rows"):
        graph.aggregate(torch.zeros(graph.num_inner, 2), "sum")
