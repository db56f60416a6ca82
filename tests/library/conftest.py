"""Fixtures of these tests, and a callback that ends a run."""

from __future__ import annotations

import signal

import pytest
from training_setup import shards, shared_path  # noqa: F401

import hpcgnn


@pytest.fixture
def graph(shards):  # noqa: F811
    return hpcgnn.open(shards)


class Stop(hpcgnn.Callback):
    """Ends the process's run, as a signal would, after so many epochs."""

    def __init__(self, epoch: int):
        self.epoch = epoch

    def on_epoch_end(self, run, record):
        if record["epoch"] == self.epoch:
            signal.raise_signal(signal.SIGUSR1)
