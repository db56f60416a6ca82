"""Many problems at once, and what serves where HiGHS does not finish."""

from __future__ import annotations

import time

import numpy as np
import pytest
from methods.problems import make_problem, many_groups
from scipy.optimize import OptimizeResult, milp

from hpcgnn.methods import solving
from hpcgnn.methods.greedy import solve_greedy
from hpcgnn.methods.highs import SolverError, solve_highs
from hpcgnn.methods.solving import assign

LAYERS = [make_problem({1: 4, 2: 3, 5: 2}, seed=seed) for seed in range(5)]


@pytest.mark.parametrize("solver, alone", [("greedy", solve_greedy), ("highs", solve_highs)])
def test_layers_in_threads_get_what_each_gets_alone(solver, alone):
    answers = assign(LAYERS, 0.5, solver, 60)
    assert [answer.solver for answer in answers] == [solver] * 5 and {answer.reason for answer in answers} == {""}
    for answer, problem in zip(answers, LAYERS, strict=True):
        assert np.array_equal(answer.widths, alone(problem, 0.5).widths)


def test_no_layers_need_no_widths():
    assert assign([], 0.5, "highs", 5) == [] == assign([], 0.5, "greedy", 5)


def test_the_greedy_widths_serve_when_the_time_is_over_and_say_why():
    problems = [many_groups(groups=150, seed=seed) for seed in range(3)]
    started = time.perf_counter()
    answers = assign(problems, 0.5, "highs", 0.05)
    assert time.perf_counter() - started < 20
    for answer, problem in zip(answers, problems, strict=True):
        assert answer.solver == "greedy" and np.array_equal(answer.widths, solve_greedy(problem, 0.5).widths)
        assert answer.reason.startswith("highs gave no widths in ") and "ime" in answer.reason.partition(":")[2]


def test_without_a_limit_of_time_the_nodes_of_the_search_are_limited(monkeypatch):
    asked = []

    def spy(*arguments, options, **others):
        asked.append(dict(options))     # milp empties it
        return milp(*arguments, options=options, **others)

    monkeypatch.setattr("scipy.optimize.milp", spy)
    answers = assign(LAYERS, 0.5, "highs", None)
    assert {answer.solver for answer in answers} == {"highs"}
    assert asked and all(set(options) == {"node_limit", "mip_rel_gap"} for options in asked)


def test_the_greedy_widths_serve_when_the_nodes_are_over_and_say_why(monkeypatch):
    def without_an_answer(*arguments, **others):
        return OptimizeResult(status=1, message="iteration limit reached")      # as scipy calls it

    monkeypatch.setattr("scipy.optimize.milp", without_an_answer)
    for answer, problem in zip(assign(LAYERS, 0.5, "highs", None), LAYERS, strict=True):
        assert answer.solver == "greedy" and np.array_equal(answer.widths, solve_greedy(problem, 0.5).widths)
        assert answer.reason.startswith("highs gave no widths in 1000 nodes, so the greedy ones serve: HiGHS ended ")


def test_the_greedy_widths_serve_for_the_one_layer_that_fails(monkeypatch):
    def failing(problem, *limits):
        if problem is LAYERS[2]:
            raise SolverError("HiGHS ended without an answer: numerical trouble")
        return solve_highs(problem, *limits)

    monkeypatch.setattr(solving, "solve_highs", failing)
    answers = assign(LAYERS, 0.5, "highs", 60)
    assert [answer.solver for answer in answers] == ["highs", "highs", "greedy", "highs", "highs"]
    assert answers[2].reason.endswith("HiGHS ended without an answer: numerical trouble")
