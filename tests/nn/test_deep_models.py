"""Deep models: rows out of reach left out, the width of what travels, learning in many layers, storage in 16 bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from covering import long_but
from mpi4py import MPI
from torch.nn import functional

from hpcgnn.errors import ConfigError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.models import MODELS, ModelShape, build_model

SEED, EPOCH, IN, HIDDEN, OUT = 3, 8, 12, 8, 3
DEEP = [ModelShape(model, IN, HIDDEN, OUT, 4, 0.5, jump=jump) for model, jump in (
    ("gcnii", "concat"), ("dagnn", "concat"), ("sgc", "concat"), ("jknet", "concat"), ("jknet", "max"),
    ("appnp", "concat"))]


def label(shape):
    return f"{shape.model}-{shape.jump}"


def new_model(shape):
    torch.manual_seed(1)
    return build_model(shape)


def first_step(graph, shape, labels, train_rows, num_train):
    """Collective: the model after its first backward pass, and its logits."""
    model = new_model(shape)
    graph.begin_forward(SEED, EPOCH, is_training=True, num_hops=model.num_hops)
    logits = model(graph, graph.x)
    chosen = logits if len(logits) == len(train_rows) else logits[train_rows]
    (functional.cross_entropy(chosen, labels[train_rows], reduction="sum") / num_train).backward()
    return model, logits


def local_labels(graph, dataset):
    return torch.from_numpy(dataset.labels % OUT)[graph.node_id[:graph.num_inner]]


@pytest.mark.covering
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("shape", DEEP, ids=label)
def test_rows_out_of_reach_change_no_gradient(open_part, open_reachable, graph_with, sum_gradients, shape, num_layers,
                                              dropout, directed):
    shape, comm = replace(shape, num_layers=num_layers, dropout=dropout), MPI.COMM_WORLD
    dataset, owner = graph_with(IN, directed)
    dataset, owner = replace(dataset, train_mask=np.arange(dataset.num_nodes) % 30 == 4), owner(comm.size)
    num_train = dataset.train_mask.sum()
    graph, train_rows = open_reachable(comm, dataset, owner, num_layers)
    model, logits = first_step(graph, shape, local_labels(graph, dataset), train_rows, num_train)
    assert len(logits) == len(train_rows) < graph.num_inner
    few = sum_gradients(comm, model)

    graph = open_part(comm, dataset, owner).graph
    train_rows = np.flatnonzero(dataset.train_mask[graph.node_id[:graph.num_inner]])
    model, logits = first_step(graph, shape, local_labels(graph, dataset), train_rows, num_train)
    assert len(logits) == graph.num_inner
    for name, gradient in sum_gradients(comm, model).items():
        assert (few[name] - gradient).abs().max() <= 1e-6 * max(1e-3, gradient.abs().max()), name


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("model, dropout, width", [
    ("gcnii", 0.5, 8 * HIDDEN), ("dagnn", 0.5, 8 * OUT), ("appnp", 0.5, 8 * OUT), ("sgc", 0.5, 8 * OUT),
    ("sgc", 0.0, 0), ("jknet", 0.5, 7 * HIDDEN)])
def test_the_narrower_rows_travel(open_part, graph_with, model, dropout, width):
    comm, shape = MPI.COMM_WORLD, ModelShape(model, IN, HIDDEN, OUT, 8, dropout)
    dataset, owner = graph_with(IN)
    opened = open_part(comm, dataset, owner(comm.size))
    first_step(opened.graph, shape, local_labels(opened.graph, dataset), np.arange(opened.graph.num_inner), 1)
    num_rows = len(opened.part.boundary_index) + opened.part.num_halo
    assert opened.exchange.training.num_values == num_rows * width


@pytest.mark.parallel([2, 3])
def test_sgc_propagates_a_constant_input_once_a_graph(open_part, graph_with):
    comm, model = MPI.COMM_WORLD, new_model(ModelShape("sgc", IN, HIDDEN, OUT, 4, 0.0))
    dataset, owner = graph_with(IN)
    for _ in range(2):
        opened = open_part(comm, dataset, owner(comm.size))
        for is_training in (True, False, True):
            opened.graph.begin_forward(SEED, EPOCH, is_training, model.num_hops)
            model(opened.graph, opened.graph.x).sum().backward()
        assert opened.exchange.evaluation.num_values == 3 * len(opened.part.boundary_index) * IN
        assert opened.exchange.training.num_values == 0


def test_sgc_sends_features_where_they_are_narrower_than_classes(open_part, graph_with):
    dataset, owner = graph_with(IN)
    graph = open_part(MPI.COMM_SELF, dataset, owner(1)).graph
    narrow, wide = (new_model(ModelShape("sgc", IN, HIDDEN, out_dim, 2, 0.5)) for out_dim in (IN, IN - 1))
    assert wide.maps_first and not narrow.maps_first
    graph.begin_forward(SEED, EPOCH, is_training=False)
    assert narrow(graph, graph.x).shape == (graph.num_inner, IN)


@pytest.mark.parametrize("shape", long_but((0,), [shape for shape in DEEP if shape.model != "sgc"]), ids=label)
def test_eight_layers_learn(open_part, graph_with, shape):
    """SGC is left out: it is linear, and eight hops of so small a graph leave its rows alike."""
    dataset, owner = graph_with(IN)
    graph = open_part(MPI.COMM_SELF, dataset, owner(1)).graph
    model = new_model(replace(shape, num_layers=8, dropout=0.0))
    # Labels that hang on the features of two hops around, so that there is something to learn.
    wanted = graph.aggregate(graph.aggregate(graph.x, "gcn"), "gcn")[:, :OUT].argmax(dim=1)
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.02), []
    for epoch in range(40):
        graph.begin_forward(SEED, epoch, is_training=True)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(graph, graph.x).float(), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.75 * losses[0]
    assert all(parameter.grad.abs().max() > 0 for parameter in model.first_layer_parameters())


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 2.0**-4), (torch.float16, 2.0**-7)])
@pytest.mark.parametrize("shape", DEEP, ids=label)
def test_rows_in_16_bits_give_the_float32_result_up_to_rounding(open_part, graph_with, shape, dtype, tolerance):
    """Some four roundings of 2^-8 or 2^-11 a layer, and as many layers; a few rounded signs pass ReLU otherwise."""
    dataset, owner = graph_with(IN)
    graph, found = open_part(MPI.COMM_SELF, dataset, owner(1)).graph, []
    rows = graph.x_all
    for storage in (torch.float32, dtype):
        graph = LocalGraph(replace(graph.rows, features=rows.to(storage)), graph.exchange)
        model = new_model(replace(shape, dropout=0.0))
        graph.begin_forward(SEED, EPOCH, is_training=True)
        out = model(graph, graph.x)
        functional.mse_loss(out.float(), torch.ones_like(out, dtype=torch.float32)).backward()
        found.append((out.detach().float(), [parameter.grad for parameter in model.parameters()]))
    (expected, wanted), (logits, gradients) = found
    assert (logits - expected).abs().max() <= tolerance * expected.abs().max()
    largest = max(gradient.abs().max() for gradient in wanted)
    for gradient, exact in zip(gradients, wanted, strict=True):
        assert gradient.dtype == torch.float32
        assert (gradient - exact).abs().max() <= 4 * tolerance * largest


FIRST = {"gcnii": "first.", "dagnn": "perceptron.first.", "appnp": "perceptron.first.", "sgc": "linear."}


@pytest.mark.parametrize("name", MODELS)
def test_parameters_of_the_first_layer_are_those_that_read_the_input(name):
    model = new_model(ModelShape(name, IN, HIDDEN, OUT, 2, 0.0, num_relations=3))
    first = [one for one in model.state_dict() if one.startswith(FIRST.get(name, "convolutions.0."))]
    named = dict(model.named_parameters())
    assert first and all(found is named[one] for found, one in zip(model.first_layer_parameters(), first, strict=True))


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match=r"one of gcn, sage.*found 'chebnet'"):
        build_model(ModelShape("chebnet", IN, HIDDEN, OUT, 2, 0.0))
    with pytest.raises(ConfigError, match="concat, max, found 'lstm'"):
        build_model(ModelShape("jknet", IN, HIDDEN, OUT, 2, 0.0, jump="lstm"))
