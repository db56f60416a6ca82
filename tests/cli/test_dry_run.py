"""`hpcgnn train --dry-run`: what it prints, its status, and that no file comes of it."""

from __future__ import annotations

import re

import pytest
from mpi4py import MPI
from training_setup import SMALL, snapshot

from hpcgnn.cli.train import NAMES, in_bytes, in_time

FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]


@pytest.mark.parallel([1, 2])
def test_a_dry_run_says_what_a_run_would_take_and_writes_nothing(hpcgnn, shards, shared_path):
    before = snapshot(shared_path)
    status, printed, complaints = hpcgnn("train", shards, "--out", shared_path / "run", "--dry-run", *FLAGS)
    assert (status, complaints) == (0, "")
    assert snapshot(shared_path) == before
    for name in NAMES.values():
        assert name in printed
    assert (" of messages, and " in printed) == (" of sums\n" in printed) == (MPI.COMM_WORLD.size > 1)
    assert f"the largest of {MPI.COMM_WORLD.size}, and their mean" in printed
    evaluations = SMALL["epochs"] // SMALL["eval_every"]
    assert f"{SMALL['epochs']} epochs and {evaluations} evaluations" in printed
    assert printed.endswith("nothing was written\n")


@pytest.mark.parallel([1, 2])
def test_a_dry_run_within_a_limit_says_what_goes_to_the_disk(hpcgnn, shards):
    status, printed, complaints = hpcgnn("train", shards, "--dry-run", "--memory=100G", *FLAGS)
    assert (status, complaints) == (0, "") and "tables within the limit of memory\n" in printed
    assert "an epoch         writes 0 B to the disk and reads 0 B, all ranks\n" in printed
    printed = " ".join(printed.split())
    assert re.search(r" besides \d+ MB of a rank can't leave memory ", printed)
    assert re.search(r" takes 0 ms of it, at the [\d.]+ [MG]B that a machine's disk writes in a second, and the "
                     r"[\d.]+ [MG]B that it reads ", printed)
    status, _, complaints = hpcgnn("train", shards, "--dry-run", "--memory=1M", *FLAGS)
    assert status == 1 and "can't leave memory: the process, edges and messages" in complaints


@pytest.mark.parallel(2)
def test_what_can_t_be_trained_is_refused_on_all_ranks(hpcgnn, shards):
    status, _, complaints = hpcgnn("train", shards, "--dry-run", "--model=gat", "--set", "heads=3", "--hidden=8")
    assert status != 0 and "hidden must be a multiple of the 3 attention heads" in complaints


@pytest.mark.parametrize("number, text", [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (41_234_567, "41.2 MB"),
                                          (3.21e9, "3.21 GB")])
def test_bytes_come_in_the_unit_that_fits(number, text):
    assert in_bytes(number) == text


@pytest.mark.parametrize("seconds, text", [(0.00321, "3.21 ms"), (12.06, "12.1 s"), (59.7, "1 min 0 s"),
                                           (250, "4 min 10 s"), (7530, "2 h 5 min")])
def test_time_comes_in_the_unit_that_fits(seconds, text):
    assert in_time(seconds) == text
