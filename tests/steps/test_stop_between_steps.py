"""A run that a signal ends between two steps of an epoch goes on as the run that was never stopped."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from covering import long_but
from made_steps import share_clusters
from mpi4py import MPI
from training_setup import (
    assert_same_bits,
    easy_graph,
    losses,
    on_rank_zero,
    random_owner,
    train,
    without_seconds,
    write,
    write_once,
)

from hpcgnn.errors import Interrupted
from hpcgnn.training import trainer
from hpcgnn.training.checkpoint import read_checkpoint
from hpcgnn.training.optimizer import FlatAdam

COMM = MPI.COMM_WORLD
SETTINGS = {"model": "sage", "layers": 2, "dropout": 0.5, "method": "uniform", "bits": 4, "epochs": 3, "lr": 0.003,
            "eval_every": 1}


def stop_in(monkeypatch, epoch: int, number: int) -> None:
    """Have the last rank be asked to stop in a step; epochs and steps count from 0."""
    take = trainer.train_step

    def take_and_ask(session, learner, graph, objective, moment):
        taken = take(session, learner, graph, objective, moment)
        if (moment.epoch, moment.number) == (epoch, number) and session.comm.rank == session.comm.size - 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        return taken

    monkeypatch.setattr(trainer, "train_step", take_and_ask)


def stop(monkeypatch, shards, out, epoch, number, said, **settings):
    """Collective: train until the signal, and return the checkpoint."""
    with monkeypatch.context() as patch:
        stop_in(patch, epoch, number)
        with pytest.raises(Interrupted, match=said):
            train(COMM, shards, out, **settings)
    return on_rank_zero(COMM, lambda: read_checkpoint(out / "checkpoint.h5"))


def assert_goes_on(monkeypatch, shards, folder, epoch, number, num_steps, **settings):
    """Collective: stopped in a step, a run goes on and ends as the whole one; the metrics of the whole one."""
    whole, expected, _ = train(COMM, shards, folder / "whole", **settings)
    resumed = stop(monkeypatch, shards, folder / "run", epoch, number,
                   f"after step {number + 1} of {num_steps} in epoch {epoch + 1} of seed 0", **settings)
    assert resumed.progress.epoch == epoch
    summary, metrics, _ = train(COMM, shards, folder / "run", resumed=resumed, **settings)
    assert without_seconds(metrics) == without_seconds(expected) and summary["results"] == whole["results"]
    on_rank_zero(COMM, lambda: assert_same_bits(folder / "run/checkpoint.h5", folder / "whole/checkpoint.h5"))
    return expected


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("epoch, number", [(0, 0), (1, 2)])
@pytest.mark.parametrize("steps, history, edge_dropout", [
    ("4", "stored", 0.3), ("auto", "stored", 0.0), ("4", "4", 0.0), ("rows:4", "stored", 0.0)])
def test_a_run_that_stopped_between_two_steps_ends_as_the_uninterrupted_one_bit_for_bit(shared_path, shards,
                                                                                        monkeypatch, epoch,
                                                                                        number, steps, history,
                                                                                        edge_dropout):
    share_clusters(monkeypatch)
    monkeypatch.setattr("hpcgnn.steps.clusters.ROWS_A_STEP", 60)      # auto begins with 4 steps
    settings = {**SETTINGS, "steps": steps, "history": history, "edge_dropout": edge_dropout}
    assert_goes_on(monkeypatch, shards, shared_path, epoch, number, 4, **settings)


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("own", long_but((0, 4, 5, 6), [
    {"method": "pipegcn", "smoothing": 0.5}, {"method": "sylvie", "asynchrony": "always"},
    {"method": "sylvie", "predict": "previous"}, {"method": "adaqp", "period": 2},
    {"method": "joint", "asynchrony": "always", "predict": "previous"}, {"method": "sancus", "staleness": 2},
    {"method": "bns", "share": 0.5}]), ids=lambda own: "-".join(map(str, own.values())))
def test_a_method_that_keeps_rows_goes_on_bit_for_bit(shared_path, shards, monkeypatch, own):
    share_clusters(monkeypatch)
    deterministic = {"deterministic": True} if own["method"] in ("sylvie", "adaqp", "joint") else {}
    settings = {**SETTINGS, **own, **deterministic, "steps": "3", "epochs": 4}
    for name in {"bits"} - own.keys():
        del settings[name]
    assert_goes_on(monkeypatch, shards, shared_path, 2, 1, 3, **settings)


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("epoch, number, num_steps", [(2, 0, 3), (1, 2, 4), (3, 1, 3)])
def test_a_run_that_turns_to_clusters_goes_on_bit_for_bit(shared_path, shards, monkeypatch, epoch, number, num_steps):
    """Two epochs of rows that are dealt out one by one, then clusters, before which the moments begin anew."""
    share_clusters(monkeypatch)
    monkeypatch.setattr("hpcgnn.steps.clusters.ROWS_A_STEP", 80)
    monkeypatch.setattr("hpcgnn.steps.clusters.num_steps_of", lambda num_train: 4)
    monkeypatch.setattr("hpcgnn.methods.step_count.LEAST_EARLY_FALL", 0.95)
    settings = {**SETTINGS, "steps": "auto", "epochs": 6}
    forgotten = count_calls(monkeypatch, FlatAdam, "forget")
    expected = assert_goes_on(monkeypatch, shards, shared_path, epoch, number, num_steps, **settings)
    assert [(record["num_steps"], record["by_row"]) for record in expected] == [(4, True)] * 2 + [(3, False)] * 3 + [
        (1, False)]
    assert len(forgotten) == 2      # once in the whole run, once in the parts of the other


def count_calls(monkeypatch, owner, name: str) -> list:
    """Have a method note its calls in the list that is returned."""
    calls, plain = [], getattr(owner, name)

    def noted(*arguments):
        calls.append(arguments)
        return plain(*arguments)

    monkeypatch.setattr(owner, name, noted)
    return calls


@pytest.mark.parallel([2])
def test_after_the_last_step_the_epoch_is_whole(shared_path, shards, monkeypatch):
    share_clusters(monkeypatch)
    resumed = stop(monkeypatch, shards, shared_path / "run", 1, 2, "after epoch 2 of seed 0", **SETTINGS, steps="3")
    assert resumed.progress.epoch == 2


@pytest.mark.parallel([2])
@pytest.mark.parametrize("ranks, other", [(1, "4"), (2, "3"), (2, "rows:4")], ids=["ranks", "steps", "rows"])
def test_an_epoch_that_can_not_go_on_begins_anew_and_says_so(shared_path, monkeypatch, caplog, ranks, other):
    """With other ranks there is no history; with another number of steps the groups are others."""
    share_clusters(monkeypatch)
    dataset = easy_graph()
    shards = write_once(COMM, dataset, shared_path / "shards")
    resumed = stop(monkeypatch, shards, shared_path / "run", 1, 1, "after step 2", **SETTINGS, steps="4")
    comm, steps = COMM if ranks == 2 else MPI.COMM_SELF, other
    if ranks == 1:
        if COMM.rank:
            return
        shards = write(dataset, random_owner(dataset, 1), 1, shared_path / "alone")
    _, metrics, _ = train(comm, shards, shared_path / "run", resumed=resumed, **SETTINGS | {"steps": steps})
    assert [record["epoch"] for record in metrics] == [1, 2, 3]
    assert np.isfinite(losses(metrics)).all() and losses(metrics)[-1] < losses(metrics)[0]
    said = "it begins anew" if ranks == 2 else "not bit for bit"
    assert said in caplog.text or comm.rank > 0
