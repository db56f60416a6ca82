"""Coverings: every pair, or triple, of values that the whole product has is in what is left of it."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import chain, combinations, product

import pytest
from covering import cover, long_but

WIDE = list(product(range(6), range(7), range(3), range(2), range(3)))
HOLED = [case for case in WIDE if case[0] != case[1] and case[2:] != (1, 1, 1)]     # a product with cases left out

EXAMPLE = """
import pytest

@pytest.fixture(params=["a", pytest.param("b", marks=pytest.mark.skip("absent"))])
def kind(request):
    return request.param

@pytest.mark.covering
@pytest.mark.parametrize("x", range(4))
@pytest.mark.parametrize("y", range(5))
@pytest.mark.parametrize("z, w", [(0, 1), (1, 0), (1, 1)])
def test_thin(kind, x, y, z, w):
    print("ran", x, y, z, w)

@pytest.mark.parametrize("x", range(4))
@pytest.mark.parametrize("y", range(5))
def test_whole(kind, x, y):
    pass

@pytest.mark.covering
def test_single():
    pass

@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("x", range(7))
@pytest.mark.parametrize("_nprocs", COUNTS)
def test_ranks(x, _nprocs):
    pass

@pytest.mark.long
def test_long():
    pass

@pytest.mark.covering
@pytest.mark.parametrize("x", [0, pytest.param(1, marks=pytest.mark.long), 2])
@pytest.mark.parametrize("y", range(2))
@pytest.mark.parametrize("z", range(2))
def test_partly(x, y, z):
    pass
"""


def values_together(cases, strength):
    return {values for case in cases for values in combinations(enumerate(case), strength)}


@pytest.mark.parametrize("strength, at_most", [(1, 7), (2, 46), (3, 150)])
@pytest.mark.parametrize("cases", [WIDE, HOLED], ids=["product", "with holes"])
def test_few_cases_are_left_in_which_all_values_that_occur_together_still_do(cases, strength, at_most):
    """The two largest factors have 42 pairs, the three largest 126 triples; the product has 756 cases."""
    kept = [cases[index] for index in cover(cases, strength)]
    assert len(set(kept)) == len(kept) <= at_most
    assert values_together(kept, strength) == values_together(cases, strength)


@pytest.mark.parametrize("cases", [[], [()], [(1,), (2,)], list(product("ab", range(5)))])
def test_all_cases_of_two_factors_or_fewer_are_kept(cases):
    assert cover(cases) == list(range(len(cases)))


@pytest.mark.parametrize("cases, strength", [(WIDE, 0), ([(1, 2), (1,)], 2)])
def test_what_has_no_covering_is_refused(cases, strength):
    with pytest.raises(ValueError, match="expected a strength of 1 or more, and one number of factors"):
        cover(cases, strength)


class Ended:
    """A plugin that keeps each test's name, its case and how it ended."""

    def __init__(self):
        self.tests = []

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.skipped:
            name, _, case = report.nodeid.rpartition("::")[2].partition("[")
            self.tests.append((name, case.rstrip("]"), report.outcome))


@pytest.fixture
def run_example(tmp_path, monkeypatch):
    """run_example(*options) -> names, cases and outcomes of the tests of EXAMPLE, by a pytest within this one.

    `counts` are the numbers of ranks whose cases are collected.
    """
    (tmp_path / "pytest.ini").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)      # an example that is changed within a second is read anew

    def run(*options, place="test_example.py", counts=(1, 2, 3, 4)):
        (tmp_path / "test_example.py").write_text(EXAMPLE.replace("COUNTS", str(counts)))
        without = [word for name in ("cacheprovider", "faulthandler", "mpi-pytest", "terminal")
                   for word in ("-p", f"no:{name}")]
        ended = Ended()
        sys.modules.pop("test_example", None)
        assert pytest.main(["-p", "covering", "--import-mode=importlib", *without, *options, place], [ended]) == 0
        return ended.tests
    return run


def thin_cases(found, outcome):
    """Values of x, y, z and w of the cases of test_thin that ended so."""
    cases = [case for name, case, ended in found if (name, ended) == ("test_thin", outcome)]
    return [tuple(map(int, case.split("-")[1:])) for case in cases]


PRODUCT = [(z, w, y, x) for x in range(4) for y in range(5) for z, w in [(0, 1), (1, 0), (1, 1)]]


def test_cases_at_other_places_are_long():
    cases = [(case.values, [mark.name for mark in case.marks]) for case in long_but((1,), [(1, "a"), (2, "b")])]
    assert cases == [((1, "a"), ["long"]), ((2, "b"), [])]
    assert [case.values for case in long_but((0, 1), "ab")] == [("a",), ("b",)]


def test_a_marked_test_runs_a_covering_and_other_tests_run_whole(run_example):
    """Skipped cases cover nothing: those that run have all pairs by themselves. z and w are one factor."""
    found = run_example()
    ran = thin_cases(found, "passed")
    pairs, every = (values_together([((z, w), y, x) for z, w, y, x in cases], 2) for cases in (ran, PRODUCT))
    assert len(ran) < len(PRODUCT) / 2 and pairs == every
    assert 0 < len(thin_cases(found, "skipped")) < len(PRODUCT) / 2
    ended = Counter((name, outcome) for name, _, outcome in found)
    assert ended["test_whole", "passed"] == ended["test_whole", "skipped"] == 20 and ended["test_single", "passed"] == 1


def test_long_cases_cover_nothing_where_they_do_not_run(run_example):
    """Each pair of the values that run has a case, none of which would be long."""
    cases = [tuple(map(int, case.split("-")[::-1])) for name, case, _ in run_example("-k", "partly", place=".")]
    assert {x for x, _, _ in cases} == {0, 2}
    assert values_together(cases, 2) == values_together(list(product((0, 2), range(2), range(2))), 2)


def ranks_of_cases(found):
    """The numbers of ranks on which each x of test_ranks ran."""
    cases = [tuple(map(int, case.split("-"))) for name, case, _ in found if name == "test_ranks"]
    return [sorted(ranks for ranks, x in cases if x == one) for one in range(7)]


def test_a_case_for_several_numbers_of_ranks_runs_on_one_of_them_in_turn_and_one_rank_comes_last(run_example):
    found = ranks_of_cases(run_example(place="."))
    assert all(len(ranks) == 1 for ranks in found)
    assert {ranks[0] for ranks in found[:3]} == {2, 3, 4} and found[3] == [1] and found[4:] == found[:3]


def test_runs_that_each_collect_one_number_of_ranks_share_out_all_cases(run_example):
    alone = [ranks_of_cases(run_example("-k", "test_ranks", place=".", counts=(count,))) for count in (1, 2, 3, 4)]
    together = [sorted(chain(*ranks)) for ranks in zip(*alone, strict=True)]
    assert together == ranks_of_cases(run_example(place="."))


@pytest.mark.parametrize("options, place", long_but((1,), [
    (("--exhaustive",), "."), ((), "test_example.py")]))
def test_a_case_runs_on_all_numbers_of_ranks_where_all_are_asked_for_or_its_file_is_named(run_example, options, place):
    assert ranks_of_cases(run_example(*options, place=place)) == [[1, 2, 3, 4]] * 7


@pytest.mark.parametrize("options, place, expected", long_but((0, 1, 3), [
    ((), ".", 0), ((), "test_example.py", 1), ((), "test_example.py::test_long", 1), (("--all",), ".", 1),
    (("--unnamed",), "test_example.py", 0)]))
def test_a_long_test_runs_where_all_are_asked_for_or_its_file_is_named(run_example, options, place, expected):
    found = run_example("-k", "long or single", *options, place=place)
    assert [name for name, _, _ in found].count("test_long") == expected


def test_the_whole_product_runs_where_it_is_asked_for(run_example):
    found = run_example("--exhaustive")
    assert sorted(thin_cases(found, "passed")) == sorted(thin_cases(found, "skipped")) == sorted(PRODUCT)
