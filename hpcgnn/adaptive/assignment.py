"""Assignment: the widths that a solver chose, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.adaptive.problem import Problem


@dataclass(frozen=True)
class Assignment:
    """One width a group.

    Attributes
    ----------
    widths : (num_groups,) uint8
    objective : lam * variance_term + (1 - lam) * time_term
    variance_term, time_term : in [0, 1]; see `Problem.terms`
    bound : no choice of widths has a smaller objective, as far as the solver knows
    solver : {"bisection", "highs", "greedy", "budget"}
    solve_seconds : spent on it
    reason : why another solver than the one asked for had to serve; empty where none did
    """

    widths: np.ndarray
    objective: float
    variance_term: float
    time_term: float
    bound: float
    solver: str
    solve_seconds: float
    reason: str = ""


def judge(problem: Problem, choice: np.ndarray, lam: float, bound: float, solver: str,
          solve_seconds: float) -> Assignment:
    """Return the assignment of (num_groups,) indices of widths, with its terms.

    `bound` is of weight * variance + rate * seconds, see `Problem.weights`; infinity says that the answer is exact.
    """
    variance_term, time_term = problem.terms(choice)
    weight, rate = problem.weights(lam)
    offset = weight * problem.variance_range[0] + rate * problem.seconds_range[0]
    objective = lam * variance_term + (1 - lam) * time_term
    widths = np.asarray(problem.widths, np.uint8)[choice]
    return Assignment(widths, objective, variance_term, time_term, float(min(bound - offset, objective)),
                      solver, solve_seconds)


def extreme_choice(problem: Problem, lam: float) -> np.ndarray | None:
    """Return the answer where only one term counts: all-largest at lam = 1, all-smallest at lam = 0, else None."""
    if lam not in (0.0, 1.0) and len(problem.widths) > 1:
        return None
    return np.full(problem.num_groups, len(problem.widths) - 1 if lam == 1.0 else 0, np.int64)
