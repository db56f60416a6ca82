"""The controller's plans for scripted losses: what it does first, when it widens, and what it remembers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from mpi4py import MPI

from hpcgnn.adaptive.controller import Controller, DescentTest
from hpcgnn.exchange.bits import UniformBits

COMM = MPI.COMM_WORLD
WIDTHS = (1, 2, 4, 8)


class ScriptedPolicy:
    """Base widths without messages; lists what it is told."""

    def __init__(self, widths=WIDTHS, traced=()):
        self.base_widths, self._traced = widths, traced
        self.learned, self.num_forgotten = [], 0

    def bit_plan(self, seed, epoch, base):
        return UniformBits(base)

    def is_traced(self, epoch):
        return epoch in self._traced

    def learn(self, base, traces):
        self.learned.append((base, dict(traces)))
        return True

    def forget(self):
        self.num_forgotten += 1

    def state(self):
        return {}

    def restore(self, state):
        assert state == {}


def descent_test(window=2, test="plain", smoothing=0.0, most_rises=math.inf, most_drift=math.inf, num_layers=1):
    return DescentTest(window, test, smoothing, most_rises, most_drift, num_layers)


def controller_of(policy=None, mode="adaptive", **settings):
    return Controller(COMM, policy or ScriptedPolicy(), mode, descent_test(**settings))


def run(controller, scripted, first_epoch=0, traces=None):
    """Collective: (mode, base width of the plan) by epoch; only rank 0 sees the scripted losses."""
    seen = []
    for epoch, loss in enumerate(scripted, first_epoch):
        plan = controller.plan(0, epoch)
        decision = controller.observe(loss if COMM.rank == 0 else float("nan"), 1.0, traces or {})
        assert decision.mode == ("async" if plan.is_asynchronous else "sync")
        assert decision.base_bits in (None, plan.bit_plan.bits)
        assert decision.assign_seconds >= 0
        seen.append((decision.mode, plan.bit_plan.bits))
    assert len(set(COMM.allgather(tuple(seen)))) == 1
    return seen


def falling(rates, start=100.0):
    """Losses that fall by these amounts, an epoch of one second each."""
    return [start, *(start - fallen for fallen in itertools.accumulate(rates))]


@pytest.mark.parallel([1, 2, 3])
def test_the_base_doubles_and_epochs_are_synchronous_while_the_loss_slows():
    # Rates of epochs 1 .. 6; two epochs lie between those that are compared, so the first answer is after epoch 3.
    seen = run(controller_of(), [*falling([9, 8, 7, 6, 5, 4]), 78.0])
    assert seen == [("sync", 1)] * 4 + [("sync", 2), ("sync", 4), ("sync", 8), ("sync", 8)]


@pytest.mark.parallel([1, 2, 3])
def test_the_base_halves_and_epochs_are_asynchronous_while_the_loss_falls_faster():
    controller = controller_of()
    slow, fast = [9, 8, 7, 6, 5, 4], [8, 9, 10, 11]
    seen = run(controller, [*falling(slow + fast), 0.0])
    assert seen[6:] == [("sync", 8), ("sync", 8), ("async", 4), ("async", 2), ("async", 1), ("async", 1)]


@pytest.mark.parallel([1, 2])
def test_modes_that_are_fixed_ignore_the_loss():
    slowing = falling([9, 8, 7, 6, 5, 4])
    one_width = ScriptedPolicy((8,))
    assert run(controller_of(one_width, "synchronous"), slowing) == [("sync", 8)] * 7
    assert run(controller_of(one_width, "pipelined"), slowing) == [("sync", 8)] + [("async", 8)] * 6
    assert one_width.learned == []


@pytest.mark.parallel([1, 2])
def test_the_policy_learns_when_ranges_were_traced_or_the_base_has_changed():
    policy = ScriptedPolicy(traced=(0, 2))
    run(controller_of(policy), falling([9, 8, 7, 6, 5]), traces={(1, 1): "ranges"})
    assert policy.learned == [(1, {(1, 1): "ranges"}), (1, {(1, 1): "ranges"}), (2, {}), (4, {}), (8, {})]


@pytest.mark.parallel([1, 2, 3])
def test_a_restored_controller_goes_on_as_the_one_that_stopped_but_for_a_synchronous_epoch():
    rates = [9, 8, 7, 6, 7, 8, 9, 10, 9, 8, 7, 6]
    whole = run(controller_of(), falling(rates))
    for stop in (3, 5, 7, 10):
        first, second = controller_of(), controller_of()
        assert run(first, falling(rates)[:stop]) == whole[:stop]
        second.restore(COMM.bcast(first.state()))
        rest = run(second, falling(rates)[stop:], stop)
        assert rest[0] == ("sync", whole[stop][1])
        assert rest[1:] == whole[stop + 1:]


@pytest.mark.parallel([1, 2, 3])
def test_a_controller_restored_with_what_its_ranks_remember_goes_on_as_the_one_that_stopped():
    rates = [9, 8, 7, 6, 7, 8, 9, 10, 9, 8, 7, 6]
    whole = run(controller_of(), falling(rates))
    for stop in range(1, len(whole)):
        first, second = controller_of(), controller_of()
        run(first, falling(rates)[:stop])
        second.restore(COMM.bcast(first.state()))
        second.restore_rank(first.rank_state())
        assert run(second, falling(rates)[stop:], stop) == whole[stop:]
    assert {mode for mode, _ in whole} == {"sync", "async"}


def test_a_base_width_that_the_run_no_longer_has_is_not_restored():
    controller = Controller(MPI.COMM_SELF, ScriptedPolicy((2, 4)), "adaptive", descent_test())
    fresh = controller.state()
    controller.restore({"base": 8, "is_held": True, "descent": {"mean_losses": [1.0], "rates": []},
                        "steadiness": {"losses": [1.0], "epochs_left": 3, "num_periods": 1}})
    assert controller.state() == fresh and fresh["base"] == 2
    controller.restore({})
    assert controller.base == 2


@pytest.mark.parallel([1, 2])
def test_another_training_begins_anew():
    policy = ScriptedPolicy()
    controller = controller_of(policy)
    losses = falling([9, 8, 7, 6, 5, 4])
    first = run(controller, losses)
    controller.forget()
    assert policy.num_forgotten == 1
    assert run(controller, losses) == first


@pytest.mark.parallel([1])
def test_noise_alone_does_not_count_as_slowing_where_the_test_is_relative():
    """A loss that decays by a constant share and some noise: most epochs stay asynchronous at the smallest width."""
    rng = np.random.default_rng(0)
    losses = 2 * 0.97 ** np.arange(100) * (1 + 0.01 * rng.normal(size=100))
    seen = run(controller_of(window=10, test="relative", smoothing=0.9), losses.tolist())
    assert seen[:21] == [("sync", 1)] * 21
    assert seen[21:].count(("async", 1)) > 70


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("test, num_blind", [("plain", 4), ("monotone", 4), ("relative", 5)])
def test_no_epoch_is_asynchronous_before_the_descent_can_be_judged(test, num_blind):
    """Swings of these epochs don't count against asynchronous ones."""
    losses = [100.0, 110.0, 90.0, 100.0, 80.0, *(0.5 ** np.arange(1, 10))]
    modes = [mode for mode, _ in run(controller_of(window=2, test=test, most_rises=0.5), losses)]
    assert modes[:num_blind] == ["sync"] * num_blind
    assert "async" in modes[num_blind:num_blind + 3]


@pytest.mark.parallel([1, 2, 3])
def test_a_loss_that_swings_makes_epochs_synchronous_for_a_while_and_each_time_for_longer():
    swinging = [10.0, 9.0] * 40
    modes = [mode for mode, _ in run(controller_of(window=2, test="relative", most_rises=0.5), swinging)]
    lengths = [(mode, len(list(same))) for mode, same in itertools.groupby(modes)]
    # Even epochs rise. A period ends on one, so the next async epoch falls, and the one after it is the evidence.
    assert lengths[:6] == [("sync", 5), ("async", 2), ("sync", 2), ("async", 2), ("sync", 8), ("async", 2)]


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("num_layers", [1, 2, 4])
def test_epochs_are_synchronous_while_the_loss_moves_far_within_the_age_of_stale_rows(num_layers):
    """It falls by 3 % an epoch, of the first loss by less and less; the deeper a model, the longer too far."""
    losses = 100 * 0.97 ** np.arange(120.0)
    controller = controller_of(window=2, test="relative", most_drift=0.02, num_layers=num_layers)
    modes = [mode for mode, _ in run(controller, losses.tolist())]
    fallen = (losses[:-num_layers] - losses[num_layers:]) / 100
    first = num_layers + int(np.argmax(fallen <= 0.02)) + 1
    assert modes == ["sync"] * first + ["async"] * (120 - first) and 5 < first < 110


@pytest.mark.parallel([1, 2])
def test_a_base_that_did_harm_is_not_taken_again_for_a_while():
    controller, bases, level = controller_of(window=2), [], 10_000.0
    for epoch in range(40):
        bases.append(controller.plan(0, epoch).bit_plan.bits)
        # It falls more slowly at first, so the base doubles; then faster, so it halves, but 1 bit costs a third more.
        level -= 10 - epoch if epoch < 7 else 4 + epoch
        loss = level * (1.34 if epoch >= 7 and bases[-1] == 1 else 1)
        controller.observe(loss if COMM.rank == 0 else float("nan"), 1.0, {})
    tried = [epoch for epoch, base in enumerate(bases) if base == 1 and epoch >= 7]
    assert bases[6] == 8 and len(tried) >= 2
    # Each try lasts one epoch, and the second comes no sooner than the first period of two epochs is over.
    assert all(1 not in bases[epoch + 1:epoch + 3] for epoch in tried)
    assert all(1 not in bases[epoch + 1:epoch + 9] for epoch in tried[1:])


@pytest.mark.parallel([1, 2])
def test_a_controller_that_starts_wide_narrows_once_the_first_window_is_over():
    controller = Controller(COMM, ScriptedPolicy(), "adaptive", descent_test(test="relative"), starts_wide=True)
    losses = (100 * 0.9 ** np.arange(8)).tolist()
    assert [base for _, base in run(controller, losses)] == [8, 8, 8, 8, 4, 2, 1, 1]
    controller.forget()
    assert [base for _, base in run(controller, losses)][:2] == [8, 8]
