"""`hpcgnn export` writes weights that a program reads again, or says in one sentence why not."""

from __future__ import annotations

import json

import pytest
from mpi4py import MPI
from safetensors import safe_open
from training_setup import easy_graph, snapshot, train, write_once

from hpcgnn.training.checkpoint import read_checkpoint


@pytest.fixture
def run(shared_path):
    shards = write_once(MPI.COMM_SELF, easy_graph(), shared_path / "shards")
    train(MPI.COMM_SELF, shards, shared_path / "run", model="gcnii")
    return shared_path / "run"


def test_weights_are_those_of_the_best_epoch_and_the_run_stays_as_it_is(hpcgnn, run, tmp_path):
    before, path = snapshot(run), tmp_path / "m.safetensors"
    status, printed, complaints = hpcgnn("export", run, "--out", path)
    assert (status, complaints, snapshot(run)) == (0, "", before)
    checkpoint = read_checkpoint(run / "checkpoint.h5")
    with safe_open(path, framework="np") as file:
        assert set(file.keys()) == set(checkpoint.best_model)
        for name, tensor in checkpoint.best_model.items():
            assert file.get_tensor(name).tobytes() == tensor.numpy().tobytes()
        record = json.loads(file.metadata()["hpcgnn"])
    assert (record["model"], record["epoch"]) == ("gcnii", checkpoint.progress.best_epoch)
    assert record["score"]["val_score"] == checkpoint.progress.best.val_score
    assert printed.splitlines()[0].startswith("model: gcnii(in_dim=12, hidden_dim=8, out_dim=4, num_layers=2")


def test_what_can_not_be_exported_is_one_sentence(hpcgnn, run, tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_text("before")
    for arguments, words in (((run, "--format", "pyg", "--out", path), "PyTorch Geometric can't load a gcnii: it has"),
                             ((tmp_path, "--out", path), "has no checkpoint.h5"),
                             ((run, "--out", tmp_path / "none" / "m"), "its folder does not exist")):
        status, _, complaints = hpcgnn("export", *arguments)
        assert status == 1 and words in complaints and complaints.count("\n") == 1
    assert path.read_text() == "before"
