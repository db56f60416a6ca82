"""A run that a signal stopped and --resume continued is the run that was never stopped."""

from __future__ import annotations

import signal
import time

import numpy as np
import pytest
from covering import long_but
from mpi4py import MPI
from training_setup import (
    assert_same_bits,
    easy_graph,
    losses,
    on_rank_zero,
    random_owner,
    stopping_folder,
    train,
    write,
    write_once,
)

from hpcgnn.errors import CollectiveError, Interrupted
from hpcgnn.run.signals import STOP_SIGNALS
from hpcgnn.training import trainer
from hpcgnn.training.checkpoint import read_checkpoint
from hpcgnn.training.run_lock import seconds_to_the_end_of_the_job

SETTINGS = {"model": "sage", "dropout": 0.5, "method": "uniform", "bits": 2, "weight_decay": 1e-3}


@pytest.mark.parallel([2])
@pytest.mark.parametrize("number", long_but((0, 2), STOP_SIGNALS))      # one handler answers all
def test_every_stop_signal_writes_a_checkpoint_and_exits_with_75(shared_path, shards, number):
    comm = MPI.COMM_WORLD
    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as stopped:
        train(comm, shards, shared_path / "run", stopping_folder(1, number), checkpoint_every=0)
    assert stopped.value.exit_code == 75
    assert signal.getsignal(number) is before
    assert on_rank_zero(comm, lambda: read_checkpoint(shared_path / "run/checkpoint.h5")).progress.epoch == 2


@pytest.mark.parallel([2])
def test_a_run_ends_as_its_hours_end_and_goes_on(shared_path, shards):
    comm = MPI.COMM_WORLD
    with pytest.raises(Interrupted, match="stopped as its hours end after epoch 1 of seed 0"):
        train(comm, shards, shared_path / "run", checkpoint_every=0, hours=1e-9)
    assert on_rank_zero(comm, lambda: read_checkpoint(shared_path / "run/checkpoint.h5")).progress.epoch == 1


@pytest.mark.parallel([2])
def test_other_hours_change_nothing_that_ranks_remember(shared_path, shards):
    comm, settings = MPI.COMM_WORLD, {"method": "pipegcn", "checkpoint_every": 0, "epochs": 3}
    train(comm, shards, shared_path / "whole", **settings)
    with pytest.raises(Interrupted):
        train(comm, shards, shared_path / "run", hours=1e-9, **settings)
    resumed = read_checkpoint(shared_path / "run/checkpoint.h5")
    train(comm, shards, shared_path / "run", resumed=resumed, **settings)
    assert_same_bits(shared_path / "run/checkpoint.h5", shared_path / "whole/checkpoint.h5")


@pytest.mark.parallel([2])
def test_a_run_ends_before_its_job_does_and_says_so_first(shared_path, shards, monkeypatch, capsys):
    """Rank 0 alone may know the end, as under mpirun; the hours that are given win."""
    comm = MPI.COMM_WORLD
    monkeypatch.setattr(trainer, "seconds_to_the_end_of_the_job", lambda: 1e-9 if comm.rank == 0 else None)
    train(comm, shards, shared_path / "given", checkpoint_every=0, epochs=1, hours=1e6)
    assert "the job ends" not in capsys.readouterr().err
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    monkeypatch.setattr(trainer, "seconds_to_the_end_of_the_job", lambda: None)
    train(comm, shards, shared_path / "unknown", checkpoint_every=0, epochs=1)
    assert comm.rank or "this Slurm does not say when the job ends; pass --hours" in capsys.readouterr().err
    monkeypatch.setattr(trainer, "seconds_to_the_end_of_the_job", lambda: 1e-9 if comm.rank == 0 else None)
    with pytest.raises(Interrupted, match="stopped as its job ends after epoch 1 of seed 0"):
        train(comm, shards, shared_path / "run", checkpoint_every=0, epochs=3)
    said = capsys.readouterr().err.splitlines()
    assert comm.rank or (said[0].startswith("hpcgnn: the job ends in 1.00 ns (SLURM_JOB_END_TIME)") and
                         said[0].endswith("--hours sets another time"))
    assert on_rank_zero(comm, lambda: read_checkpoint(shared_path / "run/checkpoint.h5")).progress.epoch == 1


@pytest.mark.parametrize("text, seconds", [("", None), ("soon", None), ("1000", None), (1800, 1800),
                                           (400 * 86400, None)])
def test_the_end_of_a_job_is_read_where_it_lies_ahead(monkeypatch, text, seconds):
    monkeypatch.setenv("SLURM_JOB_END_TIME", text if isinstance(text, str) else str(round(time.time() + text)))
    assert seconds_to_the_end_of_the_job() == (None if seconds is None else pytest.approx(seconds, abs=60))


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_another_number_of_ranks_continues_to_the_same_score(shared_path, model):
    """Half the ranks begin, all of them go on; the losses are those of the first number of ranks."""
    comm = MPI.COMM_WORLD
    settings = {"model": model, "dropout": 0.5, "epochs": 12, "eval_every": 6, "lr": 0.1}
    first = max(1, comm.size // 2)
    dataset = easy_graph(spec="synthetic:nodes=600,mean_degree=8,classes=4,features=12,signal=4,homophily=0.9")

    def write_both():
        write(dataset, random_owner(dataset, first), first, shared_path / "few")
        write(dataset, random_owner(dataset, comm.size), comm.size, shared_path / "many")

    on_rank_zero(comm, write_both)
    part = comm.Split(0 if comm.rank < first else MPI.UNDEFINED)
    expected = None
    if part != MPI.COMM_NULL:
        expected = train(part, shared_path / "few", shared_path / "whole", **settings)[:2]
        with pytest.raises(Interrupted):
            train(part, shared_path / "few", shared_path / "run", stopping_folder(6), **settings)
    expected_summary, expected_metrics = comm.bcast(expected)
    resumed = on_rank_zero(comm, lambda: read_checkpoint(shared_path / "run/checkpoint.h5"))
    summary, metrics, _ = train(comm, shared_path / "many", shared_path / "run", resumed=resumed, **settings)
    np.testing.assert_allclose(losses(metrics), losses(expected_metrics), rtol=1e-3)
    assert expected_summary["test_score"] > 0.9
    assert summary["test_score"] == pytest.approx(expected_summary["test_score"], abs=0.01 + 1e-9)


@pytest.mark.parallel([1, 2])
def test_a_checkpoint_of_a_graph_with_other_features_is_refused_on_every_rank(shared_path, shards):
    comm = MPI.COMM_WORLD
    train(comm, shards, shared_path / "run", epochs=1)
    other = write_once(comm, easy_graph(spec="synthetic:nodes=240,mean_degree=8,classes=4,features=13"),
                       shared_path / "other")
    resumed = on_rank_zero(comm, lambda: read_checkpoint(shared_path / "run/checkpoint.h5"))
    with pytest.raises(CollectiveError, match="the model was trained on 12 columns of features, and synthetic has 13"):
        train(comm, other, shared_path / "run", resumed=resumed)
