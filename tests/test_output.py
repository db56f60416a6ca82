"""Output never costs a run: what can't be written is dropped, and characters that a stream lacks have plain forms."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from rich import box
from rich.table import Table

from hpcgnn.run.output import PLAIN, PatientStream, prepare_streams, print_fitted, tell, terminal_width, wrapped


def wide_table():
    table = Table(box=box.SIMPLE_HEAD, title="what twelve parts hold", caption="in rows")
    table.add_column("part")
    for number in range(12):
        table.add_column(f"rows of kind {number}", justify="right", no_wrap=True)
    for part in ("first", "second"):
        table.add_row(part, *(f"{part[0]}{1_000_000 + number:,}" for number in range(12)))
    return table


@pytest.mark.parametrize("width", [24, 40, 80, 400])
def test_a_table_fits_the_terminal_and_loses_nothing(width):
    out = io.StringIO()
    print_fitted(wide_table(), out, width)
    lines, words = out.getvalue().splitlines(), out.getvalue().split()
    assert max(map(len, lines)) <= width
    for number in range(12):
        assert words.count(f"f{1_000_000 + number:,}") == words.count(f"s{1_000_000 + number:,}") == 1
    # Each block says what its rows are.
    assert words.count("first") == words.count("second") == words.count("part") >= (1 if width == 400 else 2)
    assert " ".join(words).startswith("what twelve parts hold") and " ".join(words).endswith("in rows")


def test_a_table_is_never_cut_on_a_terminal_that_is_too_narrow():
    out = io.StringIO()
    print_fitted(wide_table(), out, 5)
    assert "…" not in out.getvalue() and "s1,000,011" in out.getvalue()


def test_a_sentence_is_folded_between_words(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    assert terminal_width() == 30
    path = "/a/path/that-is-longer-than-a-line-of-the-terminal"
    lines = wrapped(f"the file {path} is missing, so name another one").splitlines()
    assert path in (line.strip() for line in lines) and all(len(line) <= 30 for line in lines if path not in line)
    assert all(line.startswith("  ") for line in lines[1:])


def full_stream():
    return open("/dev/full", "w", buffering=1)


def gone_stream():
    reader, writer = os.pipe()
    os.close(reader)
    return open(writer, "w", buffering=1)


def closed_stream():
    with open(os.devnull, "w") as stream:
        return stream


@pytest.mark.parametrize("make", [full_stream, gone_stream, closed_stream, lambda: None])
def test_a_line_that_nobody_takes_is_dropped_and_nothing_is_left_of_it(monkeypatch, make):
    stream = make()
    monkeypatch.setattr(sys, "stderr", stream)
    for _ in range(3):
        tell("epoch 1")
    PatientStream(stream).flush()
    if stream is not None:
        stream.close()      # raises where something is left to write


def test_what_can_be_written_is_written_at_once():
    stream = io.StringIO()
    PatientStream(stream).write("bar")
    assert stream.getvalue() == "bar"


@pytest.mark.parametrize("encoding, expected", [("ascii", b"3.0 +- 1 us -> e-a |"),
                                                ("latin-1", "3.0 ± 1 µs -> é-a |".encode("latin-1"))])
def test_characters_that_a_stream_lacks_have_plain_forms(monkeypatch, encoding, expected):
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    prepare_streams()
    print("3.0 ± 1 µs → é–a │", end="", flush=True)
    assert streams[0].buffer.getvalue() == expected
    assert streams[1].errors == PLAIN


def test_closed_streams_are_opened_on_nothing():
    """In a process of its own: else the next file that is opened would be taken for standard output."""
    program = ("import sys; from hpcgnn.run.output import prepare_streams; prepare_streams()\n"
               "opened = open(sys.argv[1], 'w'); assert opened.fileno() > 2, opened.fileno()\n"
               "print('x', flush=True); sys.stderr.write('y'); sys.stderr.flush(); sys.stdin.read()")
    ended = subprocess.run(["bash", "-c", 'exec "$@" <&- >&- 2>&-', "x", sys.executable, "-c", program, os.devnull])
    assert ended.returncode == 0
