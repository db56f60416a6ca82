"""Deals single nodes, instead of clusters, to the steps of an epoch."""

from __future__ import annotations

import numpy as np

LABELED_ROWS_A_STEP = 256     # the least, so that a step's labels represent all labels
MOST_STEPS = 40               # more steps hardly improve an epoch, and cost time: data/benchmarks/steps.md
PURPOSE = 8                   # part of the draws' key, with seed and epoch
GOLDEN, FIRST_FACTOR, SECOND_FACTOR = (np.uint64(factor) for factor in
                                       (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def num_steps_of(num_train: int) -> int:
    """Number of steps that suits rows drawn one by one, for `num_train` labeled nodes of all ranks."""
    return max(1, min(MOST_STEPS, num_train // LABELED_ROWS_A_STEP))


def deal(node_id: np.ndarray, seed: int, epoch: int, num_steps: int) -> np.ndarray:
    """Draw the step of each node, (n,) int64 in [0, num_steps), from its global number; all ranks draw the same.

    Reference: Steele et al., "Fast splittable pseudorandom number generators", OOPSLA 2014 (SplitMix64).
    """
    first = np.random.SeedSequence([seed, epoch, PURPOSE]).generate_state(1, np.uint64)[0]
    mixed = node_id.astype(np.uint64) * GOLDEN + first
    mixed = (mixed ^ (mixed >> np.uint64(30))) * FIRST_FACTOR
    mixed = (mixed ^ (mixed >> np.uint64(27))) * SECOND_FACTOR
    mixed ^= mixed >> np.uint64(31)
    return ((mixed >> np.uint64(32)) * np.uint64(num_steps) >> np.uint64(32)).astype(np.int64)
