"""Input rows that are mostly zeros: value by value they give what dense rows give, on any number of ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from mpi4py import MPI

from hpcgnn.lowbit.training.convolutions import SPARSE_SHARE, SparseInput
from hpcgnn.lowbit.training.models import QuantizationScheme, QuantizedStack
from hpcgnn.lowbit.training.quantizer import Nodes
from hpcgnn.nn.models import ModelShape, build_model

# At 8 bits a mapped value on the edge of two codes, which rounding tips over, changes little.
SCHEMES = {"degree-aware": QuantizationScheme("degree-aware", 8, 8), "uniform": QuantizationScheme("uniform", 8, 8),
           "degree-quant": QuantizationScheme("degree-quant", 8, 8, protection=(0.1, 0.3))}
DIM = 40


def sparse_rows(num_rows, dim, density, seed=0):
    """Weights of words; some rows and some columns are empty."""
    rng = np.random.default_rng(seed)
    rows = rng.uniform(0.5, 4.0, (num_rows, dim)) * (rng.random((num_rows, dim)) < density)
    rows[num_rows // 2], rows[:, dim // 3] = 0, 0
    return rows.astype(np.float32)


def nodes_of(num_rows):
    return Nodes(torch.zeros(num_rows, dtype=torch.int64))


@pytest.fixture
def sparse_graph(open_part, graph_with):
    """Collective: sparse_graph(density) -> LocalGraph of this rank."""
    def opened(density=0.1):
        dataset, owner = graph_with(3)
        dataset = replace(dataset, features=sparse_rows(60, DIM, density))
        comm = MPI.COMM_WORLD
        return open_part(comm, dataset, owner(comm.size)).graph
    return opened


def fitted(graph, kind, scheme, dropout=0.5):
    torch.manual_seed(0)
    stack = build_model(ModelShape(kind, DIM, 8, 4, 2, dropout, "none", heads=2))
    with torch.no_grad():
        for name, parameter in stack.named_parameters():
            if name.endswith("bias"):     # or sums of codes that cancel lie on the edge of ReLU
                parameter.uniform_(-0.3, 0.3)
    model = QuantizedStack.fit(stack, SCHEMES[scheme], graph, MPI.COMM_WORLD)
    with torch.no_grad():
        for parameter in model.scale_parameters():     # fitted ranges end on the largest value, the edge of clipping
            parameter.add_(0.03)
    return model


def trained_pass(model, graph, epoch=3):
    """Collective: logits and gradients of a training pass."""
    model.train().zero_grad()
    graph.begin_forward(seed=1, epoch=epoch, is_training=True)
    logits = model(graph, graph.x)
    coefficients = torch.from_numpy(graph.node_id[:graph.num_inner, None] % 7 - 3.0).float()
    (logits * coefficients).sum().backward()
    return logits.detach(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()
                             if parameter.grad is not None}


@pytest.mark.parametrize("num_rows, dim", [(1, 1), (7, 33), (50, 3), (64, 130)])
@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
def test_a_map_and_its_gradients_are_those_of_dense_rows(num_rows, dim, density):
    rows, rng = sparse_rows(num_rows, dim, density), np.random.default_rng(1)
    weight = torch.from_numpy(rng.normal(size=(5, dim)).astype(np.float32)).requires_grad_()
    gradient = rng.normal(size=(num_rows, 5)).astype(np.float32)
    entries = SparseInput(torch.from_numpy(rows), np.arange(num_rows))
    sparse = entries.quantized(lambda values, nodes: values, nodes_of(num_rows))
    values = sparse.values.clone().requires_grad_()
    mapped = replace(sparse, values=values).mapped(weight)
    mapped.backward(torch.from_numpy(gradient))
    expected_weight = gradient.T.astype(np.float64) @ rows
    expected_values = (gradient.astype(np.float64) @ weight.detach().numpy())[rows != 0]
    expected = rows.astype(np.float64) @ weight.detach().numpy().T
    np.testing.assert_allclose(mapped.detach(), expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(weight.grad, expected_weight, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(values.grad[:, 0], expected_values, rtol=1e-5, atol=1e-5)


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("kind, scheme", [("gcn", "degree-aware"), ("gcn", "uniform"), ("gcn", "degree-quant"),
                                          ("sage", "degree-aware"), ("gin", "uniform"), ("gat", "degree-quant")])
def test_a_training_pass_equals_that_of_dense_rows(sparse_graph, kind, scheme):
    graph = sparse_graph()
    model = fitted(graph, kind, scheme, dropout=0.0)
    first = model.convolutions[0]
    assert first.has_sparse_input
    fresh = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    logits, gradients = trained_pass(model, graph)
    first.has_sparse_input = False
    model.load_state_dict(fresh)    # tracked ranges move in every pass
    expected, expected_gradients = trained_pass(model, graph)
    assert (logits - expected).abs().max() <= 0.01 * expected.abs().max()
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in gradients.items():
        assert (gradient - expected_gradients[name]).norm() <= 0.05 * expected_gradients[name].norm(), name


@pytest.mark.parallel([1, 2, 3])
def test_the_same_values_are_dropped_out_on_any_number_of_ranks(sparse_graph, open_part, graph_with):
    """As many as there should be, scaled, and others in another epoch."""
    graph = sparse_graph(density=0.2)
    entries = SparseInput(graph.x, graph.ids(0, graph.num_inner))
    kept = []
    for epoch in (0, 1):
        graph.begin_forward(seed=5, epoch=epoch, is_training=True)
        sparse = entries.quantized(lambda values, nodes: torch.ones_like(values), nodes_of(graph.num_inner))
        values = sparse.dropped_out(graph, 0.25).values[:, 0].numpy()
        assert set(np.round(np.unique(values), 3)) <= {0.0, np.float32(1.333)}
        everyone = MPI.COMM_WORLD.allgather(dict(zip(entries.value_id.tolist(), (values > 0).tolist(), strict=True)))
        kept.append({number: is_kept for one in everyone for number, is_kept in one.items()})
    assert abs(np.mean(list(kept[0].values())) - 0.75) < 0.08     # four deviations of some 450 draws
    assert kept[0] != kept[1]
    alone = open_part(MPI.COMM_SELF, replace(graph_with(3)[0], features=sparse_rows(60, DIM, 0.2)),
                      np.zeros(60, np.int32)).graph
    alone.begin_forward(seed=5, epoch=0, is_training=True)
    whole = SparseInput(alone.x, alone.ids(0, 60))
    values = whole.quantized(lambda values, nodes: values, nodes_of(60)).dropped_out(alone, 0.25).values
    assert dict(zip(whole.value_id.tolist(), (values[:, 0] > 0).tolist(), strict=True)) == kept[0]
    assert len(kept[0]) == np.count_nonzero(sparse_rows(60, DIM, 0.2))


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("densities, is_sparse", [((0.0, 1.6), True), ((0.4, 2.4), False)])
def test_all_ranks_take_the_same_way_by_the_density_of_all_rows(open_part, graph_with, densities, is_sparse):
    """In shares of the largest one that is sparse; by its own rows, one of several ranks would take the other way."""
    comm = MPI.COMM_WORLD
    dataset, _ = graph_with(3)
    features = np.concatenate([sparse_rows(30, DIM, density * SPARSE_SHARE) for density in densities])
    owner = np.sort(np.arange(60) % comm.size).astype(np.int32)
    graph = open_part(comm, replace(dataset, features=features), owner).graph
    model = fitted(graph, "gcn", "uniform")
    assert model.convolutions[0].has_sparse_input is is_sparse
    own = comm.allgather(bool(graph.x.count_nonzero() <= SPARSE_SHARE * graph.x.numel()))
    assert comm.size == 1 or len(set(own)) == 2


def test_evaluation_drops_nothing(sparse_graph):
    graph = sparse_graph()
    graph.begin_forward(seed=5, epoch=0, is_training=False)
    sparse = SparseInput(graph.x, graph.ids(0, 60)).quantized(lambda values, nodes: values, nodes_of(60))
    assert sparse.dropped_out(graph, 0.5) is sparse
