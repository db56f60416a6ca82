"""Stacks of convolutions: the width of what they send, and their norms."""

from __future__ import annotations

import pytest
import torch
from mpi4py import MPI

from hpcgnn.nn.models import MODELS

NUM_LAYERS = 3
# in, hidden, out: the first and the last convolution narrow, widen or keep their rows; the middle one keeps them.
DIMS = [(12, 5, 3), (5, 12, 3), (6, 6, 6), (7, 5, 9)]


@pytest.mark.covering
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("kind", ["gcn", "sage"])
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_every_layer_sends_its_narrower_side_and_the_first_sends_nothing(open_part, graph_with, kind, dims):
    comm = MPI.COMM_WORLD
    dataset, owner = graph_with(dims[0])
    opened, model = open_part(comm, dataset, owner(comm.size)), MODELS[kind](*dims, NUM_LAYERS, 0.0, "none")
    opened.graph.begin_forward(seed=3, epoch=8, is_training=True)
    model(opened.graph, opened.graph.x).sum().backward()
    width = dims[1] + min(dims[1], dims[2])
    num_rows = len(opened.part.boundary_index) + opened.part.num_halo
    assert opened.exchange.training.num_values == num_rows * width


@pytest.mark.parametrize("num_layers", [1, 2, 5])
@pytest.mark.parametrize("norm", ["none", "layer"])
def test_a_stack_has_one_norm_between_two_convolutions(num_layers, norm):
    model = MODELS["sage"](4, 8, 3, num_layers, 0.5, norm)
    dims = [(convolution.in_dim, convolution.out_dim) for convolution in model.convolutions]
    assert dims == list(zip([4] + [8] * (num_layers - 1), [8] * (num_layers - 1) + [3], strict=True))
    assert len(model.norms) == num_layers - 1
    assert all(isinstance(item, torch.nn.LayerNorm) == (norm == "layer") for item in model.norms)
