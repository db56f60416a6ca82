"""Shards are replaced in one step: an interrupted run leaves the old ones or the new ones, whole, to readers."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
from itertools import count

import numpy as np
import pytest
from reference_partition import random_dataset

from hpcgnn.errors import ShardError
from hpcgnn.shards import folder as folder_module
from hpcgnn.shards.folder import check_folder, incoming
from hpcgnn.shards.reader import read_graph_info, read_partition, verify_shards
from hpcgnn.shards.schema import Provenance
from hpcgnn.shards.writer import Making, write_shards

# System calls that change the folder, and by which an interruption is dated.
CALLS = ("mkdir", "rename", "replace", "unlink", "rmdir")


def write(folder, num_parts, name="old", overwrite=True):
    dataset = random_dataset(40, 120, seed=num_parts)
    owner = np.arange(40, dtype=np.int32) % num_parts
    origin = Provenance(name, "random", 0)
    return write_shards(dataset, owner, folder, Making(num_parts, reorder="none", overwrite=overwrite), origin)


def interrupted_write(folder, num_parts, call, how):
    """Write in another process that is interrupted before, or where `call` is negative after, so many changes of the
    folder; whether it was.
    """
    calls = count(1)

    def counted(change):
        def changed(*arguments, **options):
            number = next(calls)
            if number == call:
                signal.raise_signal(how)
            result = change(*arguments, **options)
            if number == -call:
                signal.raise_signal(how)
            return result
        return changed

    child = os.fork()
    if child == 0:
        status = 1
        try:
            for name in CALLS:
                setattr(os, name, counted(getattr(os, name)))
            write(folder, num_parts, "new")
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1 if how == signal.SIGINT else -how)
    return status != 0


@pytest.mark.parametrize("how, num_parts, every", [
    (signal.SIGKILL, 1, 3), pytest.param(signal.SIGKILL, 1, 1, marks=pytest.mark.long),
    pytest.param(signal.SIGINT, 2, 1, marks=pytest.mark.long)])
def test_a_run_that_is_interrupted_at_any_change_leaves_old_or_new_shards_whole(tmp_path, how, num_parts, every):
    """At each change in turn, or at every third one."""
    write(tmp_path / "start", 2)
    (tmp_path / "start" / "notes.txt").write_text("mine")
    outcomes = []
    for call in count(1, every):
        folder = shutil.copytree(tmp_path / "start", tmp_path / str(call))
        was_interrupted = interrupted_write(folder, num_parts, call, how)
        outcomes.append(verify_shards(folder).provenance.source)
        assert (folder / "notes.txt").read_text() == "mine"
        write(folder, 3, "next")
        assert sorted(path.name for path in folder.iterdir()) == [
            "graph.h5", "notes.txt", "part-0000.h5", "part-0001.h5", "part-0002.h5"]
        assert verify_shards(folder).provenance.source == "next"
        if not was_interrupted:
            break
    # Old until one change, new from then on; each was seen.
    assert outcomes == sorted(outcomes, reverse=True) and set(outcomes) == {"old", "new"}
    assert len(outcomes) > 2 * num_parts


@pytest.mark.parametrize("num_moved", range(4))
def test_arrived_shards_are_read_where_they_are(tmp_path, num_moved, monkeypatch):
    write(tmp_path, 4, "old")
    moves = []

    def stop_moving(source, target):
        if str(folder_module.ARRIVED) in str(source):
            moves.append(source)
            if len(moves) > num_moved:
                raise KeyboardInterrupt
        honest(source, target)

    honest = os.replace
    monkeypatch.setattr("os.replace", stop_moving)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, 3, "new")
    monkeypatch.undo()
    before = sorted(path for path in tmp_path.rglob("*"))
    info = read_graph_info(tmp_path)
    assert (info.provenance.source, info.num_parts) == ("new", 3)
    assert [read_partition(tmp_path, part, 3).part for part in range(3)] == [0, 1, 2]
    assert sorted(path for path in tmp_path.rglob("*")) == before
    with pytest.raises(ShardError, match=r"already holds shards, graph.h5 among"):
        check_folder(tmp_path, overwrite=False)


def test_a_second_writer_is_refused_while_the_first_one_writes(tmp_path):
    write(tmp_path, 2)
    with incoming(tmp_path, overwrite=True):
        for start in (lambda: check_folder(tmp_path, overwrite=True), lambda: write(tmp_path, 3)):
            with pytest.raises(ShardError, match=r"another hpcgnn preprocess writes to .* now; wait for it, or choose"):
                start()
        (next(tmp_path.glob(".incoming-*")) / "graph.h5").touch()
    check_folder(tmp_path, overwrite=True)


def test_shards_that_came_since_the_check_are_not_replaced_unasked(tmp_path, monkeypatch):
    write(tmp_path, 2)
    monkeypatch.setattr("hpcgnn.shards.writer.check_folder", lambda *_: None)
    with pytest.raises(ShardError, match="has got shards since this command started"):
        write(tmp_path, 3, overwrite=False)
    assert verify_shards(tmp_path).num_parts == 2


@pytest.mark.parametrize("number", [errno.EBADF, errno.ENOLCK, errno.ENOSYS, 524, errno.EIO, errno.EREMOTEIO])
def test_a_file_system_without_locks_is_told_of_and_written_to(tmp_path, monkeypatch, capsys, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    write(tmp_path, 2)
    assert f"is on a file system without locks ({os.strerror(number)}); start no second" in capsys.readouterr().err
    assert verify_shards(tmp_path).num_parts == 2


def test_a_folder_behind_a_symlink_is_written_through_it(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "here").symlink_to("there")
    write(tmp_path / "here", 2)
    write(tmp_path / "here", 3)
    assert (tmp_path / "here").is_symlink() and verify_shards(tmp_path / "there").num_parts == 3


def test_a_name_that_no_file_system_takes_is_a_sentence(tmp_path):
    with pytest.raises(ShardError, match="can't be made: File name too long; choose another --out"):
        write(tmp_path / ("a" * 300), 2)


def test_a_folder_that_can_not_be_synced_is_written_all_the_same(tmp_path, monkeypatch):
    known = os.fsync

    def refuse(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(524, os.strerror(524))
        known(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    write(tmp_path, 2)
    assert verify_shards(tmp_path).num_parts == 2
