"""A run folder has one owner: a live one is refused, a dead one never blocks, and of several that race one wins."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace

import pytest
from fork_server import served

from hpcgnn.errors import TrainingError
from hpcgnn.registry import seal_json
from hpcgnn.training import run_lock
from hpcgnn.training.run_folder import RunFolder
from hpcgnn.training.run_lock import Holder, RunLock, start_of

HOLD = """
import sys, time
from pathlib import Path
from hpcgnn.errors import TrainingError
from hpcgnn.training import run_lock
run_lock.PATIENCE_SECONDS, run_lock.HEARTBEAT_SECONDS, run_lock.POLL_SECONDS = 1.0, 0.1, 0.05
if len(sys.argv) > 2:
    print("ready", flush=True)
while len(sys.argv) > 2 and not Path(sys.argv[2]).exists():
    time.sleep(0.001)
try:
    with run_lock.RunLock(Path(sys.argv[1])):
        print("taken", flush=True)
        time.sleep(60)
except TrainingError as error:
    print(error, flush=True)
"""


def hold(command):
    """A process that takes the lock of a folder and keeps it."""
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


@pytest.fixture
def patience(monkeypatch):
    """What is waited for takes moments."""
    monkeypatch.setattr(run_lock, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(run_lock, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(run_lock, "POLL_SECONDS", 0.02)


def leave(folder, holder):
    """A lock that nobody touches any more."""
    folder.mkdir(exist_ok=True)
    (folder / "run.lock").write_text(seal_json(json.dumps(asdict(holder))) + "\n")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_held_while_the_block_lasts_and_made_if_need_be(tmp_path):
    folder = tmp_path / "runs" / "one"
    with RunLock(folder) as lock:
        assert names(folder) == ["run.lock"]
        lock.check()
        with pytest.raises(TrainingError) as refused, RunLock(folder):
            pass
        assert names(folder) == ["run.lock"]
    assert str(refused.value).startswith(f"{folder} is in use by another run: process {os.getpid()} on ")
    assert str(refused.value).endswith("; wait until that ends, or choose another --out")
    assert names(tmp_path) == []


def test_what_came_into_the_folder_stays(tmp_path):
    with RunLock(tmp_path / "one"):
        (tmp_path / "one" / "notes.txt").write_text("mine")
    assert names(tmp_path / "one") == ["notes.txt"]


def test_the_lock_is_given_back_when_the_run_fails(tmp_path):
    with pytest.raises(KeyboardInterrupt), RunLock(tmp_path):
        raise KeyboardInterrupt
    assert names(tmp_path) == []


def test_a_live_process_is_refused_and_a_killed_one_is_not(tmp_path):
    holder = hold([sys.executable, "-c", HOLD, tmp_path])
    assert holder.stdout.readline() == "taken\n"
    with pytest.raises(TrainingError, match=f"in use by another run: process {holder.pid} on "), RunLock(tmp_path):
        pass
    holder.send_signal(signal.SIGSTOP)
    with pytest.raises(TrainingError, match="in use by another run"), RunLock(tmp_path):
        pass
    holder.kill()
    holder.wait()
    with RunLock(tmp_path):
        assert names(tmp_path) == ["run.lock"]
    assert names(tmp_path) == []


def test_a_copy_of_a_live_run_is_free_and_a_moved_one_is_not(tmp_path):
    with RunLock(tmp_path / "one"):
        shutil.copytree(tmp_path / "one", tmp_path / "copy")
        with RunLock(tmp_path / "copy"):
            pass
        (tmp_path / "link").symlink_to(tmp_path / "one")
        (tmp_path / "one").rename(tmp_path / "two")
        for name in ("two", "link"):
            (tmp_path / "link").unlink(missing_ok=True)
            (tmp_path / "link").symlink_to(tmp_path / "two")
            with pytest.raises(TrainingError, match="in use by another run"), RunLock(tmp_path / name):
                pass
        (tmp_path / "two").rename(tmp_path / "one")


def test_another_process_of_the_same_number_is_not_the_holder(tmp_path):
    leave(tmp_path, replace(Holder.of_this_process(), started="1"))
    with RunLock(tmp_path):
        assert names(tmp_path) == ["run.lock"]
    assert names(tmp_path) == []


def test_a_requeued_job_takes_what_its_earlier_start_held(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    leave(tmp_path, replace(Holder.of_this_process(), host="elsewhere"))
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setattr(run_lock, "PATIENCE_SECONDS", 0.0)
    with RunLock(tmp_path):
        pass
    # Two steps of one start are two runs.
    leave(tmp_path, Holder.of_this_process())
    with pytest.raises(TrainingError, match="Slurm job 77"), RunLock(tmp_path):
        pass


def test_a_silent_lock_of_another_machine_is_taken_after_a_while_and_said_so(tmp_path, patience, monkeypatch, capsys):
    monkeypatch.setattr(run_lock, "PATIENCE_SECONDS", 1.0)
    holder = replace(Holder.of_this_process(), host="elsewhere")
    leave(tmp_path, holder)
    with RunLock(tmp_path):
        pass
    assert capsys.readouterr().err == (
        f"hpcgnn: {tmp_path / 'run.lock'} was left by {holder}, and this machine "
        "can't tell whether that process lives; watching for a sign of life, 1 s at most\n")


def test_a_lock_of_another_machine_that_is_touched_is_refused(tmp_path, patience, monkeypatch):
    holder = hold([sys.executable, "-c", HOLD, tmp_path])
    assert holder.stdout.readline() == "taken\n"
    # As another machine would see it.
    monkeypatch.setattr(Holder, "is_alive", lambda self, mine: None)
    monkeypatch.setattr(run_lock, "PATIENCE_SECONDS", 5.0)
    with pytest.raises(TrainingError, match="in use by another run"), RunLock(tmp_path):
        pass
    holder.kill()
    holder.wait()


@pytest.mark.parametrize("content", [b"", b"\0" * 200, b"{", b"[]", b'{"pid": "x", "crc32": "00000000"}\n', b"\xff"])
def test_a_damaged_lock_is_watched_then_taken(tmp_path, patience, content):
    (tmp_path / "run.lock").write_bytes(content)
    with RunLock(tmp_path):
        pass
    assert names(tmp_path) == []


@pytest.mark.parametrize("claims", [0, 2])
def test_of_many_that_race_for_a_stale_lock_one_wins(tmp_path, claims):
    """Also where others have died while they took it over."""
    folder = tmp_path / "run"
    heir = replace(Holder.of_this_process(), pid=2 ** 30)
    leave(folder, heir)
    for _ in range(claims):
        dead = replace(Holder.of_this_process(), pid=2 ** 30)
        (folder / f"run.lock.after-{heir.token}").write_text(seal_json(json.dumps(asdict(dead))) + "\n")
        heir = dead
    racers = [hold(served(["-c", HOLD, folder, tmp_path / "go"])) for _ in range(6)]
    assert [racer.stdout.readline() for racer in racers] == ["ready\n"] * 6
    (tmp_path / "go").touch()
    said = [racer.stdout.readline() for racer in racers]
    for racer in racers:
        racer.kill()
        racer.wait()
    assert said.count("taken\n") == 1
    assert sum("is in use by another run" in line for line in said) == 5
    assert names(folder) == ["run.lock"]


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("number", [errno.EPERM, errno.EMLINK, errno.ENOLCK, 524])
def test_a_file_system_without_links_has_locks_too(tmp_path, monkeypatch, number, stale):
    def no_link(*paths):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", no_link)
    if stale:
        leave(tmp_path, replace(Holder.of_this_process(), started="1"))
    with RunLock(tmp_path):
        with pytest.raises(TrainingError, match="in use by another run"), RunLock(tmp_path):
            pass
        assert names(tmp_path) == ["run.lock"]
    assert names(tmp_path) == []


def test_a_run_that_was_taken_for_dead_writes_nothing_more(tmp_path):
    with RunLock(tmp_path) as lock:
        folder = RunFolder(tmp_path, lock)
        folder.append_metrics({"seed": 0, "epoch": 1})
        heir = replace(Holder.of_this_process(), host="elsewhere")
        leave(tmp_path, heir)
        for write in (lambda: folder.append_metrics({"seed": 0, "epoch": 2}), folder.sync_metrics,
                      lambda: folder.write_summary({}), lambda: folder.write_config({}, {})):
            with pytest.raises(TrainingError, match=f"{tmp_path} has been taken over by process .* on elsewhere"):
                write()
        assert len(folder.read_metrics()) == 1
    # The lock of the other run is not given back by this one.
    assert names(tmp_path) == ["metrics.jsonl", "run.lock"]


def test_an_ended_process_that_nobody_has_waited_for_is_dead():
    child = subprocess.Popen(["true"])
    for _ in range(500):
        if start_of(child.pid) is None:
            break
        time.sleep(0.01)
    assert start_of(child.pid) is None
    child.wait()
    assert start_of(os.getpid()) is not None


@pytest.mark.parametrize("path", ["x" * 300, "file/run", "a/" + "b" * 260])
def test_a_folder_that_cant_be_made_is_one_sentence(tmp_path, path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(TrainingError, match=r"^run folder .* can't be written: .*; choose another with --out$"):
        RunLock(tmp_path / path).__enter__()
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("path", ["link", "link/run"])
def test_a_link_to_nothing_is_said(tmp_path, path):
    (tmp_path / "link").symlink_to(tmp_path / "scratch")
    with pytest.raises(TrainingError, match=f"can't be written: {tmp_path}/link is a link to .*/scratch, which"):
        RunLock(tmp_path / path).__enter__()
    assert names(tmp_path) == ["link"]
