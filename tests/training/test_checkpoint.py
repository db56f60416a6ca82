"""A checkpoint comes back as it was written, and nothing less than a whole one is ever there."""

from __future__ import annotations

import contextlib
import json
import math
import resource

import h5py
import numpy as np
import pytest
import torch
from mpi4py import MPI
from training_setup import on_rank_zero, train, without_seconds

from hpcgnn.errors import CheckpointError, CollectiveError
from hpcgnn.shards.schema import Fingerprint
from hpcgnn.shards.sealed import SEAL_BYTES, parse_seal, seal_file
from hpcgnn.training.checkpoint import (
    KIND,
    VERSION,
    Checkpoint,
    Progress,
    check_shapes,
    read_checkpoint,
    write_checkpoint,
)
from hpcgnn.training.evaluate import Evaluation
from hpcgnn.training.precision import LossScale
from hpcgnn.training.run_folder import RunFolder


def some_checkpoint(epoch=7, width=5):
    tensors = {"convolutions.0.weight": torch.randn(width, 3), "convolutions.0.bias": torch.zeros(0)}
    return Checkpoint(
        settings={"model": "gcn", "lr": 0.1, "seed": 3}, dataset="cora",
        fingerprint=Fingerprint("1" * 32, "2" * 32, "3" * 32),
        token=f"{epoch:032x}",
        progress=Progress(1, epoch, Evaluation(0.9, 0.5, 0.25, math.pi), 6, 2,
                          [{"seed": 3, "epochs": 9, "val_score": 0.5}]),
        model=tensors, best_model={name: 2 * tensor for name, tensor in tensors.items()},
        optimizer={0: {"step": torch.tensor(7.0), "exp_avg": torch.randn(width, 3)}, 3: {"step": torch.tensor(1.0)}},
        loss_scale=LossScale(2.0 ** 9, 17, is_dynamic=True),
        controller={"descent": {"mean_losses": [0.5], "rates": []}, "base": 2, "is_held": True})


def assert_equal(found, expected):
    assert (found.settings, found.dataset, found.progress) == (expected.settings, expected.dataset, expected.progress)
    assert (found.fingerprint, found.token) == (expected.fingerprint, expected.token)
    assert found.loss_scale == expected.loss_scale
    pairs = [(found.model, expected.model), (found.best_model, expected.best_model)]
    assert found.optimizer.keys() == expected.optimizer.keys()
    pairs += [(found.optimizer[number], expected.optimizer[number]) for number in expected.optimizer]
    for mine, other in pairs:
        assert mine.keys() == other.keys()
        for name, tensor in other.items():
            assert mine[name].dtype == tensor.dtype and torch.equal(mine[name], tensor), name


def test_a_checkpoint_comes_back_equal(tmp_path):
    expected = some_checkpoint()
    write_checkpoint(tmp_path / "c.h5", expected)
    assert_equal(read_checkpoint(tmp_path / "c.h5"), expected)
    assert [path.name for path in tmp_path.iterdir()] == ["c.h5"]


def resealed(path, change):
    """The file as a faulty writer would have sealed it."""
    with h5py.File(path, "r+") as file:
        change(file)
    with open(path, "r+b") as file:
        seal_file(file, KIND, VERSION)


def set_state(change):
    def apply(file):
        state = json.loads(file.attrs["state"])
        change(state)
        file.attrs["state"] = json.dumps(state)

    return apply


def replace_tensor(name, value):
    def apply(file):
        del file[name]
        file[name] = value

    return apply


@pytest.mark.parametrize("change", [
    lambda file: file.attrs.__delitem__("state"), lambda file: file.attrs.__setitem__("state", "{"),
    lambda file: file.attrs.__setitem__("state", 7), lambda file: file.__delitem__("model"),
    set_state(dict.clear), set_state(lambda state: state.update(progress=[])),
    set_state(lambda state: state["progress"].update(epoch="7")),
    set_state(lambda state: state["progress"].update(epoch=-1)),
    set_state(lambda state: state["progress"].update(seed_index=4)),
    set_state(lambda state: state["progress"].update(finished=[3])),
    set_state(lambda state: state.update(settings=None)), set_state(lambda state: state.update(dataset=3)),
    set_state(lambda state: state.update(token="../../x")),
    set_state(lambda state: state["fingerprint"].update(split="x")),
    set_state(lambda state: state["loss_scale"].update(value=math.inf)),
    replace_tensor("model/convolutions.0.weight", "text"), replace_tensor("optimizer/0/exp_avg", "text"),
    replace_tensor("optimizer/0", [1.0]), lambda file: file.move("optimizer/3", "optimizer/x"),
    replace_tensor("model/convolutions.0.weight", np.full((5, 3), np.nan, np.float32)),
    replace_tensor("optimizer/0/exp_avg", np.full((5, 3), np.inf, np.float32)),
])
def test_a_sealed_file_that_is_no_checkpoint_is_one_sentence(tmp_path, change):
    path = tmp_path / "c.h5"
    write_checkpoint(path, some_checkpoint())
    resealed(path, change)
    with pytest.raises(CheckpointError, match=r"^.*c\.h5 is sealed but holds no whole run .*; start without "):
        read_checkpoint(path)


def test_weights_that_another_version_did_not_have_are_named():
    checkpoint = some_checkpoint()
    check_shapes(checkpoint, checkpoint.model)
    with pytest.raises(CollectiveError) as refusal:
        check_shapes(checkpoint, {**checkpoint.model, "convolutions.0.magnitude": torch.ones(3)})
    assert str(refusal.value) == ("the checkpoint has no convolutions.0.magnitude, so another model, or another "
                                  "version of hpcgnn, wrote it; name the model that was trained, or train anew")


def test_a_best_score_that_is_nan_comes_back_as_nan(tmp_path):
    expected = some_checkpoint()
    expected.progress.best = Evaluation(0.9, math.nan, math.nan, 0.0)
    write_checkpoint(tmp_path / "c.h5", expected)
    assert math.isnan(read_checkpoint(tmp_path / "c.h5").progress.best.val_score)


@contextlib.contextmanager
def file_size_limit(num_bytes):
    """A disk that is full after that many bytes of a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("num_bytes", [0, 100, 3000, 20_000])
def test_a_full_disk_leaves_the_earlier_checkpoint_and_nothing_else(tmp_path, num_bytes):
    write_checkpoint(tmp_path / "c.h5", some_checkpoint(epoch=7))
    before = (tmp_path / "c.h5").read_bytes()
    with file_size_limit(num_bytes), pytest.raises(CheckpointError, match=r"c\.h5 can't be written: File too large; "):
        write_checkpoint(tmp_path / "c.h5", some_checkpoint(epoch=8, width=5000))
    assert (tmp_path / "c.h5").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["c.h5"]


def damaged(content, how):
    """A checkpoint's bytes after an accident, and the words that the complaint must have."""
    seal = parse_seal(content[:SEAL_BYTES])
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    return {
        "truncated": (content[:-1], "is truncated: it has"),
        "cut in the seal": (content[:100], "is truncated"),
        "empty": (b"", "is no file of hpcgnn"),
        "bit flipped": (bytes(flipped), "is damaged: its checksum"),
        "grown": (content + b"\0", "is damaged: it has"),
        "older": (type(seal)(seal.kind, 0, seal.crc, seal.num_bytes).render() + content[SEAL_BYTES:],
                  "has format 0, this version reads 5 and 6"),
        "a shard": (type(seal)("part", 1, seal.crc, seal.num_bytes).render() + content[SEAL_BYTES:],
                    "is a part file, expected a checkpoint file"),
    }[how]


@pytest.mark.parametrize("how", ["truncated", "cut in the seal", "empty", "bit flipped", "grown", "older", "a shard"])
def test_a_damaged_checkpoint_is_refused_with_advice(tmp_path, how):
    path = tmp_path / "c.h5"
    write_checkpoint(path, some_checkpoint())
    content, complaint = damaged(path.read_bytes(), how)
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as refused:
        read_checkpoint(path)
    assert str(refused.value).startswith(f"{path} {complaint}")
    assert str(refused.value).endswith("; start without --resume, or restore the file")
    assert path.read_bytes() == content


@pytest.mark.parallel([1, 2, 3])
def test_a_disk_that_fills_during_training_stops_all_ranks_and_the_run_resumes(shared_path, shards):
    comm = MPI.COMM_WORLD
    # Wide enough that the checkpoint is larger than the metrics.
    settings = {"hidden": 256, "layers": 3, "epochs": 5, "checkpoint_every": 2}
    out = shared_path / "run"
    limits = contextlib.ExitStack()

    class FillingFolder(RunFolder):
        def append_metrics(self, record):
            super().append_metrics(record)
            if record["epoch"] == 3:
                limits.enter_context(file_size_limit(100_000))

    with limits, pytest.raises(CollectiveError, match=r"checkpoint-incoming\.h5 can't be written: File too large; "):
        train(comm, shards, out, FillingFolder, **settings)
    names = on_rank_zero(comm, lambda: sorted(path.name for path in out.iterdir()))
    assert names == ["checkpoint.h5", "metrics.jsonl"]
    resumed = on_rank_zero(comm, lambda: read_checkpoint(out / "checkpoint.h5"))
    assert resumed.progress.epoch == 2
    summary, metrics, _ = train(comm, shards, out, resumed=resumed, **settings)
    assert [record["epoch"] for record in metrics] == list(range(1, 6))
    undisturbed, expected, _ = train(comm, shards, shared_path / "undisturbed", **settings)
    assert without_seconds(metrics) == without_seconds(expected)
    assert summary["test_score"] == undisturbed["test_score"]
