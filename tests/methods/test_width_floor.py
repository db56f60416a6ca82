"""Base widths that did harm when they were tried, and for how long they are left alone."""

from __future__ import annotations

import json

import pytest

from hpcgnn.methods.time_bits import WidthFloor


def floors(epochs, window=4):
    """The floor after each of (loss, base)."""
    state, seen = WidthFloor(), []
    for loss, base in epochs:
        state = state.observe(loss, base, False, window)
        seen.append(state.floor)
    return seen


@pytest.mark.parametrize("before, after", [((1.0, 2), (2.0, 1)), ((2.0, 1), (1.0, 2))])
def test_a_narrow_width_whose_loss_is_far_above_the_wide_ones_is_left_alone(before, after):
    assert floors([(3.0, before[1]), before, after, (1.0, 2), (1.0, 2), (1.0, 2), (1.0, 2)]) == [0, 0, 2, 2, 2, 2, 0]


@pytest.mark.parametrize("narrow, floor", [(1.9, 0), (2.5, 0), (2.51, 4)])
def test_the_loss_has_to_be_a_quarter_higher(narrow, floor):
    assert floors([(3.0, 4), (2.0, 4), (narrow, 2)])[-1] == floor


@pytest.mark.parametrize("narrow, floor", [(0.3, 0), (0.39, 0), (0.41, 8)])
def test_small_losses_that_leap_by_themselves_are_no_evidence(narrow, floor):
    assert floors([(3.0, 8), (0.1, 8), (narrow, 1)])[-1] == floor


def test_a_loss_that_leaps_at_one_width_is_no_evidence():
    assert floors([(3.0, 1), (1.0, 1), (9.0, 1), (1.0, 1)]) == [0] * 4


def test_a_wider_width_whose_loss_is_higher_is_no_evidence():
    assert floors([(3.0, 1), (1.0, 1), (2.0, 2)]) == [0] * 3


def test_each_period_is_four_times_as_long():
    harmful = [(3.0, 2), (1.0, 2), (3.0, 1)]
    assert floors([*harmful, *[(1.0, 2)] * 4, (3.0, 1), *[(1.0, 2)] * 17])[2:] == [2] * 4 + [0] + [2] * 16 + [0, 0]


def test_the_state_survives_json():
    state = WidthFloor().observe(3.0, 2, False, 4).observe(5.0, 1, False, 4)
    assert state.floor == 2 and WidthFloor.from_dict(json.loads(json.dumps(state.as_dict()))) == state


@pytest.mark.parametrize("losses, asynchronous, has_risen", [
    ([2.0, 2.1, 2.3], (), True), ([2.0, 2.1, 2.19], (), False), ([2.0, 2.1, 2.3], (1,), False),
    ([2.0, 2.3], (), False), ([3.0, 2.0, 2.1, 2.0], (), False), ([2.0, 3.0, 2.0], (), False)])
def test_synchronous_epochs_at_one_base_whose_loss_rises_ask_for_a_wider_one(losses, asynchronous, has_risen):
    state = WidthFloor()
    for epoch, loss in enumerate(losses):
        state = state.observe(loss, 1, epoch in asynchronous, 4)
    assert state.has_risen is has_risen


def test_another_base_begins_another_count():
    state = WidthFloor()
    for loss, base in ((2.0, 1), (2.2, 1), (2.4, 2), (2.6, 2)):
        state = state.observe(loss, base, False, 4)
    assert state.losses == (2.4, 2.6) and not state.has_risen
