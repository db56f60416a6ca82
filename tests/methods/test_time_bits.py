"""The rate of descent, and when it asks for a wider base."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcgnn.errors import TrainingError
from hpcgnn.methods.time_bits import LONGEST_PAST, Descent, is_slowing, next_base

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
