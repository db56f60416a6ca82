"""At every instant a run folder has a checkpoint to go on from, whatever call fails or where the process is killed."""

from __future__ import annotations

import errno
import os

import pytest
from training.test_checkpoint import some_checkpoint

from hpcgnn.errors import CheckpointError
from hpcgnn.training import checkpoint as module
from hpcgnn.training.checkpoint import Generations


class Killed(BaseException):
    """Ends the process where it stands."""


def epochs(folder):
    generations = Generations(folder)
    return [module.read_checkpoint(path).progress.epoch for path in (generations.current, generations.previous)]


def test_the_last_two_checkpoints_are_kept(tmp_path):
    for epoch in (1, 2, 3):
        Generations(tmp_path).write(some_checkpoint(epoch))
    assert epochs(tmp_path) == [3, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-previous.h5", "checkpoint.h5"]


@pytest.mark.parametrize("name", ["replace", "fsync", "unlink", "open"])
@pytest.mark.parametrize("call", range(1, 6))
@pytest.mark.parametrize("is_killed", [True, False])
def test_a_write_that_ends_anywhere_leaves_one_of_the_last_two(tmp_path, monkeypatch, name, call, is_killed):
    generations = Generations(tmp_path)
    for epoch in (1, 2):
        generations.write(some_checkpoint(epoch))
    real, calls = getattr(os, name), []

    def failing(*arguments, **options):
        calls.append(None)
        if len(calls) == call:
            raise Killed if is_killed else OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, name, failing)
        try:
            generations.write(some_checkpoint(3))
        except (Killed, CheckpointError) as end:
            assert isinstance(end, Killed) == is_killed
    checkpoint, remark = generations.read()
    assert checkpoint.progress.epoch in (2, 3)
    if remark is not None:
        assert remark.startswith(f"{generations.current} is missing; the run goes on from checkpoint-previous.h5")
        generations.restore_previous()
    generations.write(some_checkpoint(4))
    assert generations.read()[0].progress.epoch == 4


def test_a_damaged_checkpoint_is_kept_aside_and_never_becomes_the_previous_one(tmp_path):
    generations = Generations(tmp_path)
    for epoch in (1, 2):
        generations.write(some_checkpoint(epoch))
    generations.current.write_bytes(b"damaged")
    checkpoint, remark = generations.read()
    assert checkpoint.progress.epoch == 1
    assert remark.endswith("; the run goes on from checkpoint-previous.h5, after epoch 1 of training 2")
    generations.restore_previous()
    generations.write(some_checkpoint(3))
    assert epochs(tmp_path) == [3, 1]
    assert (tmp_path / "checkpoint-damaged.h5").read_bytes() == b"damaged"


def test_where_both_are_damaged_the_last_one_is_complained_of(tmp_path):
    generations = Generations(tmp_path)
    for path in (generations.current, generations.previous):
        path.write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match=r"checkpoint\.h5 is no file of hpcgnn"):
        generations.read()
