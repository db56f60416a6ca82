"""Widths under a budget of bits that ranks spend together: what budget.py solves on one rank, without a gather.

Each rank knows its own messages; what a bit must gain to be spent is found together, round by round.
"""

from __future__ import annotations

import time

import numpy as np

from hpcgnn.adaptive.assignment import Assignment
from hpcgnn.adaptive.bisection import longest_of
from hpcgnn.adaptive.budget import ROUNDING, check_budget, spend
from hpcgnn.adaptive.problem import Problem, scaled
from hpcgnn.adaptive.reductions import Reductions
from hpcgnn.adaptive.steps import Steps, build_steps, choice_of

NUM_HALVINGS = 48
NUM_SWEEPS = 8


def solve_budget_together(problem: Problem, mean_bits: float, num_rounds: int, reductions: Reductions) -> Assignment:
    """Collective: return widths of this rank's messages with the least variance at a given mean of bits a value in
    every ring round, with no pair made the longest by it; see `hpcgnn.adaptive.budget.solve_budget`.

    Which steps a pair's own limit leaves does not depend on other pairs. Of those, the ones that gain more a bit than a
    price are taken; the price of each round is found by halving, in NUM_HALVINGS sums of a number a round. Steps at the
    price itself are taken in the order of the ranks while the budget lasts, and then, NUM_SWEEPS times, each rank's
    best step that still fits.

    Parameters
    ----------
    problem : Problem      of the messages that this rank sends, `pair_round` from 0
    mean_bits : at least the smallest width
    num_rounds : the same on all ranks

    Returns
    -------
    assignment : its widths are of this rank's groups; its objective, the variance term alone, of all ranks' messages;
        of seconds nothing is known

    Raises
    ------
    ConfigError      the budget is below the smallest width
    """
    started = time.perf_counter()
    check_budget(problem, mean_bits)
    steps = _steps_within(problem, mean_bits, num_rounds, reductions)
    values = np.bincount(problem.group_round, problem.num_values, num_rounds)
    room = (mean_bits - problem.widths[0]) * reductions.sum(values) * ROUNDING
    choice = choice_of(steps, _taken(steps, room, reductions), problem.num_groups)
    low, high, variance = reductions.sum(np.array([*problem.variance_range, problem.variance(choice)])).tolist()
    term = scaled(variance, (low, high))
    return Assignment(np.asarray(problem.widths, np.uint8)[choice], term, term, 0.0, 0.0, "bisection",
                      time.perf_counter() - started)


def _steps_within(problem: Problem, mean_bits: float, num_rounds: int, reductions: Reductions) -> Steps:
    """Collective: the steps, best first, that no pair's limit bars: the seconds of its round's longest pair with
    `mean_bits` everywhere.
    """
    smallest = problem.pair_seconds(np.zeros(problem.num_groups, np.int64))
    allowed = smallest + (mean_bits / problem.widths[0] - 1) * (smallest - problem.used_gamma)
    longest = reductions.max(longest_of(problem, allowed, num_rounds)) * ROUNDING
    steps = build_steps(problem)
    steps = steps.where(np.argsort(-steps.gain / steps.bits, kind="stable"))
    return steps.where(spend(steps, smallest, longest[problem.pair_round], np.inf))


def _taken(steps: Steps, room: np.ndarray, reductions: Reductions) -> np.ndarray:
    """Collective: (num_steps,) bool, true for the steps that the (num_rounds,) bits of all ranks are spent on."""
    price = np.log(steps.gain / steps.bits)
    ends = reductions.max(np.array([-price.min(initial=np.inf), price.max(initial=-np.inf)]))
    if not np.isfinite(ends).all():      # no rank has a step
        return np.zeros(len(steps), bool)
    low, high = np.full(len(room), -ends[0] - 1), np.full(len(room), ends[1] + 1)
    for _ in range(NUM_HALVINGS):
        middle = (low + high) / 2
        fits = reductions.sum(_bits_of(steps, price >= middle[steps.ring_round], len(room))) <= room
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    taken = price >= high[steps.ring_round]
    room = room - reductions.sum(_bits_of(steps, taken, len(room)))
    taken, room = _take_in_order(steps, taken, ~taken & (price >= low[steps.ring_round]), room, reductions)
    for _ in range(NUM_SWEEPS):
        taken, room = _take_in_order(steps, taken, _best_that_fit(steps, taken, room), room, reductions)
    return taken


def _bits_of(steps: Steps, which: np.ndarray, num_rounds: int) -> np.ndarray:
    """Return (num_rounds,) float64, the bits of some steps in each round."""
    return np.bincount(steps.ring_round[which], steps.bits[which], num_rounds)


def _take_in_order(steps: Steps, taken: np.ndarray, wished: np.ndarray, room: np.ndarray,
                   reductions: Reductions) -> tuple[np.ndarray, np.ndarray]:
    """Collective: take what each rank wishes while the room of its round lasts, in the order of the ranks; return what
    is taken then, and the room that is left.
    """
    before = reductions.before(_bits_of(steps, wished, len(room)))
    place = np.flatnonzero(wished)
    place = place[np.argsort(steps.ring_round[place], kind="stable")]
    number = steps.ring_round[place]
    spent = np.cumsum(steps.bits[place])
    is_first = np.append(True, number[1:] != number[:-1])[:len(number)]
    origin = (spent - steps.bits[place])[is_first][np.cumsum(is_first) - 1]
    chosen = place[before[number] + spent - origin <= room[number]]
    taken = taken.copy()
    taken[chosen] = True
    added = np.zeros(len(steps), bool)
    added[chosen] = True
    return taken, room - reductions.sum(_bits_of(steps, added, len(room)))


def _best_that_fit(steps: Steps, taken: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Return (num_steps,) bool, in each round the best step of this rank that fits and follows what its group has."""
    done = np.bincount(steps.group[taken], minlength=steps.group.max(initial=-1) + 1)
    ready = np.flatnonzero(~taken & (steps.level == done[steps.group]) & (steps.bits <= room[steps.ring_round]))
    _, first = np.unique(steps.ring_round[ready], return_index=True)
    wished = np.zeros(len(steps), bool)
    wished[ready[first]] = True
    return wished
