"""A small directed graph, and a model on its parts beside the same model on the whole graph in float64."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from mpi4py import MPI
from reference_partition import random_dataset
from training_setup import easy_graph, shared_path  # noqa: F401

from hpcgnn.graph.local_graph import LocalGraph

NUM_NODES, NUM_FEATURES, NUM_OUTPUTS = 60, 6, 5
NUM_EDGE_FEATURES, NUM_RELATIONS = 3, 4


@dataclass
class Whole:
    """The whole graph on every rank, and this rank's part."""

    graph: object
    x: torch.Tensor
    edge_index: torch.Tensor
    edge_weight: torch.Tensor | None
    edge_attr: torch.Tensor | None = None
    edge_type: torch.Tensor | None = None

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


@pytest.fixture
def typed_graph(open_part):
    """Collective: typed_graph(comm=COMM_WORLD, bit_plan=None) -> Whole, whose edges have relations and attributes."""
    def make(comm=MPI.COMM_WORLD, bit_plan=None):
        dataset = with_relations(replace(
            random_dataset(NUM_NODES, 200, seed=2, directed=True),
            features=np.random.default_rng(6).normal(size=(NUM_NODES, NUM_FEATURES)).astype(np.float32)))
        owner = np.random.default_rng(9).permutation(np.arange(NUM_NODES) % comm.size).astype(np.int32)
        opened = open_part(comm, dataset, owner, bit_plan)
        rows = replace(opened.graph.rows, edge_type=opened.part.edge_type, edge_attr=opened.part.edge_attr)
        graph = LocalGraph(rows, opened.graph.exchange)
        graph.begin_forward(seed=3, epoch=1, is_training=True)
        target = np.repeat(np.arange(NUM_NODES), dataset.in_degree())
        return Whole(graph, torch.from_numpy(dataset.features).double(),
                     torch.from_numpy(np.stack([dataset.indices.astype(np.int64), target])), None,
                     torch.from_numpy(dataset.edge_attr).double(), torch.from_numpy(dataset.edge_type).long())
    return make


@pytest.fixture
def easy_typed_graph():
    return with_relations(easy_graph()).check()


def with_relations(dataset, seed=4):
    """The dataset with relations and attributes; each fifth edge comes again in the next relation, with other values.
    """
    rng, is_twice = np.random.default_rng(seed), np.arange(len(dataset.indices)) % 5 == 0
    times = 1 + is_twice
    target = np.repeat(np.repeat(np.arange(dataset.num_nodes), dataset.in_degree()), times)
    relation = np.repeat(rng.integers(0, NUM_RELATIONS - 1, len(times)), times)
    relation[1:] += np.diff(np.repeat(np.arange(len(times)), times)) == 0
    return replace(
        dataset, indices=np.repeat(dataset.indices, times), edge_type=relation.astype(np.int32),
        indptr=np.concatenate([[0], np.cumsum(np.bincount(target, minlength=dataset.num_nodes))]).astype(np.int64),
        edge_attr=rng.uniform(size=(len(target), NUM_EDGE_FEATURES)).astype(np.float32),
        relation_names=tuple(f"r{number}" for number in range(NUM_RELATIONS)))


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
        found = torch.from_numpy(gathered(out, whole.graph))
        gradients = {name: torch.from_numpy(comm.allreduce(parameter.grad.double().numpy()))
                     for name, parameter in model.module.named_parameters() if parameter.grad is not None}
        expected = plain(whole.x, whole.edge_index, **named)
        (expected * cotangent).sum().backward()
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
        expected = {name: parameter.grad for name, parameter in plain.named_parameters() if parameter.grad is not None}
        assert gradients.keys() == expected.keys()
        largest = max(gradient.abs().max() for gradient in expected.values())
        for name, gradient in expected.items():
            assert (gradients[name] - gradient).abs().max() <= 1e-5 * largest, name
        return plain
    return check


def gathered(rows, graph, comm=MPI.COMM_WORLD):
    """Collective: rows of all ranks by global id, as an array."""
    ids = np.concatenate(comm.allgather(graph.node_id[:graph.num_inner]))
    return np.concatenate(comm.allgather(rows.detach().numpy()))[np.argsort(ids)]
