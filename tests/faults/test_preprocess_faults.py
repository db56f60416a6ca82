"""A rank of preprocess that is killed takes the others along and leaves no shards; the next run goes on from stages."""

from __future__ import annotations

import os
import signal
import subprocess

import h5py
import numpy as np
import pytest
from fork_server import served
from parallel_run import ParallelRun, clean_environment, run_parallel_command

from hpcgnn.shards.folder import FOLDER, shards_in

# Enough edges that a rank is met while it works; stages of this few are kept here.
GRAPH = "synthetic:nodes=20000,mean_degree=20,classes=4,features=8"
PROGRAM = ("import sys; from hpcgnn.shards import folder; folder.LEAST_EDGES = 0; "
           "from hpcgnn.__main__ import main; main(sys.argv[1:])")
COMMAND = served(["-c", PROGRAM, "preprocess", GRAPH, "--parts", 4, "--partitioner", "contiguous", "--out", "shards"])


def contents(folder):
    """Every array of the shards, by file and name."""
    found = {}
    for path in shards_in(folder):
        with h5py.File(path) as file:
            file.visititems(lambda name, item, path=path: found.update({(path.name, name): item[()]})
                            if isinstance(item, h5py.Dataset) else None)
    return found


@pytest.mark.parametrize("killed", [1, pytest.param(0, marks=pytest.mark.long)])
def test_a_killed_rank_ends_the_run_and_the_next_one_goes_on(tmp_path, killed):
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    for folder in (undisturbed, disturbed):
        folder.mkdir()
    ended = subprocess.run(COMMAND, cwd=undisturbed, capture_output=True, text=True, env=clean_environment())
    assert ended.returncode == 0, ended.stderr

    kept = disturbed / "shards" / FOLDER / "owner.h5"
    with ParallelRun(2, COMMAND, disturbed) as run:
        run.wait_for(kept.exists)
        ranks = run.ranks()
        os.kill(ranks[killed], signal.SIGKILL)
        ended = run.end()
        assert not run.left(ranks)
    assert ended.status != 0
    assert shards_in(disturbed / "shards") == [] and kept.exists()

    again = run_parallel_command(2, COMMAND, disturbed)
    assert again.status == 0, again.stderr
    assert "taking owner from an interrupted run" in again.stdout + again.stderr
    found, expected = contents(disturbed / "shards"), contents(undisturbed / "shards")
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], values) for name, values in expected.items())
    assert sorted(path.name for path in (disturbed / "shards").iterdir() if path.is_dir()) == []
