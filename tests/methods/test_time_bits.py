"""The rate of descent, when it asks for a wider base, which bases are kept, and which are left alone."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcgnn.errors import TrainingError
from hpcgnn.methods.time_bits import LONGEST_PAST, Descent, WidthFloor, WidthTrial, is_slowing, next_base, period_length

TESTS = ("plain", "monotone", "relative")
WIDTHS = (1, 2, 4, 8)


def observed(losses, seconds=None, smoothing=0.9):
    descent = Descent()
    for loss, spent in zip(losses, seconds if seconds is not None else np.ones(len(losses)), strict=True):
        descent = descent.observe(float(loss), float(spent), smoothing)
    return descent


def bases(losses, window, test):
    """Base width of every epoch, as the controller would choose them."""
    descent, base, chosen = Descent(), 1, []
    for loss in losses:
        chosen.append(base)
        descent = descent.observe(float(loss), 1.0, 0.9)
        base = next_base(base, is_slowing(descent, window, test), WIDTHS)
    return np.array(chosen)


def test_the_rate_is_the_fall_of_the_mean_loss_a_second():
    descent = observed([4.0, 2.0, 3.0], [1.0, 0.5, 2.0], smoothing=0.5)
    assert descent.mean_losses == (4.0, 3.0, 3.0) and descent.rates == ((4 - 3) / 0.5, 0.0)
    assert descent.ldr == 0.0 and observed([4.0]).ldr is None and Descent().ldr is None


@pytest.mark.parametrize("test, needed", [("plain", 1), ("monotone", 1), ("relative", 2)])
@pytest.mark.parametrize("window", [1, 3, 10])
def test_nothing_slows_before_there_are_windows_to_compare(test, needed, window):
    """This loss falls 4 times more slowly in every epoch, so it slows as soon as that can be known."""
    losses = 1 + 0.25 ** np.arange(2 * window + 3.0)
    first = needed * window + (2 if needed == 1 else 1)
    assert not is_slowing(observed(losses[:first - 1], smoothing=0.0), window, test)
    assert is_slowing(observed(losses[:first], smoothing=0.0), window, test)


@pytest.mark.parametrize("losses", [3 * 0.97 ** np.arange(300), 3 * (1 + np.arange(300.0)) ** -0.3,
                                    3 * (1 + np.arange(300.0)) ** -1.0], ids=["exponential", "power", "inverse"])
def test_a_smooth_decay_slows_for_ever_by_plain_and_monotone_but_not_by_relative(losses):
    means = {test: bases(losses, 10, test).mean() for test in TESTS}
    assert means["plain"] > 7 and means["monotone"] > 7 and means["relative"] == 1


def test_relative_asks_for_bits_when_a_fall_breaks_off_and_gives_them_back():
    losses = np.concatenate([3 * 0.97 ** np.arange(60), 3 * 0.97 ** 60 * 0.999 ** np.arange(60)])
    chosen = bases(losses, 10, "relative")
    assert (chosen[:60] == 1).all() and (chosen[80:95] == 8).all() and (chosen[-10:] == 1).all()


def test_relative_reacts_less_to_noise_than_plain():
    """Noise of 1 % on a loss that nearly stands; the bounds hold for 5 seeds."""
    for seed in range(5):
        noise = np.random.default_rng(seed).normal(1, 0.01, 300)
        losses = (0.5 + 2.5 * (1 + np.arange(300.0)) ** -0.7) * noise
        means = {test: bases(losses, 10, test)[50:].mean() for test in TESTS}
        assert means["monotone"] < 1.2 and means["relative"] < 0.75 * means["plain"]


@pytest.mark.parametrize("loss", [0.0, 2.0])
def test_a_loss_that_stands_slows(loss):
    assert is_slowing(observed([loss] * 20), 5, "relative")


def test_a_loss_that_rises_slows():
    assert is_slowing(observed([0.5, 0.5, 0.6, 0.8, 1.2, 2.5], smoothing=0.0), 2, "relative")
    losses = np.concatenate([2 * 0.97 ** np.arange(40), np.linspace(0.5, 2.5, 30)])
    assert (bases(losses, 10, "relative")[-15:] == 8).all()


def test_bits_rise_at_convergence():
    """The running mean of this loss falls by FLAT over ten epochs at about epoch 206, and by less later."""
    chosen = bases(1 + 2 * 0.97 ** np.arange(300), 10, "relative")
    assert (chosen[:200] == 1).all() and (chosen[-60:] == 8).all()


def test_a_machine_that_slows_down_is_seen_by_plain_but_not_by_relative():
    losses, seconds = 10 - 0.125 * np.arange(32), np.where(np.arange(32) < 20, 1.0, 3.0)
    assert not is_slowing(observed(losses, np.ones(32), 0.0), 15, "plain")
    assert is_slowing(observed(losses, seconds, 0.0), 15, "plain")
    assert not is_slowing(observed(losses, seconds, 0.0), 15, "relative")


def test_the_base_doubles_and_halves_within_the_widths():
    assert [next_base(base, True, WIDTHS) for base in WIDTHS] == [2, 4, 8, 8]
    assert [next_base(base, False, WIDTHS) for base in WIDTHS] == [1, 1, 2, 4]
    assert next_base(2, True, (2, 8)) == 8 and next_base(4, True, (4,)) == 4 == next_base(4, False, (4,))


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(1e-6, 1e4)), max_size=30))
def test_a_state_survives_json_bit_for_bit(epochs):
    descent = observed(*zip(*epochs, strict=True)) if epochs else Descent()
    assert Descent.from_dict(json.loads(json.dumps(descent.as_dict()))) == descent


def test_only_what_the_longest_window_needs_is_kept():
    descent = Descent(tuple(np.arange(LONGEST_PAST + 1.0)), tuple(np.ones(LONGEST_PAST + 1)))
    longer = descent.observe(1.0, 1.0, 0.5)
    assert len(longer.mean_losses) == len(longer.rates) == LONGEST_PAST + 1
    assert len(descent.mean_losses) == LONGEST_PAST + 1 and longer.mean_losses[0] == 1.0


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_an_epoch_without_length_is_refused(seconds):
    with pytest.raises(TrainingError, match="an epoch took"):
        Descent().observe(1.0, seconds, 0.9)


WINDOW = 4


def tried_bases(loss_of, num_epochs, start=1, floor=0):
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
    seen = tried_bases(falling_by(lambda base: 0.0), 900)
    starts = [epoch for epoch in range(1, 900) if seen[epoch] == 2 and seen[epoch - 1] == 1]
    assert set(seen) == {1, 2} and seen.count(2) == WINDOW * len(starts)
    rests = [later - earlier - WINDOW for earlier, later in itertools.pairwise(starts)]
    assert rests[:3] == [4, 16, 64] and set(rests[3:]) == {256}


def test_a_wider_base_is_kept_where_the_loss_falls_faster_with_it_and_given_back_where_it_falls_well():
    """It stands at 1 bit; at 2 it falls by 3 % an epoch, steadily, so the width is given back and tried again."""
    seen = tried_bases(falling_by(lambda base: 0.03 if base > 1 else 0.0), 60)
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
    assert tried_bases(falling_by(lambda base: 0.1), 12, start=8) == [8] * 6 + [4, 2, 1, 1, 1, 1]


def test_no_base_is_below_the_floor():
    assert min(tried_bases(falling_by(lambda base: 0.1), 12, start=8, floor=4)) == 4
    assert min(tried_bases(falling_by(lambda base: 0.0), 40, floor=2)[1:]) == 2


def test_a_state_survives_json():
    trial = WidthTrial(2, 1, 0.25, 3, 5)
    assert WidthTrial.from_dict(json.loads(json.dumps(trial.as_dict()))) == trial


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


def test_periods_grow_fourfold_three_times():
    assert [period_length(5, before) for before in (0, 1, 2, 3, 4, 50)] == [5, 20, 80, 320, 320, 320]
