"""A small directed graph, and a model on its parts beside the same model on the whole graph in float64."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from mpi4py import MPI
from reference_partition import random_dataset
from training_setup import shared_path  # noqa: F401

from hpcgnn.graph.local_graph import LocalGraph

NUM_NODES, NUM_FEATURES, NUM_OUTPUTS = 60, 6, 5


@dataclass
class Whole:
    """The whole graph on every rank, and this rank's part."""

    graph: object
    x: torch.Tensor
    edge_index: torch.Tensor
    edge_weight: torch.Tensor | None

    @property
    def inner_id(self):
        return self.graph.node_id[:self.graph.num_inner]


@pytest.fixture
def whole_graph(open_part):
    """Collective: whole_graph(is_weighted=False, comm=COMM_WORLD, bit_plan=None) -> Whole."""
    def make(is_weighted=False, comm=MPI.COMM_WORLD, bit_plan=None):
        rng = np.random.default_rng(6)
        features = rng.normal(size=(NUM_NODES, NUM_FEATURES)).astype(np.float32)
        dataset = replace(random_dataset(NUM_NODES, 200, seed=2, directed=True), features=features)
        owner = rng.permutation(np.arange(NUM_NODES) % comm.size).astype(np.int32)
        graph = open_part(comm, dataset, owner, bit_plan).graph
        graph.begin_forward(seed=3, epoch=1, is_training=True)
        target = np.repeat(np.arange(NUM_NODES), dataset.in_degree())
        edge_index = torch.from_numpy(np.stack([dataset.indices.astype(np.int64), target]))
        if not is_weighted:
            return Whole(graph, torch.from_numpy(features).double(), edge_index, None)
        weight = weight_of(torch.from_numpy(graph.node_id)[graph.edge_index]).float().numpy()
        rows = replace(graph.rows, edge_weight=weight, weighted_degree=graph.in_degree.astype(np.float32))
        graph = LocalGraph(rows, graph.exchange)
        graph.begin_forward(seed=3, epoch=1, is_training=True)
        return Whole(graph, torch.from_numpy(features).double(), edge_index, weight_of(edge_index))
    return make


def weight_of(ids):
    """Weights of edges by their ends' global ids."""
    return 0.5 + ((ids[0] * 7 + ids[1] * 3) % 11).double() / 10


@pytest.fixture
def assert_equals_pyg():
    """Collective: assert_equals_pyg(whole, distributed, *more) compares answers and the gradient of every weight with
    the plain model's on the whole graph in float64, each within 1e-5 of the largest.
    """
    def check(whole, model, reference=None, **named):
        comm = MPI.COMM_WORLD
        plain = reference or copy.deepcopy(model.module).double()
        cotangent = torch.from_numpy(np.random.default_rng(0).normal(size=(NUM_NODES, NUM_OUTPUTS)))
        out = model(whole.graph, whole.graph.x)
        (out * cotangent[whole.inner_id]).sum().backward()
        found = gather(comm, out, whole.inner_id)
        gradients = {name: torch.from_numpy(comm.allreduce(parameter.grad.double().numpy()))
                     for name, parameter in model.module.named_parameters()}
        expected = plain(whole.x, whole.edge_index, **named)
        (expected * cotangent).sum().backward()
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
        largest = max(parameter.grad.abs().max() for parameter in plain.parameters())
        for name, parameter in plain.named_parameters():
            assert (gradients[name] - parameter.grad).abs().max() <= 1e-5 * largest, name
        return plain
    return check


def gather(comm, rows, inner_id):
    """Collective: rows of all ranks by global id."""
    rows_by_id = torch.empty(NUM_NODES, *rows.shape[1:], dtype=torch.float64)
    for ids, values in comm.allgather((inner_id, rows.detach().double().numpy())):
        rows_by_id[torch.from_numpy(ids)] = torch.from_numpy(values)
    return rows_by_id
