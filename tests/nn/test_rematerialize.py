"""Halo rows peer by peer, and again in the backward pass: the same training in less memory, on 1 to 4 ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from mpi4py import MPI
from reference_partition import random_dataset
from torch.nn import functional

from hpcgnn.exchange.bits import UniformBits
from hpcgnn.exchange.halo import HaloExchange
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.reach import Reach, nearest_first
from hpcgnn.exchange.schedule import Execution
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.models import ModelShape, build_model
from hpcgnn.partition.build import build_partition

SEED, EPOCH, IN, HIDDEN, OUT, NUM_NODES = 3, 8, 12, 8, 4, 80
SUMMED = ("gcn", "sage", "gcnii", "dagnn", "sgc", "jknet", "appnp")    # their layers take one peer's rows at a time
MODELS = (*SUMMED, "gat")
NARROW = {"dagnn": OUT, "sgc": OUT, "appnp": OUT}


def graph_data(directed=True, num_edges=300):
    dataset = random_dataset(NUM_NODES, num_edges, seed=2, directed=directed)
    features = np.random.default_rng(1).normal(size=(NUM_NODES, IN)).astype(np.float32)
    return replace(dataset, features=features, train_mask=np.arange(NUM_NODES) % 9 == 4)


def open_graph(comm, dataset, execution, num_hops=None, bit_plan=None, owner=None):
    """Collective: this rank's graph and exchange; with num_hops, rows out of reach are left out."""
    owner = np.random.default_rng(5).integers(0, comm.size, NUM_NODES).astype(np.int32) if owner is None else owner
    part, reach = build_partition(dataset, owner, comm.rank, comm.size), None
    if num_hops is not None:
        part, reach = nearest_first(part, Reach.measure(comm, part, ExchangePlan.build(part), num_hops))
    exchange = HaloExchange(comm, ExchangePlan.build(part), bit_plan or UniformBits(32), reach=reach,
                            execution=execution)
    features = exchange.input_rows(torch.from_numpy(part.features))
    graph = LocalGraph(part.indptr, part.indices, np.concatenate([part.inner_id, part.halo_id]), part.in_degree,
                       features, exchange, reach.num_within if reach else None)
    return graph, exchange


def shape_of(model, dropout=0.5, num_layers=3):
    return ModelShape(model, IN, HIDDEN, OUT, num_layers, dropout, "layer")


def steps(comm, graph, shape, dataset, num_epochs=3):
    """Collective: (losses, gradients of the last epoch, evaluation's logits) of a few epochs of gradient descent."""
    torch.manual_seed(1)
    model, losses = build_model(shape), []
    inner_id = graph.node_id[:graph.num_inner]
    labels, rows = torch.from_numpy(dataset.labels % OUT)[inner_id], np.flatnonzero(dataset.train_mask[inner_id])
    for epoch in range(EPOCH, EPOCH + num_epochs):
        model.zero_grad()
        graph.begin_forward(SEED, epoch, is_training=True, num_hops=model.num_hops)
        logits = model(graph, graph.x)
        chosen = logits if len(logits) == len(rows) else logits[rows]
        loss = functional.cross_entropy(chosen, labels[rows], reduction="sum") / dataset.train_mask.sum()
        loss.backward()
        losses.append(comm.allreduce(loss.item()))
        for parameter in model.parameters():
            parameter.grad = torch.from_numpy(comm.allreduce(parameter.grad.numpy()))
            parameter.data -= 0.1 * parameter.grad
    graph.begin_forward(0, 0, is_training=False)
    with torch.no_grad():
        logits = model(graph, graph.x)
    return np.array(losses), {name: parameter.grad for name, parameter in model.named_parameters()}, logits


def assert_alike(comm, dataset, shape, bit_plan=None, num_hops=None, execution=None, bound=1e-6, owner=None):
    """Collective: losses and gradients within `bound` of those of the mode in which all halo rows are here at once."""
    execution = execution or Execution()
    results = []
    for mode in (execution, replace(execution, rematerializes=True)):
        graph, exchange = open_graph(comm, dataset, mode, num_hops, bit_plan, owner)
        results.append((*steps(comm, graph, shape, dataset), exchange.training))
    (losses, gradients, logits, usual), (found, found_gradients, found_logits, traffic) = results
    np.testing.assert_allclose(found, losses, rtol=bound)
    largest = max(gradient.abs().max() for gradient in gradients.values())
    for name, gradient in gradients.items():
        assert (found_gradients[name] - gradient).abs().max() <= bound * largest, name
    assert (found_logits - logits).abs().max() <= 10 * bound * logits.abs().max()
    return usual, traffic


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("reaches", [False, True], ids=["all", "reachable"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("model", MODELS)
def test_losses_and_gradients_are_those_of_all_halo_rows_at_once(model, dropout, reaches):
    shape = shape_of(model, dropout)
    usual, traffic = assert_alike(MPI.COMM_WORLD, graph_data(), shape, num_hops=shape.num_layers if reaches else None)
    if model in SUMMED:
        assert traffic.payload_bytes == usual.payload_bytes
        assert traffic.sent_by_peer == usual.sent_by_peer
