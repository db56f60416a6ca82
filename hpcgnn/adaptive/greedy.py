"""Widths by walking the convex hull of every pair: the bi-objective of AdaQP, and least variance under a budget.

Both also give the linear relaxation's value, below which no assignment can be.
"""

from __future__ import annotations

import time

import numpy as np

from hpcgnn.adaptive.assignment import Assignment, extreme_choice, judge
from hpcgnn.adaptive.problem import Problem
from hpcgnn.adaptive.steps import Steps, build_steps, choice_of, fill
from hpcgnn.errors import ConfigError

NUM_CANDIDATES = 12


def solve_greedy(problem: Problem, lam: float) -> Assignment:
    """Near-optimal widths in milliseconds.

    Ring rounds don't share anything, so each is solved alone. Given the seconds Z of a round's longest pair, every
    pair takes its best widenings until Z is used up; the best Z are found among all steps' ends at once, and what is
    left of them is filled with smaller steps.

    Parameters
    ----------
    lam : in [0, 1]     weight of variance against time

    Reference: AdaQP, Eq. (12), the same problem by another way than the paper's solver.
    """
    started = time.perf_counter()
    choice = extreme_choice(problem, lam)
    bound = -np.inf
    if choice is None:
        choice, bound = _walk(problem, *problem.weights(lam))
    return judge(problem, choice, lam, bound, "greedy", time.perf_counter() - started)


def _walk(problem: Problem, weight: float, rate: float) -> tuple[np.ndarray, float]:
    """Indices of widths, and the relaxation's weight * variance + rate * seconds."""
    choice = np.zeros(problem.num_groups, np.int64)
    smallest = problem.pair_seconds(choice)
    bound = weight * problem.variance_range[1] + rate * problem.seconds_range[0]
    for number, steps in build_steps(problem).rounds():
        least = smallest[problem.pair_round == number].max()
        bound += _relaxed(steps, least, weight, rate)
        choice += choice_of(steps, _best_steps(steps, smallest, least, weight, rate), problem.num_groups)
    return choice, bound


def _relaxed(steps: Steps, least: float, weight: float, rate: float) -> float:
    """How far below all-smallest widths the round's cost gets when steps can be cut anywhere; at most 0.

    The cost is convex in Z and bends at the steps' ends only, so the slope's change of sign is bisected among those.
    """
    ends = np.unique(np.append(np.maximum(steps.end, least), least))
    low, high = 0, len(ends) - 1

    def cost(seconds: float) -> float:
        return rate * (seconds - least) - weight * float(steps.gain @ steps.fraction(seconds))

    while low < high:
        middle = (low + high) // 2
        if cost(ends[middle]) <= cost(ends[middle + 1]):
            high = middle
        else:
            low = middle + 1
    return cost(ends[low])


def _best_steps(steps: Steps, smallest: np.ndarray, least: float, weight: float, rate: float) -> np.ndarray:
    """(num_steps,) bool, the steps of one round that are taken."""
    best_cost, best = np.inf, np.zeros(len(steps), bool)
    for longest in _candidates(steps, least, weight, rate):
        prefix = steps.end <= longest
        used = smallest + np.bincount(steps.pair[prefix], steps.seconds[prefix], len(smallest))
        taken = fill(steps, prefix, longest - used)
        used = smallest + np.bincount(steps.pair[taken], steps.seconds[taken], len(smallest))
        cost = rate * max(least, used[steps.pair].max()) - weight * steps.gain[taken].sum()
        if cost < best_cost:
            best_cost, best = cost, taken
    return best


def _candidates(steps: Steps, least: float, weight: float, rate: float) -> np.ndarray:
    """(at most NUM_CANDIDATES,) float64, the Z of a round that cost least when every pair takes whole steps only."""
    order = np.argsort(steps.end, kind="stable")
    longest = np.maximum(steps.end[order], least)
    cost = rate * longest - weight * np.cumsum(steps.gain[order])
    is_last = np.append(longest[1:] > longest[:-1], True)    # equal ends are taken together
    longest, cost = longest[is_last], cost[is_last]
    return np.append(least, longest[np.argsort(cost, kind="stable")[:NUM_CANDIDATES - 1]])


def solve_budget(problem: Problem, mean_bits: float) -> Assignment:
    """Least variance at a given mean of bits a value in every ring round, with no pair made the longest by it.

    Each round may spend `mean_bits` times its values, and each of its pairs at most the seconds that the round's
    longest pair would take with `mean_bits` everywhere. Both limits nest, so the widenings with the greatest gain a
    bit are best first.

    Parameters
    ----------
    mean_bits : at least the smallest width

    Returns
    -------
    assignment : its objective is the variance alone

    Raises
    ------
    ConfigError      the budget is below the smallest width
    """
    started = time.perf_counter()
    if not mean_bits >= problem.widths[0]:
        raise ConfigError(f"the budget is {mean_bits} bits a value, below the smallest width {problem.widths[0]}; "
                          "raise it or add a smaller width")
    choice, bound = np.zeros(problem.num_groups, np.int64), problem.variance_range[1]
    smallest = problem.pair_seconds(choice)
    allowed = smallest + (mean_bits / problem.widths[0] - 1) * (smallest - problem.used_gamma)
    for number, steps in build_steps(problem).rounds():
        longest = allowed[problem.pair_round == number].max()
        num_bits = (mean_bits - problem.widths[0]) * problem.num_values[problem.group_round == number].sum()
        taken, gain = _spend(steps, smallest, longest, num_bits)
        choice += choice_of(steps, taken, problem.num_groups)
        bound -= gain
    bound *= problem.weights(1.0)[0]
    return judge(problem, choice, 1.0, bound, "budget", time.perf_counter() - started)


def _spend(steps: Steps, smallest: np.ndarray, longest: float, num_bits: float) -> tuple[np.ndarray, float]:
    """The steps of one round that fit into `longest` seconds a pair and `num_bits` together, and the relaxed gain."""
    by_gain = steps.where(np.argsort(-steps.gain / steps.bits, kind="stable"))
    share = by_gain.fraction(longest)
    spent = share * by_gain.bits
    share *= np.clip(1 - (np.cumsum(spent) - num_bits) / np.maximum(spent, 1), 0, 1)
    taken = _first_that_fit(steps, smallest, longest, num_bits)
    return taken, float(by_gain.gain @ share)


def _first_that_fit(steps: Steps, smallest: np.ndarray, longest: float, num_bits: float) -> np.ndarray:
    """(num_steps,) bool, walking by falling gain a bit and leaving out what doesn't fit, with its successors."""
    left, spent = float(num_bits) * (1 + 1e-12), smallest.copy()
    taken, blocked = np.zeros(len(steps), bool), set()
    for place in np.argsort(-steps.gain / steps.bits, kind="stable"):
        group, pair = steps.group[place], steps.pair[place]
        after = spent[pair] + steps.seconds[place]
        if group in blocked or steps.bits[place] > left or after > longest * (1 + 1e-12):
            blocked.add(group)
            continue
        taken[place] = True
        left -= steps.bits[place]
        spent[pair] = after
    return taken
