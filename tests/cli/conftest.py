"""Fixtures of these tests."""

import pytest
from mpi4py import MPI
from training_setup import easy_graph, shared_path, write_once  # noqa: F401

from hpcgnn.__main__ import main


@pytest.fixture
def hpcgnn(capsys, monkeypatch):
    """Collective: run the command line on all ranks: (exit status, standard output, standard error) of rank 0."""
    monkeypatch.setenv("HPCGNN_PROGRESS", "0")      # no lines of progress among the complaints

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return MPI.COMM_WORLD.bcast((stop.value.code or 0, printed.out, printed.err))

    return run


@pytest.fixture
def shards(shared_path):  # noqa: F811
    """Collective: shards of the easy graph, a part for each rank."""
    return write_once(MPI.COMM_WORLD, easy_graph(), shared_path / "shards")
