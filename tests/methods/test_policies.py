"""Widths of every policy: sender and receiver compute the same, they follow levels and base, and are solved in time."""

from __future__ import annotations

import numpy as np
import pytest
from exchange.peers import by_rank
from mpi4py import MPI

from hpcgnn.errors import ConfigError
from hpcgnn.exchange.bits import SolvedBits, UniformBits
from hpcgnn.exchange.plan import ExchangePlan, RowList
from hpcgnn.methods.choosing import parse_percentiles, parse_widths
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


WIDTHS = (1, 2, 4, 8)


def test_each_percentile_takes_its_share_of_the_nodes():
    """Ranks of 100,000 nodes without ties; 1.43 bits at base 1 is about what the paper's Table XII implies."""
    importance = np.linspace(0, 1, 100_000, dtype=np.float32)
    level = levels(importance, parse_percentiles("80,92.5,98"))
    assert level.dtype == np.uint8
    means = [width_table(base, WIDTHS)[level].mean() for base in WIDTHS]
    assert means == pytest.approx([0.8 + 0.125 * 2 + 0.055 * 4 + 0.02 * 8, 0.925 * 2 + 0.055 * 4 + 0.02 * 8,
                                   0.98 * 4 + 0.02 * 8, 8], abs=1e-3)
    assert means[0] == pytest.approx(1.43, abs=1e-3)


def test_a_node_exactly_at_a_percentile_has_reached_it():
    importance = np.array([0, 0.7999, 0.8, 0.925, 0.98, 1], np.float32)
    assert levels(importance, (80.0, 92.5, 98.0)).tolist() == [0, 0, 1, 2, 3, 3]
    assert levels(np.zeros(0, np.float32), (80.0,)).shape == (0,)


def test_a_width_is_never_below_the_base():
    assert [width_table(base, WIDTHS).tolist() for base in WIDTHS] == [
        [1, 2, 4, 8], [2, 2, 4, 8], [4, 4, 4, 8], [8, 8, 8, 8]]
    assert width_table(1, WIDTHS).dtype == np.uint8


def test_widths_and_percentiles_are_read_from_text():
    assert parse_widths("1,2,4,8") == WIDTHS and parse_widths(" 2, 8") == (2, 8)
    assert [parse_widths(text) for text in ("1", "16", "32")] == [(1,), (16,), (32,)]
    assert parse_percentiles("80,92.5,98") == (80.0, 92.5, 98.0)
    assert parse_percentiles("50", 2) == (50.0,) and parse_percentiles("", 1) == ()


@pytest.mark.parametrize("text", ["", "3", "2,4,", "8,4", "2,2", "1,2,16", "1.0", "two", "1 2"])
def test_other_widths_are_refused(text):
    with pytest.raises(ConfigError) as refused:
        parse_widths(text)
    assert str(refused.value) == (f"widths is {text!r}; expected some of 1, 2, 4, 8 in ascending order, as in 2,4,8, "
                                  "or one of 1, 2, 4, 8, 16, 32")


@pytest.mark.parametrize("text", ["80,x,98", "80,80,98", "98,92,80", "0,50,90", "50,90,100", "nan,1,2", "80,,98"])
def test_other_percentiles_are_refused(text):
    with pytest.raises(ConfigError, match="expected numbers between 0 and 100 in ascending order"):
        parse_percentiles(text)


def test_levels_and_widths_must_match():
    with pytest.raises(ConfigError, match=r"percentiles is '80,92.5,98', 3 of them; 3 widths need 2, so change"):
        parse_percentiles("80,92.5,98", 3)
