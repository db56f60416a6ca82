"""Graph attention: which side travels, rows in 16 bits, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from mpi4py import MPI

from hpcgnn.errors import ConfigError
from hpcgnn.nn.attention import GATConvolution

IN, HIDDEN, OUT, SEED, EPOCH = 12, 16, 5, 3, 8


def new_layers():
    """A hidden layer whose heads are concatenated and a last one whose heads are averaged."""
    torch.manual_seed(1)
    layers = torch.nn.ModuleList([GATConvolution(IN, HIDDEN, 0.0), GATConvolution(HIDDEN, OUT, 0.0, combine="average")])
    for layer in layers:
        torch.nn.init.normal_(layer.bias)
    return layers


def two_layers(graph, layers, x):
    graph.begin_forward(SEED, EPOCH, is_training=True)
    return layers[1](graph, torch.relu(layers[0](graph, x)))


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
    graph, layers = open_part(MPI.COMM_SELF, dataset, owner(1)).graph, new_layers()
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
