"""

Assignment: the widths that a solver chose, and what they cost.

Problem: the widths that the messages of one layer and direction could get, and what each choice costs.

The bi-objective of AdaQP as arrays; the solvers are in highs.py, greedy.py and budget.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpcgnn.widths import ROTATED_ERROR


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


@dataclass(frozen=True)
class Problem:
    """One layer and direction: groups of messages, the pairs of ranks they travel between, the widths to choose from.

    Attributes
    ----------
    group_pair : (num_groups,) int64      pair of each group
    beta : (num_groups,) float64          sum over the group's rows, not negative; see `group_sums`
    num_values : (num_groups,) int64      rows times columns
    pair_round : (num_pairs,) int64       ring round of each pair, 0 for a pair that no message travels between
    theta : (num_pairs,) float64          seconds a byte
    gamma : (num_pairs,) float64          seconds a message, its parameters' bytes included
    widths : ascending bits a value
    code : of the messages; see `variance_factors`

    Reference: AdaQP, Eq. (10)-(12).
    """

    group_pair: np.ndarray
    beta: np.ndarray
    num_values: np.ndarray
    pair_round: np.ndarray
    theta: np.ndarray
    gamma: np.ndarray
    widths: tuple[int, ...]
    code: str = "affine"

    @property
    def num_groups(self) -> int:
        return len(self.group_pair)

    @property
    def num_pairs(self) -> int:
        return len(self.theta)

    @property
    def num_rounds(self) -> int:
        """Count the rounds that some group travels in, or one past the largest; empty ones take no time."""
        return int(self.pair_round.max(initial=0)) + 1

    @cached_property
    def group_round(self) -> np.ndarray:
        """Return (num_groups,) int64, the ring round that each group travels in."""
        return self.pair_round[self.group_pair]

    @cached_property
    def group_seconds(self) -> np.ndarray:
        """Return (num_groups, num_widths) float64, seconds that a group adds to its pair's message at each width."""
        seconds_per_bit = self.theta[self.group_pair] * self.num_values / 8
        return seconds_per_bit[:, None] * np.asarray(self.widths, np.float64)

    @cached_property
    def group_variance(self) -> np.ndarray:
        """Return (num_groups, num_widths) float64, beta times the factor of each width."""
        return self.beta[:, None] * variance_factors(self.widths, self.code)

    @cached_property
    def used_gamma(self) -> np.ndarray:
        """Return (num_pairs,) float64, seconds that every message of a pair takes; 0 for a pair without groups."""
        used = np.zeros(self.num_pairs)
        used[self.group_pair] = self.gamma[self.group_pair]
        return used

    @cached_property
    def variance_range(self) -> tuple[float, float]:
        """Return the variance at all-largest and at all-smallest widths."""
        return float(self.group_variance[:, -1].sum()), float(self.group_variance[:, 0].sum())

    @cached_property
    def seconds_range(self) -> tuple[float, float]:
        """Return the seconds at all-smallest and at all-largest widths."""
        first = np.zeros(self.num_groups, np.int64)
        return self.seconds(first), self.seconds(first + len(self.widths) - 1)

    def pair_seconds(self, choice: np.ndarray) -> np.ndarray:
        """Return (num_pairs,) float64, seconds of each pair's message at the given index of width of each group."""
        spent = self.group_seconds[np.arange(self.num_groups), choice]
        return self.used_gamma + np.bincount(self.group_pair, spent, self.num_pairs)

    def seconds(self, choice: np.ndarray) -> float:
        """Return the seconds of the longest pair of each ring round, summed over the rounds."""
        longest = np.zeros(self.num_rounds)
        np.maximum.at(longest, self.pair_round, self.pair_seconds(choice))
        return float(longest.sum())

    def variance(self, choice: np.ndarray) -> float:
        """Return the variance that the messages bring to the layer's gradients, up to a constant factor."""
        return float(self.group_variance[np.arange(self.num_groups), choice].sum())

    def terms(self, choice: np.ndarray) -> tuple[float, float]:
        """Variance and seconds, each scaled so that all-largest and all-smallest widths are 0 and 1, or 1 and 0."""
        return scaled(self.variance(choice), self.variance_range), scaled(self.seconds(choice), self.seconds_range)

    def weights(self, lam: float) -> tuple[float, float]:
        """Return the cost of a unit of variance and of a second: scaled by each term's range, times lam and 1 - lam."""
        return (lam * inverse_span(self.variance_range), (1 - lam) * inverse_span(self.seconds_range))


def variance_factors(widths: tuple[int, ...], code: str = "affine") -> np.ndarray:
    """Return (num_widths,) float64, the variance of a row at each width in units of its beta.

    Affine codes of b bits have a share of (2**b - 1)**-2, so beta is the variance at one bit. Rotated ones of at most 8
    bits have ROTATED_ERROR of the row's squared norm, which `Trace` makes beta; wider rows, whose beta is 0, the share
    that affine ones have.
    """
    factors = (2.0 ** np.asarray(widths) - 1) ** -2.0
    if code == "rotated":
        factors = np.array([ROTATED_ERROR.get(bits, factor) for bits, factor in zip(widths, factors, strict=True)])
    return factors


def inverse_span(low_high: tuple[float, float]) -> float:
    """1 / (high - low); 0 where the term can't change and so has no say."""
    low, high = low_high
    return 1 / (high - low) if high > low else 0.0


def scaled(value: float, low_high: tuple[float, float]) -> float:
    """Return `value` on a scale from 0 at low to 1 at high; 0 where they are one."""
    return (value - low_high[0]) * inverse_span(low_high)
