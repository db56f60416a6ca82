"""What a log without a terminal shows of a training: a line for the first epoch, then one every so many seconds."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import pytest

from hpcgnn.config import TrainConfig
from hpcgnn.errors import ConfigError
from hpcgnn.training import progress as shown
from hpcgnn.training.checkpoint import Progress
from hpcgnn.training.progress import EpochDisplay, seconds_between_lines

TRACE = SimpleNamespace(loss=0.5, sent_bytes_payload=2_900_000, sent_bytes_parameters=100_000, sent_bytes_sums=100_000,
                        epoch_seconds=0.25)
LINE = r"seed 7  epoch {}/400  loss 0\.5000  {}sent 3\.10 MB in 250 ms"


@pytest.fixture
def clock(monkeypatch):
    """Seconds that a test sets."""
    monkeypatch.delenv("HPCGNN_PROGRESS", raising=False)
    now = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(shown, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    monkeypatch.setattr(shown, "watched_stream", lambda: None)
    return now


def run_epochs(clock, num_epochs, seconds_each, is_shown=True):
    with EpochDisplay(TrainConfig.of(epochs=400), is_shown) as display:
        for epoch in range(1, num_epochs + 1):
            evaluation = SimpleNamespace(val_score=0.812) if epoch >= 2 else None
            display.advance(7, Progress(epoch=epoch), TRACE, evaluation)
            clock.seconds += seconds_each


def test_a_log_has_a_line_for_the_first_epoch_and_one_a_minute(clock, capsys):
    run_epochs(clock, 21, 10.0)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    for line, epoch in zip(lines, (1, 7, 13, 19), strict=True):
        assert re.fullmatch(LINE.format(epoch, "" if epoch == 1 else r"val 81\.20  "), line)


@pytest.mark.parametrize("name, value, num_lines", [
    ("HPCGNN_PROGRESS_SECONDS", "20", 11), ("HPCGNN_PROGRESS_SECONDS", "0", 0), ("HPCGNN_PROGRESS", "0", 0)])
def test_variables_choose_how_often(monkeypatch, clock, capsys, name, value, num_lines):
    monkeypatch.setenv(name, value)
    run_epochs(clock, 21, 10.0)
    assert len(capsys.readouterr().err.splitlines()) == num_lines


def test_only_rank_zero_writes_lines(clock, capsys):
    run_epochs(clock, 21, 10.0, is_shown=False)
    assert capsys.readouterr().err == ""


def test_a_terminal_has_a_bar_and_no_lines(monkeypatch, clock, capsys):
    monkeypatch.setattr(shown, "watched_stream", lambda: sys.stderr)
    run_epochs(clock, 3, 10.0)
    assert re.search(LINE.format(".*", ".*"), capsys.readouterr().err) is None


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_that_cannot_be_written_is_dropped(monkeypatch, clock, is_terminal):
    with open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        monkeypatch.setattr(shown, "watched_stream", lambda: full if is_terminal else None)
        run_epochs(clock, 21, 10.0)


def test_the_cursor_is_left_visible(monkeypatch, clock, capsys):
    """A rank that is killed can't bring it back."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(shown, "watched_stream", lambda: sys.stderr)
    with EpochDisplay(TrainConfig.of(epochs=400), is_shown=True):
        assert capsys.readouterr().err.rpartition("\x1b[?25")[2].startswith("h")


@pytest.mark.parametrize("text", ["often", "-1", "nan", ""])
def test_a_period_that_is_none_is_refused_in_one_sentence(monkeypatch, text):
    monkeypatch.setenv("HPCGNN_PROGRESS_SECONDS", text)
    with pytest.raises(ConfigError, match="expected seconds between two lines, 0 for none"):
        seconds_between_lines()
