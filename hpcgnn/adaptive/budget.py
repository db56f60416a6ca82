"""Widths with the least variance at a given mean of bits a value, as the method that joins AdaQP and SYLVIE needs them.

The budget comes from outside; what it should be over time is time_bits.py's business.
"""

from __future__ import annotations

import time

import numpy as np

from hpcgnn.adaptive.assignment import Assignment, judge
from hpcgnn.adaptive.problem import Problem
from hpcgnn.adaptive.steps import Steps, build_steps, choice_of
from hpcgnn.errors import ConfigError

ROUNDING = 1 + 1e-12    # a limit that is met exactly in real numbers must not fail in floating point


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
    assignment : its objective is the variance term alone

    Raises
    ------
    ConfigError      the budget is below the smallest width
    """
    started = time.perf_counter()
    check_budget(problem, mean_bits)
    least = problem.widths[0]
    choice, bound = np.zeros(problem.num_groups, np.int64), problem.variance_range[1]
    smallest = problem.pair_seconds(choice)
    allowed = smallest + (mean_bits / least - 1) * (smallest - problem.used_gamma)
    for number, steps in build_steps(problem).rounds():
        longest = float(allowed[problem.pair_round == number].max())
        num_bits = (mean_bits - least) * float(problem.num_values[problem.group_round == number].sum())
        steps = steps.where(np.argsort(-steps.gain / steps.bits, kind="stable"))
        taken = spend(steps, smallest, np.full(problem.num_pairs, longest * ROUNDING), num_bits * ROUNDING)
        choice += choice_of(steps, taken, problem.num_groups)
        bound -= _relaxed_gain(steps, longest, num_bits)
    return judge(problem, choice, 1.0, bound * problem.weights(1.0)[0], "budget", time.perf_counter() - started)


def _relaxed_gain(steps: Steps, longest: float, num_bits: float) -> float:
    """Return the variance removed in one round when steps, best first, can be cut anywhere."""
    share = steps.fraction(longest)
    spent = share * steps.bits
    before = np.cumsum(spent) - spent
    return float(steps.gain @ (share * np.clip((num_bits - before) / np.maximum(spent, 1), 0, 1)))


def check_budget(problem: Problem, mean_bits: float) -> None:
    """Raise ConfigError where a budget is below the smallest width."""
    if not mean_bits >= problem.widths[0]:
        raise ConfigError(f"the budget is {mean_bits} bits a value, below the smallest width {problem.widths[0]}; "
                          "raise it or add a smaller width")


def spend(steps: Steps, smallest: np.ndarray, longest: np.ndarray, num_bits: float) -> np.ndarray:
    """Take steps, best first, as (num_steps,) bool; a step that doesn't fit bars its group's later ones.

    Parameters
    ----------
    smallest, longest : (num_pairs,) float64      seconds of each pair's message before, and that it may take
    num_bits : that may be spent on all of them
    """
    pair_seconds, allowed, blocked, taken = smallest.tolist(), longest.tolist(), set(), []
    columns = (steps.group, steps.pair, steps.seconds, steps.bits)
    for group, pair, seconds, bits in zip(*(column.tolist() for column in columns), strict=True):
        fits = group not in blocked and bits <= num_bits and pair_seconds[pair] + seconds <= allowed[pair]
        if fits:
            num_bits -= bits
            pair_seconds[pair] += seconds
        else:
            blocked.add(group)
        taken.append(fits)
    return np.array(taken, bool)
