"""Widths that ranks choose together: as good as those of one rank that knows all, however messages are shared."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from methods.problems import Meeting, alone, make_problem, many_groups

from hpcgnn.errors import ConfigError
from hpcgnn.methods.bisection import MAX_ROUNDS, round_of, solve_budget_together, solve_together
from hpcgnn.methods.greedy import solve_budget, solve_greedy

SMALL = {1: 3, 2: 2, 5: 2, 6: 1}
NUM_RANKS = 4


def own_part(problem, rank):
    """The problem of one sender, of the pairs of all."""
    own = np.arange(problem.num_pairs) // NUM_RANKS == rank
    is_own = own[problem.group_pair]
    return replace(problem, group_pair=problem.group_pair[is_own] % NUM_RANKS, beta=problem.beta[is_own],
                   num_values=problem.num_values[is_own], pair_round=problem.pair_round[own], theta=problem.theta[own],
                   gamma=problem.gamma[own])


def together(problem, solve):
    """(answers of all ranks, the meeting) of threads that each know their own part."""
    meeting, answers = Meeting(NUM_RANKS), [None] * NUM_RANKS

    def work(rank):
        answers[rank] = solve(own_part(problem, rank), meeting.of(rank))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(NUM_RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers, meeting


@given(seed=st.integers(0, 2**31), lam=st.floats(0, 1), groups=st.integers(1, 60), spread=st.floats(0, 4),
       ranks=st.integers(2, 5))
@settings(max_examples=30, deadline=None)
def test_it_finds_what_the_solver_that_sees_all_steps_finds(seed, lam, groups, spread, ranks):
    """Within a thousandth of the scale [0, 1] of the terms; the bounds of both are the linear relaxation's."""
    rng = np.random.default_rng(seed)
    pairs = {pair: groups for pair in range(ranks ** 2) if pair % (ranks + 1)}
    problem = make_problem(pairs, ranks, seed=seed, beta=rng.lognormal(0, spread, groups * len(pairs)))
    ours, theirs = alone(problem, lam), solve_greedy(problem, lam)
    assert ours.objective <= theirs.objective + 0.001
    assert ours.bound == pytest.approx(theirs.bound, abs=1e-6)


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_ranks_that_know_their_own_messages_find_what_one_that_knows_all_finds(lam):
    problem = many_groups(groups=20, num_ranks=NUM_RANKS)
    whole = alone(problem, lam)
    answers, _ = together(problem, lambda part, members: solve_together(
        part, lam, np.ones(problem.num_rounds), members))
    assert np.array_equal(np.concatenate([answer.widths for answer in answers]), whole.widths)
    for answer in answers:
        assert (answer.objective, answer.bound) == pytest.approx((whole.objective, whole.bound), abs=1e-9)


@pytest.mark.parametrize("mean_bits", [2.7, 5.0])
def test_ranks_that_know_their_own_messages_spend_what_one_that_knows_all_spends(mean_bits):
    problem = many_groups(groups=20, num_ranks=NUM_RANKS)
    whole = solve_budget_together(problem, mean_bits, problem.num_rounds, Meeting(1).of(0))
    answers, _ = together(problem, lambda part, members: solve_budget_together(
        part, mean_bits, problem.num_rounds, members))
    assert all(answer.objective == pytest.approx(whole.objective, abs=1e-3) for answer in answers)
    widths = np.concatenate([answer.widths for answer in answers])
    for number in range(1, problem.num_rounds):
        values = problem.num_values * (problem.group_round == number)
        assert (widths * values).sum() <= mean_bits * values.sum() * (1 + 1e-9)


def test_how_often_ranks_meet_and_how_much_they_tell_does_not_depend_on_the_messages():
    calls = []
    for groups in (2, 40):
        problem = many_groups(groups=groups, num_ranks=NUM_RANKS)
        for solve in (lambda part, members: solve_together(part, 0.5, np.ones(4), members),
                      lambda part, members: solve_budget_together(part, 3.0, 4, members)):
            _, meeting = together(problem, solve)
            assert len(set(meeting.num_calls)) == 1
            calls.append((meeting.num_calls[0], meeting.num_values[0]))
    assert calls[:2] == calls[2:]


@pytest.mark.parametrize("mean_bits", [2, 3.5, 8])
def test_a_budget_is_spent_as_well_as_on_one_rank(mean_bits):
    """Within a thousandth of the scale [0, 1] for many groups, a hundredth for eight of them."""
    for most, problems in ((1e-3, [many_groups(), many_groups(groups=30, num_ranks=3)]),
                           (1e-2, [make_problem(SMALL, seed=seed) for seed in range(6)])):
        for problem in problems:
            ours = solve_budget_together(problem, mean_bits, problem.num_rounds, Meeting(1).of(0))
            theirs = solve_budget(problem, mean_bits)
            assert abs(ours.objective - theirs.objective) <= most
            for number in range(1, problem.num_rounds):
                values = problem.num_values * (problem.group_round == number)
                assert (ours.widths * values).sum() <= mean_bits * values.sum() * (1 + 1e-9)


def test_equal_steps_are_taken_while_the_budget_lasts():
    """All gain the same a bit, so no price parts them."""
    problem = replace(many_groups(widths=(2, 4)), beta=np.ones(len(many_groups().beta)))
    problem = replace(problem, num_values=np.full(problem.num_groups, 160))
    ours, theirs = solve_budget_together(problem, 3.0, problem.num_rounds, Meeting(1).of(0)), solve_budget(problem, 3.0)
    assert ours.objective == pytest.approx(theirs.objective)
    assert 0.4 < ours.objective < 0.6


def test_a_budget_below_the_smallest_width_is_refused():
    with pytest.raises(ConfigError, match="below the smallest width 2"):
        solve_budget_together(many_groups(), 1.5, 4, Meeting(1).of(0))


def test_widest_messages_are_found_where_sums_round_differently():
    """The last step of a pair ends an ulp behind the seconds of its widest message."""
    rng = np.random.default_rng(2)
    problem = make_problem({1: 2, 2: 2}, 2, seed=2, beta=rng.lognormal(0, 1.0, 4))
    answer = alone(problem, 0.984375)
    assert answer.widths.tolist() == [8] * 4 and answer.objective == pytest.approx(answer.bound, abs=1e-9)


def test_what_gains_nothing_gets_the_smallest_width():
    problem = make_problem(SMALL, beta=np.zeros(8))
    assert set(solve_budget_together(problem, 8.0, problem.num_rounds, Meeting(1).of(0)).widths.tolist()) == {2}
    nobody = make_problem({}, 2)
    assert len(alone(nobody, 0.5).widths) == len(solve_budget_together(nobody, 4.0, 2, Meeting(1).of(0)).widths) == 0


@pytest.mark.parametrize("num_ranks", [2, MAX_ROUNDS + 1, MAX_ROUNDS + 2, 10_000])
def test_rounds_of_a_ring_share_seconds_with_those_beside_them_where_they_are_many(num_ranks):
    number = round_of(np.arange(1, num_ranks), num_ranks)
    assert number[0] == 0 and number[-1] == min(num_ranks - 1, MAX_ROUNDS) - 1
    assert set(np.diff(number).tolist()) <= {0, 1}
    shared = np.bincount(number)
    assert shared.max() - shared.min() <= 1
