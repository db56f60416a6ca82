"""Fixtures of these tests, and a callback that ends a run."""

from __future__ import annotations

import signal

import pytest
from mpi4py import MPI
from training_setup import easy_graph, shared_path, write_once  # noqa: F401

import hpcgnn


@pytest.fixture
def graph(shared_path):  # noqa: F811
    return hpcgnn.open(write_once(MPI.COMM_WORLD, easy_graph(), shared_path / "shards"))


class Stop(hpcgnn.Callback):
    """Ends the process's run, as a signal would, after so many epochs."""

    def __init__(self, epoch: int):
        self.epoch = epoch

    def on_epoch_end(self, run, record):
        if record["epoch"] == self.epoch:
            signal.raise_signal(signal.SIGUSR1)
