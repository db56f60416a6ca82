"""A plan of every built-in model, method and setting that it counts, against a short training."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from covering import long_but
from mpi4py import MPI
from planning_setup import counted, planned, small_cluster
from training_setup import easy_graph, on_rank_zero, shared_path, train, write_once  # noqa: F401

from hpcgnn.config import TrainConfig
from hpcgnn.nn.names import MODEL_PATHS, RELATIONAL
from hpcgnn.planning.memory import history_bytes, memory_of
from hpcgnn.planning.messages import messages_of
from hpcgnn.planning.planner import Choices, make_plan
from hpcgnn.planning.recipe import size_of
from hpcgnn.shards.reader import read_graph_info
from hpcgnn.training.forecast import forecast
from hpcgnn.training.job import Job
from hpcgnn.training.recipe import Recipe

COMM = MPI.COMM_WORLD
OTHERS = tuple(model for model in MODEL_PATHS if model not in ("sage", "gcn", *RELATIONAL))      # without relations
WIDE = "synthetic:nodes=240,mean_degree=3,classes=4,features=40,signal=2"      # the first layer maps first
PADDING = 64 * 3 * 2 * 10      # of messages to 64 bytes
NARROW = "synthetic:nodes=240,mean_degree=3,classes=4,features=12,signal=2"


def sparse_graph(spec):
    """A graph with so few training nodes that a pass leaves rows out."""
    dataset = easy_graph(spec=spec)
    dataset.train_mask[np.flatnonzero(dataset.train_mask)[5:]] = False
    return dataset


def planned_beside_trained(shared_path, spec, method, settings, epochs=2):  # noqa: F811
    """The prediction, the summary, the metrics and the bytes of the only evaluation of a short training."""
    shards = write_once(COMM, sparse_graph(spec), shared_path / "shards")
    name, _, bits = method.partition(":")
    given = {"model": "sage", "layers": 3, "hidden": 20, "sum_bits": 32, **settings}
    summary, metrics, run = train(COMM, shards, shared_path / "run", epochs=epochs, eval_every=epochs, **given,
                                  method=name, **({"bits": int(bits)} if bits else {}))
    evaluated = COMM.allreduce(run.session.exchange.evaluation.payload_bytes)
    return on_rank_zero(COMM, lambda: planned(shards, given, method)), summary, metrics, evaluated


def bytes_of(record):
    return record["sent_bytes_payload"] + record["sent_bytes_parameters"]


@pytest.mark.parametrize("model", OTHERS + RELATIONAL)
@pytest.mark.parametrize("more", [{}, {"norm": "batch"}, {"input_dropout": 0.0}, {"jump": "max"}, {"residual": True},
                                  {"num_bases": 2}, {"num_bases": 0},
                                  {"num_blocks": 4}])
def test_a_plan_counts_the_weights_of_every_model(model, more):
    models = {"jump": ("jknet",), "residual": ("gin", "gat", "sage-max", "rgcn"),
              "num_bases": RELATIONAL, "num_blocks": RELATIONAL}.get("".join(more), OTHERS + RELATIONAL)
    if model not in models or (model == "sgc" and "norm" in more):
        pytest.skip("the settings refuse this")
    config = TrainConfig.of(model=model, layers=3, hidden=8, **more)
    info = SimpleNamespace(num_features=12, num_classes=4, relation_names="abcde", node_types=())
    built = Recipe().build(config, info)
    assert size_of(config, 12, 4, num_relations=5).num_weights == sum(one.numel() for one in built.parameters())


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("model", OTHERS)
@pytest.mark.parametrize("spec, method, more", [
    (NARROW, "vanilla", {}), (WIDE, "uniform:1", {"precision": "bf16"}), (WIDE, "vanilla", {"steps": "rows:3"}),
    (NARROW, "uniform:8", {"dropout": 0.0})], ids=["narrow", "wide", "steps", "no-dropout"])
def test_a_plan_of_any_model_has_the_bytes_of_the_training(shared_path, model, spec, method, more):  # noqa: F811
    plan, summary, metrics, evaluated = planned_beside_trained(shared_path, spec, method, {"model": model, **more})
    assert [bytes_of(record) for record in metrics] == [plan.sent.total] * 2
    once = summary["setup_bytes"] + (evaluated if plan.sent.evaluation == 0 else 0)      # sgc without dropout
    assert plan.sent.setup == once
    assert plan.peak_bytes > 3e8
    if "steps" not in more:      # a pass over all rows fills the history
        assert plan.sent.evaluation in (0, evaluated)
    assert summary["method_state_bytes"] * ("steps" in more) == plan.memory["method_state"].max() / 2


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("name, settings", [
    ("vanilla", {"steps": "2"}), ("uniform:4", {"steps": "rows:4", "history": "8"}),
    ("vanilla", {"model": "gcn", "steps": "rows:3", "precision": "bf16"}),
    ("vanilla", {"steps": "rows:2", "history": "bf16", "norm": "batch", "input_dropout": 0.0}),
    ("uniform:1", {"steps": "2", "epoch_rows": "all", "code": "rotated"})])
def test_a_plan_of_steps_has_the_bytes_of_the_training(shared_path, name, settings):  # noqa: F811
    """Steps send as much as one, and sum gradients once each; what they keep is known too."""
    plan, summary, metrics, _ = planned_beside_trained(shared_path, NARROW, name, settings)
    size = size_of(TrainConfig.of(**{"model": "sage", "layers": 3, "hidden": 20, **settings}), 12, 4)
    assert history_bytes(size, plan.loads).max() == summary["method_state_bytes"]
    assert plan.sent.setup == summary["setup_bytes"] and plan.sent.total > 0 and plan.seconds is None
    for record in metrics:
        assert plan.sent.total == bytes_of(record)
        padding = record["sent_bytes_sums"] - plan.sent.sums      # of each of at most 12 weights to 64 bytes
        assert padding >= 0 and (size.norm == "batch" or padding <= 12 * 64 * COMM.size * size.num_steps)


OF_ACTIVATIONS = [(NARROW, {}), (WIDE, {"norm": "batch"}), (WIDE, {"input_dropout": 0.0}),
                  (NARROW, {"store_activations": 8})]


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("model, spec, more", [
    # Each model in one of these ways, each way with some model; with --all, every one with every other.
    *(pytest.param(model, spec, more, marks=() if (place - way) % len(OF_ACTIVATIONS) == 0 else pytest.mark.long)
      for place, model in enumerate(OTHERS) for way, (spec, more) in enumerate(OF_ACTIVATIONS)
      if model != "sgc" or "norm" not in more),
    *long_but((1, 3, 5, 7, 8), [
        ("sage", NARROW, {"store_activations": 8}), ("gcn", WIDE, {"store_activations": 4}),
        ("sage", NARROW, {"store_activations": 8, "norm": "batch"}), ("sage", NARROW, {"residual": True}),
        ("gin", NARROW, {"residual": True}), ("gin", NARROW, {"rematerialize": True}),
        ("gat", WIDE, {"rematerialize": True}), ("sage-max", NARROW, {"rematerialize": True}),
        ("sage", NARROW, {"label_inputs": 0.5}), ("sage", NARROW, {"quantize": "uniform"})]),
    ("gat", NARROW, {"quantize": "degree-aware"})])
def test_a_plan_of_any_model_has_the_activations_of_the_training(shared_path, monkeypatch, model, spec,  # noqa: F811
                                                                 more):
    shards = write_once(COMM, sparse_graph(spec.replace("=240", "=2400")), shared_path / "shards")
    monkeypatch.setattr("hpcgnn.training.forecast.evaluate", lambda *_: None)
    settings = {"model": model, "layers": 3, "hidden": 20, **more}
    found = forecast(COMM, Job(shards=shards, settings={**settings, "epochs": 1}))
    info, config = read_graph_info(shards), TrainConfig.of(**settings)
    size = size_of(config, info.num_features, info.num_classes)
    _, loads = counted(shards, 3, size.computes_all)
    memory = memory_of(size, loads, messages_of("vanilla", config, size), small_cluster())
    activations = np.array([rank.activations for rank in found.memory])
    assert memory["activations"] == pytest.approx(activations, rel=0.1, abs=8000)


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("method, more", long_but((1, 3, 5, 6, 8, 9, 11), [
    ("random", {}), ("random", {"widths": "1,4", "steps": "rows:2"}), ("sancus", {}), ("sancus", {"skip_change": 1e9}),
    ("sylvie", {}), ("sylvie", {"widths": "2,8", "percentiles": "90", "model": "gat"}), ("sylvie-paper", {}),
    ("adaqp", {"period": 1}), ("adaqp", {"widths": "4"}), ("joint", {"asynchrony": "always"}),
    ("joint", {"asynchrony": "never"}), ("sylvie", {"predict": "previous", "send_share": 0.1})]))
def test_a_training_sends_between_the_least_and_the_most_of_its_plan(shared_path, method, more):  # noqa: F811
    """Of a method that chooses widths; and it keeps no more than planned between its epochs."""
    plan, summary, metrics, evaluated = planned_beside_trained(shared_path, NARROW, method, more, epochs=4)
    least, most = plan.least_bytes, plan.sent.total
    assert all(least <= bytes_of(record) <= most for record in metrics)
    assert (least < most) == (more.get("widths") != "4") and plan.messages.is_exact == (least == most)
    assert least > 0 or method == "sancus"
    if "skip_change" in more:
        assert sorted({bytes_of(record) for record in metrics}) == [least, most]
    if "steps" not in more:
        assert plan.sent.evaluation == evaluated
        assert summary["method_state_bytes"] <= plan.memory["method_state"].max() + PADDING


SETTINGS = [
    ("vanilla", {"predict": "previous"}), ("uniform:2", {"predict": "previous", "model": "gin"}),
    ("pipegcn", {"predict": "previous"}), ("pipegcn", {"smoothing": 0.9}), ("vanilla", {"overlap": False}),
    ("uniform:8", {"exchange": "alltoallv"}), ("vanilla", {"residual": True}),
    ("vanilla", {"residual": True, "model": "gat"}), ("uniform:4", {"rematerialize": True}),
    ("vanilla", {"rematerialize": True, "model": "gat"}), ("uniform:1", {"rematerialize": True, "model": "gin"}),
    ("vanilla", {"rematerialize": True, "model": "sage-max"}), ("vanilla", {"rematerialize": True, "model": "appnp"}),
    ("vanilla", {"pre_aggregation": "on"}), ("uniform:8", {"pre_aggregation": "on", "model": "gcnii"}),
    ("vanilla", {"pre_aggregation": "on", "model": "gcn", "epoch_rows": "all"}), ("vanilla", {"sum_bits": 8}),
    ("vanilla", {"sum_bits": 16, "model": "gin"}), ("vanilla", {"store_activations": 8}),
    ("vanilla", {"store_activations": 2, "model": "gcn", "steps": "rows:2"}), ("vanilla", {"edge_dropout": 0.3}),
    ("uniform:8", {"edge_dropout": 0.3, "model": "gat"}), ("vanilla", {"label_inputs": 0.5}),
    ("vanilla", {"clusters": 6}),
    ("vanilla", {"clusters": 9, "batch_size": 3, "between_clusters": True, "model": "gcn"}),
    ("vanilla", {"quantize": "uniform"}), ("uniform:8", {"quantize": "degree-aware", "model": "gat"}),
    ("vanilla", {"quantize": "degree-quant", "model": "gin"}), ("uniform:2", {"predict": "auto"}),
    ("uniform:1", {"predict": "previous", "send_share": 0.3})]
# Each setting with one method and model; the others are with --all.
SHORT = [1, 2, 3, 4, 5, 7, 8, 13, 15, 16, 19, 21, 22, 24, 26, 28, 29]


def test_one_rank_sends_no_sums(shared_path):  # noqa: F811
    plan, _, _, _ = planned_beside_trained(shared_path, NARROW, "vanilla", {"pre_aggregation": "on"})
    assert plan.sent.total == 0


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("method, more", long_but(SHORT, SETTINGS), ids=lambda value: str(value).replace(" ", ""))
def test_a_plan_of_a_setting_has_the_bytes_of_the_training(shared_path, method, more):  # noqa: F811
    plan, summary, metrics, evaluated = planned_beside_trained(shared_path, NARROW, method, more)
    assert [bytes_of(record) for record in metrics] == [plan.sent.total] * 2
    assert plan.sent.setup == summary["setup_bytes"]
    if not {"steps", "quantize"} & set(more):      # which evaluate before the first epoch, too
        assert plan.sent.evaluation == evaluated
    if "sum_bits" in more:
        assert [record["sent_bytes_sums"] for record in metrics] == pytest.approx([plan.sent.sums] * 2, rel=0.02)
    state = plan.memory["method_state"].max() / 2      # and a copy for a checkpoint
    sent = plan.sent.total / 2 * plan.messages.keeps      # the run counts the messages that it has sent, too
    assert summary["method_state_bytes"] <= state + sent + PADDING
    # Copies of rows are made by the first message with differences, and these trainings measure no change yet.
    assert more.get("predict") == "auto" or state - PADDING <= summary["method_state_bytes"]


def test_one_part_sends_no_sums():
    plan, = make_plan(NARROW, None, Choices([1], ("vanilla",), settings={"pre_aggregation": "on"})).predictions
    assert (plan.sent.total, plan.sent.setup, plan.sent.evaluation) == (0, 0, 0)
