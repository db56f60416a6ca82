"""--precision auto: the faster storage, alike on all ranks, written down, and kept when a run is resumed."""

import json
from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI
from training_setup import SMALL

from hpcgnn.config import TrainConfig
from hpcgnn.errors import ConfigError
from hpcgnn.shards.reader import read_partition
from hpcgnn.training import precision
from hpcgnn.training.job import Job, train
from hpcgnn.training.session import Session


def run_command(shards, out, resume=False, **settings):
    """Collective: `hpcgnn train`, and the summary that it leaves."""
    train(MPI.COMM_WORLD, Job(shards, {**SMALL, **settings}, out=out, resume=resume))
    return json.loads((out / "summary.json").read_text())


@pytest.mark.parametrize("seconds, chosen", [((1.0, 0.5), "bf16"), ((1.0, 0.89), "bf16"), ((1.0, 0.95), "fp32"),
                                             ((1.0, 20.0), "fp32")])
def test_16_bits_must_save_a_tenth(seconds, chosen):
    assert precision.faster_of(dict(zip(("fp32", "bf16"), seconds, strict=True))) == chosen


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("method", ["vanilla", "sylvie"])
@pytest.mark.parametrize("model", ["sage", "gat"])
def test_a_run_trains_in_what_was_measured_to_be_faster(shared_path, shards, monkeypatch, model, method):
    comm, measured = MPI.COMM_WORLD, []
    of_sample = precision.seconds_of_sample

    def note(*arguments):
        measured.append(of_sample(*arguments))
        return measured[-1]

    monkeypatch.setattr(precision, "seconds_of_sample", note)
    summary = run_command(shards, shared_path / "run", precision="auto", model=model, method=method, epochs=2)
    assert len(measured) == 1 and set(measured[0]) == {"fp32", "bf16"}
    slowest = {name: comm.allreduce(value, MPI.MAX) for name, value in measured[0].items()}
    assert min(slowest.values()) > 0
    assert summary["precision"] == ("bf16" if slowest["bf16"] <= 0.9 * slowest["fp32"] else "fp32")
    assert f'precision = "{summary["precision"]}"' in (shared_path / "run" / "config.toml").read_text()


@pytest.mark.parallel([2])
def test_the_slowest_rank_decides_for_all(shards, monkeypatch):
    comm = MPI.COMM_WORLD
    seconds = {"fp32": 1.0, "bf16": 0.5 if comm.rank == 0 else 2.0}
    monkeypatch.setattr(precision, "seconds_of_sample", lambda *arguments: seconds)
    session = Session.open(comm, shards, TrainConfig.of(**{**SMALL, "precision": "auto"}))
    assert session.config.precision == "fp32"


@pytest.mark.parametrize("settings", [
    {"quantize": "uniform", "model": "gcn"}, {"rematerialize": True}, {"model": "gin"}])
def test_what_leaves_no_choice_or_changes_the_model_is_not_tried(shards, monkeypatch, settings):
    monkeypatch.setattr(precision, "seconds_of_sample", lambda *arguments: pytest.fail("measured"))
    comm = MPI.COMM_WORLD
    session = Session.open(comm, shards, TrainConfig.of(**{**SMALL, **settings, "precision": "auto"}))
    assert session.config.precision == "fp32"


@pytest.mark.parametrize("written, faster", [("fp32", "bf16"), ("bf16", "fp32")])
def test_a_resumed_run_keeps_what_it_began_with(shared_path, shards, monkeypatch, written, faster):
    monkeypatch.setattr(precision, "faster_of", lambda seconds: written)
    run_command(shards, shared_path / "run", precision="auto", epochs=2)
    monkeypatch.setattr(precision, "faster_of", lambda seconds: faster)
    summary = run_command(shards, shared_path / "run", True, precision="auto", epochs=4)
    assert summary["precision"] == written
    assert summary["num_epochs_recorded"] == 4


def test_a_sample_keeps_the_arcs_of_its_rows_and_needs_no_other_rank(shards, monkeypatch):
    monkeypatch.setattr(precision, "SAMPLE_ROWS", 7)
    part = read_partition(shards, 0, 1)
    sample = precision.sample_of(part)
    assert (sample.num_inner, sample.num_halo, sample.num_central) == (7, 0, 7)
    np.testing.assert_array_equal(np.diff(sample.indptr), np.diff(part.indptr)[:7])
    assert sample.num_edges == part.indptr[7] > 0 and sample.indices.max() < 7
    np.testing.assert_array_equal(sample.features, part.features[:7])


def test_auto_needs_a_float_type_that_the_other_settings_allow():
    assert replace(TrainConfig(), precision="auto").precision == "auto"
    with pytest.raises(ConfigError, match="precision must be one of fp32, bf16, fp16, auto, found 'int8'"):
        TrainConfig.of(precision="int8")
