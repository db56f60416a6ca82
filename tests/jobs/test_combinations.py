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
PARTS = 60      # without --all one pair in so many is trained


def test_the_page_is_of_these_settings():
    assert (ROOT / "docs/combinations.md").read_text() == combinations.page()


@pytest.mark.parallel([3])
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, PARTS))])
def test_pairs_that_settings_take_train(shared_path, part):  # noqa: F811
    """With two ranks in one node and one alone, where ranks of a node share rows."""
    on_rank_zero(COMM, lambda: combinations.write_all(shared_path, COMM.size))
    walk = combinations.Walk(COMM, shared_path)
    for number, (one, other) in enumerate(combinations.pairs()):
        if number % PARTS == part:
            found, refused = walk.outcome(one, other), combinations.refusal(one, other)
            if one.model or other.model or "graph" in (one.group, other.group):
                assert not found.startswith(combinations.WRONG), found
            else:
                assert found in ("=", "~") if refused is None else combinations.reason_in(found) == refused
