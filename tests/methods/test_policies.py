"""Widths of every policy: sender and receiver compute the same, they follow the base, and are solved in time."""

from __future__ import annotations

import numpy as np
import pytest
from exchange.peers import by_rank
from mpi4py import MPI

from hpcgnn.exchange.bits import SolvedBits, UniformBits
from hpcgnn.exchange.plan import ExchangePlan, RowList
from hpcgnn.methods.policies import (
    BudgetedWidths,
    DrawnWidths,
    FixedWidths,
    LeveledWidths,
    SolvedWidths,
    level_shares,
    levels,
    width_table,
)
from hpcgnn.ops.counter import BACKWARD, FORWARD

COMM = MPI.COMM_WORLD
PERCENTILES = (85.0, 95.0, 99.0)


class ScriptedSolver:
    """Answers with its number of calls, and lists its budgets."""

    def __init__(self, widths=(1, 2, 4, 8)):
        self.widths, self.budgets, self.traces = widths, [], []

    def solve(self, traces, mean_bits=None):
        self.budgets.append(mean_bits)
        self.traces.append(traces)
        return SolvedBits({}, len(self.budgets))


def plan_of(cut, shape):
    pieces = cut(shape, COMM.size)
    return pieces.parts[COMM.rank], ExchangePlan.build(pieces.parts[COMM.rank])


def assert_both_sides_agree(plan, bit_plan, layer, purpose):
    """Collective: the receiver of every message expects the widths that its sender gives."""
    send, receive = (plan.halo, plan.boundary) if purpose == BACKWARD else (plan.boundary, plan.halo)
    sent = [bit_plan.widths(layer, purpose, plan.rank, peer, rows).tolist()
            for peer, rows in zip(plan.peers, send, strict=True)]
    expected = [bit_plan.widths(layer, purpose, peer, plan.rank, rows).tolist()
                for peer, rows in zip(plan.peers, receive, strict=True)]
    assert COMM.alltoall(by_rank(plan, sent, [])) == by_rank(plan, expected, [])
    return np.concatenate(sent)


@pytest.mark.parallel([1, 2, 3, 4])
def test_sender_and_receiver_give_each_row_the_same_width(cut):
    for shape in ("undirected", "downhill", "apart"):
        part, plan = plan_of(cut, shape)
        policies = [FixedWidths(4), DrawnWidths((2, 4, 8)),
                    LeveledWidths((1, 2, 4, 8), PERCENTILES, part.importance, plan)]
        for policy in policies:
            for epoch, base in enumerate(policy.base_widths):
                bit_plan = policy.bit_plan(3, epoch, base)
                for purpose in (FORWARD, BACKWARD):
                    for layer in (0, 2):
                        assert_both_sides_agree(plan, bit_plan, layer, purpose)


@pytest.mark.parallel([2, 3])
def test_leveled_widths_are_those_of_importance_and_never_below_the_base(cut):
    part, plan = plan_of(cut, "directed")
    policy = LeveledWidths((1, 2, 4, 8), PERCENTILES, part.importance, plan)
    level = levels(part.importance, PERCENTILES)
    for base in policy.base_widths:
        bit_plan = policy.bit_plan(0, 9, base)
        expected = width_table(base, policy.base_widths)[level]
        for peer, rows in zip(plan.peers, plan.boundary, strict=True):
            assert (bit_plan.widths(1, FORWARD, plan.rank, peer, rows) == expected[rows.index]).all()
            some = rows.where(rows.node_id % 3 == 0)
            assert (bit_plan.widths(1, FORWARD, plan.rank, peer, some) == expected[some.index]).all()
        for peer, rows in zip(plan.peers, plan.halo, strict=True):
            assert (bit_plan.widths(1, BACKWARD, plan.rank, peer, rows)
                    == expected[plan.num_inner + rows.index]).all()


def test_drawn_widths_are_even_and_change_with_epoch_layer_and_direction():
    """Each width's share of 4000 rows lies within six standard deviations of a third."""
    rows = RowList(np.arange(4000, dtype=np.int32), np.arange(4000), np.arange(4000, dtype=np.int32))
    policy = DrawnWidths((2, 4, 8))
    seen = set()
    for epoch, layer, purpose in [(0, 0, FORWARD), (1, 0, FORWARD), (0, 1, FORWARD), (0, 0, BACKWARD)]:
        width = policy.bit_plan(0, epoch, 8).widths(layer, purpose, 0, 1, rows)
        assert all(abs((width == bits).mean() - 1 / 3) < 6 * np.sqrt(2 / 9 / 4000) for bits in (2, 4, 8))
        seen.add(width.tobytes())
    assert len(seen) == 4
    # Deep models have hundreds of exchanges, each with draws of its own.
    deep = {policy.bit_plan(0, 0, 8).widths(layer, purpose, 0, 1, rows).tobytes()
            for layer in (0, 1, 63, 64, 512, 1023) for purpose in (FORWARD, BACKWARD)}
    assert len(deep) == 12


def test_solved_widths_trace_first_at_the_largest_width_and_then_once_a_period():
    policy = SolvedWidths(ScriptedSolver((2, 4, 8)), period=5)
    assert policy.base_widths == (8,)
    assert policy.bit_plan(0, 3, 8) == UniformBits(8) and policy.is_traced(3)
    policy.learn(8, {(1, FORWARD): "ranges"})
    assert [epoch for epoch in range(4, 16) if policy.is_traced(epoch)] == [5, 10, 15]
    assert policy.bit_plan(0, 4, 8).default == 1
    policy.forget()
    assert policy.is_traced(1) and policy.bit_plan(0, 1, 8) == UniformBits(8)


def test_budgeted_widths_are_solved_anew_when_the_base_changes_from_the_ranges_that_are_known():
    solver = ScriptedSolver()
    policy = BudgetedWidths(solver, 50, level_shares(PERCENTILES, 4))
    policy.learn(2, {})    # a base that changes before any range is known
    traces = {(1, FORWARD): "ranges"}
    for base, found in ((1, traces), (2, {}), (8, {})):
        policy.learn(base, found)
    assert solver.budgets == pytest.approx([0.85 + 0.2 + 0.16 + 0.08, 2 * 0.95 + 0.16 + 0.08, 8.0])
    assert solver.traces == [traces] * 3
    policy.forget()
    policy.learn(4, {})
    assert len(solver.budgets) == 3


@pytest.mark.parametrize("num_levels, expected", [(4, [0.85, 0.1, 0.04, 0.01]), (3, [0.95, 0.04, 0.01]),
                                                  (2, [0.99, 0.01]), (1, [1.0])])
def test_shares_of_levels_add_up_where_there_are_fewer_widths_than_percentiles(num_levels, expected):
    np.testing.assert_allclose(level_shares(PERCENTILES, num_levels), expected)
