"""Whether progress is drawn, seen from processes that stand for ranks under a launcher."""

import os
import pty
import subprocess
import sys

import pytest

from hpcgnn.training.terminal import is_watched

ASK = "from hpcgnn.training.terminal import is_watched; print(is_watched())"


@pytest.fixture
def launcher(tmp_path):
    """A process called mpirun, which starts a rank whose standard error is a pipe, as Open MPI's does."""
    link = tmp_path / "mpirun"
    link.symlink_to("/bin/bash")
    environment = {name: value for name, value in os.environ.items() if name != "HPCGNN_PROGRESS"}

    def run(stderr):
        # The `; true` keeps bash from replacing itself by the rank.
        command = [str(link), "-c", f'{sys.executable} -c "{ASK}" 2> >(cat); true']
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment,
                              check=True).stdout.strip()

    return run


def test_rank_draws_where_its_launcher_writes_to_a_terminal(launcher):
    ours, theirs = pty.openpty()
    try:
        assert launcher(theirs) == "True"
    finally:
        os.close(ours)
        os.close(theirs)


def test_rank_is_quiet_where_its_launcher_writes_to_a_file(launcher, tmp_path):
    with open(tmp_path / "log", "w") as log:
        assert launcher(log) == "False"


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False)])
def test_variable_decides(monkeypatch, value, expected):
    monkeypatch.setenv("HPCGNN_PROGRESS", value)
    assert is_watched() is expected
