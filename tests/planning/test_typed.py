"""A plan of learned rows, of relations and attributes of edges, and of links, against a short training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from covering import long_but
from mpi4py import MPI
from planning_setup import planned
from reference_partition import with_relations
from training_setup import easy_graph, shared_path, train, write_once  # noqa: F401

from hpcgnn.training.forecast import forecast
from hpcgnn.training.job import Job

COMM = MPI.COMM_WORLD
LEARNED = {"node_embedding": 24}


def typed_graph(num_nodes):
    """A graph of five relations, with three attributes of each edge."""
    graph = with_relations(easy_graph(spec=f"synthetic:nodes={num_nodes},mean_degree=6,classes=4,features=12,signal=2"))
    attr = np.random.default_rng(0).random((graph.num_edges, 3), np.float32)
    return replace(graph, edge_attr=attr).check()


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("settings", long_but((0, 2, 3, 8), [
    {**LEARNED, "model": "sage"}, {**LEARNED, "model": "gcn", "hidden": 50, "dropout": 0.0},
    {**LEARNED, "model": "rgcn", "num_bases": 2, "hidden": 8}, {**LEARNED, "model": "sage", "steps": "rows:2"},
    {**LEARNED, "model": "gcnii"}, {**LEARNED, "model": "sage", "hidden": 50, "norm": "batch", "ema": 0.9},
    {**LEARNED, "model": "jknet"}, {**LEARNED, "model": "sage-max", "hidden": 50}, {"model": "gin"},
    {**LEARNED, "model": "gat"},
    {**LEARNED, "model": "sage", "hidden": 50, "store_activations": 8}]), ids=str)
def test_a_plan_has_the_tables_of_the_training(shared_path, monkeypatch, settings):  # noqa: F811
    given = {"layers": 3, "hidden": 20, "sum_bits": 32, **settings}
    shards = write_once(COMM, typed_graph(2400), shared_path / "shards")
    monkeypatch.setattr("hpcgnn.training.forecast.evaluate", lambda *_: None)
    found, one = forecast(COMM, Job(shards=shards, settings={**given, "epochs": 1})), planned(shards, given)
    assert one.sent.total == pytest.approx(found.most_bytes, rel=0.02 * ("steps" in given))
    assert one.sent.setup == found.setup_bytes
    of_ranks = {kind: np.array([getattr(rank, kind) for rank in found.memory])
                for kind in ("weights", "activations", "features")}
    assert one.memory["weights"] == pytest.approx(of_ranks["weights"], abs=200)      # Adam counts steps
    assert one.memory["features"].tolist() == of_ranks["features"].tolist()
    # Of several steps, the largest is larger than the mean.
    assert "steps" in given or one.memory["activations"] == pytest.approx(of_ranks["activations"], rel=0.1, abs=8000)


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("of_edges, num_bytes", [({"edge_attr": None}, 12), (
    {"edge_attr": None, "edge_type": None, "relation_names": ()}, 16)])
def test_an_edge_s_relation_and_attributes_take_so_many_bytes(shared_path, of_edges, num_bytes):  # noqa: F811
    graph, shards = typed_graph(240), []
    for number, dataset in enumerate((graph, replace(graph, **of_edges))):
        shards.append(write_once(COMM, dataset, shared_path / f"shards-{number}"))
    given = {"model": "sage", "layers": 2, "hidden": 8}
    of_plan, of_plain_plan = (planned(one, given).memory["structure"] for one in shards)
    of_run, of_plain_run = (np.array([rank.structure for rank in forecast(COMM, Job(
        shards=one, settings={**given, "epochs": 1})).memory]) for one in shards)
    assert of_plan - of_plain_plan == pytest.approx(of_run - of_plain_run)
    assert (of_run - of_plain_run).sum() == num_bytes * graph.num_edges


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("more, is_typed", [
    ({}, True), ({"decoder": "complex", "negatives": 64}, False), ({"link_share": 0.3}, True),
    ({"link_share": 0.3, "candidates": "label"}, False), ({"asked_label": 1, "candidates": "label"}, False)])
def test_a_plan_of_links_has_the_bytes_and_at_most_the_memory(shared_path, more, is_typed):  # noqa: F811
    given = {"model": "sage", "layers": 2, "hidden": 20, "sum_bits": 32, "task": "links", **more}
    shards = write_once(COMM, typed_graph(240) if is_typed else easy_graph(), shared_path / "shards")
    found, one = forecast(COMM, Job(shards=shards, settings={**given, "epochs": 1})), planned(shards, given)
    assert one.sent.total == found.most_bytes and one.sent.setup == found.setup_bytes
    assert one.sent.evaluation == found.evaluation_bytes
    assert one.sent.sums == pytest.approx(found.sum_bytes, abs=2000)      # losses are summed too
    of_ranks = {kind: np.array([getattr(rank, kind) for rank in found.memory]) for kind in ("weights", "activations")}
    assert one.memory["weights"] == pytest.approx(of_ranks["weights"], abs=200)
    assert (of_ranks["activations"] <= one.memory["activations"]).all()
    assert "asked_label" in more or (one.memory["activations"] <= 1.8 * of_ranks["activations"]).all()


@pytest.mark.parametrize("settings", [LEARNED, {**LEARNED, "ema": 0.9}])
def test_files_are_as_large_as_planned(shared_path, settings):  # noqa: F811
    given = {"model": "sage", "layers": 2, "hidden": 20, **settings}
    shards = write_once(COMM, typed_graph(2400), shared_path / "shards")
    train(COMM, shards, shared_path / "run", **{**given, "epochs": 1})
    written = sum(path.stat().st_size for path in shards.glob("part-*.h5"))
    shard_bytes, checkpoint_bytes = planned(shards, given).on_disk
    assert shard_bytes == pytest.approx(written, rel=0.05)
    assert checkpoint_bytes == pytest.approx((shared_path / "run/checkpoint.h5").stat().st_size, rel=0.05)
