"""A forecast against the run itself: bytes to the byte, or between bounds; memory; and nothing on the disk."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from covering import long_but
from mpi4py import MPI
from training_setup import SMALL, easy_graph, snapshot, train, write_once

from hpcgnn.shards.reader import read_partition
from hpcgnn.training.forecast import forecast, kept_storages
from hpcgnn.training.job import Job

DATASET = easy_graph(spec="synthetic:nodes=200,mean_degree=6,classes=3,features=8")
FIXED = {"vanilla": {}, "uniform": {"bits": 2}, "pipegcn": {},
         "in steps": {"method": "uniform", "bits": 2, "steps": "2", "hidden": 3},
         "peer by peer": {"method": "vanilla", "rematerialize": True, "model": "gat"}}
ADAPTIVE = {"in fewer steps": {"method": "uniform", "bits": 8, "steps": "auto", "epochs": 8}, "random": {},
            "bns": {}, "sancus": {}, "sylvie": {"descent_window": 1}, "adaqp": {"period": 2}}


def forecast_and_run(shared_path, settings):
    """Collective: the forecast, the summary and the metrics of the run, and the shards."""
    comm, settings = MPI.COMM_WORLD, {**SMALL, **settings}
    shards = write_once(comm, DATASET, shared_path / "shards")
    before = snapshot(shared_path)
    found = forecast(comm, Job(shards, settings, out=shared_path / "run"))
    comm.Barrier()
    assert snapshot(shared_path) == before
    summary, metrics, _ = train(comm, shards, shared_path / "run", **settings)
    return found, summary, metrics, shards


def sent(metrics):
    return {line["sent_bytes_payload"] + line["sent_bytes_parameters"] for line in metrics}


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("name", FIXED)
def test_bytes_of_fixed_widths_are_known_to_the_byte(shared_path, name):
    found, summary, metrics, shards = forecast_and_run(shared_path, {"method": name, "epochs": 2, **FIXED[name]})
    assert sent(metrics) == {found.least_bytes} == {found.most_bytes}
    assert found.least_bytes > 0
    assert {line["sent_bytes_sums"] for line in metrics} == {found.sum_bytes} != {0}
    assert found.setup_bytes == summary["setup_bytes"]
    assert max(memory.method_state for memory in found.memory) == summary["method_state_bytes"]
    part = read_partition(shards, MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
    assert found.memory[MPI.COMM_WORLD.rank].features == 4 * (part.num_inner + part.num_halo) * DATASET.num_features
    # What the process held until now is the same in both; the run may add checkpoints and a summary to it.
    assert max(memory.process for memory in found.memory) <= summary["peak_rss_bytes"]
    assert summary["peak_rss_bytes"] <= 1.5 * max(memory.process for memory in found.memory)


@pytest.mark.covering(1)
@pytest.mark.parallel(2)
@pytest.mark.parametrize("name", long_but((0, 3, 4, 5), ADAPTIVE))
def test_bytes_that_a_method_decides_lie_between_the_bounds(shared_path, name, monkeypatch):
    if name == "in fewer steps":     # a graph of 200 nodes would begin with one step
        monkeypatch.setattr("hpcgnn.steps.clusters.first_steps", lambda *_: 2)
    found, _, metrics, _ = forecast_and_run(shared_path, {"method": name, "epochs": 4, **ADAPTIVE[name]})
    assert found.least_bytes < found.most_bytes
    assert found.least_bytes <= min(sent(metrics)) <= max(sent(metrics)) <= found.most_bytes


@pytest.mark.parallel(2)
def test_what_is_kept_for_the_backward_pass_is_what_its_products_need(shared_path):
    """Of gcn with 2 layers: the aggregate of the input, what ReLU gets, from which its rows are made again, and logits;
    within a factor of 1.6.
    """
    settings = {"model": "gcn", "hidden": 64, "epoch_rows": "all", "dropout": 0.5, "epochs": 1}
    found, _, _, shards = forecast_and_run(shared_path, settings)
    part = read_partition(shards, MPI.COMM_WORLD.rank, 2)
    expected = 4 * part.num_inner * (DATASET.num_features + 64 + DATASET.num_classes)
    assert expected / 1.6 <= found.memory[MPI.COMM_WORLD.rank].activations <= 1.6 * expected


@pytest.mark.parallel(1)
def test_all_epochs_evaluations_and_assignments_are_counted(shared_path):
    settings = {"method": "adaqp", "period": 2, "epochs": 5, "eval_every": 2, "repeat": 2}
    found, _, metrics, _ = forecast_and_run(shared_path, settings)
    assert (found.num_epochs, found.num_evaluations) == (len(metrics), sum("val_score" in line for line in metrics))
    assert found.num_assignments == 2 * 3 and found.total_seconds > found.num_epochs * found.epoch_seconds > 0


def test_storages_are_counted_once_and_weights_not_at_all():
    x, weight = torch.ones(100, 10), torch.ones(100, 10, requires_grad=True)
    with kept_storages([weight]) as kept:
        h = x * weight              # keeps x and the weight
        total = (h * h[:50].repeat(2, 1)).sum()     # keeps h and its copy
    assert sum(kept.values()) == 3 * 4000
    total.backward()
    np.testing.assert_array_equal(weight.grad.numpy()[50:], 1)
