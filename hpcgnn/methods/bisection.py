"""Reductions: a few numbers of all ranks brought together, as solvers that share a problem ask for them.

Who the others are, and how they are reached, is not known here.

Widths that ranks choose for their own messages, agreeing on a few numbers: AdaQP's bi-objective without a gather.

Given the seconds that a ring round may take, every pair widens its messages without regard to others; so only those
seconds have to be found together. A problem here is what one rank sends; budgets are in shared_budget.py.

Widths under a budget of bits that ranks spend together: what budget.py solves on one rank, without a gather.

Each rank knows its own messages; what a bit must gain to be spent is found together, round by round.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hpcgnn.methods.greedy import ROUNDING, Steps, build_steps, check_budget, choice_of, fill, spend
from hpcgnn.methods.problem import Assignment, Problem, extreme_choice, inverse_span, scaled


class Reductions(Protocol):
    """Bring numbers of one shape together, as float64, that all ranks hand over in the same order of calls."""

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Collective: return the sums over the ranks."""

    def max(self, values: np.ndarray) -> np.ndarray:
        """Collective: return the largest over the ranks."""

    def before(self, values: np.ndarray) -> np.ndarray:
        """Collective: return the sums over the ranks before this one."""


class Alone:
    """The reductions of one rank that has the whole problem; see `Reductions`."""

    def sum(self, values: np.ndarray) -> np.ndarray:
        """See `Reductions`."""
        return values.copy()

    def max(self, values: np.ndarray) -> np.ndarray:
        """See `Reductions`."""
        return values.copy()

    def before(self, values: np.ndarray) -> np.ndarray:
        """See `Reductions`."""
        return np.zeros(values.shape)


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


NUM_BUDGET_HALVINGS = 48
NUM_SWEEPS = 8


def solve_budget_together(problem: Problem, mean_bits: float, num_rounds: int, reductions: Reductions) -> Assignment:
    """Collective: return widths of this rank's messages with the least variance at a given mean of bits a value in
    every ring round, with no pair made the longest by it; see `hpcgnn.methods.greedy.solve_budget`.

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
    for _ in range(NUM_BUDGET_HALVINGS):
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
