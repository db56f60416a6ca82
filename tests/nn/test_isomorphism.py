"""Graph isomorphism convolution in HalfGNN's mean form, against its formula in float64, and in 16 bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mpi4py import MPI
from reference import dense_matrix
from reference_models import Masks
from torch.nn import functional

from hpcgnn.errors import ConfigError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.rows import LocalRows
from hpcgnn.nn.isomorphism import GINConvolution

SEED, EPOCH = 3, 8
# The first linear map of the first layer, and of the second, narrows, widens or keeps the rows.
DIMS = [(12, 5, 3), (5, 12, 12), (6, 6, 9)]


def new_layers(dims, dropout=0.0):
    torch.manual_seed(1)
    layers = torch.nn.ModuleList([GINConvolution(dims[i], dims[i + 1], dropout, "mean") for i in range(2)])
    for i, layer in enumerate(layers):
        torch.nn.init.constant_(layer.epsilon, 0.3 - i)
    return layers


def two_layers(graph, layers, x):
    graph.begin_forward(SEED, EPOCH, is_training=True)
    return layers[1](graph, torch.relu(layers[0](graph, x)))


def dense_rows(layers, dataset, dropout):
    """The formula with a dense matrix, and masks from the oracle's draws."""
    h, drop = torch.from_numpy(dataset.features).double(), Masks(dropout, SEED, EPOCH)
    matrix = torch.from_numpy(dense_matrix(dataset.indptr, dataset.indices, dataset.in_degree(), "mean"))
    for number, layer in enumerate(layers):
        h = drop(h)
        h = layer.second(torch.relu(layer.first((1 + layer.epsilon) * h + 0.1 * (matrix @ h))))
        h = torch.relu(h) if number == 0 else h
    return h


@pytest.mark.covering
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_rows_and_gradients_of_the_mean_equal_a_dense_model(open_part, graph_with, sum_gradients, gather_rows,
                                                            assert_equal_to, dims, dropout):
    comm = MPI.COMM_WORLD
    dataset, owner = graph_with(dims[0], directed=True)
    graph, layers = open_part(comm, dataset, owner(comm.size)).graph, new_layers(dims, dropout)
    weight = torch.from_numpy(np.random.default_rng(0).normal(size=(dataset.num_nodes, dims[2])))
    inner_id = graph.node_id[:graph.num_inner]
    out = two_layers(graph, layers, graph.x)
    (out * weight[inner_id]).sum().backward()
    rows, gradients = gather_rows(comm, out, inner_id), sum_gradients(comm, layers)

    reference = new_layers(dims).double()
    expected = dense_rows(reference, dataset, dropout)
    (expected * weight).sum().backward()
    assert_equal_to(rows, expected.detach())
    for name, parameter in reference.named_parameters():
        assert (gradients[name] - parameter.grad).abs().max() <= 2e-5 * max(1, parameter.grad.abs().max()), name


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("dims", [(12, 5), (5, 12), (6, 6)], ids=str)
def test_the_narrower_side_travels(open_part, graph_with, dims):
    comm = MPI.COMM_WORLD
    dataset, owner = graph_with(dims[0])
    opened = open_part(comm, dataset, owner(comm.size))
    opened.graph.begin_forward(SEED, EPOCH, is_training=True)
    GINConvolution(*dims, 0.5)(opened.graph, opened.graph.x.clone().requires_grad_()).sum().backward()
    num_rows = len(opened.part.boundary_index) + opened.part.num_halo
    assert opened.exchange.training.num_values == num_rows * min(dims)


class AloneExchange:
    """Of a part without halo rows."""

    is_alone, overlaps, halo_spans, num_returning, reads_history = True, False, None, None, False

    def start_fetch(self, h, site):
        return self

    def start_take_home(self, gradient, site):
        assert len(gradient) == 0
        return self

    def finish(self, rows):
        """Nothing comes."""


def star(num_leaves, features):
    """Node 0 with the in-neighbors 1 .. num_leaves."""
    indptr = np.full(num_leaves + 2, num_leaves, np.int64)
    indptr[0] = 0
    in_degree = np.zeros(num_leaves + 1, np.int32)
    in_degree[0] = num_leaves
    leaves = np.arange(1, num_leaves + 1, dtype=np.int32)
    return LocalGraph(LocalRows(indptr, leaves, np.arange(num_leaves + 1), in_degree, features), AloneExchange())


def test_the_mean_form_keeps_50000_neighbors_in_float16_finite_where_the_sum_does_not():
    """Rows near 4 sum to 200,000, beyond float16's 65,504."""
    rows = torch.from_numpy(np.random.default_rng(0).normal(4, 1, (50_001, 8)).astype(np.float32))
    torch.manual_seed(0)
    layers = {reduction: GINConvolution(8, 8, 0.0, reduction) for reduction in ("sum", "mean")}
    graph = star(50_000, rows.half())
    outs = {reduction: layer(graph, graph.x) for reduction, layer in layers.items()}
    assert not outs["sum"][0].isfinite().all()
    layer = layers["mean"].double()
    combined = (1 + layer.epsilon) * rows.half().double()
    combined[0] += 0.1 * rows[1:].half().double().mean(dim=0)
    expected = layer.second(torch.relu(layer.first(combined)))
    # Six roundings of 2^-11, in sums of 8 products.
    assert (outs["mean"].double() - expected).abs().max() <= 2.0**-7 * expected.abs().max()


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 2.0**-4), (torch.float16, 2.0**-7)])
def test_gradients_of_16_bit_rows_are_float32_and_finite(open_part, graph_with, dtype, tolerance):
    dataset, owner = graph_with(6)
    graph, layers = open_part(MPI.COMM_SELF, dataset, owner(1)).graph, new_layers((6, 8, 8))
    rows, gradients = graph.x.clone(), []
    for storage in (torch.float32, dtype):
        layers.zero_grad()
        out = two_layers(graph, layers, rows.to(storage))
        functional.mse_loss(out.float(), torch.ones_like(out, dtype=torch.float32)).backward()
        gradients.append([parameter.grad.clone() for parameter in layers.parameters()])
        assert out.dtype == storage
    for expected, found in zip(*gradients, strict=True):
        assert found.dtype == torch.float32
        assert (found - expected).abs().max() <= tolerance * expected.abs().max()


def test_the_gradient_of_epsilon_does_not_overflow_in_float16():
    """64 * 50,001 products of 1 are 3.2 million; a float16 sum of them is infinite."""
    graph = star(50_000, torch.ones(50_001, 64, dtype=torch.float16))
    layer = GINConvolution(64, 64, 0.0, "mean")
    with torch.no_grad():
        for linear in (layer.first, layer.second):
            linear.weight.copy_(torch.eye(64))
            linear.bias.zero_()
    layer(graph, graph.x).sum(dtype=torch.float32).backward()
    assert layer.epsilon.grad.item() == pytest.approx(64 * 50_001, rel=1e-3)


def test_an_unknown_reduction_is_refused():
    with pytest.raises(ConfigError, match="sum, mean, found 'max'"):
        GINConvolution(4, 4, 0.0, "max")
