"""Convolutions of PyTorch Geometric in a model on LocalGraph run distributed with no change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mpi4py import MPI
from reference_models import edge_index_of

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed; pip install hpcgnn[test]")

IN, HIDDEN, OUT = 6, 8, 5
# Every one takes a bipartite pair (source rows, destination rows).
CONVOLUTIONS = {
    "SAGEConv": lambda i, o: pyg.SAGEConv(i, o),
    "SAGEConv max": lambda i, o: pyg.SAGEConv(i, o, aggr="max"),
    "GraphConv": lambda i, o: pyg.GraphConv(i, o),
    "GATConv": lambda i, o: pyg.GATConv(i, o),
    "GATv2Conv": lambda i, o: pyg.GATv2Conv(i, o, share_weights=True),
    "TransformerConv": lambda i, o: pyg.TransformerConv(i, o),
    "GINConv": lambda i, o: pyg.GINConv(torch.nn.Linear(i, o), train_eps=True),
}


def two_layers(name):
    torch.manual_seed(4)
    return torch.nn.ModuleList([CONVOLUTIONS[name](IN, HIDDEN), CONVOLUTIONS[name](HIDDEN, OUT)])


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("name", list(CONVOLUTIONS))
def test_a_bipartite_convolution_equals_itself_on_the_whole_graph(open_part, graph_with, sum_gradients, gather_rows,
                                                                  assert_equal_to, name):
    comm = MPI.COMM_WORLD
    dataset, owner = graph_with(IN, directed=True)
    graph, layers = open_part(comm, dataset, owner(comm.size)).graph, two_layers(name)
    weight = torch.from_numpy(np.random.default_rng(0).normal(size=(dataset.num_nodes, OUT)))
    inner_id = graph.node_id[:graph.num_inner]

    graph.begin_forward(seed=0, epoch=0, is_training=True)
    h = torch.relu(layers[0]((graph.halo(graph.x), graph.x), graph.edge_index))
    out = layers[1]((graph.halo(h), h), graph.edge_index)
    (out * weight[inner_id]).sum().backward()
    rows, gradients = gather_rows(comm, out, inner_id), sum_gradients(comm, layers)

    whole, edge_index = two_layers(name).double(), edge_index_of(dataset)
    h = torch.relu(whole[0](torch.from_numpy(dataset.features).double(), edge_index))
    expected = whole[1](h, edge_index)
    (expected * weight).sum().backward()
    assert_equal_to(rows, expected.detach())
    largest = max(parameter.grad.abs().max() for parameter in whole.parameters())
    for key, parameter in whole.named_parameters():
        assert (gradients[key] - parameter.grad).abs().max() <= 1e-5 * largest, key
