"""Bisection: every rank chooses widths for its own messages, and all ranks agree on a few numbers.

AdaQP's bi-objective: given the seconds Z that the longest message of a ring round may take, each pair widens its
messages independently of all others. The cost is convex in Z, so ranks find the best Z by halving an interval, with one
sum over the ranks per halving and no gather. Budgets work in the same way, with the price of a bit in place of Z.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hpcgnn.methods.greedy import ROUNDING, Steps, build_steps, check_budget, choice_of, fill, spend
from hpcgnn.methods.problem import Assignment, Problem, extreme_choice, inverse_span, scaled

MAX_ROUNDS = 64       # rounds with seconds of their own; if there are more, neighboring rounds share
NUM_HALVINGS = 40
NUM_NEAR = 8          # candidates on each side of the best seconds for divisible steps
NUM_BUDGET_HALVINGS = 48
NUM_SWEEPS = 8


def solve_together(problem: Problem, lam: float, num_messages: np.ndarray, reductions: Reductions) -> Assignment:
    """Collective: return near-optimal widths of this rank's messages; objective, terms and bound cover all ranks.

    `problem` has the messages that this rank sends, `pair_round` from 0. `num_messages`, (num_rounds,) float64, is the
    most that one rank sends in each round, the same on all ranks.

    Reference: AdaQP, Eq. (12). Deviation: the seconds of a round are multiplied by its `num_messages`, which is 1 if
    there are at most MAX_ROUNDS rounds; see `round_of`.
    """
    started = time.perf_counter()
    common = Common.find(problem, num_messages, reductions)
    choice, bound = extreme_choice(problem, lam), np.inf
    weight, rate = lam * inverse_span(common.variance_range), (1 - lam) * inverse_span(common.seconds_range)
    if choice is None:
        steps = build_steps(problem)
        # 1. Find the best Z of each round as if steps could be cut, in NUM_HALVINGS halvings; the slope of the cost is
        #    a sum over the ranks. All ranks halve equally often and decide alike.
        best, bound = _cut_anywhere(steps, common, weight, rate, reductions)
        # 2. Whole steps end near it: try the NUM_NEAR ends on each side.
        # 3. Fill the time left in each and take the cheapest.
        taken = _cheapest(problem, steps, _ends_near(steps, best, common, reductions), common, weight, rate, reductions)
        choice = choice_of(steps, taken, problem.num_groups)
    longest = reductions.max(problem.longest(problem.pair_seconds(choice), len(num_messages)))
    variance = scaled(float(reductions.sum(np.array([problem.variance(choice)]))[0]), common.variance_range)
    seconds = scaled(float(common.num_messages @ longest), common.seconds_range)
    offset = weight * common.variance_range[0] + rate * common.seconds_range[0]
    objective = lam * variance + (1 - lam) * seconds
    return Assignment(np.asarray(problem.widths, np.uint8)[choice], objective, variance, seconds,
                      float(min(bound - offset, objective)), "bisection", time.perf_counter() - started)


@dataclass(frozen=True)
class Common:
    """Facts that all ranks know about their shared problem."""

    num_messages: np.ndarray  # (num_rounds,) float64, most messages that one rank sends in a round
    # (num_rounds,) float64, seconds of the longest message at all-smallest and all-largest widths
    least: np.ndarray
    most: np.ndarray
    variance_range: tuple[float, float]

    @property
    def seconds_range(self) -> tuple[float, float]:
        return float(self.num_messages @ self.least), float(self.num_messages @ self.most)

    @classmethod
    def find(cls, problem: Problem, num_messages: np.ndarray, reductions: Reductions) -> Common:
        first, num_rounds = np.zeros(problem.num_groups, np.int64), len(num_messages)
        least, most = reductions.max(np.stack([
            problem.longest(problem.pair_seconds(first), num_rounds),
            problem.longest(problem.pair_seconds(first + len(problem.widths) - 1), num_rounds)]))
        low, high = reductions.sum(np.array(problem.variance_range)).tolist()
        return cls(num_messages, least, most, (low, high))


def _cut_anywhere(steps: Steps, common: Common, weight: float, rate: float,
                  reductions: Reductions) -> tuple[np.ndarray, float]:
    price = rate * common.num_messages
    low, high = common.least.copy(), common.most.copy()
    for _ in range(NUM_HALVINGS):
        middle = (low + high) / 2
        # Widening Z pays while the gain per second of the steps that it cuts, over all ranks, exceeds the price of a
        # second.
        is_cut = (steps.start <= middle[steps.ring_round]) & (middle[steps.ring_round] < steps.end)
        gained = np.bincount(steps.ring_round[is_cut], steps.gain[is_cut] / steps.seconds[is_cut], len(price))
        pays = weight * reductions.sum(gained) > price
        low, high = np.where(pays, middle, low), np.where(pays, high, middle)
    gain = steps.gain @ steps.fraction(high[steps.ring_round])
    (total,) = reductions.sum(np.array([gain])).tolist()
    bound = weight * (common.variance_range[1] - total) + float(price @ high) - float(price @ (high - low))
    return high, bound


def _ends_near(steps: Steps, best: np.ndarray, common: Common, reductions: Reductions) -> np.ndarray:
    ends = [np.unique(steps.end[steps.ring_round == number]) for number in range(len(best))]
    # A pair's last step ends at the seconds of its widest message, but for rounding: the two are sums in other orders.
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
    return float(values[place]) if 0 <= place < len(values) else math.copysign(math.inf, place - 0.5)


def _cheapest(problem: Problem, steps: Steps, candidates: np.ndarray, common: Common, weight: float, rate: float,
              reductions: Reductions) -> np.ndarray:
    smallest = problem.pair_seconds(np.zeros(problem.num_groups, np.int64))
    num_rounds, taken, gains, seconds = candidates.shape[1], [], [], []
    for longest in candidates:
        prefix = steps.end <= longest[steps.ring_round]
        chosen = fill(steps, prefix, longest[problem.pair_round] - steps.pair_seconds(prefix, smallest))
        taken.append(chosen)
        gains.append(np.bincount(steps.ring_round[chosen], steps.gain[chosen], num_rounds))
        seconds.append(problem.longest(steps.pair_seconds(chosen, smallest), num_rounds))
    cost = (rate * common.num_messages * reductions.max(np.array(seconds))
            - weight * reductions.sum(np.array(gains)))
    return np.array(taken)[cost.argmin(axis=0)[steps.ring_round], np.arange(len(steps))]


def round_of(distance: np.ndarray, num_ranks: int) -> np.ndarray:
    """Round (from 0) of a message over this ring distance (from 1); neighboring rounds share if there are too many."""
    num_rounds = num_ranks - 1
    return distance - 1 if num_rounds <= MAX_ROUNDS else (distance - 1) * MAX_ROUNDS // num_rounds


def solve_budget_together(problem: Problem, mean_bits: float, num_rounds: int, reductions: Reductions) -> Assignment:
    """Collective: return this rank's widths with the least variance at a mean number of bits per value in each round.

    No pair may become longer than the round's longest pair would be at the mean width; see
    `hpcgnn.methods.greedy.solve_budget`. `problem` has the messages that this rank sends; the objective is the variance
    of all ranks' messages. ConfigError if `mean_bits` is below the smallest width.
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
    smallest = problem.pair_seconds(np.zeros(problem.num_groups, np.int64))
    allowed = smallest + (mean_bits / problem.widths[0] - 1) * (smallest - problem.used_gamma)
    longest = reductions.max(problem.longest(allowed, num_rounds)) * ROUNDING
    steps = build_steps(problem)
    steps = steps.where(np.argsort(-steps.gain / steps.bits, kind="stable"))
    return steps.where(spend(steps, smallest, longest[problem.pair_round], np.inf))


def _taken(steps: Steps, room: np.ndarray, reductions: Reductions) -> np.ndarray:
    price = np.log(steps.gain / steps.bits)
    ends = reductions.max(np.array([-price.min(initial=np.inf), price.max(initial=-np.inf)]))
    if not np.isfinite(ends).all():      # no rank has a step
        return np.zeros(len(steps), bool)
    low, high = np.full(len(room), -ends[0] - 1), np.full(len(room), ends[1] + 1)
    # All steps with more gain per bit than a price are taken; halving finds the price of each round.
    for _ in range(NUM_BUDGET_HALVINGS):
        middle = (low + high) / 2
        fits = reductions.sum(_bits_of(steps, price >= middle[steps.ring_round], len(room))) <= room
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    taken = price >= high[steps.ring_round]
    room = room - reductions.sum(_bits_of(steps, taken, len(room)))
    # Steps at the price itself are taken in rank order while the budget lasts; then, NUM_SWEEPS times, each rank takes
    # its best step that still fits.
    taken, room = _take_in_order(steps, taken, ~taken & (price >= low[steps.ring_round]), room, reductions)
    for _ in range(NUM_SWEEPS):
        taken, room = _take_in_order(steps, taken, _best_that_fit(steps, taken, room), room, reductions)
    return taken


def _take_in_order(steps: Steps, taken: np.ndarray, wished: np.ndarray, room: np.ndarray,
                   reductions: Reductions) -> tuple[np.ndarray, np.ndarray]:
    # Each rank takes its steps while the room that earlier ranks leave lasts.
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
    # A step is ready if its group has taken all earlier levels.
    done = np.bincount(steps.group[taken], minlength=steps.group.max(initial=-1) + 1)
    ready = np.flatnonzero(~taken & (steps.level == done[steps.group]) & (steps.bits <= room[steps.ring_round]))
    _, first = np.unique(steps.ring_round[ready], return_index=True)
    wished = np.zeros(len(steps), bool)
    wished[ready[first]] = True
    return wished


def _bits_of(steps: Steps, which: np.ndarray, num_rounds: int) -> np.ndarray:
    return np.bincount(steps.ring_round[which], steps.bits[which], num_rounds)


class Reductions(Protocol):
    """Combines float64 arrays of one shape over the ranks; all ranks call in the same order."""

    def sum(self, values: np.ndarray) -> np.ndarray: ...

    def max(self, values: np.ndarray) -> np.ndarray: ...

    def before(self, values: np.ndarray) -> np.ndarray:
        """The sums over the ranks before this one."""
