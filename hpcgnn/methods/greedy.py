"""Greedy solvers: near-optimal widths in milliseconds, for AdaQP's bi-objective and for a budget of bits.

The rows of a pair's message are in groups; the rows of a group share a width. A step widens one group by one level;
each further step of a group gains less variance per bit, because 1 / (2 ** b - 1) ** 2 is convex in b. So taking steps
in the order of gain per bit never takes a step before its predecessor. Example: a group at widths 2, 4, 8 has the steps
2 -> 4 and 4 -> 8; the first gains 48 times as much per bit and comes first. `solve_greedy` searches the seconds of each
ring round, `solve_budget` spends bits; both also give a lower bound, the relaxation with divisible steps.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from hpcgnn.errors import ConfigError
from hpcgnn.methods.problem import Assignment, Problem, extreme_choice, judge

NUM_CANDIDATES = 4
ROUNDING = 1 + 1e-12    # a limit that is met exactly in real numbers must not fail in floating point


def solve_greedy(problem: Problem, lam: float) -> Assignment:
    """Return near-optimal widths in milliseconds; `lam` in [0, 1] weighs variance against time.

    Reference: AdaQP, Eq. (12), the same problem, solved in another way than in the paper.
    """
    started = time.perf_counter()
    choice, bound = extreme_choice(problem, lam), np.inf
    if choice is None:
        weight, rate = problem.weights(lam)
        steps = build_steps(problem)
        smallest = problem.pair_seconds(np.zeros(problem.num_groups, np.int64))
        least = problem.longest(smallest, problem.num_rounds)
        bound = (weight * problem.variance_range[1] + rate * problem.seconds_range[0]
                 + _relaxed(steps, least, weight, rate))
        # Ring rounds are independent. Given the seconds Z of a round's longest pair, every pair takes its best steps
        # until Z is used up. The best few Z among all steps' ends are tried, and the time left in each is filled with
        # smaller steps.
        taken = _best_steps(problem, steps, smallest, least, weight, rate)
        choice = choice_of(steps, taken, problem.num_groups)
    return judge(problem, choice, lam, bound, "greedy", time.perf_counter() - started)


def solve_budget(problem: Problem, mean_bits: float) -> Assignment:
    """Return the widths with the least variance at a mean number of bits per value in every ring round.

    Each round may spend `mean_bits` times its values, and each of its pairs at most the seconds that the round's
    longest pair would take at `mean_bits`. Each pair is in one round, so the limits are nested, and steps are taken by
    gain per bit. The objective is the variance term alone. ConfigError if the budget is below the smallest width.
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


@dataclass(frozen=True)
class Steps:
    """All widenings by one level, sorted by ring round, then pair, then falling gain per bit."""

    # (num_steps,) int64, the group goes from widths[level] to widths[level + 1]
    group: np.ndarray
    level: np.ndarray
    # (num_steps,) int64, of the group
    pair: np.ndarray
    ring_round: np.ndarray
    seconds: np.ndarray  # (num_steps,) float64, added to the pair's message
    bits: np.ndarray     # (num_steps,) int64, added to the message
    gain: np.ndarray     # (num_steps,) float64, variance removed, positive
    # (num_steps,) float64, seconds of the pair's message before and after, with all earlier steps taken
    start: np.ndarray
    end: np.ndarray

    def __len__(self) -> int:
        return len(self.group)

    def where(self, which: np.ndarray | slice) -> Steps:
        return Steps(*(getattr(self, one.name)[which] for one in fields(self)))

    def rounds(self) -> Iterator[tuple[int, Steps]]:
        numbers, starts = np.unique(self.ring_round, return_index=True)
        for number, (low, high) in zip(numbers, itertools.pairwise([*starts, len(self)]), strict=True):
            yield int(number), self.where(slice(low, high))

    def pair_seconds(self, taken: np.ndarray, smallest: np.ndarray) -> np.ndarray:
        """Return (num_pairs,) float64, seconds of each pair's message after the taken steps."""
        return smallest + np.bincount(self.pair[taken], self.seconds[taken], len(smallest))

    def fraction(self, seconds: np.ndarray | float) -> np.ndarray:
        """Return (num_steps,) float64, the share of each step that its pair can afford if steps were divisible."""
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.clip((seconds - self.start) / self.seconds, 0.0, 1.0)
        return np.where(self.seconds > 0, share, 1.0)


def build_steps(problem: Problem) -> Steps:
    gains = -np.diff(problem.group_variance, axis=1)
    added_bits = problem.num_values[:, None] * np.diff(problem.widths)
    group, level = np.nonzero(gains > 0)
    gain, bits = gains[group, level], added_bits[group, level]
    pair = problem.group_pair[group]
    with np.errstate(divide="ignore"):
        order = np.lexsort((level, -gain / bits, pair, problem.pair_round[pair]))
    group, level, gain, bits, pair = group[order], level[order], gain[order], bits[order], pair[order]
    seconds = np.diff(problem.group_seconds, axis=1)[group, level]
    smallest = problem.pair_seconds(np.zeros(problem.num_groups, np.int64))
    start, end = smallest[pair] + segment_sums(seconds, pair)
    return Steps(group, level, pair, problem.pair_round[pair], seconds, bits, gain, start, end)


def _relaxed(steps: Steps, least: np.ndarray, weight: float, rate: float) -> float:
    # The cost is convex in Z. Its slope is `rate` minus `weight` times the gain per second of every step that Z
    # cuts; the best Z is where the slope turns positive.
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
    # If slopes of very different sizes cancel, rounding may leave the last one above `rate`: all steps are taken then.
    missed = np.setdiff1d(timed.ring_round, rounds)
    longest[missed] = [timed.end[timed.ring_round == one].max() for one in missed]
    gain = steps.gain @ steps.fraction(longest[steps.ring_round])
    return float(rate * (longest - least).sum() - weight * gain)


def _best_steps(problem: Problem, steps: Steps, smallest: np.ndarray, least: np.ndarray, weight: float,
                rate: float) -> np.ndarray:
    best_cost, best = np.full(len(least), np.inf), np.zeros(len(steps), bool)
    for longest in _candidates(steps, least, weight, rate):
        prefix = steps.end <= longest[steps.ring_round]
        room = longest[problem.pair_round] - steps.pair_seconds(prefix, smallest)
        taken = fill(steps, prefix, room)
        seconds = problem.longest(steps.pair_seconds(taken, smallest), problem.num_rounds)
        gain = np.bincount(steps.ring_round[taken], steps.gain[taken], len(least))
        cost = rate * seconds - weight * gain
        better = cost < best_cost
        best_cost = np.where(better, cost, best_cost)
        best = np.where(better[steps.ring_round], taken, best)
    return best


def _candidates(steps: Steps, least: np.ndarray, weight: float, rate: float) -> Iterator[np.ndarray]:
    # For Z at the end of each step: the cost of a round if all steps that end by Z are taken.
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


def fill(steps: Steps, taken: np.ndarray, room: np.ndarray) -> np.ndarray:
    """After a prefix of each pair's steps, take steps that still fit, level by level, as (num_steps,) bool.

    A step that does not fit blocks only the later steps of its group. `room`, (num_pairs,), is the remaining seconds of
    each pair.
    """
    taken, room = taken.copy(), room.copy()
    done = np.zeros(steps.group.max(initial=-1) + 1, np.int64)
    np.maximum.at(done, steps.group[taken], steps.level[taken] + 1)
    for level in range(int(steps.level.max(initial=-1)) + 1):
        ready = np.flatnonzero(~taken & (steps.level == level) & (done[steps.group] == level))
        fits = segment_sums(steps.seconds[ready], steps.pair[ready])[1] <= room[steps.pair[ready]]
        chosen = ready[fits]
        taken[chosen] = True
        np.maximum.at(done, steps.group[chosen], level + 1)
        np.subtract.at(room, steps.pair[chosen], steps.seconds[chosen])
    return taken


def choice_of(steps: Steps, taken: np.ndarray, num_groups: int) -> np.ndarray:
    return np.bincount(steps.group[taken], minlength=num_groups)


def segment_sums(amount: np.ndarray, segment: np.ndarray) -> np.ndarray:
    """Return (2, n) float64, running sums before and after each entry, restarted wherever `segment` changes."""
    after = np.cumsum(amount, dtype=np.float64)
    before = np.concatenate([[0.0], after[:-1]])
    is_first = np.concatenate([[True], segment[1:] != segment[:-1]])[:len(segment)]
    origin = before[:len(segment)][is_first][np.cumsum(is_first) - 1]
    return np.stack([before[:len(segment)], after]) - origin


def _relaxed_gain(steps: Steps, longest: float, num_bits: float) -> float:
    share = steps.fraction(longest)
    spent = share * steps.bits
    before = np.cumsum(spent) - spent
    return float(steps.gain @ (share * np.clip((num_bits - before) / np.maximum(spent, 1), 0, 1)))


def spend(steps: Steps, smallest: np.ndarray, longest: np.ndarray, num_bits: float) -> np.ndarray:
    """Take steps, best first, as (num_steps,) bool; a step that does not fit bars its group's later ones.

    `smallest` and `longest`, (num_pairs,) float64, are the seconds of each pair's message before, and its limit;
    `num_bits` limits all bits together.
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


def check_budget(problem: Problem, mean_bits: float) -> None:
    if not mean_bits >= problem.widths[0]:
        raise ConfigError(f"the budget is {mean_bits} bits per value, below the smallest width {problem.widths[0]}; "
                          "raise it or add a smaller width")
