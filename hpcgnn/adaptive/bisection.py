"""Widths that ranks choose for their own messages, agreeing on a few numbers: AdaQP's bi-objective without a gather.

Given the seconds that a ring round may take, every pair widens its messages without regard to others; so only those
seconds have to be found together. A problem here is what one rank sends; budgets are in shared_budget.py.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from hpcgnn.adaptive.assignment import Assignment, extreme_choice
from hpcgnn.adaptive.budget import ROUNDING
from hpcgnn.adaptive.problem import Problem, inverse_span, scaled
from hpcgnn.adaptive.reductions import Reductions
from hpcgnn.adaptive.steps import Steps, build_steps, choice_of, fill

MAX_ROUNDS = 64       # whose seconds are told apart
NUM_HALVINGS = 40
NUM_NEAR = 8          # candidates on each side of the best seconds of a round in which steps could be cut


@dataclass(frozen=True)
class Common:
    """What all ranks know of the problem that they share.

    Attributes
    ----------
    num_messages : (num_rounds,) float64      most that one rank sends in a round
    least, most : (num_rounds,) float64       seconds of the longest message at all-smallest and all-largest widths
    variance_range, seconds_range : low and high
    """

    num_messages: np.ndarray
    least: np.ndarray
    most: np.ndarray
    variance_range: tuple[float, float]

    @property
    def seconds_range(self) -> tuple[float, float]:
        return float(self.num_messages @ self.least), float(self.num_messages @ self.most)

    @classmethod
    def find(cls, problem: Problem, num_messages: np.ndarray, reductions: Reductions) -> Common:
        """Collective: bring the ranks' own together."""
        first, num_rounds = np.zeros(problem.num_groups, np.int64), len(num_messages)
        least, most = reductions.max(np.stack([
            longest_of(problem, problem.pair_seconds(first), num_rounds),
            longest_of(problem, problem.pair_seconds(first + len(problem.widths) - 1), num_rounds)]))
        low, high = reductions.sum(np.array(problem.variance_range)).tolist()
        return cls(num_messages, least, most, (low, high))


def round_of(distance: np.ndarray, num_ranks: int) -> np.ndarray:
    """Return the round, from 0, in whose seconds a message counts that travels so far around a ring, from 1. Of more
    than MAX_ROUNDS rounds several that follow each other share their seconds.
    """
    num_rounds = num_ranks - 1
    return distance - 1 if num_rounds <= MAX_ROUNDS else (distance - 1) * MAX_ROUNDS // num_rounds


def longest_of(problem: Problem, seconds: np.ndarray, num_rounds: int) -> np.ndarray:
    """Return (num_rounds,) float64, the longest of a rank's (num_pairs,) seconds in each round."""
    longest = np.zeros(num_rounds)
    np.maximum.at(longest, problem.pair_round, seconds)
    return longest


def solve_together(problem: Problem, lam: float, num_messages: np.ndarray, reductions: Reductions) -> Assignment:
    """Collective: return near-optimal widths of this rank's messages.

    The cost of a round is convex in the seconds Z that its longest message may take, where steps can be cut; its slope
    is a sum over the ranks. So the best Z of all rounds are found by halving, in NUM_HALVINGS sums of a number a round.
    Whole steps end near them: of the NUM_NEAR ends on each side, the one that costs least is taken, once all
    ranks have filled what is left of it. All ranks halve as often, whatever they find, and decide alike.

    Parameters
    ----------
    problem : Problem      of the messages that this rank sends, `pair_round` from 0
    lam : in [0, 1]        weight of variance against time
    num_messages : (num_rounds,) float64      most that one rank sends in each round, the same on all ranks

    Returns
    -------
    assignment : its widths are of this rank's groups; its objective, terms and bound of all ranks' messages

    Reference: AdaQP, Eq. (12). Deviation: a round counts as often as a rank sends messages in it, which is once where
    there are no more than MAX_ROUNDS; see `round_of`.
    """
    started = time.perf_counter()
    common = Common.find(problem, num_messages, reductions)
    choice, bound = extreme_choice(problem, lam), np.inf
    weight, rate = lam * inverse_span(common.variance_range), (1 - lam) * inverse_span(common.seconds_range)
    if choice is None:
        steps = build_steps(problem)
        best, bound = _cut_anywhere(steps, common, weight, rate, reductions)
        taken = _cheapest(problem, steps, _ends_near(steps, best, common, reductions), common, weight, rate, reductions)
        choice = choice_of(steps, taken, problem.num_groups)
    longest = reductions.max(longest_of(problem, problem.pair_seconds(choice), len(num_messages)))
    variance = scaled(float(reductions.sum(np.array([problem.variance(choice)]))[0]), common.variance_range)
    seconds = scaled(float(common.num_messages @ longest), common.seconds_range)
    offset = weight * common.variance_range[0] + rate * common.seconds_range[0]
    objective = lam * variance + (1 - lam) * seconds
    return Assignment(np.asarray(problem.widths, np.uint8)[choice], objective, variance, seconds,
                      float(min(bound - offset, objective)), "bisection", time.perf_counter() - started)


def _cut_anywhere(steps: Steps, common: Common, weight: float, rate: float,
                  reductions: Reductions) -> tuple[np.ndarray, float]:
    """Collective: (num_rounds,) float64, the best seconds of each round where steps can be cut, and a bound of the
    cost: that there, less what half an interval could hide.
    """
    price = rate * common.num_messages
    low, high = common.least.copy(), common.most.copy()
    for _ in range(NUM_HALVINGS):
        middle = (low + high) / 2
        is_cut = (steps.start <= middle[steps.ring_round]) & (middle[steps.ring_round] < steps.end)
        gained = np.bincount(steps.ring_round[is_cut], steps.gain[is_cut] / steps.seconds[is_cut], len(price))
        pays = weight * reductions.sum(gained) > price
        low, high = np.where(pays, middle, low), np.where(pays, high, middle)
    gain = steps.gain @ steps.fraction(high[steps.ring_round])
    (total,) = reductions.sum(np.array([gain])).tolist()
    bound = weight * (common.variance_range[1] - total) + float(price @ high) - float(price @ (high - low))
    return high, bound


def _ends_near(steps: Steps, best: np.ndarray, common: Common, reductions: Reductions) -> np.ndarray:
    """Collective: (num_candidates, num_rounds) float64, the nearest ends of whole steps of any rank up to the best
    seconds and beyond them, and the least seconds.
    """
    ends = [np.unique(steps.end[steps.ring_round == number]) for number in range(len(best))]
    # A pair's last step ends where its widest message does, but for the rounding of two sums.
    candidates, below, above = [common.least], best * ROUNDING, best * ROUNDING
    for _ in range(NUM_NEAR):
        lower = [_place(of_round, np.searchsorted(of_round, limit) - 1)
                 for of_round, limit in zip(ends, below, strict=True)]
        higher = [_place(of_round, np.searchsorted(of_round, limit, "right"))
                  for of_round, limit in zip(ends, above, strict=True)]
        nearest = reductions.max(np.array([lower, np.negative(higher)]))
        below, above = np.maximum(nearest[0], common.least), np.minimum(-nearest[1], common.most * ROUNDING)
        candidates += [below, above]
    return np.stack(candidates)


def _place(values: np.ndarray, place: int) -> float:
    """Return a value, or what no round takes on either side of them."""
    return float(values[place]) if 0 <= place < len(values) else math.copysign(math.inf, place - 0.5)


def _cheapest(problem: Problem, steps: Steps, candidates: np.ndarray, common: Common, weight: float, rate: float,
              reductions: Reductions) -> np.ndarray:
    """Collective: (num_steps,) bool, true for the steps of this rank that are taken: in each round those of the
    candidate that costs all ranks least.
    """
    smallest = problem.pair_seconds(np.zeros(problem.num_groups, np.int64))
    num_rounds, taken, gains, seconds = candidates.shape[1], [], [], []
    for longest in candidates:
        prefix = steps.end <= longest[steps.ring_round]
        chosen = fill(steps, prefix, longest[problem.pair_round] - _spent(steps, prefix, smallest))
        taken.append(chosen)
        gains.append(np.bincount(steps.ring_round[chosen], steps.gain[chosen], num_rounds))
        seconds.append(longest_of(problem, _spent(steps, chosen, smallest), num_rounds))
    cost = (rate * common.num_messages * reductions.max(np.array(seconds))
            - weight * reductions.sum(np.array(gains)))
    return np.array(taken)[cost.argmin(axis=0)[steps.ring_round], np.arange(len(steps))]


def _spent(steps: Steps, taken: np.ndarray, smallest: np.ndarray) -> np.ndarray:
    """Return (num_pairs,) float64, seconds of each pair's message after these steps are taken."""
    return smallest + np.bincount(steps.pair[taken], steps.seconds[taken], len(smallest))
