"""Steps: every widening of a group by one width, best first in each pair. What both greedy solvers walk along.

Since 1 / (2 ** b - 1) ** 2 is convex in b, each next widening of a group gains less a bit than the one before, so all
widths lie on the convex hull of (bits, variance) and the order of gain a second never puts a step before its
predecessor.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from hpcgnn.adaptive.problem import Problem


@dataclass(frozen=True)
class Steps:
    """Widenings, sorted by ring round, then pair, then falling gain a bit.

    Attributes
    ----------
    group, level : (num_steps,) int64         the group goes from widths[level] to widths[level + 1]
    pair, ring_round : (num_steps,) int64     of the group
    seconds : (num_steps,) float64            added to the pair's message
    bits : (num_steps,) int64                 added to the message
    gain : (num_steps,) float64               variance removed, positive
    start, end : (num_steps,) float64         seconds of the pair's message before and after, all steps before taken
    """

    group: np.ndarray
    level: np.ndarray
    pair: np.ndarray
    ring_round: np.ndarray
    seconds: np.ndarray
    bits: np.ndarray
    gain: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def __len__(self) -> int:
        return len(self.group)

    def where(self, which: np.ndarray | slice) -> Steps:
        """Return some of the steps, in their order."""
        return Steps(*(getattr(self, one.name)[which] for one in fields(self)))

    def rounds(self) -> Iterator[tuple[int, Steps]]:
        """The steps of each ring round that has some."""
        numbers, starts = np.unique(self.ring_round, return_index=True)
        for number, (low, high) in zip(numbers, itertools.pairwise([*starts, len(self)]), strict=True):
            yield int(number), self.where(slice(low, high))

    def fraction(self, seconds: np.ndarray | float) -> np.ndarray:
        """Return (num_steps,) float64, the share of each step that its pair can afford if steps are cut anywhere."""
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.clip((seconds - self.start) / self.seconds, 0.0, 1.0)
        return np.where(self.seconds > 0, share, 1.0)


def build_steps(problem: Problem) -> Steps:
    """Return all steps that gain anything."""
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


def segment_sums(amount: np.ndarray, segment: np.ndarray) -> np.ndarray:
    """Return (2, n) float64, running sums before and after each entry, begun anew wherever `segment` changes."""
    after = np.cumsum(amount, dtype=np.float64)
    before = np.concatenate([[0.0], after[:-1]])
    is_first = np.concatenate([[True], segment[1:] != segment[:-1]])[:len(segment)]
    origin = before[:len(segment)][is_first][np.cumsum(is_first) - 1]
    return np.stack([before[:len(segment)], after]) - origin


def fill(steps: Steps, taken: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Take what still fits after a prefix of each pair's steps was taken.

    A step that doesn't fit blocks its own successors only, so smaller ones behind it get their turn, level by level.

    Parameters
    ----------
    taken : (num_steps,) bool
    room : (num_pairs,) float64     seconds that each pair has left

    Returns
    -------
    taken : (num_steps,) bool
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
    """Return (num_groups,) int64, the index of width that the taken steps lead to."""
    return np.bincount(steps.group[taken], minlength=num_groups)
