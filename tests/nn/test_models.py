"""Models on 1 to 3 ranks against one process with dense float64 matrices and the same weights: logits and gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from mpi4py import MPI
from reference import DROPOUT, dense_matrix, draws_of, stream_of
from torch.nn import functional

from hpcgnn.nn.models import MODELS

SEED, EPOCH, NUM_LAYERS = 3, 8, 3
# in, hidden, out: the first and the last convolution narrow, widen or keep their rows; the middle one keeps them.
DIMS = [(12, 5, 3), (5, 12, 3), (6, 6, 6), (7, 5, 9)]
REDUCTION = {"gcn": "gcn", "sage": "mean"}


def new_model(kind, dims, dropout=0.0, norm="none"):
    torch.manual_seed(1)
    model = MODELS[kind](*dims, NUM_LAYERS, dropout, norm)
    for name, parameter in model.named_parameters():
        if "bias" in name:
            torch.nn.init.normal_(parameter)
    return model


def dense_logits(model, kind, dataset, dropout):
    """The model's formula with a dense matrix, and masks from the oracle's draws."""
    matrix = torch.from_numpy(dense_matrix(dataset.indptr, dataset.indices, dataset.in_degree(), REDUCTION[kind]))
    h, threshold = torch.from_numpy(dataset.features).double(), round(dropout * 2**16)
    for layer, convolution in enumerate(model.convolutions):
        draws = draws_of(np.arange(len(h)), h.shape[1], SEED, EPOCH, stream_of(DROPOUT, layer))
        h = h * torch.from_numpy(draws >= threshold) * (2**16 / (2**16 - threshold))
        if kind == "gcn":
            h = matrix @ h @ convolution.weight_neighbor.t() + convolution.bias
        else:
            h = h @ convolution.weight_self.t() + matrix @ h @ convolution.weight_neighbor.t() + convolution.bias
        if layer < NUM_LAYERS - 1:
            h = torch.relu(model.norms[layer](h))
    return h


def mean_loss(logits, labels, mask, num_train):
    return functional.cross_entropy(logits[mask], labels[mask], reduction="sum") / num_train


def first_step(opened, model, labels, mask, num_train):
    """Collective: logits of inner rows, with the gradients of the first step left in the model."""
    opened.graph.begin_forward(SEED, EPOCH, is_training=True)
    logits = model(opened.graph, opened.graph.x)
    mean_loss(logits, torch.from_numpy(labels), torch.from_numpy(mask), num_train).backward()
    return logits


@pytest.mark.covering
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("dropout, norm", [(0.0, "none"), (0.5, "layer")])
@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("kind", ["gcn", "sage"])
def test_logits_and_gradients_equal_a_dense_model(open_part, graph_with, sum_gradients, gather_rows, assert_equal_to,
                                                  kind, dims, dropout, norm):
    comm = MPI.COMM_WORLD
    dataset, owner = graph_with(dims[0], directed=kind == "sage")
    labels, mask = dataset.labels % dims[2], dataset.train_mask
    opened, model = open_part(comm, dataset, owner(comm.size)), new_model(kind, dims, dropout, norm)
    inner_id = opened.part.inner_id
    logits = gather_rows(comm, first_step(opened, model, labels[inner_id], mask[inner_id], mask.sum()), inner_id)
    gradients = sum_gradients(comm, model)

    reference = new_model(kind, dims, norm=norm).double()
    expected = dense_logits(reference, kind, dataset, dropout)
    mean_loss(expected, torch.from_numpy(labels), torch.from_numpy(mask), mask.sum()).backward()
    assert_equal_to(logits, expected.detach())
    for name, parameter in reference.named_parameters():
        assert_equal_to(gradients[name], parameter.grad)


@pytest.mark.parallel([2, 3])
def test_a_rank_without_training_nodes_joins_the_step(open_part, graph_with, sum_gradients, assert_equal_to):
    comm = MPI.COMM_WORLD
    dataset, owner = graph_with(6)
    owner = owner(comm.size)
    dataset = replace(dataset, train_mask=dataset.train_mask & (owner == 0))
    opened, model = open_part(comm, dataset, owner), new_model("gcn", (6, 4, 4))
    part, num_train = opened.part, dataset.train_mask.sum()
    first_step(opened, model, part.labels, part.train_mask, num_train)
    gradients = sum_gradients(comm, model)

    reference = new_model("gcn", (6, 4, 4)).double()
    mean_loss(dense_logits(reference, "gcn", dataset, 0.0), torch.from_numpy(dataset.labels),
              torch.from_numpy(dataset.train_mask), num_train).backward()
    assert part.train_mask.any() == (comm.rank == 0)
    for name, parameter in reference.named_parameters():
        assert_equal_to(gradients[name], parameter.grad)


@pytest.mark.covering
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("kind", ["gcn", "sage"])
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_every_layer_sends_its_narrower_side_and_the_first_sends_nothing(open_part, graph_with, kind, dims):
    comm = MPI.COMM_WORLD
    dataset, owner = graph_with(dims[0])
    opened, model = open_part(comm, dataset, owner(comm.size)), new_model(kind, dims)
    opened.graph.begin_forward(SEED, EPOCH, is_training=True)
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


def test_first_layer_parameters_are_those_of_the_first_convolution():
    model = MODELS["gcn"](4, 8, 3, 2, 0.5, "layer")
    names = [name for name, parameter in model.named_parameters()
             if any(parameter is first for first in model.first_layer_parameters())]
    assert names == ["convolutions.0.weight_neighbor", "convolutions.0.bias"]
