"""`hpcgnn watch` follows a run until it is complete, or its process is gone, and writes nothing."""

from __future__ import annotations

import io
import json
import threading
from dataclasses import asdict, replace

import pytest
from rich.console import Console
from rich.live import Live
from training_setup import snapshot

from hpcgnn.cli import watch
from hpcgnn.cli.watch import COMPLETE, GONE, RUNNING, WatchedRun, show
from hpcgnn.errors import ConfigError
from hpcgnn.registry import seal_json, seal_toml
from hpcgnn.training import run_lock
from hpcgnn.training.run_lock import Holder, RunLock


@pytest.fixture
def folder(tmp_path):
    """A run folder after its first epoch."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text(seal_toml('model = "gcn"\nmethod = "sylvie"\nepochs = 3\n[provenance]\n'
                                                  'dataset = "cora"\nranks = 2\n'))
    add_epoch(folder, 1)
    return folder


def add_epoch(folder, epoch):
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(seal_json(json.dumps({"seed": 0, "epoch": epoch, "loss": 1.5, "epoch_seconds": 0.1})) + "\n")


def finish(folder):
    (folder / "summary.json").write_text("{}")


def lock(folder, **changes):
    """A lock of a process that is not this one."""
    holder = replace(Holder.of_this_process(), **changes)
    (folder / "run.lock").write_text(seal_json(json.dumps(asdict(holder))))


def test_the_state_follows_lock_and_summary(folder):
    watched = WatchedRun(folder)
    with RunLock(folder):
        assert watched.look() == RUNNING
        assert watched.heading.startswith(f"{folder}: gcn sylvie on cora, 2 ranks; process ")
    assert watched.look() == GONE
    assert watched.sentence.endswith("was stopped after epoch 1 of seed 0, and no process holds it; the same command "
                                     "with --resume goes on")
    finish(folder)
    assert watched.look() == COMPLETE


def test_a_holder_elsewhere_is_alive_while_it_touches_its_lock(folder, monkeypatch):
    lock(folder, host="elsewhere")
    watched = WatchedRun(folder)
    assert watched.look() == RUNNING
    monkeypatch.setattr(run_lock, "PATIENCE_SECONDS", 0.0)
    assert watched.look() == GONE and "its process " in watched.sentence and "elsewhere" in watched.sentence


def test_a_run_that_ends_is_followed_to_its_end_and_nothing_is_written(hpcgnn, folder, monkeypatch):
    held, looked = threading.Event(), threading.Event()

    def train():
        with RunLock(folder):
            held.set()
            looked.wait(20)
            add_epoch(folder, 2)
            finish(folder)

    monkeypatch.setattr(watch, "show", lambda *run: show(*run) or looked.set())
    thread = threading.Thread(target=train)
    thread.start()
    held.wait(20)
    status, printed, complaints = hpcgnn("watch", folder)
    thread.join()
    assert (status, complaints) == (0, "")
    assert printed.splitlines()[0].startswith("epoch 1 of 3  loss 1.5000")
    assert printed.splitlines()[-2:] == ["epoch 2 of 3  loss 1.5000  sent 0 B in 100 ms",
                                         f"{folder} is complete; hpcgnn report draws it"]
    before = snapshot(folder)
    status, printed, _ = hpcgnn("watch", folder)
    assert status == 0 and len(printed.splitlines()) == 2 and snapshot(folder) == before


def test_a_process_that_is_gone_is_status_1(hpcgnn, folder):
    lock(folder, pid=2 ** 22 + 1)
    status, printed, complaints = hpcgnn("watch", folder)
    assert status == 1 and printed.startswith("epoch 1 of 3")
    assert f"hpcgnn: {folder} was stopped after epoch 1 of seed 0: its process {2 ** 22 + 1} on" in complaints
    assert complaints.count("\n") == 1


def test_a_folder_without_a_run_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match="holds no run; name a folder that hpcgnn train --out has made"):
            WatchedRun(path)


def test_a_terminal_shows_the_run_in_place(folder, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")      # a dumb terminal has 80 columns, whatever it is told
    console = Console(file=io.StringIO(), force_terminal=True, width=200)      # the folder's path may be long
    watched = WatchedRun(folder)
    watched.look()
    with Live(console=console, auto_refresh=False) as screen:
        show(watched, screen)
    drawn = console.file.getvalue()
    assert "gcn sylvie on cora, 2" in drawn and "epoch 1 of 3" in drawn and "no checkpoint yet" in drawn
