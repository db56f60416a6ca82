"""Output never costs a run: what can't be written is dropped, and characters that a stream lacks have plain forms."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from hpcgnn.run.output import PLAIN, PatientStream, prepare_streams, tell


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
