"""A pytest plugin that thins tests: of products of parameters cases that cover them, and none that takes long.

`@pytest.mark.covering` keeps every pair of values, `@pytest.mark.covering(3)` every triple, `@pytest.mark.covering(1)`
every value, spread over the numbers of ranks. An unmarked test for several numbers of ranks runs each case on one of
them, in turn, one rank last; on all of them where its file is named. `--exhaustive` runs all cases on all numbers of
ranks. Tests that define a format stay unmarked.
`@pytest.mark.long` is for tests that take long and have a short one beside them that meets the same faults; they run
with `--all`, and where their file is named. `long_but` marks cases so. `--unnamed` takes no file as named: of any file
the cases that a run of all files has. No fixture belongs here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations
from zlib import crc32

import pytest

MARK, LONG = "covering", "long"
PAIRS = 2
PARALLEL, RANKS = "parallel", "_nprocs"      # mark and parameter of mpi-pytest


def cover(cases: Sequence[Sequence[Hashable]], strength: int = PAIRS) -> list[int]:
    """Choose cases that cover, with every `strength` of their factors, all values that occur together in any case.

    Parameters
    ----------
    cases : num_cases sequences of num_factors values
    strength : int      2 for pairs, 3 for triples; all cases are kept where there are no more factors than that

    Returns
    -------
    list of int         indices into cases, ascending; the same for the same cases

    Raises
    ------
    ValueError          strength is below 1, or cases differ in their number of factors
    """
    if strength < 1 or len(set(map(len, cases))) > 1:
        raise ValueError(f"strength is {strength} and cases have {sorted(set(map(len, cases)))} factors; expected a "
                         "strength of 1 or more, and one number of factors")
    bits: dict[tuple, int] = {}
    masks = []
    for case in cases:
        together = combinations(enumerate(case), min(strength, len(case)))
        masks.append(sum(1 << bits.setdefault(values, len(bits)) for values in together))
    # Greedy: each time the case that covers the most of what is missing, the first one among equals. Single values are
    # spread: among equals comes the case whose values were chosen the least often.
    chosen, missing, times = [], (1 << len(bits)) - 1, Counter()

    def worth(index):
        return (masks[index] & missing).bit_count(), -sum(map(times.__getitem__, enumerate(cases[index])))

    while missing:
        best = max(range(len(cases)), key=worth)
        chosen.append(best)
        missing &= ~masks[best]
        times.update(enumerate(cases[best]) if strength == 1 else ())
    return sorted(chosen)


def long_but(kept: Sequence[int], cases: Iterable) -> list:
    """Cases as parameters, of which those at other places than the kept ones are long.

    Parameters
    ----------
    kept : sequence of int      places in cases, counted from 0
    cases : iterable            values of one parameter, or tuples of values of several
    """
    cases = list(cases)
    several = isinstance(cases[0], tuple)
    return [pytest.param(*(case if several else [case]), marks=() if place in kept else pytest.mark.long)
            for place, case in enumerate(cases)]


def pytest_addoption(parser):
    parser.addoption("--exhaustive", action="store_true", help="run all cases, on every number of ranks")
    parser.addoption("--all", action="store_true", help="run also tests that are marked long, as before a release")
    parser.addoption("--unnamed", action="store_true", help="run, of files that are named, what a run of all files has")


def pytest_configure(config):
    config.addinivalue_line("markers", f"{MARK}(strength=2): runs cases that cover every pair of parameters, or every "
                                       "strength of them, not their whole product")
    config.addinivalue_line("markers", f"{LONG}: runs with --all, or where its file is named")


def pytest_collection_modifyitems(config, items):
    """Deselect long tests, and cases of marked tests that a covering does not need."""
    words = [] if config.getoption("--unnamed") else config.args
    named = {(config.invocation_params.dir / word.partition("::")[0]).resolve() for word in words}
    left_out = set()
    if not config.getoption("--all"):
        left_out.update(id(item) for item in items if item.get_closest_marker(LONG) and item.path not in named)
    if not config.getoption("--exhaustive"):
        there = [item for item in items if id(item) not in left_out]
        left_out.update(_uncovering(there), _on_other_ranks([item for item in there if item.path not in named]))
    config.hook.pytest_deselected(items=[item for item in items if id(item) in left_out])
    items[:] = [item for item in items if id(item) not in left_out]


def _uncovering(items) -> set[int]:
    """The identities of cases that a covering does not need; cases that are skipped cover nothing."""
    groups: dict[tuple, list] = {}
    for item in items:
        mark = item.get_closest_marker(MARK)
        if mark is not None and hasattr(item, "callspec"):
            is_skipped = item.get_closest_marker("skip") is not None
            groups.setdefault((item.path, item.cls, item.originalname, is_skipped), []).append(item)
    left_out = set()
    for group in groups.values():
        kept = set(cover([_factors(item) for item in group], *group[0].get_closest_marker(MARK).args))
        left_out.update(id(item) for index, item in enumerate(group) if index not in kept)
    return left_out


def _on_other_ranks(items) -> set[int]:
    """The identities of cases of unmarked tests that another number of ranks has.

    A run on one number of ranks may have collected only its own cases: the others are known from the mark.
    """
    left_out, places = set(), {}
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        counts = _counts(item)
        if len(counts) < 2 or params.get(RANKS) not in counts or item.get_closest_marker(MARK) is not None:
            continue
        cases = places.setdefault((item.path, item.cls, item.originalname), {})
        case = tuple((name, id(value)) for name, value in sorted(params.items()) if name != RANKS)
        # Tests of few cases begin with different numbers; one rank, on which nothing travels, comes last.
        several = sorted(counts - {1})
        first = crc32(f"{item.path.name} {item.originalname}".encode()) % len(several)
        in_turn = [*several[first:], *several[:first], *sorted(counts & {1})]
        if in_turn[cases.setdefault(case, len(cases)) % len(in_turn)] != params[RANKS]:
            left_out.add(id(item))
    return left_out


def _counts(item) -> set[int]:
    """The numbers of ranks that a test is marked with."""
    given = [value for mark in item.iter_markers(PARALLEL) for value in (*mark.args, *mark.kwargs.values())]
    return {number for value in given for number in ([value] if isinstance(value, int) else value)}


def _factors(item) -> tuple[tuple[int, ...], ...]:
    """Which value each factor has, by its identity; parameters that one decorator lists together are one factor."""
    params = item.callspec.params
    listed = [mark.args[0] if mark.args else mark.kwargs["argnames"] for mark in item.iter_markers("parametrize")]
    together = [[name.strip() for name in (names.split(",") if isinstance(names, str) else names)] for names in listed]
    alone = [[name] for name in sorted(set(params) - {name for names in together for name in names})]
    return tuple(tuple(id(params[name]) for name in names) for names in together + alone)
