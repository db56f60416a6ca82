"""Widths by walking the convex hull of every pair: a near-optimal answer to the bi-objective of AdaQP in milliseconds.

It also gives the linear relaxation's value, below which no assignment can be; budgets are in budget.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from hpcgnn.adaptive.assignment import Assignment, extreme_choice, judge
from hpcgnn.adaptive.problem import Problem
from hpcgnn.adaptive.steps import Steps, build_steps, choice_of, fill, segment_sums

NUM_CANDIDATES = 4


def solve_greedy(problem: Problem, lam: float) -> Assignment:
    """Return near-optimal widths in milliseconds.

    Ring rounds share nothing. Given the seconds Z of a round's longest pair, every pair takes its best widenings until
    Z is used up; the best Z are found among all steps' ends at once, and what is left of them is filled with smaller
    steps.

    Parameters
    ----------
    lam : in [0, 1]     weight of variance against time

    Reference: AdaQP, Eq. (12), the same problem by another way than the paper's solver.
    """
    started = time.perf_counter()
    choice, bound = extreme_choice(problem, lam), np.inf
    if choice is None:
        weight, rate = problem.weights(lam)
        steps = build_steps(problem)
        smallest = problem.pair_seconds(np.zeros(problem.num_groups, np.int64))
        least = _longest(problem, smallest)
        bound = (weight * problem.variance_range[1] + rate * problem.seconds_range[0]
                 + _relaxed(steps, least, weight, rate))
        taken = _best_steps(problem, steps, smallest, least, weight, rate)
        choice = choice_of(steps, taken, problem.num_groups)
    return judge(problem, choice, lam, bound, "greedy", time.perf_counter() - started)


def _longest(problem: Problem, seconds: np.ndarray) -> np.ndarray:
    """Return (num_rounds,) float64, the seconds of each round's longest pair."""
    longest = np.zeros(problem.num_rounds)
    np.maximum.at(longest, problem.pair_round, seconds)
    return longest


def _relaxed(steps: Steps, least: np.ndarray, weight: float, rate: float) -> float:
    """Return the least change of the cost from all-smallest widths if steps could be cut anywhere; at most 0.

    A round's cost is convex in Z. Its slope is `rate` less `weight` times the gain a second of every pair's step that
    Z cuts, and the best Z is where that turns positive.
    """
    timed = steps.where(steps.seconds > 0)
    efficiency = timed.gain / timed.seconds
    event = np.maximum(np.concatenate([timed.start, timed.end]), np.tile(least[timed.ring_round], 2))
    number = np.tile(timed.ring_round, 2)
    order = np.lexsort((event, number))
    event, number = event[order], number[order]
    slope = segment_sums(np.concatenate([efficiency, -efficiency])[order], number)[1]
    is_last = np.append((event[1:] > event[:-1]) | (number[1:] != number[:-1]), True)[:len(event)]
    turned = np.flatnonzero(is_last & (weight * slope <= rate))
    longest = least.copy()
    rounds, first = np.unique(number[turned], return_index=True)
    longest[rounds] = event[turned][first]
    # Slopes of very different sizes may cancel to a rest above `rate`: such a round has taken all its steps.
    missed = np.setdiff1d(timed.ring_round, rounds)
    longest[missed] = [timed.end[timed.ring_round == one].max() for one in missed]
    gain = steps.gain @ steps.fraction(longest[steps.ring_round])
    return float(rate * (longest - least).sum() - weight * gain)


def _best_steps(problem: Problem, steps: Steps, smallest: np.ndarray, least: np.ndarray, weight: float,
                rate: float) -> np.ndarray:
    """Return (num_steps,) bool, true for the steps taken: in each round those of its best candidate."""
    best_cost, best = np.full(len(least), np.inf), np.zeros(len(steps), bool)
    for longest in _candidates(steps, least, weight, rate):
        prefix = steps.end <= longest[steps.ring_round]
        room = longest[problem.pair_round] - _spent(steps, prefix, smallest)
        taken = fill(steps, prefix, room)
        seconds = _longest(problem, _spent(steps, taken, smallest))
        gain = np.bincount(steps.ring_round[taken], steps.gain[taken], len(least))
        cost = rate * seconds - weight * gain
        better = cost < best_cost
        best_cost = np.where(better, cost, best_cost)
        best = np.where(better[steps.ring_round], taken, best)
    return best


def _spent(steps: Steps, taken: np.ndarray, smallest: np.ndarray) -> np.ndarray:
    """Return (num_pairs,) float64, seconds of each pair's message after these steps are taken."""
    return smallest + np.bincount(steps.pair[taken], steps.seconds[taken], len(smallest))


def _candidates(steps: Steps, least: np.ndarray, weight: float, rate: float) -> Iterator[np.ndarray]:
    """Yield (num_rounds,) float64 each, the Z that cost least when pairs take whole steps only; the least Z last."""
    end = np.maximum(steps.end, least[steps.ring_round])
    order = np.lexsort((end, steps.ring_round))
    end, number = end[order], steps.ring_round[order]
    cost = rate * end - weight * segment_sums(steps.gain[order], number)[1]
    is_last = np.append((end[1:] > end[:-1]) | (number[1:] != number[:-1]), True)[:len(end)]
    end, number, cost = end[is_last], number[is_last], cost[is_last]    # equal ends are taken together
    order = np.lexsort((cost, number))
    end, number = end[order], number[order]
    place = np.arange(len(end)) - np.searchsorted(number, number)
    for rank in range(NUM_CANDIDATES):
        longest = least.copy()
        longest[number[place == rank]] = end[place == rank]
        yield longest
    yield least
