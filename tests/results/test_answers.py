"""Answers of all nodes come back in the order of the source, under its ids, as one process of PyG gives them."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import scipy.special
import torch
import torch_geometric.nn as pyg
from mpi4py import MPI
from reference_models import CONVOLUTIONS, edge_index_of, gcn_norm, peer_logits
from reference_partition import with_relations
from torch import nn
from training_setup import easy_graph, random_owner

from hpcgnn.errors import CollectiveError
from hpcgnn.nn.models import MODELS, ModelShape, build_model
from hpcgnn.results.answers import Answers, answer
from hpcgnn.shards.schema import GraphInfo
from hpcgnn.training.scores import CLASSES, MULTI_LABEL, REGRESSION

NAMED = ("zero", "one", "two", "three")


def info_of(dataset, **options):
    """What of GraphInfo an answer reads."""
    found = {name: None for name in GraphInfo.__dataclass_fields__}
    return GraphInfo(**{**found, "num_nodes": dataset.num_nodes, "is_multi_label": False,
                        "class_names": (), **options})


def model_of(name, dataset, layers=2):
    shape = ModelShape(name, dataset.features.shape[1], 8, 4, layers, 0.5, norm="none" if name == "sgc" else "layer",
                       num_relations=5)
    torch.manual_seed(3)
    model = build_model(shape)
    with torch.no_grad():
        for own in model.parameters():
            own.add_(0.1 * torch.randn_like(own))
    return shape, model


def last_layer(shape, model, rows, dataset):
    """The last layer of a model on its input, as PyTorch Geometric computes it."""
    edges = edge_index_of(dataset)
    if shape.model in CONVOLUTIONS:
        beside = torch.from_numpy(dataset.edge_type).long() if shape.model == "rgcn" else None
        return CONVOLUTIONS[shape.model](model.convolutions[-1], rows, (edges, beside))
    if shape.model in ("gcnii", "jknet"):
        return model.last(rows)
    h = model.perceptron.second(rows)
    if shape.model == "appnp":
        return pyg.APPNP(shape.num_layers, shape.alpha)(h, edges)
    (source, target), weight = gcn_norm(edges, None, len(rows), dtype=rows.dtype)
    total = torch.sigmoid(model.gate(h)) * h
    for _ in range(shape.num_layers):
        h = torch.zeros_like(h).index_add(0, target, weight[:, None] * h[source])
        total = total + torch.sigmoid(model.gate(h)) * h
    return total


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_each_model_answers_as_pyg_does_on_one_process(open_part, name):
    comm, dataset = MPI.COMM_WORLD, with_relations(easy_graph())
    opened = open_part(comm, dataset, random_owner(dataset, comm.size))
    shape, model = model_of(name, dataset)
    found = answer(comm, model, opened.graph, opened.part, info_of(dataset), embeddings=name != "sgc")
    whole = found.gather(comm, everywhere=True)
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        expected = peer_logits(exact, shape, dataset).numpy()
        np.testing.assert_allclose(whole.logits, expected, atol=1e-5, rtol=1e-4)
        if name != "sgc":
            again = last_layer(shape, exact, torch.from_numpy(whole.embeddings).double(), dataset).numpy()
            np.testing.assert_allclose(again, expected, atol=1e-5, rtol=1e-4)
    np.testing.assert_array_equal(whole.node_id, np.arange(dataset.num_nodes))
    shares = scipy.special.softmax(expected, axis=1).max(axis=1)
    np.testing.assert_allclose(whole.probability, shares, atol=1e-5)
    assert model.training and whole.prediction.dtype == np.int32


@pytest.mark.parallel([1, 2])
def test_strings_of_any_length_come_back_in_the_order_of_the_source(open_part):
    comm, dataset = MPI.COMM_WORLD, easy_graph()
    opened = open_part(comm, dataset, random_owner(dataset, comm.size))
    names = np.array([f"paper {'x' * (node % 7)}{node}" for node in range(dataset.num_nodes)])
    part = replace(opened.part, inner_name=names[opened.part.inner_id].astype(object if comm.rank else str))
    found = answer(comm, model_of("gcn", dataset)[1], opened.graph, part, info_of(dataset)).gather(comm)
    assert (found is None) == (comm.rank > 0)
    if comm.rank == 0:
        assert found.name.tolist() == names.tolist() and found.embeddings.shape == (240, 0)


class Plain(nn.Module):
    """A model of a user: its last layer is a module with a matrix, and a normalization follows it."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.norm = nn.Linear(12, 5), nn.Linear(5, 4), nn.LayerNorm(4)

    def forward(self, graph, x):
        return self.norm(self.last(graph.aggregate(graph.halo(self.first(x)), "mean")))


class NoLayer(Plain):
    """No weight meets a row."""

    def forward(self, graph, x):
        return x[:, :4]


class Headed(nn.Module):
    """Maps its hidden rows by a head of any kind, and remembers what this reads."""

    def __init__(self, head, **parts):
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(12, 5), nn.LayerNorm(4), head
        self.matrix, self.prototypes = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(4, 5))
        self.scale = nn.Parameter(torch.ones(1, 4))
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, graph, x):
        self.read = torch.relu(graph.aggregate(graph.halo(self.first(x)), "mean"))
        return self.norm(self.head(self, self.read)) * self.scale


HEADS = {
    "a parameter": lambda: Headed(lambda self, h: h @ self.matrix),
    "a function": lambda: Headed(lambda self, h: nn.functional.linear(h, self.matrix.t())),
    "einsum": lambda: Headed(lambda self, h: torch.einsum("ij,jk->ik", h, self.matrix)),
    "weight norm": lambda: Headed(lambda self, h: self.lin(h), lin=nn.utils.parametrizations.weight_norm(
        nn.Linear(5, 4))),
    "spectral norm": lambda: Headed(lambda self, h: self.lin(h), lin=nn.utils.parametrizations.spectral_norm(
        nn.Linear(5, 4))),
    "distances": lambda: Headed(lambda self, h: -torch.cdist(h, self.prototypes)),
    "own distances": lambda: Headed(lambda self, h: -(h[:, None] - self.prototypes).square().sum(2)),
    "bilinear": lambda: Headed(lambda self, h: self.lin(h, h), lin=nn.Bilinear(5, 5, 4)),
    "a cell": lambda: Headed(lambda self, h: self.cell(h), cell=nn.GRUCell(5, 4)),
    "a list": lambda: Headed(lambda self, h: torch.cat([h @ one for one in self.columns], 1), columns=nn.ParameterList(
        [torch.randn(5, 2), torch.randn(5, 2)])),
    "a convolution": lambda: Headed(lambda self, h: self.conv(h[:, None])[:, 0], conv=nn.Conv1d(1, 1, 2)),
}


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("kind", HEADS)
def test_embeddings_are_what_a_head_of_any_kind_reads(open_part, kind):
    comm, dataset = MPI.COMM_WORLD, easy_graph()
    opened = open_part(comm, dataset, random_owner(dataset, comm.size))
    torch.manual_seed(0)
    model = HEADS[kind]()
    found = answer(comm, model, opened.graph, opened.part, info_of(dataset), True)
    np.testing.assert_allclose(found.embeddings, model.read.detach().numpy(), atol=1e-6)


@pytest.mark.parallel([1, 2])
def test_an_own_models_embeddings_are_what_its_last_matrix_reads(open_part):
    comm, dataset = MPI.COMM_WORLD, easy_graph()
    opened = open_part(comm, dataset, random_owner(dataset, comm.size))
    torch.manual_seed(0)
    model = Plain()
    whole = answer(comm, model, opened.graph, opened.part, info_of(dataset), True).gather(comm, everywhere=True)
    first = model.first(torch.from_numpy(dataset.features)).detach().numpy()
    sums = np.add.reduceat(np.append(first[dataset.indices], np.zeros((1, 5), np.float32), 0), dataset.indptr[:-1])
    degree = dataset.in_degree()
    expected = np.where(degree[:, None] > 0, sums / np.maximum(degree, 1)[:, None], 0)
    np.testing.assert_allclose(whole.embeddings, expected, atol=1e-5)
    with pytest.raises(CollectiveError, match="NoLayer calls none of its layers with rows of nodes"):
        answer(comm, NoLayer(), opened.graph, opened.part, info_of(dataset), True)
    with pytest.raises(CollectiveError, match="sgc is one linear map"):
        answer(comm, model_of("sgc", dataset)[1], opened.graph, opened.part, info_of(dataset), True)


def test_an_answer_that_is_not_finite_is_counted(open_part):
    comm, dataset = MPI.COMM_SELF, easy_graph()
    opened = open_part(comm, dataset, np.zeros(dataset.num_nodes, np.int32))
    model = Plain()
    with torch.no_grad():
        model.norm.bias[0] = float("nan")
    with pytest.raises(CollectiveError, match="outputs for 240 nodes are not finite"):
        answer(comm, model, opened.graph, opened.part, info_of(dataset))


def answers_of(task, logits, class_names=()):
    node_id = np.arange(len(logits))
    return Answers(task, len(logits), node_id, node_id, logits, np.empty((len(logits), 0), np.float32), class_names)


def test_predictions_and_probabilities_by_task():
    logits = np.array([[1, -2, 3, 0.5], [2, 2, -1, -1]], np.float32)
    one = answers_of(CLASSES, logits, NAMED)
    assert one.prediction.tolist() == [2, 0] and one.class_name.tolist() == ["two", "zero"]
    several = answers_of(MULTI_LABEL, logits, NAMED)
    assert several.prediction.tolist() == [[1, 0, 1, 1], [1, 1, 0, 0]] and several.class_name is None
    np.testing.assert_allclose(several.probability, scipy.special.expit(logits), rtol=1e-6)
    values = answers_of(REGRESSION, logits)
    assert values.probability is None and values.prediction is logits
