"""Losses that swing, and for how long epochs are synchronous then."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from hpcgnn.adaptive.steadiness import Steadiness, is_swinging


def synchronous(losses, window=4, most_rises=0.25):
    """After each loss, whether the next epoch has to be synchronous."""
    state, answers = Steadiness(), []
    for loss in losses:
        state = state.observe(float(loss), window, most_rises)
        answers.append(state.needs_synchronous)
    return answers


@pytest.mark.parametrize("losses, most_rises, answer", [
    ((5, 4, 3), 0.0, False), ((5, 4, 4), 0.0, False), ((5, 3, 4), 0.5, False), ((5, 3, 4), 0.49, True),
    ((4, 4, 4), 0.0, False), ((3, 4), 100.0, True), ((3,), 0.0, False), ((), 0.0, False)])
def test_rises_are_weighed_against_falls(losses, most_rises, answer):
    assert is_swinging(losses, most_rises) is answer


def test_a_loss_that_falls_never_needs_synchronous_epochs():
    assert not any(synchronous(2 * 0.97 ** np.arange(200)))


def test_a_loss_that_stands_still_never_needs_synchronous_epochs():
    assert not any(synchronous(np.ones(50)))


def test_periods_grow_fourfold_and_a_new_one_needs_new_evidence():
    answers = synchronous(np.tile([2.0, 1.0], 60))
    periods = [(answer, len(list(same))) for answer, same in itertools.groupby(answers)]
    # Two steps are half a window of four, so three losses are the first evidence, and two more each time.
    assert periods[:5] == [(False, 2), (True, 4), (False, 2), (True, 16), (False, 2)]


def test_what_happened_in_a_synchronous_period_is_no_evidence():
    before, inside, after = [3.0, 4.0, 5.0], [9.0, 1.0, 9.0, 1.0], [0.9, 0.8, 0.7, 0.6, 0.5]
    assert synchronous(before + inside + after) == [False, False, True, True, True, True, False] + [False] * 5


def test_the_state_survives_json():
    state = Steadiness()
    for loss in [2.0, 1.0] * 5:
        state = state.observe(loss, 4, 0.25)
        assert Steadiness.from_dict(json.loads(json.dumps(state.as_dict()))) == state
