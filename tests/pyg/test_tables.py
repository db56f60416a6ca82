"""A tensor with a row for each node of the whole graph lies in the order of the source: distributed models read of it
the rows of their nodes, so that answers and gradients are plain PyTorch Geometric's on any number of ranks.
"""

from __future__ import annotations

import pytest
import torch

import hpcgnn
from hpcgnn.errors import ConfigError

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed; pip install hpcgnn[test]")
NUM_NODES, DIM = 60, 4


class Embedded(torch.nn.Module):
    """A row of its own for every node, read in a way that `read(model, x)` says."""

    def __init__(self, read=None, conv=pyg.SAGEConv):
        super().__init__()
        torch.manual_seed(4)
        self.read, self.conv, self.norm = read, conv(DIM, 5), torch.nn.BatchNorm1d(DIM)
        self.embedding = torch.nn.Embedding(NUM_NODES, DIM)
        self.own = torch.nn.Parameter(torch.randn(NUM_NODES, DIM))
        self.map = torch.nn.Parameter(torch.randn(DIM, DIM))
        self.register_buffer("place", torch.randn(NUM_NODES, DIM))
        self.register_buffer("number", torch.arange(NUM_NODES))
        self.plain = torch.randn(NUM_NODES, DIM)
        self.sparse = torch.nn.Embedding(NUM_NODES + 1, DIM, padding_idx=NUM_NODES, sparse=True)

    def forward(self, x, edge_index):
        rest = sum((0 * parameter.sum() for parameter in self.parameters()), start=0)      # gradients of all
        return self.conv(self.read(self, x), edge_index) + rest


WAYS = {
    "positions": lambda self, x: self.embedding(torch.arange(len(x))),
    "positions on a device": lambda self, x: self.embedding(torch.arange(x.size(0), device=x.device).long()),
    "all positions": lambda self, x: self.embedding(torch.arange(NUM_NODES)),
    "the weight": lambda self, x: self.embedding.weight,
    "numbers in a buffer": lambda self, x: self.embedding(self.number),
    "a larger embedding": lambda self, x: self.sparse(torch.arange(len(x))),
    "a slice": lambda self, x: self.place[:len(x)] + self.own[:],
    "columns of a slice": lambda self, x: torch.cat([self.own[:len(x), 1:], x[:, :1]], 1),
    "a sum": lambda self, x: x[:, :DIM] + self.place,
    "a moved table": lambda self, x: self.plain.to(x.device)[:len(x)],
    "a product": lambda self, x: torch.relu(self.own @ self.map),
    "a normalized table": lambda self, x: self.norm(self.own),
    "a list": lambda self, x: torch.stack([self.own, self.place]).sum(0),
    "rows that are indexed": lambda self, x: self.own[torch.arange(len(x))] + self.own.index_select(
        0, torch.arange(len(x))),
    "a mean of all": lambda self, x: x[:, :DIM] - self.own.mean(0) + self.own.mean(1, keepdim=True),
}


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("way", WAYS)
def test_rows_of_nodes_are_those_of_the_source(whole_graph, assert_equals_pyg, way):
    whole = whole_graph()
    model, reference = Embedded(WAYS[way]), Embedded(WAYS[way]).double()
    reference.plain = reference.plain.double()
    assert_equals_pyg(whole, hpcgnn.distribute(model), reference)


class Numbered(Embedded):
    def forward(self, x, edge_index, n_id=None, node_index=None):
        assert torch.equal(n_id, node_index)
        return super().forward(x, edge_index) + self.embedding(n_id)[:, :1] + self.own[node_index, :1]


class OfData(Embedded):
    def forward(self, data):
        return super().forward(data.x, data.edge_index) + self.embedding(data.n_id) @ self.map[:, [0, 0, 0, 0, 0]]


@pytest.mark.parallel([1, 2])
def test_a_forward_is_given_the_nodes_numbers(whole_graph, assert_equals_pyg):
    from torch_geometric.data import Data

    whole, numbers = whole_graph(), torch.arange(NUM_NODES)
    read = WAYS["a sum"]
    assert_equals_pyg(whole, hpcgnn.distribute(Numbered(read)), Numbered(read).double(), n_id=numbers,
                      node_index=numbers)
    reference = OfData(read).double()
    plain = torch.nn.Module()
    plain.forward = lambda x, edge_index: reference(Data(x=x, edge_index=edge_index, n_id=numbers))
    plain.named_parameters, plain.parameters = reference.named_parameters, reference.parameters
    assert_equals_pyg(whole, hpcgnn.distribute(OfData(read)), plain)


@pytest.mark.parallel([1, 2])
def test_convolutions_of_every_kind_take_a_table(whole_graph, assert_equals_pyg):
    for conv in (pyg.GCNConv, pyg.GATConv, pyg.TAGConv, pyg.GraphConv):
        whole, read = whole_graph(), WAYS["the weight"]
        assert_equals_pyg(whole, hpcgnn.distribute(Embedded(read, conv)), Embedded(read, conv).double())


def writes(self, x):
    self.place[:len(x)] = x[:, :DIM]
    return self.place


@pytest.mark.parallel([1, 2])
def test_rows_that_would_be_kept_by_one_rank_are_refused(whole_graph):
    whole = whole_graph()
    for way, complaint in [(writes, "the model writes to place, which has one row per node"),
                           (lambda self, x: torch.nn.functional.embedding(
                               torch.arange(len(x)), self.own, max_norm=1.0), "the model has an embedding with max_")]:
        with pytest.raises(ConfigError, match=complaint):
            hpcgnn.distribute(Embedded(way))(whole.graph, whole.graph.x)
