"""The step that each node is dealt to, where nodes are dealt out one by one."""

from __future__ import annotations

import numpy as np
import pytest

from hpcgnn.steps.clusters import LABELED_ROWS_A_STEP, MOST_STEPS, deal, num_steps_of, rests_in


@pytest.mark.parametrize("num_steps", [1, 2, 7, 40, 4096])
def test_steps_are_as_large_as_chance_has_it(num_steps):
    """Of 200,000 nodes; a step is off by more than six standard deviations once in 500 million."""
    size = np.bincount(deal(np.arange(200_000), 3, 5, num_steps), minlength=num_steps)
    mean = 200_000 / num_steps
    assert len(size) == num_steps and np.abs(size - mean).max() <= 6 * mean ** 0.5


def test_a_node_is_dealt_alike_wherever_it_lies_and_anew_in_every_epoch_and_seed():
    node_id = np.array([7, 3, 10**12, 0, 42])
    assert np.array_equal(deal(node_id, 1, 2, 50), deal(node_id[::-1], 1, 2, 50)[::-1])
    many = np.arange(20_000)
    for other in ((1, 3), (2, 2), (2, 1)):
        alike = (deal(many, 1, 2, 50) == deal(many, *other, 50)).mean()
        assert abs(alike - 1 / 50) < 0.007      # seven standard deviations


def test_two_nodes_meet_as_often_as_chance_has_it():
    """Over 4,000 epochs of 5 steps a pair shares a step in 1 of 5; six standard deviations are 0.038."""
    step = np.array([deal(np.arange(40), 0, epoch, 5) for epoch in range(4000)])
    meetings = (step[:, :1] == step[:, 1:]).mean(axis=0)
    assert np.abs(meetings - 0.2).max() < 0.038


def test_a_node_rests_in_every_second_epoch_and_in_any_step_alike():
    node_id = np.arange(40_000)
    rests = np.array([rests_in(node_id, 4, epoch) for epoch in range(4)])
    assert np.array_equal(rests[0], ~rests[1]) and np.array_equal(rests[0], rests[2])
    assert abs(rests[0].mean() - 0.5) < 0.02      # eight standard deviations
    assert abs((rests[0] == rests_in(node_id, 5, 0)).mean() - 0.5) < 0.02
    awake = np.bincount(deal(node_id, 4, 0, 40)[~rests[0]], minlength=40)
    assert np.abs(awake - 500).max() < 150        # as many in each step


@pytest.mark.parametrize("num_train, num_steps", [(0, 1), (60, 1), (2 * LABELED_ROWS_A_STEP - 1, 1),
                                                  (2 * LABELED_ROWS_A_STEP, 2), (10**9, MOST_STEPS)])
def test_a_step_has_enough_labels_to_be_like_all(num_train, num_steps):
    assert num_steps_of(num_train) == num_steps
