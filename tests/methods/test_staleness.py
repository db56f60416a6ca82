"""How far rows move in an epoch, told apart from the noise of dropout."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from hpcgnn.methods.staleness import MEMORY, Drift

SITE, OTHER = (1, 1), (2, 1)


def sums_of(rows, epoch):
    """What a sender measures of rows (num_epochs, num_rows, dim) at an epoch."""
    now = rows[epoch]
    if epoch < 2:
        return 0.0, 0.0, 0.0, 0.0
    once, twice = (((now - rows[epoch - back]) ** 2).sum(-1) for back in (1, 2))
    return float((now ** 2).sum()), float(once.sum()), float(twice.sum()), float(((twice - once) ** 2).sum())


def drift_after(rows):
    drift = Drift()
    for epoch in range(len(rows)):
        drift = drift.observe({SITE: sums_of(rows, epoch)})
    return drift


def drift_of(rows):
    return drift_after(rows).of(SITE)


def moving(speed, noise, num_epochs=40, shape=(400, 32), seed=0):
    """Rows of norm 1 a value that move by `speed` of it in an epoch, with fresh noise in each."""
    rng = np.random.default_rng(seed)
    start, way = rng.normal(size=(2, *shape))
    return np.stack([start + epoch * speed * way + noise * rng.normal(size=shape) for epoch in range(num_epochs)])


def test_rows_that_move_without_noise_have_their_own_speed():
    rows = np.ones((3, 4, 5)) * np.array([10.0, 11.0, 12.0])[:, None, None]
    assert drift_of(rows) == pytest.approx(1 / 12)


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.5, 1.0])
def test_noise_is_no_motion(noise):
    """The error of the estimate is that of a mean over 12,800 values and some five epochs: below 0.01 of the rows."""
    assert drift_of(moving(0.0, noise)) < 0.06
    rows = moving(0.2, noise)
    speed = 0.2 * np.sqrt(12_800 / (rows[-1] ** 2).sum())
    assert drift_of(rows) == pytest.approx(speed, rel=0.15)


@pytest.mark.parametrize("noise, is_less", [(0.0, True), (0.5, True), (0.9, True), (1.1, False), (3.0, False)])
def test_rows_change_by_less_than_they_are_while_their_noise_is_below_them(noise, is_less):
    """The squares are 1 + noise**2, of the change 2 noise**2: less while noise is below 1."""
    drift = drift_after(moving(0.0, noise, num_epochs=10))
    assert drift.changes_less(SITE) == is_less
    assert not drift.changes_less(OTHER)


def test_motion_that_noise_hides_may_be_there():
    """An estimate that noise has made 0 is no proof: of 200 seeds the bound misses the motion in fewer than 1 of 20,
    where two standard errors leave 1 of 44.
    """
    missed = hidden = 0
    for seed in range(200):
        rows = moving(0.05, 2.0, num_epochs=8, shape=(100, 16), seed=seed)
        drift = drift_after(rows)
        speed = 0.05 * np.sqrt(1_600 / drift.sums[SITE][0])
        hidden += drift.of(SITE) < speed
        missed += drift.at_most(SITE) < speed
    assert hidden > 60 and missed < 10


def test_without_noise_motion_is_known_to_a_few_percent():
    drift = drift_after(moving(0.05, 0.0))
    assert drift.of(SITE) < drift.at_most(SITE) < 1.1 * drift.of(SITE)


def test_what_was_not_compared_yet_is_infinitely_far():
    assert Drift().of(SITE) == Drift().at_most(SITE) == math.inf
    assert Drift().observe({SITE: (0.0, 0.0, 0.0, 0.0)}).of(SITE) == math.inf
    known = Drift().observe({SITE: (5.0, 1.0, 4.0, 0.0)})
    assert known.observe({SITE: (0.0, 0.0, 0.0, 0.0)}) == known


def test_rows_that_stand_have_moved_nowhere_once_they_were_compared():
    moved = Drift().observe({SITE: (5.0, 1.0, 4.0, 0.0)}).observe({SITE: (5.0, 0.0, 0.0, 0.0)})
    assert moved.of(SITE) == pytest.approx(math.sqrt(MEMORY * 3.0 / 3 / 5.0))


def test_sites_are_remembered_apart_and_survive_json():
    drift = Drift().observe({SITE: (4.0, 1.0, 4.0, 2.0), OTHER: (4.0, 2.0, 2.0, 1.0)})
    assert drift.of(SITE) == pytest.approx(0.5) and drift.of(OTHER) == 0.0
    assert Drift.from_dict(json.loads(json.dumps(drift.as_dict()))) == drift


def test_rows_of_zeros_that_moved_are_infinitely_far():
    assert Drift().observe({SITE: (0.0, 1.0, 4.0, 0.0)}).of(SITE) == math.inf
