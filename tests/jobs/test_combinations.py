"""jobs/combinations.py: the page has what settings refuse, and pairs that they do not refuse train as they must."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mpi4py import MPI
from training_setup import on_rank_zero, shared_path  # noqa: F401

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "jobs"))
import combinations  # noqa: E402

COMM = MPI.COMM_WORLD
ONE_IN = 60


def test_the_page_is_of_these_settings():
    assert (ROOT / "docs/combinations.md").read_text() == combinations.page()


@pytest.mark.parallel([3])
def test_pairs_that_settings_take_train(shared_path):  # noqa: F811
    """One pair in so many, with two ranks in one node and one alone; jobs/combinations.py trains all."""
    on_rank_zero(COMM, lambda: combinations.write_all(shared_path, COMM.size))
    walk = combinations.Walk(COMM, shared_path)
    for one, other in list(combinations.pairs())[::ONE_IN]:
        found, refused = walk.outcome(one, other), combinations.refusal(one, other)
        assert not found.startswith(combinations.WRONG), found
        if refused is not None:
            assert combinations.reason_in(found) == refused
