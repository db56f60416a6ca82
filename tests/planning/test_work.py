"""What a model computes and keeps, against a training of one rank that is watched."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI
from planning_setup import counted, even_loads, parse_method, small_cluster
from training_setup import easy_graph, shared_path, write_once  # noqa: F401

from hpcgnn.nn import neighborhood
from hpcgnn.nn.layers import operations
from hpcgnn.nn.models import ModelShape, build_model
from hpcgnn.planning.memory import memory_of
from hpcgnn.planning.model import ModelSize, exchanges_of, rows_of, work_of, works_in_order
from hpcgnn.training.forecast import forecast
from hpcgnn.training.job import Job

SHAPES = [("sage", 3, 20), ("gcn", 3, 20), ("sage", 2, 8), ("gcn", 2, 8), ("sage", 1, 20)]    # features are 12


def opened(shards, model, layers, hidden, **more):
    graph, loads = counted(shards, layers, more.get("norm") == "batch" or "embedding_dim" in more)
    return loads, ModelSize(model, graph.num_features, hidden, graph.num_classes, layers, **more)


@pytest.mark.parametrize("model, layers, hidden", SHAPES)
def test_a_model_has_so_many_weights(model, layers, hidden):
    built = build_model(ModelShape(model, 12, hidden, 4, layers, 0.5, "layer"))
    assert ModelSize(model, 12, hidden, 4, layers).num_weights == sum(one.numel() for one in built.parameters())


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("model, layers, hidden, recipe, more", [
    *((*shape, {}, {}) for shape in SHAPES),
    ("sage", 3, 20, {"norm": "batch"}, {"norm": "batch"}), ("gcn", 3, 8, {"norm": "batch"}, {"norm": "batch"}),
    ("sage", 3, 20, {"input_dropout": 0.0}, {"has_input_dropout": False}),
    ("gcn", 2, 8, {"input_dropout": 0.5, "dropout": 0.0}, {"has_input_dropout": True, "has_dropout": False}),
    ("sage", 2, 8, {"ema": 0.9}, {"has_average": True})])
def test_work_and_memory_are_those_of_a_training(shared_path, monkeypatch, model, layers, hidden,  # noqa: F811
                                                 recipe, more):
    comm = MPI.COMM_WORLD
    shards = write_once(comm, easy_graph(), shared_path / "shards")
    loads, size = opened(shards, model, layers, hidden, **more)
    maps, gradients = [], []

    def watch(name, counts, flops_of):
        function = getattr(neighborhood, name)

        def watched(*matrices, **out):
            counts.append(2 * flops_of(*matrices))
            return function(*matrices, **out)

        for module in (neighborhood, neighborhood):
            monkeypatch.setattr(module, name, watched, raising=False)

    for name in ("map_rows", "map_back"):
        watch(name, maps, lambda rows, weight: len(rows) * weight.numel())
    watch("combine", maps, lambda rows, weight, own, own_weight, bias: len(rows) * (
        weight.numel() + (0 if own is None else own_weight.numel())))
    watch("weight_gradient", gradients, lambda gradient, rows: len(rows) * gradient.shape[1] * rows.shape[1])
    monkeypatch.setattr("hpcgnn.training.forecast.evaluate", lambda *_: None)
    settings = {"model": model, "layers": layers, "hidden": hidden, "epochs": 1, **recipe}
    found = forecast(comm, Job(shards=shards, settings=settings))
    work, epochs = work_of(size, loads), found.sampled_epochs
    assert sum(maps) == epochs * work.maps[comm.rank] > 0
    assert sum(gradients) == epochs * work.gradients[comm.rank] > 0
    memory = memory_of(size, loads, parse_method("vanilla", size), small_cluster())
    activations = np.array([rank.activations for rank in found.memory])
    assert activations == pytest.approx(memory["activations"], rel=0.1, abs=8000)      # the loss keeps its rows too
    of_weights = np.array([rank.weights for rank in found.memory])
    assert of_weights == pytest.approx(memory["weights"], abs=64)      # Adam counts steps, 4 bytes a parameter
    assert memory["halo_rows"].tolist() == [rank.halo_rows for rank in found.memory]


@pytest.mark.parametrize("model, more", [("sage", {}), ("gcn", {"num_drawn": 5}), ("gin", {}), ("gcnii", {}),
                                         ("gat", {"rematerializes": True}), ("rgcn", {"num_relations": 4})])
def test_work_in_order_has_every_exchange_forward_then_backward(model, more):
    size, loads = ModelSize(model, 8, 64, 30, 3, **more), even_loads(4)
    works = list(works_in_order(size, loads))
    met = [exchange for _, exchange in works[:-1]]
    assert works[-1][1] is None and sorted(map(repr, met)) == sorted(
        repr(one) for one in exchanges_of(size) for _ in range(one.times))
    forward, backward = ([one.layer for one in met if one.is_backward == way and one.layer >= 0]
                         for way in (False, True))
    assert forward == sorted(forward) and backward == sorted(backward, reverse=True)
    assert [one.is_backward for one in met] == sorted(one.is_backward for one in met)
    first = next(place for place, (_, exchange) in enumerate(works) if exchange is None or exchange.is_backward)
    assert not any(work.gradients.any() for work, _ in works[:first])


def test_the_way_back_of_operations_maps_all_gradients_but_those_of_the_input():
    size, loads = ModelSize("gcnii", 8, 64, 30, 3), even_loads(4)
    maps = [2 * rows_of(op, loads) * op.weights for op in operations(size) if op.kind == "map"]
    work = work_of(size, loads)
    assert len(maps) == 5 and np.array_equal(work.maps, 2 * sum(maps) - maps[0])
    assert np.array_equal(work.gradients, sum(maps))
