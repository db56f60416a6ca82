"""Small graphs for models, and sums over all ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from reference_partition import random_dataset

from hpcgnn.exchange.bits import UniformBits
from hpcgnn.exchange.halo import HaloExchange
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.reach import Reach, nearest_first
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.rows import LocalRows, Prefixes
from hpcgnn.partition.build import build_partition


@pytest.fixture
def graph_with():
    """graph_with(num_features, directed) -> (dataset, owner function of the number of ranks)."""
    def make(num_features, directed=False):
        dataset = random_dataset(60, 200, seed=2, directed=directed)
        rng = np.random.default_rng(num_features)
        dataset = replace(dataset, features=rng.normal(size=(60, num_features)).astype(np.float32))
        return dataset, lambda num_ranks: rng.permutation(np.arange(60) % num_ranks).astype(np.int32)
    return make


@pytest.fixture
def sum_gradients():
    """Collective: sum_gradients(comm, module) -> gradient of every parameter, summed over the ranks."""
    def summed(comm, module):
        return {name: torch.from_numpy(comm.allreduce(parameter.grad.double().numpy()))
                for name, parameter in module.named_parameters()}
    return summed


@pytest.fixture
def gather_rows():
    """Collective: gather_rows(comm, rows, node_id) -> rows of all ranks by global id, on every rank."""
    def gathered(comm, rows, node_id):
        pieces = comm.allgather((node_id, rows.detach().numpy()))
        whole = np.empty((sum(len(ids) for ids, _ in pieces), rows.shape[1]), np.float32)
        for ids, values in pieces:
            whole[ids] = values
        return torch.from_numpy(whole)
    return gathered


@pytest.fixture
def assert_equal_to():
    """assert_equal_to(actual, expected): within 1e-5 of the largest magnitude of `expected`."""
    def check(actual, expected):
        assert (actual.double() - expected.double()).abs().max() <= 1e-5 * expected.abs().max()
    return check


@pytest.fixture
def open_reachable():
    """Collective: open_reachable(comm, dataset, owner, num_hops) -> (graph, training rows of its part); the graph's
    training passes of num_hops aggregations leave out rows that can't reach the loss.
    """
    def open_one(comm, dataset, owner, num_hops):
        part = build_partition(dataset, owner, comm.rank, comm.size)
        part, reach = nearest_first(part, Reach.measure(comm, part, ExchangePlan.build(part), num_hops))
        exchange = HaloExchange(comm, ExchangePlan.build(part), UniformBits(32), reach=reach)
        features = exchange.input_rows(torch.from_numpy(part.features))
        rows = LocalRows(part.indptr, part.indices, part.node_id, part.in_degree, features)
        graph = LocalGraph(rows, exchange, Prefixes(reach.num_within))
        return graph, np.flatnonzero(part.train_mask)
    return open_one
