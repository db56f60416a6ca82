"""The controller's plans for scripted losses: what it does first, when it widens, and what it remembers."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from mpi4py import MPI

from hpcgnn.exchange.bits import UniformBits
from hpcgnn.methods.controller import Controller, DescentTest
from hpcgnn.ops.counter import BACKWARD, FORWARD

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

    def forget(self):
        self.num_forgotten += 1

    def state(self):
        return {}

    def restore(self, state):
        assert state == {}


def descent_test(window=2, test="plain", smoothing=0.0, tries_widths=False):
    return DescentTest(window, test, smoothing, tries_widths)


def controller_of(policy=None, asynchrony="descent", **settings):
    return Controller(COMM, policy or ScriptedPolicy(), asynchrony, descent_test(**settings))


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
    assert seen == [("sync", 1)] + [("async", 1)] * 3 + [("sync", 2), ("sync", 4), ("sync", 8), ("sync", 8)]


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
    assert run(controller_of(one_width, "never"), slowing) == [("sync", 8)] * 7
    assert run(controller_of(one_width, "always"), slowing) == [("sync", 8)] + [("async", 8)] * 6
    assert one_width.learned == []


@pytest.mark.parallel([1, 2])
def test_the_policy_learns_when_ranges_were_traced_or_the_base_has_changed():
    policy = ScriptedPolicy(traced=(0, 2))
    run(controller_of(policy), falling([9, 8, 7, 6, 5]), traces={(1, 1): "ranges"})
    assert policy.learned == [(1, {(1, 1): "ranges"}), (1, {(1, 1): "ranges"}), (2, {}), (4, {}), (8, {})]


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("has_ranks", [False, True])
def test_a_restored_controller_goes_on_as_the_one_that_stopped(has_ranks):
    """Without what its ranks remember, its first epoch is synchronous."""
    rates = [9, 8, 7, 6, 7, 8, 9, 10, 9, 8, 7, 6]
    whole = run(controller_of(), falling(rates))
    assert {mode for mode, _ in whole} == {"sync", "async"}
    for stop in range(1, len(whole)):
        first, second = controller_of(), controller_of()
        assert run(first, falling(rates)[:stop]) == whole[:stop]
        second.restore(COMM.bcast(first.state()))
        if has_ranks:
            second.restore_rank(first.rank_state())
        begin = whole[stop] if has_ranks else ("sync", whole[stop][1])
        assert run(second, falling(rates)[stop:], stop) == [begin, *whole[stop + 1:]]


def test_a_base_width_that_the_run_no_longer_has_is_not_restored():
    controller = Controller(MPI.COMM_SELF, ScriptedPolicy((2, 4)), "descent", descent_test())
    fresh = controller.state()
    controller.restore({"base": 8, "is_held": True, "descent": {"mean_losses": [1.0], "rates": []},
                        "drift": {"1-1": [1.0, 2.0, 3.0]}, "fresh": [[1, 1]], "trial": {"base": 8}})
    assert controller.state() == fresh and fresh["base"] == 2
    controller.restore({})
    assert controller.base == 2


def test_decisions_of_a_program_without_trials_are_begun_anew():
    controller = Controller(MPI.COMM_SELF, ScriptedPolicy(), "measured", descent_test())
    fresh = controller.state()
    controller.restore({"base": 4, "is_held": True, "descent": {"mean_losses": [1.0], "rates": []},
                        "steadiness": {"losses": [1.0], "epochs_left": 3, "num_periods": 1}})
    assert controller.state() == fresh


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
    assert seen[:21] == [("sync", 1)] + [("async", 1)] * 20
    assert seen[21:].count(("async", 1)) > 70


# They move by 5 % and by 20 % an epoch, and by 5 % as far as can be told.
ROWS, NEAR, FAR = (0.0,) * 4, (100.0, 0.25, 1.0, 0.0), (100.0, 4.0, 16.0, 0.0)
UNSURE = (*NEAR[:3], 2.0)


def measured(scripted, most_motion=0.1):
    """Collective: (stale share, sites that were fresh) by epoch; a rank sees its share of the scripted sums."""
    controller = Controller(COMM, ScriptedPolicy((1,)), "measured", descent_test(test="relative"),
                            most_motion=most_motion)
    seen = []
    for epoch, sums in enumerate(scripted):
        plan = controller.plan(0, epoch)
        movements = {site: np.array(values) / COMM.size for site, values in sums.items()}
        # A rank without neighbors exchanges nothing and measures nothing.
        share = controller.observe(1.0, 1.0, {}, movements if COMM.rank or COMM.size == 1 else {}).stale_share
        seen.append((share, sorted(site for site in sums if not plan.reads_stale(*site))))
    assert len(set(map(str, COMM.allgather(seen)))) == 1
    return seen


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("asynchrony", ["never", "always"])
def test_exchanges_that_change_by_less_than_they_are_send_differences(asynchrony):
    """As the sums of all ranks say, from the epoch after the first that has some; a restored one picks alike."""
    calm, wild = (100.0, 99.0, 99.0, 0.0), (100.0, 101.0, 101.0, 0.0)
    controller = Controller(COMM, ScriptedPolicy((1,)), asynchrony, picks_differences=True)
    seen = []
    for epoch in range(4):
        plan = controller.plan(0, epoch)
        seen.append(sorted(plan.differing))
        sums = {(1, 0): ROWS if epoch < 2 else calm, (1, 1): ROWS if epoch < 2 else wild}
        movements = {site: np.array(values) / COMM.size for site, values in sums.items()}
        controller.observe(1.0, 1.0, {}, movements if COMM.rank or COMM.size == 1 else {})
        assert plan.is_measured and plan.reads_stale(1, 1) == (asynchrony == "always" and epoch > 0)
    assert seen == [[], [], [], [(1, 0)]]
    assert len(set(map(str, COMM.allgather(seen)))) == 1
    restored = Controller(COMM, ScriptedPolicy((1,)), "never", picks_differences=True)
    restored.restore(json.loads(json.dumps(controller.state())))
    assert restored.plan(0, 4).differing == frozenset({(1, 0)})


@pytest.mark.parallel([1, 2, 3])
def test_exchanges_whose_rows_move_little_are_stale_and_others_wait():
    near, far = (1, FORWARD), (2, FORWARD)
    seen = measured([{near: ROWS, far: ROWS}] * 2 + [{near: NEAR, far: FAR}] * 4)
    assert seen == [(0.0, [near, far])] * 3 + [(0.5, [far])] * 3


def test_gradients_wait_however_little_they_move():
    rows, gradients = (1, FORWARD), (1, BACKWARD)
    seen = measured([{rows: ROWS, gradients: ROWS}] * 2 + [{rows: NEAR, gradients: NEAR}] * 4)
    assert seen == [(0.0, [rows, gradients])] * 3 + [(0.5, [gradients])] * 3


def test_an_exchange_waits_until_its_rows_are_known_to_move_little():
    """5 % with a standard error of 1.41 in 0.75 may be 20 % at two of them; the mean of more epochs errs less."""
    site = (1, 1)
    seen = measured([{site: ROWS}] * 2 + [{site: UNSURE}] * 20, most_motion=0.1)
    shares = [share for share, _ in seen]
    assert shares[3] == 0.0 and shares[-1] == 1.0


def test_motion_that_is_no_number_is_recorded_as_none():
    """Rows that became zero have moved by an infinite share of themselves, which JSON can't hold."""
    controller = Controller(MPI.COMM_SELF, ScriptedPolicy((1,)), "measured", descent_test(test="relative"))
    controller.plan(0, 0)
    decision = controller.observe(1.0, 1.0, {}, {(1, 1): np.array((0.0, 1.0, 4.0, 0.0)), (2, 1): np.array(NEAR)})
    assert decision.motion == {"1-forward": None, "2-forward": 0.05}


@pytest.mark.parallel([1, 2])
def test_an_exchange_waits_again_when_its_rows_move_and_no_longer_when_they_stand():
    """The running sums forget a fifth in each epoch, so motion of 20 % after 5 % is seen late, and remembered."""
    site = (2, 1)
    seen = measured([{site: ROWS}] * 2 + [{site: NEAR}] * 3 + [{site: FAR}] * 2 + [{site: NEAR}] * 12)
    shares = [share for share, _ in seen]
    assert shares[:3] == [0.0] * 3 and shares[3:6] == [1.0] * 3
    mixed, expected = 0.0025, []
    for motion in (0.0025, 0.0025, 0.0025, 0.04, 0.04, *[0.0025] * 12):
        mixed = 0.8 * mixed + 0.2 * motion
        expected.append(float(mixed <= 0.01))
    assert shares[3:] == expected[:-1] and shares[-1] == 1.0 and 0.0 in shares[5:]


def test_a_long_training_keeps_its_pipeline():
    """A loss with dropout's noise, in 2,000 epochs; rows that move by 5 %."""
    rng = np.random.default_rng(1)
    test = descent_test(10, "relative", 0.9, tries_widths=True)
    controller = Controller(MPI.COMM_SELF, ScriptedPolicy(), "measured", test, most_motion=0.1)
    shares = []
    for epoch, noise in enumerate(rng.normal(size=2000)):
        controller.plan(0, epoch)
        loss = (0.3 + 2 * 0.99 ** epoch) * (1 + 0.05 * noise)
        movements = {(1, 1): np.array(NEAR if epoch > 1 else ROWS)}
        shares.append(controller.observe(loss, 1.0, {}, movements).stale_share)
    assert shares[3:] == [1.0] * 1997


@pytest.mark.parallel([1, 2])
def test_a_base_that_did_harm_is_not_taken_again_for_a_while():
    """The loss falls well at every width, but 1 bit costs a third more."""
    test = descent_test(2, "relative", tries_widths=True)
    controller, bases = Controller(COMM, ScriptedPolicy(), "never", test, starts_wide=True), []
    for epoch in range(60):
        bases.append(controller.plan(0, epoch).bit_plan.bits)
        loss = 100 * 0.985 ** epoch * (1.34 if bases[-1] == 1 else 1)
        controller.observe(loss if COMM.rank == 0 else float("nan"), 1.0, {})
    tried = [epoch for epoch, base in enumerate(bases) if base == 1]
    assert bases[0] == 8 and len(tried) >= 2
    assert all(1 not in bases[epoch + 1:epoch + 3] for epoch in tried)
    assert all(1 not in bases[epoch + 1:epoch + 9] for epoch in tried[1:])


@pytest.mark.parallel([1, 2])
def test_a_controller_that_starts_wide_narrows_once_the_first_window_is_over():
    test = descent_test(test="relative", tries_widths=True)
    controller = Controller(COMM, ScriptedPolicy(), "descent", test, starts_wide=True)
    losses = (100 * 0.9 ** np.arange(8)).tolist()
    assert [base for _, base in run(controller, losses)] == [8, 8, 8, 8, 4, 2, 1, 1]
    controller.forget()
    assert [base for _, base in run(controller, losses)][:2] == [8, 8]
