"""Propagation without weights against the composition of halo, dropout and aggregate, on 1 to 3 ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mpi4py import MPI

from hpcgnn.exchange.bits import UniformBits
from hpcgnn.nn.propagation import propagate, propagate_input, take_hops

SEED, EPOCH, DIM = 3, 8, 6


def begin(graph):
    graph.begin_forward(SEED, EPOCH, is_training=True)


def rows_and_weights(graph):
    """Rows with gradients, and a factor for each element of the result."""
    rng = np.random.default_rng(graph.node_id[0])
    rows = torch.from_numpy(rng.normal(size=(graph.num_inner, DIM)).astype(np.float32)).requires_grad_()
    return rows, torch.from_numpy(rng.normal(size=(graph.num_inner, DIM)).astype(np.float32))


@pytest.mark.covering
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("bits", [32, 8, 1])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("alpha", [None, 0.0, 0.2, 1.0])
def test_rows_and_gradients_are_those_of_the_composition(open_part, graph_with, assert_equal_to, bits, dropout, alpha):
    comm = MPI.COMM_WORLD
    dataset, owner = graph_with(DIM, directed=True)
    graph = open_part(comm, dataset, owner(comm.size), UniformBits(bits)).graph
    (rows, factor), first = rows_and_weights(graph), torch.full((graph.num_inner, DIM), 2.0, requires_grad=True)

    begin(graph)
    expected = graph.aggregate(graph.dropout(graph.halo(rows), dropout), "gcn")
    if alpha is not None:
        expected = (1 - alpha) * expected + alpha * first
    (expected * factor).sum().backward()
    wanted = rows.grad.clone(), None if alpha is None else first.grad.clone()
    rows.grad = first.grad = None

    begin(graph)
    hop, = take_hops(graph, 1)
    found = propagate(graph, rows, hop, dropout, False, None if alpha is None else first, alpha or 0.0)
    (found * factor).sum().backward()
    assert_equal_to(found.detach(), expected.detach())
    # With one bit the draws of a gradient hang on its last digit, so two orders of one product may differ by a step.
    if bits == 32:
        assert (rows.grad - wanted[0]).abs().max() <= 1e-5 * factor.abs().max()
    if alpha is not None:
        assert_equal_to(first.grad, wanted[1])


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("num_steps", [1, 2, 5])
def test_the_propagated_input_is_exact_whatever_the_width_of_training_messages(open_part, graph_with, gather_rows,
                                                                              assert_equal_to, num_steps):
    comm = MPI.COMM_WORLD
    dataset, owner = graph_with(DIM)
    whole = open_part(MPI.COMM_SELF, dataset, owner(1)).graph
    opened = open_part(comm, dataset, owner(comm.size), UniformBits(1))
    begin(opened.graph)
    rows = gather_rows(comm, propagate_input(opened.graph, num_steps), opened.graph.node_id[:opened.graph.num_inner])
    expected = torch.empty_like(rows)
    expected[whole.node_id] = whole.x
    for _ in range(num_steps):
        ordered = whole.aggregate(expected[whole.node_id], "gcn")
        expected[whole.node_id] = ordered
    assert_equal_to(rows, expected)
    assert opened.exchange.training.num_values == 0
    num_rows = len(opened.part.boundary_index)
    assert opened.exchange.evaluation.num_values == (num_steps - 1) * num_rows * DIM
