"""A rank of preprocess that is killed takes the others along and leaves no shards; the next run goes on from stages."""

from __future__ import annotations

import os
import signal
import time

import h5py
import numpy as np
import pytest
from parallel_run import ENDING_LIMIT, ParallelRun, hpcgnn, is_running, run_parallel_command

from hpcgnn.shards.folder import FOLDER, shards_in

# Enough edges that stages are kept, and that a rank is met while it works.
GRAPH = "synthetic:nodes=60000,mean_degree=40,classes=4,features=8"
COMMAND = hpcgnn("preprocess", GRAPH, "--parts", 4, "--partitioner", "contiguous", "--out")


def contents(folder):
    """Every array of the shards, by file and name."""
    found = {}
    for path in shards_in(folder):
        with h5py.File(path) as file:
            file.visititems(lambda name, item, path=path: found.update({(path.name, name): item[()]})
                            if isinstance(item, h5py.Dataset) else None)
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    ended = run_parallel_command(2, [*COMMAND, "shards"], folder)
    assert ended.status == 0, ended.stderr
    return contents(folder / "shards")


@pytest.mark.parametrize("killed", [1, pytest.param(0, marks=pytest.mark.long)])
def test_a_killed_rank_ends_the_run_and_the_next_one_goes_on(undisturbed, tmp_path, killed):
    kept = tmp_path / "shards" / FOLDER / "owner.h5"
    with ParallelRun(2, [*COMMAND, "shards"], tmp_path) as run:
        run.wait_for(kept.exists)
        ranks = run.ranks()
        disturbed = time.monotonic()
        os.kill(ranks[killed], signal.SIGKILL)
        ended = run.end()
        while any(is_running(pid) for pid in ranks.values()) and time.monotonic() < disturbed + ENDING_LIMIT:
            time.sleep(0.01)
        assert not any(is_running(pid) for pid in ranks.values())
    assert ended.status != 0
    assert shards_in(tmp_path / "shards") == [] and kept.exists()

    again = run_parallel_command(2, [*COMMAND, "shards"], tmp_path)
    assert again.status == 0, again.stderr
    assert "taking owner from an interrupted run" in again.stdout + again.stderr
    found = contents(tmp_path / "shards")
    assert found.keys() == undisturbed.keys()
    assert all(np.array_equal(found[name], values) for name, values in undisturbed.items())
    assert sorted(path.name for path in (tmp_path / "shards").iterdir() if path.is_dir()) == []
