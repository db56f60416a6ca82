"""Runs that go on from a checkpoint alone, without what ranks remember: the first epoch is synchronous, and the base
width and the descent of the loss are as they were.
"""

from __future__ import annotations

import json

import pytest
from mpi4py import MPI
from training_setup import losses, on_rank_zero, train

from hpcgnn.training.checkpoint import read_checkpoint
from hpcgnn.training.run_folder import RankFiles

COMM = MPI.COMM_WORLD
SETTINGS = {"model": "sage", "dropout": 0.5, "eval_every": 2}


def stop_and_go_on(shards, out, epochs, **settings):
    """Collective: metrics of a run of that many epochs that goes on to twice as many, and its controller's memory."""
    train(COMM, shards, out, epochs=epochs, **{**SETTINGS, **settings})
    on_rank_zero(COMM, RankFiles(out).remove_others)      # what ranks remember
    stopped = on_rank_zero(COMM, lambda: read_checkpoint(out / "checkpoint.h5"))
    _, metrics, run = train(COMM, shards, out, resumed=stopped, epochs=2 * epochs, **{**SETTINGS, **settings})
    return metrics, stopped.controller, run.controller


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("method", ["sylvie", "joint"])
def test_a_resumed_run_begins_synchronously_at_the_base_width_where_it_stopped(shards, shared_path, method):
    metrics, memory, controller = stop_and_go_on(shards, shared_path, 4, method=method, deterministic=True,
                                                 descent_window=1, descent_smoothing=0.5, most_motion=9.0)
    assert [record["epoch"] for record in metrics] == list(range(1, 9))
    assert metrics[4]["mode"] == "sync" and metrics[4]["staleness"] == 0
    assert metrics[4]["base_bits"] == memory["base"]
    assert metrics[4]["ldr"] is not None     # of two losses, the first one from before
    assert {record["mode"] for record in metrics} == {"sync", "async"}
    # Rank 0 remembers the whole run.
    remembered = COMM.bcast(controller.state())["descent"]["mean_losses"]
    assert len(remembered) == 8 and remembered[:4] == memory["descent"]["mean_losses"]
    mean = losses(metrics)[0]
    for loss in losses(metrics)[1:]:
        mean = 0.5 * mean + 0.5 * loss
    assert remembered[-1] == pytest.approx(mean)
    assert losses(metrics)[4:].mean() < losses(metrics)[:4].mean()


@pytest.mark.parallel([2])
def test_a_resumed_adaqp_run_traces_again_at_the_largest_width(shards, shared_path):
    metrics, memory, _ = stop_and_go_on(shards, shared_path, 3, method="adaqp", deterministic=True, period=50,
                                        group_size=20)
    is_traced = [set(record["width_histogram"]) == {"8"} and record["assign_seconds"] > 1e-4 for record in metrics]
    assert is_traced[0] and is_traced[3]
    assert json.loads(json.dumps(memory)) == memory
    widths = [record["width_histogram"] for record in metrics]
    assert widths[1] == widths[2] and widths[4] == widths[5]
