"""jobs/combinations.py and docs/combinations.md: each pair of features does what the page says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mpi4py import MPI
from training_setup import on_rank_zero, shared_path  # noqa: F401

from hpcgnn.config import TrainConfig
from hpcgnn.errors import ConfigError

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "jobs"))
import combinations  # noqa: E402

COMM = MPI.COMM_WORLD
PAGE = (ROOT / "docs/combinations.md").read_text()
PAIRS = list(combinations.pairs())
SHARE = 12      # a test without --all trains one pair in so many


def refused_by_page() -> dict[frozenset[str], str]:
    """Names of each pair that the page refuses -> reason."""
    table, _, reasons = PAGE.partition("## Reasons")
    reason = dict(line.split(". ", 1) for line in reasons.splitlines() if line[:1].isdigit())
    found = {}
    for line in table.splitlines():
        if line.startswith("| ") and line.count("|") == 5 and not line.startswith("| feature"):
            name, _, _, others = (cell.strip() for cell in line.strip("|").split("|"))
            for group in filter(None, others.split("; ")):
                names, _, number = group.rpartition(" (")
                for other in combinations_of(names):
                    found[frozenset({name, other})] = reason[number.rstrip(")")]
    return found


def combinations_of(names: str) -> list[str]:
    """Names of features in a list that is joined by commas; some names have a comma."""
    known = sorted((feature.name for feature in combinations.FEATURES), key=len, reverse=True)
    found = []
    while names:
        name = next(name for name in known if names.startswith(name))
        found.append(name)
        names = names[len(name):].removeprefix(", ")
    return found


def refusal(settings: dict) -> str | None:
    try:
        TrainConfig.of(**settings)
    except ConfigError as error:
        return combinations.reason_in(str(error))
    return None


def test_the_page_refuses_what_the_settings_refuse():
    refused = refused_by_page()
    for one, other in PAIRS:
        said = refusal({**combinations.BASE, **one.settings, **other.settings})
        assert said in (None, refused.get(frozenset({one.name, other.name})))
    assert f"Of {len(PAIRS)} pairs, {len(PAIRS) - len(refused)} train and {len(refused)} are refused" in PAGE


def chosen(part: int) -> list:
    return [pair for number, pair in enumerate(PAIRS) if number % SHARE == part]


@pytest.mark.parallel([3])
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, SHARE))])
def test_pairs_do_what_the_page_says(shared_path, part):  # noqa: F811
    on_rank_zero(COMM, lambda: combinations.write_all(shared_path, COMM.size))
    refused, walk = refused_by_page(), combinations.Walk(COMM, shared_path)
    for one, other in chosen(part):
        found = walk.outcome(one, other)
        reason = refused.get(frozenset({one.name, other.name}))
        if reason is None:
            assert found in ("=", "~"), found
            continue
        assert not found.startswith(combinations.WRONG) and combinations.reason_in(found) == reason
