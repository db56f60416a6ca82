"""Wider bases that are tried where the loss slows, and kept where they pay."""

from __future__ import annotations

import itertools
import json

import pytest

from hpcgnn.methods.time_bits import Descent, WidthTrial, is_slowing

WIDTHS, WINDOW = (1, 2, 4, 8), 4


def bases(loss_of, num_epochs, start=1, floor=0):
    """The base of each epoch, where the loss is `loss_of(epoch, losses so far, base)`."""
    trial, descent, seen, losses = WidthTrial(start), Descent(), [], []
    for epoch in range(num_epochs):
        seen.append(trial.base)
        losses.append(loss_of(epoch, losses, trial.base))
        descent = descent.observe(losses[-1], 1.0, 0.0)
        trial = trial.observe(descent, is_slowing(descent, WINDOW, "relative"), WINDOW, WIDTHS, floor)
    return seen


def falling_by(share):
    """A loss that falls by `share(base)` of itself in each epoch."""
    return lambda epoch, losses, base: losses[-1] * (1 - share(base)) if losses else 10.0


def test_a_loss_that_stands_whatever_the_width_is_tried_ever_less_often():
    """Trials of one window at the next width, with rests of 4, 16, 64, 256 and again 256 epochs between them."""
    seen = bases(falling_by(lambda base: 0.0), 900)
    starts = [epoch for epoch in range(1, 900) if seen[epoch] == 2 and seen[epoch - 1] == 1]
    assert set(seen) == {1, 2} and seen.count(2) == WINDOW * len(starts)
    rests = [later - earlier - WINDOW for earlier, later in itertools.pairwise(starts)]
    assert rests[:3] == [4, 16, 64] and set(rests[3:]) == {256}


def test_a_wider_base_is_kept_where_the_loss_falls_faster_with_it_and_given_back_where_it_falls_well():
    """It stands at 1 bit; at 2 it falls by 3 % an epoch, steadily, so the width is given back and tried again."""
    seen = bases(falling_by(lambda base: 0.03 if base > 1 else 0.0), 60)
    first = seen.index(2)
    assert seen[:first] == [1] * first and seen[first:first + WINDOW] == [2] * WINDOW
    assert set(seen) == {1, 2} and seen.count(2) >= 20


@pytest.mark.parametrize("share, is_kept", [(0.004, False), (0.006, True)])
def test_a_fall_of_less_than_2_percent_in_a_window_is_noise(share, is_kept):
    """Four epochs of 0.6 % are 2.4 %. A trial that paid leaves no failure behind, so the next rest is a first one."""
    trial, descent = WidthTrial(1), Descent()
    for _ in range(40):
        loss = 10.0 if not descent.mean_losses else descent.mean_losses[-1] * (1 - share * (trial.base > 1))
        descent = descent.observe(loss, 1.0, 0.0)
        before, trial = trial, trial.observe(descent, is_slowing(descent, WINDOW, "relative"), WINDOW, WIDTHS)
        if before.narrow and not trial.narrow:
            assert (trial.base, trial.num_failed) == ((2, 0) if is_kept else (1, 1))
            return
    raise AssertionError("no trial ended")


def test_a_base_that_is_wide_narrows_once_the_loss_falls_well():
    assert bases(falling_by(lambda base: 0.1), 12, start=8) == [8] * 6 + [4, 2, 1, 1, 1, 1]


def test_no_base_is_below_the_floor():
    assert min(bases(falling_by(lambda base: 0.1), 12, start=8, floor=4)) == 4
    assert min(bases(falling_by(lambda base: 0.0), 40, floor=2)[1:]) == 2


def test_a_state_survives_json():
    trial = WidthTrial(2, 1, 0.25, 3, 5)
    assert WidthTrial.from_dict(json.loads(json.dumps(trial.as_dict()))) == trial
