"""Problem: the possible widths of the messages of one layer and direction, and the cost of each choice.

AdaQP's bi-objective as arrays. Rows between a pair of ranks are in groups that share a width. A choice of widths has a
variance (sum over groups of beta times a factor of the width) and seconds (per ring round its longest pair, summed).
Both are scaled to [0, 1] and weighed by lam and 1 - lam. The seconds come from a `LinkModel`, theta per byte plus gamma
per message, which is fitted to timed messages or fixed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpcgnn.widths import ROTATED_ERROR

TINY_SECONDS = 1e-9


@dataclass(frozen=True)
class Problem:
    """One layer and direction: groups of messages, pairs of ranks, widths. Reference: AdaQP, Eq. (10)-(12)."""

    group_pair: np.ndarray   # (num_groups,) int64, pair of each group
    beta: np.ndarray         # (num_groups,) float64, sum over the group's rows, not negative; see `group_sums`
    num_values: np.ndarray   # (num_groups,) int64, rows times columns
    pair_round: np.ndarray   # (num_pairs,) int64, ring round of each pair, 0 for a pair without messages
    theta: np.ndarray        # (num_pairs,) float64, seconds per byte
    gamma: np.ndarray        # (num_pairs,) float64, seconds per message, including its parameters' bytes
    widths: tuple[int, ...]  # ascending bits per value
    code: str = "affine"     # code of the messages; see `variance_factors`

    @property
    def num_groups(self) -> int:
        return len(self.group_pair)

    @property
    def num_pairs(self) -> int:
        return len(self.theta)

    @property
    def num_rounds(self) -> int:
        return int(self.pair_round.max(initial=0)) + 1

    @cached_property
    def group_round(self) -> np.ndarray:
        return self.pair_round[self.group_pair]

    @cached_property
    def group_seconds(self) -> np.ndarray:
        """(num_groups, num_widths) float64, seconds that a group adds to its pair's message at each width."""
        seconds_per_bit = self.theta[self.group_pair] * self.num_values / 8
        return seconds_per_bit[:, None] * np.asarray(self.widths, np.float64)

    @cached_property
    def group_variance(self) -> np.ndarray:
        return self.beta[:, None] * variance_factors(self.widths, self.code)

    @cached_property
    def used_gamma(self) -> np.ndarray:
        used = np.zeros(self.num_pairs)
        used[self.group_pair] = self.gamma[self.group_pair]
        return used

    @cached_property
    def variance_range(self) -> tuple[float, float]:
        return float(self.group_variance[:, -1].sum()), float(self.group_variance[:, 0].sum())

    @cached_property
    def seconds_range(self) -> tuple[float, float]:
        first = np.zeros(self.num_groups, np.int64)
        return self.seconds(first), self.seconds(first + len(self.widths) - 1)

    def pair_seconds(self, choice: np.ndarray) -> np.ndarray:
        """Return (num_pairs,) float64, the seconds of each pair's message under a choice."""
        spent = self.group_seconds[np.arange(self.num_groups), choice]
        return self.used_gamma + np.bincount(self.group_pair, spent, self.num_pairs)

    def seconds(self, choice: np.ndarray) -> float:
        """Return the seconds of the longest pair of each ring round, summed over the rounds."""
        return float(self.longest(self.pair_seconds(choice), self.num_rounds).sum())

    def longest(self, seconds: np.ndarray, num_rounds: int) -> np.ndarray:
        """Return (num_rounds,) float64, the longest of (num_pairs,) seconds in each ring round."""
        longest = np.zeros(num_rounds)
        np.maximum.at(longest, self.pair_round, seconds)
        return longest

    def variance(self, choice: np.ndarray) -> float:
        """Return the variance that the messages add to the layer's gradients, up to a constant factor."""
        return float(self.group_variance[np.arange(self.num_groups), choice].sum())

    def terms(self, choice: np.ndarray) -> tuple[float, float]:
        """Return variance and seconds, each scaled to [0, 1] between all-smallest and all-largest widths."""
        return scaled(self.variance(choice), self.variance_range), scaled(self.seconds(choice), self.seconds_range)

    def weights(self, lam: float) -> tuple[float, float]:
        """Return the costs of a unit of variance and of a second: lam and 1 - lam over each term's range."""
        return (lam * inverse_span(self.variance_range), (1 - lam) * inverse_span(self.seconds_range))


def variance_factors(widths: tuple[int, ...], code: str = "affine") -> np.ndarray:
    """Variance of a row at each width in units of its beta, (num_widths,) float64.

    Affine codes of b bits have (2**b - 1)**-2, so beta is the variance at one bit. Rotated codes have ROTATED_ERROR of
    the row's squared norm, which `Trace` expresses as beta.
    """
    factors = (2.0 ** np.asarray(widths) - 1) ** -2.0
    if code == "rotated":
        factors = np.array([ROTATED_ERROR.get(bits, factor) for bits, factor in zip(widths, factors, strict=True)])
    return factors


def inverse_span(low_high: tuple[float, float]) -> float:
    low, high = low_high
    return 1 / (high - low) if high > low else 0.0


def scaled(value: float, low_high: tuple[float, float]) -> float:
    return (value - low_high[0]) * inverse_span(low_high)


@dataclass(frozen=True)
class Assignment:
    """One width per group."""

    widths: np.ndarray  # (num_groups,) uint8
    objective: float    # lam * variance_term + (1 - lam) * time_term
    variance_term: float
    time_term: float    # both terms in [0, 1], see `Problem.terms`
    bound: float        # lower bound of the objective over all choices
    solver: str         # {"bisection", "highs", "greedy", "budget"}
    solve_seconds: float
    reason: str = ""    # why another solver than the requested one answered


def judge(problem: Problem, choice: np.ndarray, lam: float, bound: float, solver: str,
          solve_seconds: float) -> Assignment:
    """Return the assignment of a choice, (num_groups,) indices of widths, with its terms.

    `bound` bounds weight * variance + rate * seconds, see `Problem.weights`; infinity for an exact answer.
    """
    variance_term, time_term = problem.terms(choice)
    weight, rate = problem.weights(lam)
    offset = weight * problem.variance_range[0] + rate * problem.seconds_range[0]
    objective = lam * variance_term + (1 - lam) * time_term
    widths = np.asarray(problem.widths, np.uint8)[choice]
    return Assignment(widths, objective, variance_term, time_term, float(min(bound - offset, objective)),
                      solver, solve_seconds)


def extreme_choice(problem: Problem, lam: float) -> np.ndarray | None:
    """Return the answer if only one term counts: all-largest at lam = 1, all-smallest at lam = 0; else None."""
    if lam not in (0.0, 1.0) and len(problem.widths) > 1:
        return None
    return np.full(problem.num_groups, len(problem.widths) - 1 if lam == 1.0 else 0, np.int64)


@dataclass(frozen=True)
class LinkModel:
    """Seconds of a message from a rank to each peer: theta per byte plus gamma. Reference: AdaQP, Eq. (10)."""

    theta: np.ndarray         # (num_peers,) float64, seconds per byte, not negative
    gamma: np.ndarray         # (num_peers,) float64, seconds per message, not negative
    is_measured: bool = True  # False for links known in advance: then no decision may depend on a clock


def fixed_links(num_peers: int, bytes_per_second: float = 1e9, latency_seconds: float = 2e-5) -> LinkModel:
    """Return equal links known in advance, for runs that must not depend on a clock."""
    return LinkModel(np.full(num_peers, 1 / bytes_per_second), np.full(num_peers, latency_seconds), is_measured=False)


def fit(num_bytes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Non-negative theta and gamma of one pair from timed messages, (samples,) int64 bytes and float64 seconds."""
    from scipy.optimize import nnls  # the import takes a fifth of a second, only when links are measured

    sizes, which = np.unique(num_bytes, return_inverse=True)
    # Repetitions of one size count as their median, so that a slow outlier does not matter.
    typical = np.array([np.median(seconds[which == place]) for place in range(len(sizes))])
    typical = np.maximum(typical, TINY_SECONDS)
    if len(sizes) == 0 or sizes[-1] == 0:
        return 0.0, float(typical[0]) if len(sizes) else 0.0
    if len(sizes) == 1:
        return float(typical[0] / sizes[0]), 0.0
    largest = float(sizes[-1])
    # Errors are relative to the seconds, so small messages, which show gamma, count as much as large ones.
    columns = np.stack([sizes / largest, np.ones(len(sizes))], axis=1) / typical[:, None]
    # Both columns scale with the seconds, so one factor brings both near 1.
    scale = np.median(typical)
    (per_largest, once), _ = nnls(columns * scale, np.ones(len(sizes)))
    return float(per_largest * scale / largest), float(once * scale)


def fit_links(peers: Sequence[int], near: Collection[int], source: np.ndarray, num_bytes: np.ndarray,
              seconds: np.ndarray) -> np.ndarray:
    """Fit the cost of messages from each peer, (num_peers, 2) float64 theta and gamma.

    Per message, `source` is its sender; `seconds` are best taken while all pairs of a round are busy. `near` are
    the ranks of this rank's node. An untimed peer gets the median of the timed ranks on its side, near or not near; if
    none was timed there, of all timed ranks.
    """
    fitted = {int(one): fit(num_bytes[source == one], seconds[source == one]) for one in np.unique(source)}
    if not fitted:
        fixed = fixed_links(len(peers))
        return np.stack([fixed.theta, fixed.gamma], axis=1)
    of_side = [[cost for one, cost in fitted.items() if (one in near) == is_near] for is_near in (False, True)]
    typical = [np.median(costs or list(fitted.values()), axis=0) for costs in of_side]
    return np.array([fitted.get(peer, typical[peer in near]) for peer in peers])


def pair_round(num_ranks: int) -> np.ndarray:
    """Return (num_ranks ** 2,) int64, the ring round of pair source * num_ranks + destination; 0 within a rank."""
    rank = np.arange(num_ranks)
    return ((rank[None, :] - rank[:, None]) % num_ranks).ravel()
