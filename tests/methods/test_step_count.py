"""How many optimizer steps an epoch has."""

from __future__ import annotations

import json

import pytest

from hpcgnn.methods.step_count import (
    FEWER,
    LEAST_EARLY_FALL,
    LEAST_FALL,
    LEAST_GAIN,
    LEAST_OF_FIRST,
    PATIENCE,
    WINDOW,
    StepCount,
    StepRule,
    arcs_gained,
)


def plans(losses, rule):
    """What holds in each epoch of a training with these losses."""
    state, found = rule.begin(), []
    for epoch, loss in enumerate(losses):
        found.append(rule.of_epoch(state, epoch))
        state = rule.observe(state, loss)
    return found


def counts(losses, rule):
    """Steps by epoch, of a training with these losses."""
    return [plan.count for plan in plans(losses, rule)]


def test_a_fixed_number_stays_whatever_the_loss_does():
    assert counts([1.0] * 50, StepRule(8, False, 50)) == [8] * 50


def test_the_last_tenth_of_the_epochs_has_one_step():
    found = counts([0.9 ** epoch for epoch in range(50)], StepRule(64, True, 50))
    assert found == [64] * 45 + [1] * 5
    assert counts([1.0], StepRule(64, True, 1)) == [1]


def test_a_loss_that_stands_has_ever_fewer_steps():
    found = counts([1.0] * 100, StepRule(64, True, 1000))
    assert found == [64] * 10 + [16] * 10 + [4] * 10 + [1] * 70 and FEWER == 4 and WINDOW == 5


@pytest.mark.parametrize("fall, stays", [(0.9 * LEAST_FALL, False), (1.1 * LEAST_FALL, True)])
def test_steps_stay_while_the_mean_loss_of_a_window_falls_by_enough(fall, stays):
    state = StepCount(16)
    for loss in [1.0] * WINDOW + [1.0 - fall] * WINDOW:
        state = state.observe(loss)
    assert (state.count == 16) == stays


def test_rows_are_dealt_out_one_by_one_until_the_loss_falls_by_little():
    falls = [1.0, 0.9, 0.8, 0.8 * (1 - 1.1 * LEAST_EARLY_FALL), 0.8 * (1 - 1.9 * LEAST_EARLY_FALL), 0.1, 0.1, 0.1]
    found = plans(falls, StepRule(64, True, 100, num_by_row=40))
    assert [(plan.count, plan.by_row) for plan in found] == [(40, True)] * 5 + [(64, False)] * 3
    assert [plan.is_turn for plan in found] == [False] * 5 + [True] + [False] * 2


def test_a_loss_that_falls_by_half_but_by_little_of_the_first_one_turns_to_clusters():
    """The third fall is nearly half of the loss, but 0.9 of the least share of the first one."""
    falls = [1.0, 0.0400, 0.0200, 0.0200 - 0.9 * LEAST_OF_FIRST, 0.001]
    found = plans(falls, StepRule(64, True, 100, num_by_row=40))
    assert [plan.by_row for plan in found] == [True] * 4 + [False]


def test_rows_that_are_always_dealt_out_one_by_one_stay_so():
    found = plans([1.0] * 30, StepRule(num_by_row=8))
    assert [(plan.count, plan.by_row, plan.is_turn) for plan in found] == [(8, True, False)] * 30


def test_arcs_of_clusters_are_told_in_those_of_rows_dealt_out_one_by_one():
    assert arcs_gained(8, 0.0) == 1 and arcs_gained(8, 1.0) == 8      # all between clusters, all inside
    assert arcs_gained(4, 0.5) * 1 / 4 == 0.5 + 0.5 / 4               # half inside, a quarter of the others by chance


@pytest.mark.parametrize("num_steps, gain, left", [(3, 0.99 * LEAST_GAIN, 1), (3, 1.01 * LEAST_GAIN, 3),
                                                   (64, 0.99 * LEAST_GAIN, 1), (64, 1.01 * LEAST_GAIN, 64)])
def test_clusters_that_hold_few_arcs_give_way_to_one_step(num_steps, gain, left):
    share_inside, rule = (gain - 1) / (num_steps - 1), StepRule(num_steps, True, 100)
    assert rule.observe(rule.begin(), 1.0, share_inside).count == left


def test_arcs_inside_clusters_have_no_say_over_rows_one_by_one_or_a_fixed_number():
    by_row = StepRule(3, True, 100, num_by_row=40)
    assert by_row.observe(by_row.begin(), 1.0, 0.0).count == 40
    assert StepRule(3).observe(StepCount(3), 1.0, 0.0).count == 3


def test_the_last_epochs_are_whole_even_if_the_loss_falls_until_then():
    found = plans([0.9 ** epoch for epoch in range(20)], StepRule(64, True, 20, num_by_row=40))
    assert [(plan.count, plan.by_row) for plan in found] == [(40, True)] * 18 + [(1, False)] * 2


def judged(are_best, rule, state):
    """Steps after each evaluation, the best so far or not."""
    found = []
    for is_best in are_best:
        state = rule.judge(state, is_best, state.count)
        found.append(state.count)
    return found


def test_scores_that_stand_have_ever_fewer_steps_though_the_loss_falls():
    rule = StepRule(64, True, 1000)
    found = judged([True, *[False] * 3 * PATIENCE], rule, rule.begin())
    assert found == [64] * PATIENCE + [16] * PATIENCE + [4] * PATIENCE + [1]


def test_a_better_score_begins_the_patience_anew():
    rule = StepRule(64, True, 1000)
    assert judged([*[False] * (PATIENCE - 1), True] * 3, rule, rule.begin()) == [64] * 3 * PATIENCE


def test_a_loss_that_stands_begins_the_patience_anew():
    rule = StepRule(64, True, 1000)
    state = StepCount(64, (1.0,) * (2 * WINDOW - 1), num_worse=PATIENCE - 1)
    assert judged([False] * PATIENCE, rule, rule.observe(state, 1.0)) == [16] * (PATIENCE - 1) + [4]


def test_scores_change_no_fixed_number_and_no_rows_that_are_dealt_out_one_by_one():
    assert judged([False] * 30, StepRule(8), StepCount(8)) == [8] * 30
    assert judged([False] * 30, StepRule(64, True, 100, 40), StepCount(40, by_row=True)) == [40] * 30


@pytest.mark.parametrize("state", [StepCount(16).observe(0.5).observe(0.25), StepCount(40, (0.5,), by_row=True),
                                   StepCount(16, is_turn=True), StepCount(16, num_worse=3)], ids=str)
def test_the_state_survives_json(state):
    assert StepCount.from_dict(json.loads(json.dumps(state.as_dict()))) == state


def test_a_state_of_clusters_alone_is_read():
    assert StepCount.from_dict({"count": 4, "losses": [0.5]}) == StepCount(4, (0.5,))


def test_the_last_epochs_have_one_step_while_each_evaluation_is_the_best():
    rule = StepRule(64, True, 50)
    state = rule.judge(rule.begin(), True, 1)
    assert rule.of_epoch(state, 47).count == 1
    state = rule.judge(state, False, 1)
    assert rule.of_epoch(state, 47).count == 64
    assert rule.of_epoch(rule.observe(state, 0.5), 48).count == 64
    assert StepCount.from_dict(json.loads(json.dumps(state.as_dict()))) == state
    assert not state.fewer().ends_with_one
