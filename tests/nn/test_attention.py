"""Graph attention against PyTorch Geometric's GATConv in float64 with the same weights, on 1 to 3 ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mpi4py import MPI
from reference_models import Masks, edge_index_of

from hpcgnn.errors import ConfigError
from hpcgnn.nn.attention import GATConvolution

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed; pip install hpcgnn[test]")

IN, HIDDEN, OUT, SEED, EPOCH = 12, 16, 5, 3, 8


def new_layers(heads, dropout=0.0):
    """A hidden layer whose heads are concatenated and a last one whose heads are averaged."""
    torch.manual_seed(1)
    layers = torch.nn.ModuleList([GATConvolution(IN, HIDDEN, dropout, heads),
                                  GATConvolution(HIDDEN, OUT, dropout, heads, combine="average")])
    for layer in layers:
        torch.nn.init.normal_(layer.bias)
    return layers


def peer_of(layer):
    """PyTorch Geometric's layer with the same weights, in float64."""
    is_concatenated = layer.combine == "concatenate"
    head_dim = layer.out_dim // layer.heads if is_concatenated else layer.out_dim
    peer = pyg.GATConv(layer.in_dim, head_dim, layer.heads, concat=is_concatenated)
    target, source = layer.attention.detach().view(2, 1, layer.heads, head_dim)
    peer.load_state_dict({"att_dst": target, "att_src": source, "lin.weight": layer.weight, "bias": layer.bias})
    return peer.double()


def gradients_of_peer(peer):
    vectors = torch.cat([peer.att_dst.grad.flatten()[None], peer.att_src.grad.flatten()[None]])
    return {"weight": peer.lin.weight.grad, "attention": vectors, "bias": peer.bias.grad}


def two_layers(graph, layers, x):
    graph.begin_forward(SEED, EPOCH, is_training=True)
    return layers[1](graph, torch.relu(layers[0](graph, x)))


@pytest.mark.covering
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("heads", [1, 2, 4, 8])
def test_rows_and_gradients_equal_those_of_pyg(open_part, graph_with, sum_gradients, gather_rows, assert_equal_to,
                                               heads, dropout):
    comm = MPI.COMM_WORLD
    dataset, owner = graph_with(IN, directed=True)
    graph, layers = open_part(comm, dataset, owner(comm.size)).graph, new_layers(heads, dropout)
    weight = torch.from_numpy(np.random.default_rng(0).normal(size=(dataset.num_nodes, OUT)))
    inner_id = graph.node_id[:graph.num_inner]
    out = two_layers(graph, layers, graph.x)
    (out * weight[inner_id]).sum().backward()
    rows, gradients = gather_rows(comm, out, inner_id), sum_gradients(comm, layers)

    peers, edge_index = [peer_of(layer) for layer in layers], edge_index_of(dataset)
    h, drop = torch.from_numpy(dataset.features).double(), Masks(dropout, SEED, EPOCH)
    for number, peer in enumerate(peers):
        h = peer(drop(h), edge_index)
        h = torch.relu(h) if number == 0 else h
    (h * weight).sum().backward()
    assert_equal_to(rows, h.detach())
    for number, peer in enumerate(peers):
        for name, expected in gradients_of_peer(peer).items():
            found = gradients[f"{number}.{name}"]
            # Adding to all scores of a row changes no weight, so a gradient may be 0 but for rounding.
            assert (found - expected).abs().max() <= 1e-5 * max(1, expected.abs().max()), name


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("in_dim, heads, combine, width", [
    (HIDDEN, 4, "concatenate", 8), (4, 4, "concatenate", 4), (HIDDEN, 2, "average", HIDDEN), (20, 2, "average", 16)])
def test_the_narrower_side_travels(open_part, graph_with, in_dim, heads, combine, width):
    comm = MPI.COMM_WORLD
    dataset, owner = graph_with(in_dim)
    opened = open_part(comm, dataset, owner(comm.size))
    layer = GATConvolution(in_dim, 8, 0.5, heads, combine)
    opened.graph.begin_forward(SEED, EPOCH, is_training=True)
    layer(opened.graph, opened.graph.x.clone().requires_grad_()).sum().backward()
    num_rows = len(opened.part.boundary_index) + opened.part.num_halo
    assert opened.exchange.training.num_values == num_rows * width


@pytest.mark.parallel([1, 2])
def test_the_first_layer_sends_nothing(open_part, graph_with):
    comm = MPI.COMM_WORLD
    dataset, owner = graph_with(IN)
    opened = open_part(comm, dataset, owner(comm.size))
    opened.graph.begin_forward(SEED, EPOCH, is_training=True)
    GATConvolution(IN, 8, 0.5)(opened.graph, opened.graph.x).sum().backward()
    assert opened.exchange.training.num_values == 0


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 2.0**-5), (torch.float16, 2.0**-8)])
def test_rows_in_16_bits_give_the_float32_result_up_to_rounding(open_part, graph_with, dtype, tolerance):
    """Some four roundings of 2^-8 or 2^-11 of the largest element, in the rows, the map, the sum and the bias."""
    dataset, owner = graph_with(IN)
    graph, layers = open_part(MPI.COMM_SELF, dataset, owner(1)).graph, new_layers(4)
    rows = graph.x.clone()
    expected = two_layers(graph, layers, rows)
    expected.sum().backward()
    wanted = [parameter.grad.clone() for parameter in layers.parameters()]
    layers.zero_grad()
    found = two_layers(graph, layers, rows.to(dtype))
    found.sum().backward()
    assert found.dtype == dtype and (found - expected).abs().max() <= tolerance * expected.abs().max()
    for parameter, gradient in zip(layers.parameters(), wanted, strict=True):
        assert parameter.dtype == parameter.grad.dtype == torch.float32
        assert (parameter.grad - gradient).abs().max() <= 4 * tolerance * gradient.abs().max()


def test_a_layer_takes_rows_that_are_dropped_out_already(open_part, graph_with):
    dataset, owner = graph_with(IN)
    graph, layer = open_part(MPI.COMM_SELF, dataset, owner(1)).graph, GATConvolution(IN, 8, 0.5)
    rows = graph.x.clone()
    graph.begin_forward(SEED, EPOCH, is_training=True)
    expected = layer(graph, rows)
    graph.begin_forward(SEED, EPOCH, is_training=True)
    assert torch.equal(layer(graph, graph.dropout(rows, 0.5), is_dropped=True), expected)
    assert layer.takes_dropped(graph)


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ConfigError, match="3 attention heads can't share 16 columns"):
        GATConvolution(8, 16, 0.0, heads=3)
    with pytest.raises(ConfigError, match="0 attention heads"):
        GATConvolution(8, 16, 0.0, heads=0, combine="average")
    with pytest.raises(ConfigError, match="found 'sum'"):
        GATConvolution(8, 16, 0.0, combine="sum")
