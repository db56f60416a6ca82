"""How far rows move in an epoch, told apart from the noise of dropout."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from hpcgnn.adaptive.staleness import MEMORY, Drift

SITE, OTHER = (1, 1), (2, 1)


def sums_of(rows, epoch):
    """What a sender measures of rows (num_epochs, num_rows, dim) at an epoch."""
    now = rows[epoch]
    if epoch < 2:
        return 0.0, 0.0, 0.0
    return tuple(float((change ** 2).sum()) for change in (now, now - rows[epoch - 1], now - rows[epoch - 2]))


def drift_of(rows):
    drift = Drift()
    for epoch in range(len(rows)):
        drift = drift.observe({SITE: sums_of(rows, epoch)})
    return drift.of(SITE)


def moving(speed, noise, num_epochs=40, shape=(400, 32)):
    """Rows of norm 1 a value that move by `speed` of it in an epoch, with fresh noise in each."""
    rng = np.random.default_rng(0)
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


def test_what_was_not_compared_yet_is_infinitely_far():
    assert Drift().of(SITE) == math.inf
    assert Drift().observe({SITE: (0.0, 0.0, 0.0)}).of(SITE) == math.inf
    known = Drift().observe({SITE: (5.0, 1.0, 4.0)})
    assert known.observe({SITE: (0.0, 0.0, 0.0)}) == known


def test_rows_that_stand_have_moved_nowhere_once_they_were_compared():
    moved = Drift().observe({SITE: (5.0, 1.0, 4.0)}).observe({SITE: (5.0, 0.0, 0.0)})
    assert moved.of(SITE) == pytest.approx(math.sqrt(MEMORY * 3.0 / 3 / 5.0))


def test_sites_are_remembered_apart_and_survive_json():
    drift = Drift().observe({SITE: (4.0, 1.0, 4.0), OTHER: (4.0, 2.0, 2.0)})
    assert drift.of(SITE) == pytest.approx(0.5) and drift.of(OTHER) == 0.0
    assert Drift.from_dict(json.loads(json.dumps(drift.as_dict()))) == drift


def test_rows_of_zeros_that_moved_are_infinitely_far():
    assert Drift().observe({SITE: (0.0, 1.0, 4.0)}).of(SITE) == math.inf
