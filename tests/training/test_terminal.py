"""Whether progress is drawn, seen from processes that stand for ranks under a launcher."""

import os
import pty
import subprocess
import sys
import termios

import pytest

from hpcgnn.run.output import watched_stream

ASK = ("from hpcgnn.run.output import watched_stream as find; stream = find(); "
       "print(stream is not None); stream and print('drawn', end='', file=stream, flush=True)")


@pytest.fixture
def launcher(tmp_path):
    """A process called mpirun, which starts a rank whose standard error is a pipe, as Open MPI's does."""
    link = tmp_path / "mpirun"
    link.symlink_to("/bin/bash")
    environment = {name: value for name, value in os.environ.items() if name != "HPCGNN_PROGRESS"}

    def run(stderr):
        # The `; true` keeps bash from replacing itself by the rank.
        # Standard error is held back until a line ends, as by Open MPI.
        command = [str(link), "-c", f'{sys.executable} -c "{ASK}" 2> >(cat >/dev/null); true']
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment,
                              check=True).stdout.strip()

    return run


def test_rank_draws_where_its_launcher_writes_to_a_terminal(launcher):
    ours, theirs = pty.openpty()
    try:
        assert launcher(theirs) == "True"
        assert os.read(ours, 100) == b"drawn"
    finally:
        os.close(ours)
        os.close(theirs)


def test_rank_is_quiet_where_its_launcher_writes_to_a_file(launcher, tmp_path):
    with open(tmp_path / "log", "w") as log:
        assert launcher(log) == "False"


def test_a_terminal_that_stops_background_writers_is_left_alone(launcher):
    ours, theirs = pty.openpty()
    modes = termios.tcgetattr(theirs)
    modes[3] |= termios.TOSTOP
    termios.tcsetattr(theirs, termios.TCSANOW, modes)
    try:
        assert launcher(theirs) == "False"
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False)])
def test_variable_decides(monkeypatch, value, expected):
    monkeypatch.setenv("HPCGNN_PROGRESS", value)
    assert (watched_stream() is sys.stderr) is expected
