"""Halo rows peer by peer, and again in the backward pass: the same training in less memory, on 1 to 4 ranks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from mpi4py import MPI
from reference_partition import random_dataset, with_relations
from torch.nn import functional

from hpcgnn.config import TrainConfig
from hpcgnn.errors import ConfigError
from hpcgnn.exchange.bits import DrawnBits, EpochPlan, UniformBits
from hpcgnn.exchange.halo import HaloExchange
from hpcgnn.exchange.kinds import Fresh, Sampled, by_peer
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.reach import Reach, nearest_first
from hpcgnn.exchange.sender import Wire
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.rows import LocalRows, Prefixes
from hpcgnn.nn import neighborhood
from hpcgnn.nn.models import ModelShape, build_model
from hpcgnn.ops import aggregation, arena
from hpcgnn.partition.build import build_partition

SEED, EPOCH, IN, HIDDEN, OUT, NUM_NODES = 3, 8, 12, 8, 4, 80
SUMMED = ("gcn", "sage", "gcnii", "dagnn", "sgc", "jknet", "appnp")    # their layers take one peer's rows at a time
RERUN = ("gat", "gin", "sage-max", "rgcn")                              # these read all, and run again in backward
MODELS = (*SUMMED, *RERUN)


def graph_data(directed=True, num_edges=300):
    dataset = random_dataset(NUM_NODES, num_edges, seed=2, directed=directed)
    features = np.random.default_rng(1).normal(size=(NUM_NODES, IN)).astype(np.float32)
    dataset = with_relations(dataset)
    return replace(dataset, features=features, train_mask=np.arange(NUM_NODES) % 9 == 4)


def open_graph(comm, dataset, rematerializes, num_hops=None, bit_plan=None, owner=None, new_kind=Fresh):
    """Collective: this rank's graph and exchange; with num_hops, rows out of reach are left out."""
    owner = np.random.default_rng(5).integers(0, comm.size, NUM_NODES).astype(np.int32) if owner is None else owner
    part, reach = build_partition(dataset, owner, comm.rank, comm.size), None
    if num_hops is not None:
        part, reach = nearest_first(part, Reach.measure(comm, part, ExchangePlan.build(part), num_hops))
    exchange = HaloExchange(comm, ExchangePlan.build(part), bit_plan or UniformBits(32), Wire(by_peer=rematerializes),
                            reach=reach, kind=new_kind())
    features = exchange.input_rows(torch.from_numpy(part.features))
    rows = LocalRows(part.indptr, part.indices, part.node_id, part.in_degree, features, edge_type=part.edge_type)
    return LocalGraph(rows, exchange, Prefixes(reach.num_within) if reach else None), exchange


def shape_of(model, dropout=0.5, num_layers=3):
    return ModelShape(model, IN, HIDDEN, OUT, num_layers, dropout, "layer", num_relations=5, num_bases=2)


def steps(comm, graph, shape, dataset, num_epochs=2):
    """Collective: (losses, gradients of the last epoch, evaluation's logits) of a few epochs of gradient descent."""
    torch.manual_seed(1)
    model, losses = build_model(shape), []
    inner_id = graph.node_id[:graph.num_inner]
    labels, rows = torch.from_numpy(dataset.labels % OUT)[inner_id], np.flatnonzero(dataset.train_mask[inner_id])
    for epoch in range(EPOCH, EPOCH + num_epochs):
        model.zero_grad()
        graph.begin_forward(SEED, epoch, is_training=True, num_hops=model.num_hops)
        logits = model(graph, graph.x)
        chosen = logits if len(logits) == len(rows) else logits[rows]
        loss = functional.cross_entropy(chosen, labels[rows], reduction="sum") / dataset.train_mask.sum()
        loss.backward()
        losses.append(comm.allreduce(loss.item()))
        for parameter in model.parameters():
            parameter.grad = torch.from_numpy(comm.allreduce(parameter.grad.numpy()))
            parameter.data -= 0.1 * parameter.grad
    graph.begin_forward(0, 0, is_training=False)
    with torch.no_grad():
        logits = model(graph, graph.x)
    return np.array(losses), {name: parameter.grad for name, parameter in model.named_parameters()}, logits


def assert_alike(comm, dataset, shape, bit_plan=None, num_hops=None, new_kind=Fresh, bound=1e-6, owner=None):
    """Collective: losses and gradients within `bound` of those of the mode in which all halo rows are here at once."""
    results = []
    for rematerializes in (False, True):
        graph, exchange = open_graph(comm, dataset, rematerializes, num_hops, bit_plan, owner, new_kind)
        results.append((*steps(comm, graph, shape, dataset), exchange.training))
    (losses, gradients, logits, usual), (found, found_gradients, found_logits, traffic) = results
    np.testing.assert_allclose(found, losses, rtol=bound)
    largest = max(gradient.abs().max() for gradient in gradients.values())
    for name, gradient in gradients.items():
        assert (found_gradients[name] - gradient).abs().max() <= bound * largest, name
    found_logits, logits = found_logits.numpy(), logits.numpy()      # without rows where a rank owns none
    assert np.abs(found_logits - logits).max(initial=0) <= 10 * bound * np.abs(logits).max(initial=0)
    return usual, traffic


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("reaches", [False, True], ids=["all", "reachable"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("model", MODELS)
def test_losses_and_gradients_are_those_of_all_halo_rows_at_once(model, dropout, reaches):
    shape = shape_of(model, dropout)
    usual, traffic = assert_alike(MPI.COMM_WORLD, graph_data(), shape, num_hops=shape.num_layers if reaches else None)
    if model in SUMMED:
        assert traffic.payload_bytes == usual.payload_bytes
        assert traffic.sent_by_peer == usual.sent_by_peer


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("model", RERUN)
def test_layers_that_run_again_fetch_their_halo_rows_twice(model):
    comm = MPI.COMM_WORLD
    usual, traffic = assert_alike(comm, graph_data(), shape_of(model))
    # Forward and backward are alike in bytes over all ranks; the input's halo rows never travel.
    once, again = comm.allreduce(np.array([usual.payload_bytes, traffic.payload_bytes]))
    assert 2 * again == 3 * once > 0


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("model", RERUN)
def test_layers_that_run_again_keep_no_halo_rows(model):
    comm, dataset, saved = MPI.COMM_WORLD, graph_data(), {}
    for rematerializes in (False, True):
        graph, _ = open_graph(comm, dataset, rematerializes)
        network, num_rows = build_model(shape_of(model)), [0]
        input_at = graph.x_all.untyped_storage().data_ptr()

        def note(tensor, num_rows=num_rows, input_at=input_at):
            storage = tensor.untyped_storage()    # a view of inner rows keeps the halo rows behind them
            if storage.data_ptr() != input_at:
                num_rows.append(storage.nbytes() // (4 * max(1, tensor.shape[-1])))
            return tensor

        graph.begin_forward(SEED, EPOCH, is_training=True)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            network(graph, graph.x)
        saved[rematerializes] = max(num_rows)
    assert saved[False] >= graph.num_rows > graph.num_inner >= saved[True]


@pytest.mark.covering(1)
@pytest.mark.parallel(3)
@pytest.mark.parametrize("model", SUMMED)
def test_no_more_than_one_peers_rows_are_in_a_table(monkeypatch, model):
    comm, dataset, largest = MPI.COMM_WORLD, graph_data(num_edges=1500), {}
    for rematerializes in (False, True):
        graph, exchange = open_graph(comm, dataset, rematerializes)
        num_rows = [0]

        def noted(shape, *dtype, num_rows=num_rows):
            num_rows.append(shape[0])
            return arena.empty(shape, *dtype)

        for room in (aggregation, neighborhood, by_peer):
            monkeypatch.setattr(room, "empty", noted)
        steps(comm, graph, shape_of(model, num_layers=4), dataset, num_epochs=1)
        largest[rematerializes] = max(num_rows)
    one_peer = max(stop - start for start, stop in exchange.halo_spans)
    assert largest[False] == graph.num_halo > max(graph.num_inner, one_peer) >= largest[True]
    assert exchange._sender._arena.num_bytes < 2 * 4 * (one_peer + graph.num_inner) * max(IN, HIDDEN) + 256


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("model", MODELS)
def test_eight_bit_messages_draw_alike(model):
    """A sum in another order may move a value over a rounding threshold, by a step of its row: rare, and bounded."""
    assert_alike(MPI.COMM_WORLD, graph_data(), shape_of(model, 0.0), UniformBits(8), bound=1e-4)


@pytest.mark.parallel(2)
@pytest.mark.parametrize("model", ["sage", "gat"])
def test_drawn_widths_and_sampled_rows_are_those_of_all_halo_rows_at_once(model):
    comm, dataset = MPI.COMM_WORLD, graph_data()
    assert_alike(comm, dataset, shape_of(model), DrawnBits((16, 32), SEED, EPOCH), bound=1e-4)
    assert_alike(comm, dataset, shape_of(model), new_kind=partial(Sampled, 0.5))


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_traced_ranges_are_those_of_all_halo_rows_at_once(model):
    comm, dataset, traces = MPI.COMM_WORLD, graph_data(), []
    for rematerializes in (False, True):
        graph, exchange = open_graph(comm, dataset, rematerializes)
        exchange.begin_epoch(EpochPlan(UniformBits(8), is_traced=True))
        steps(comm, graph, shape_of(model, 0.0), dataset, num_epochs=1)
        traces.append(exchange.traces())
    usual, found = traces
    assert found.keys() == usual.keys() and len(usual) >= 4
    for place, trace in usual.items():
        assert found[place].dim == trace.dim
        for peer in range(comm.size):
            np.testing.assert_array_equal(found[place].position[peer], trace.position[peer])
            np.testing.assert_allclose(found[place].row_range[peer], trace.row_range[peer], rtol=2**-7, atol=1e-6)


@pytest.mark.parallel(3)
def test_a_rank_without_rows_of_its_own_takes_part():
    comm = MPI.COMM_WORLD
    dataset, owner = graph_data(), np.zeros(NUM_NODES, np.int32)
    owner[::3], owner[1] = 1, 2
    assert_alike(comm, dataset, shape_of("sage"), owner=owner)
    assert_alike(comm, dataset, shape_of("gat"), owner=owner)


@pytest.mark.parallel([2, 3])
def test_evaluation_takes_one_peers_rows_at_a_time_and_keeps_nothing():
    comm, dataset = MPI.COMM_WORLD, graph_data()
    graph, exchange = open_graph(comm, dataset, True)
    graph.begin_forward(0, 0, is_training=False)
    with torch.no_grad():
        build_model(shape_of("gat"))(graph, graph.x)
        build_model(shape_of("gcn"))(graph, graph.x)
    assert exchange.evaluation.payload_bytes > 0 == exchange.training.payload_bytes
    assert exchange.state_bytes == 0


@pytest.mark.parametrize("settings", [
    {"method": "sylvie"}, {"method": "joint"}, {"method": "pipegcn"}, {"method": "sancus"}, {"predict": "previous"},
    {"exchange": "alltoallv"}, {"precision": "bf16"}, {"precision": "fp16"}], ids=str)
def test_what_needs_all_halo_rows_is_refused(settings):
    (name, value), = settings.items()
    clash = f"method {value} can't be used with rematerialize: " if name == "method" else \
        f"rematerialize can't be used with {name} {value}: "
    with pytest.raises(ConfigError, match=clash):
        TrainConfig.of(rematerialize=True, **settings)


@pytest.mark.parametrize(("method", "model"), [
    (method, model) for method in ("vanilla", "uniform", "random", "adaqp", "bns") for model in MODELS
    if (method, model) != ("bns", "sage-max")     # refused at any rate: a sampled maximum is biased
])
def test_all_else_is_allowed(method, model):
    config = TrainConfig.of(rematerialize=True, method=method, model=model)
    assert config.rematerialize and config.method.name == method
