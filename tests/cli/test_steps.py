"""Steps: what is under way is drawn where somebody watches, between measurements only; findings are said everywhere."""

from __future__ import annotations

import io
import os
import pty
import select

import pytest

from hpcgnn.bench.place import Place
from hpcgnn.bench.timing import OURS, Effort
from hpcgnn.cli.measurement import CLEAR_LINE, Steps


@pytest.fixture
def terminal():
    """A terminal's file to write to, and a function that reads what it was given since: as much as is expected, and
    what else is there (the kernel may hand over a line in pieces; what comes later is read with the next)."""
    master, slave = pty.openpty()

    def seen(expected: str) -> str:
        text = ""
        while len(text) < len(expected) and select.select([master], [], [], 10)[0]:
            text += os.read(master, 10_000).decode()
        return text

    with os.fdopen(slave, "w", buffering=1) as stream:
        yield stream, seen
    os.close(master)


def test_on_a_terminal_a_finding_takes_the_place_of_its_step(terminal, capsys):
    stream, seen = terminal
    with Steps(stream) as steps:
        steps.begin("draws rows")
        step = f"{CLEAR_LINE}        0 s  draws rows .."
        assert seen(step) == step
        steps.end("decode", "1.20 ms")
        finding = f"{CLEAR_LINE}        0 s  decode: 1.20 ms\r\n"
        assert seen(finding) == finding
        steps.begin("draws more rows")
    step = f"{CLEAR_LINE}        0 s  draws more rows .."
    assert seen(step + CLEAR_LINE) == step + CLEAR_LINE and capsys.readouterr() == ("", "")


def test_in_a_file_that_asks_for_progress_each_step_is_a_line(monkeypatch):
    monkeypatch.setattr("time.monotonic", iter([0.0, 3.2, 250.0]).__next__)
    file = io.StringIO()
    with Steps(file) as steps:
        steps.begin("draws rows")
        steps.end("decode", "1.20 ms")
    assert file.getvalue() == "        3 s  draws rows ..\n 4 min 10 s  decode: 1.20 ms\n"


def test_where_nobody_watches_findings_alone_are_said(monkeypatch, capsys):
    monkeypatch.setenv("HPCGNN_PROGRESS", "0")
    with Steps.watched() as steps:
        steps.begin("draws rows")
        steps.end("decode", "1.20 ms")
    assert capsys.readouterr() == ("", "decode: 1.20 ms\n")


def test_a_long_step_is_cut_to_the_terminals_width(terminal, monkeypatch):
    stream, seen = terminal
    monkeypatch.setattr("os.get_terminal_size", lambda file: os.terminal_size((20, 5)))
    Steps(stream).begin("draws rows of very many columns")
    step = f"{CLEAR_LINE}        0 s  draws "
    assert seen(step) == step


def test_a_step_is_said_before_its_first_call_and_not_among_its_repetitions():
    heard = []
    place = Place(Effort(3), begin=heard.append)
    works = {name: lambda: heard.append("call") for name in (OURS, "peer")}
    place.measure("spmm", "a graph", 1.0, "s", works)
    assert heard == ["spmm: a graph", *["call"] * 8]
