"""jobs/combinations.py: the page has what settings refuse, and pairs that they do not refuse train as they must."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from mpi4py import MPI
from training_setup import on_rank_zero, shared_path  # noqa: F401

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "jobs"))
import combinations  # noqa: E402

COMM = MPI.COMM_WORLD
ONE_IN, FEATURE_IN = 60, 16      # with --all; else an eighth of the pairs, and few features


PAGE = (ROOT / "docs/combinations.md").read_text()


def actions_of_the_page():
    """What the page says of every action, by feature: yes, = or ~, or the reason."""
    works = {action: "=" if action == combinations.RESUME else "yes" for action in combinations.ACTIONS}
    found = {feature.name: dict(works) for feature in combinations.FEATURES}
    rows = re.findall(r"^\| `(.*)` \| (.*) \| (.*) \|$", PAGE.partition("| action |")[2], re.MULTILINE)
    for action, names, reason in rows:
        for feature in combinations.features_in(names):
            assert found[feature.name][action] == works[action], f"{feature.name}: two rows for {action}"
            found[feature.name][action] = "~" if reason == combinations.NEAR else reason
    return found


def refused_on_the_page():
    return {name: {action: cell for action, cell in found.items() if cell not in combinations.WORKS}
            for name, found in actions_of_the_page().items()}


def test_the_page_is_of_these_settings():
    """Few features try their actions here; all of them below."""
    expected = refused_on_the_page()
    assert combinations.page(expected) == PAGE
    some = combinations.FEATURES[1::3 * FEATURE_IN]
    assert combinations.refused_actions(some) == {one.name: expected[one.name] for one in some}


@pytest.mark.long
def test_the_page_has_what_every_action_refuses():
    assert combinations.refused_actions(combinations.FEATURES) == refused_on_the_page()


@pytest.mark.parallel([3])
@pytest.mark.parametrize("one_in", [8 * ONE_IN, pytest.param(ONE_IN, marks=pytest.mark.long)])
def test_pairs_that_settings_take_train(shared_path, one_in):  # noqa: F811
    """One pair in so many, with two ranks in one node and one alone; jobs/combinations.py trains all."""
    on_rank_zero(COMM, lambda: combinations.write_all(shared_path, COMM.size))
    walk = combinations.Walk(COMM, shared_path)
    for one, other in list(combinations.pairs())[::one_in]:
        found, refused = walk.outcome(one, other), combinations.refusal(one, other)
        assert not found.startswith(combinations.WRONG), found
        if refused is not None:
            assert combinations.reason_in(found) == refused


@pytest.mark.parallel([3])
@pytest.mark.parametrize("feature_in", [3 * FEATURE_IN, pytest.param(FEATURE_IN, marks=pytest.mark.long)])
def test_a_run_serves_for_what_the_page_says(shared_path, feature_in):  # noqa: F811
    """One feature in so many, in other ways than the refusals above; jobs/combinations.py tries all."""
    on_rank_zero(COMM, lambda: combinations.write_all(shared_path, COMM.size - 1, COMM.size))
    walk, expected = combinations.Walk(COMM, shared_path), actions_of_the_page()
    for feature in combinations.FEATURES[4::feature_in]:
        assert walk.actions(feature) == expected[feature.name]
