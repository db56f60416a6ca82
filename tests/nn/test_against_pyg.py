"""Every model against PyTorch Geometric's in float64 with the same weights, on 1 to 3 ranks: logits and gradients."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from mpi4py import MPI

from hpcgnn.config import MODELS as CONFIGURABLE
from hpcgnn.config import RESIDUAL_MODELS, TrainConfig
from hpcgnn.nn.models import MODELS, ModelShape, build_model, settings_of
from hpcgnn.nn.names import RELATIONAL

pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed; pip install hpcgnn[test]")

from reference_models import Masks, mean_loss, peer_logits
from reference_partition import with_relations

SEED, EPOCH = 3, 8
NARROWING, WIDENING = (ModelShape("", *sizes, 0.0, num_relations=5, num_bases=2)
                       for sizes in ((12, 8, 3, 3), (5, 8, 9, 2)))
JUMPS = {"jknet": ("concat", "max")}


def shapes_of(name):
    """Rows that narrow and widen, with and without normalization, and every way to join depths."""
    for jump in JUMPS.get(name, ("concat",)):
        for norm in ("none", "layer", "batch")[:2 if name == "sgc" else 3]:
            for shape in (NARROWING, WIDENING):
                yield replace(shape, model=name, norm=norm, jump=jump)
                if name == "gat" and norm == "none":
                    yield from (replace(shape, model=name, norm=norm, heads=heads) for heads in (1, 8))
                if name == "rgcn":
                    yield replace(shape, model=name, norm=norm, num_bases=0)      # each relation has its own matrix
                if name == "rgcn" and shape is NARROWING:
                    yield replace(shape, model=name, norm=norm, out_dim=6, num_blocks=2)


def new_model(shape):
    torch.manual_seed(1)
    model = build_model(shape)
    for name, parameter in model.named_parameters():
        if "bias" in name:
            torch.nn.init.normal_(parameter)
    return model


def label(shape):
    return (f"{shape.model}-{shape.in_dim}-{shape.hidden_dim}-{shape.out_dim}-{shape.norm}-{shape.jump}"
            + f"-{shape.heads}" * (shape.model == "gat")
            + f"-{shape.num_bases}-{shape.num_blocks}" * (shape.model == "rgcn"))


def drawn(graph_with, shape):
    """A directed graph, with relations if the model needs them, and its owners by the number of ranks."""
    dataset, owner = graph_with(shape.in_dim, directed=True)
    return with_relations(dataset, shape.num_relations) if shape.model in RELATIONAL else dataset, owner


@pytest.fixture
def assert_as_pyg(open_part, graph_with, sum_gradients, gather_rows, assert_equal_to):
    """Collective: assert_as_pyg(shape, is_trained=all, of_input=None) compares logits and first gradients of a model of
    that shape with those of its peer in float64. `is_trained`, from owners to (num_nodes,) bool, leaves training nodes
    out; `of_input` is the dropout of the input rows.
    """
    def check(shape, is_trained=lambda owner: True, of_input=None):
        comm, (dataset, owner_of) = MPI.COMM_WORLD, drawn(graph_with, shape)
        owner = owner_of(comm.size)
        labels, mask = torch.from_numpy(dataset.labels % shape.out_dim), dataset.train_mask & is_trained(owner)
        graph, model = open_part(comm, dataset, owner).graph, new_model(shape)
        inner_id = graph.node_id[:graph.num_inner]
        graph.begin_forward(SEED, EPOCH, is_training=True, num_hops=model.num_hops)
        out = model(graph, graph.x)
        mean_loss(out, labels[inner_id], mask[inner_id], mask.sum()).backward()
        logits, gradients = gather_rows(comm, out, inner_id), sum_gradients(comm, model)

        reference = new_model(shape).double()
        expected = peer_logits(reference, shape, dataset, Masks(shape.dropout, SEED, EPOCH, of_input))
        mean_loss(expected, labels, mask, mask.sum()).backward()
        assert_equal_to(logits, expected.detach())
        largest = max(parameter.grad.abs().max() for parameter in reference.parameters())
        for name, parameter in reference.named_parameters():
            # Scores of attention may have a gradient of 0 but for rounding, and so has a bias before a batch norm.
            scale = largest if shape.model == "gat" or shape.norm == "batch" else parameter.grad.abs().max()
            assert (gradients[name] - parameter.grad).abs().max() <= 1e-5 * scale, name
    return check


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("shape", [shape for name in MODELS for shape in shapes_of(name)], ids=label)
def test_logits_and_first_gradients_are_those_of_pyg(assert_as_pyg, shape, dropout):
    assert_as_pyg(replace(shape, dropout=dropout))


@pytest.mark.parallel([2, 3])
def test_a_rank_without_training_nodes_joins_the_step(assert_as_pyg):
    assert_as_pyg(replace(NARROWING, model="gcn"), is_trained=lambda owner: owner == 0)


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("probability", [0.0, 0.2])
@pytest.mark.parametrize("shape", [replace(shape, model=name, alpha=0.2) for name in MODELS
                                   for shape in (NARROWING, WIDENING)], ids=label)
def test_input_rows_have_a_dropout_of_their_own(assert_as_pyg, shape, probability):
    assert_as_pyg(replace(shape, dropout=0.5, input_dropout=probability), of_input=probability)


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("norm", ["none", "layer", "batch"])
@pytest.mark.parametrize("name", RESIDUAL_MODELS)
def test_hidden_layers_add_their_input(assert_as_pyg, name, norm):
    assert_as_pyg(replace(NARROWING, model=name, num_layers=4, dropout=0.5, norm=norm, residual=True))


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "sgc"])
def test_batch_norms_answer_with_the_running_statistics_of_torch(open_part, graph_with, gather_rows, assert_equal_to,
                                                                 name):
    comm, shape = MPI.COMM_WORLD, replace(NARROWING, model=name, norm="batch")
    dataset, owner = drawn(graph_with, shape)
    graph, model = open_part(comm, dataset, owner(comm.size)).graph, new_model(shape)
    reference = new_model(shape).double()
    for epoch in range(3):
        graph.begin_forward(SEED, epoch, is_training=True, num_hops=model.num_hops)
        model(graph, graph.x)
        peer_logits(reference, shape, dataset)
    found, buffers = dict(model.named_buffers()), dict(reference.named_buffers())
    assert found.keys() == buffers.keys() and any("running_var" in place for place in found)
    for place, values in buffers.items():
        assert_equal_to(found[place], values)
    graph.begin_forward(SEED, 0, is_training=False)
    out = gather_rows(comm, model.eval()(graph, graph.x), graph.node_id[:graph.num_inner])
    assert_equal_to(out, peer_logits(reference.eval(), shape, dataset).detach())


def test_the_sums_of_an_input_without_dropout_are_made_once(open_part, graph_with):
    dataset, owner = graph_with(5)
    shape = replace(WIDENING, model="sage", dropout=0.5, input_dropout=0.0)
    graph, model = open_part(MPI.COMM_SELF, dataset, owner(1)).graph, new_model(shape)
    sums = []
    for epoch in range(2):
        graph.begin_forward(SEED, epoch, is_training=True, num_hops=model.num_hops)
        model(graph, graph.x)
        sums.append(graph.input_aggregate("mean"))
    assert sums[0] is sums[1] and torch.equal(sums[0], graph.aggregate(graph.x_all, "mean"))


def test_every_model_of_the_configuration_can_be_built():
    assert tuple(MODELS) == CONFIGURABLE


def test_a_setting_of_some_models_is_one_that_their_constructors_take():
    of_training = {"input_dropout", "edge_dropout", "label_inputs", "node_embedding"}      # change what a model reads
    for setting in fields(TrainConfig):
        if "models" in setting.metadata.get("users", {}) and setting.name not in of_training:
            takers = tuple(name for name, model in MODELS.items() if setting.name in settings_of(model))
            assert takers == setting.metadata["users"]["models"]
