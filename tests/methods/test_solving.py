"""Widths of every row solved from traced ranges: both sides hold the same, slow links cost width, failures are told."""

from __future__ import annotations

import itertools
import logging
import time
from dataclasses import replace

import numpy as np
import pytest
from exchange.peers import by_rank
from hypothesis import given
from hypothesis import strategies as st
from methods.problems import make_problem, many_groups
from mpi4py import MPI
from scipy.optimize import OptimizeResult, milp

from hpcgnn.errors import KernelError
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.trace import Trace
from hpcgnn.exchange.traffic import ControlTraffic
from hpcgnn.methods import solving
from hpcgnn.methods.greedy import solve_greedy
from hpcgnn.methods.highs import SolverError, solve_highs
from hpcgnn.methods.problem import LinkModel, fixed_links
from hpcgnn.methods.solving import GatheredAssigner, Solver, SolverSettings, assign, group_rows, group_sums, row_widths
from hpcgnn.ops.counter import BACKWARD, FORWARD

COMM = MPI.COMM_WORLD
solvers = pytest.mark.parametrize("solver", ["bisection", "greedy"])
DIM, WIDTHS, SITES = 16, (2, 4, 8), [(1, FORWARD), (1, BACKWARD), (2, FORWARD), (2, BACKWARD)]


def lists_of(plan, purpose):
    """Rows that leave and rows that come, one list a rank."""
    return (plan.halo, plan.boundary) if purpose == BACKWARD else (plan.boundary, plan.halo)


def traces_of(plan, keeps=lambda rows: np.ones(len(rows), bool)):
    """Ranges that differ by row and exchange by orders of magnitude."""
    traces = {}
    for layer, purpose in SITES:
        send = [rows.where(keeps(rows)) for rows in lists_of(plan, purpose)[0]]
        rng = np.random.default_rng((layer, purpose, plan.rank))
        traces[layer, purpose] = Trace(DIM, tuple(rows.position for rows in send),
                                       tuple(rng.lognormal(0, 2, len(rows)).astype(np.float32) for rows in send))
    return traces


def solver_of(plan, links=None, **options):
    squares = tuple(np.ones(len(rows), np.float32) for rows in plan.boundary)
    control = options.pop("control", None)
    how = SolverSettings(**{"widths": WIDTHS, "group_size": 4, **options})
    return Solver(COMM, plan, squares, links or fixed_links(len(plan.peers)), how, control)


def sent_widths(plan, bit_plan, layer, purpose):
    send, _ = lists_of(plan, purpose)
    return [bit_plan.widths(layer, purpose, plan.rank, peer, rows) for peer, rows in zip(plan.peers, send, strict=True)]


@pytest.fixture
def plan_of(cut):
    """plan_of(shape) -> ExchangePlan of this rank."""
    return lambda shape: ExchangePlan.build(cut(shape, COMM.size).parts[COMM.rank])


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("mean_bits", [None, 2.0, 3.5, 8.0])
@solvers
def test_sender_and_receiver_hold_the_same_width_of_every_row(plan_of, mean_bits, solver):
    for shape in ("undirected", "downhill", "apart"):
        plan = plan_of(shape)
        bit_plan = solver_of(plan, solver=solver).solve(traces_of(plan), mean_bits)
        for layer, purpose in SITES:
            sent = sent_widths(plan, bit_plan, layer, purpose)
            receive = lists_of(plan, purpose)[1]
            expected = [bit_plan.widths(layer, purpose, peer, plan.rank, rows).tolist()
                        for peer, rows in zip(plan.peers, receive, strict=True)]
            told = by_rank(plan, [widths.tolist() for widths in sent], [])
            assert COMM.alltoall(told) == by_rank(plan, expected, [])
            assert set(np.concatenate(sent).tolist()) <= set(WIDTHS)


@pytest.mark.parallel([2, 3])
@solvers
def test_wider_ranges_never_get_fewer_bits_in_one_message(plan_of, solver):
    plan = plan_of("undirected")
    traces = traces_of(plan)
    bit_plan = solver_of(plan, lam=0.7, solver=solver).solve(traces)
    for (layer, purpose), trace in traces.items():
        for widths, row_range in zip(sent_widths(plan, bit_plan, layer, purpose), trace.row_range, strict=True):
            assert (np.diff(widths[np.argsort(row_range, kind="stable")].astype(int)) >= 0).all()


@pytest.mark.parallel([2])
@pytest.mark.parametrize("code, num_bytes", [("affine", 4), ("rotated", 2)])
def test_problems_know_the_code_of_their_messages(plan_of, monkeypatch, code, num_bytes):
    """A second a byte of a link that has no other cost: what a message costs beside its codes are its parameters."""
    plan, problems = plan_of("undirected"), []
    solver = solver_of(plan, LinkModel(np.ones(2), np.zeros(2)), solver="greedy")
    assigner = solver._assigner

    def assigned(given, *others):
        problems.extend(given)
        return GatheredAssigner._assigned(assigner, given, *others)

    monkeypatch.setattr(assigner, "_assigned", assigned)
    solver.solve({site: replace(trace, code=code) for site, trace in traces_of(plan).items()}, 4.0)
    if COMM.rank == 0:
        sent = [len(lists_of(plan, FORWARD)[0][1]), len(lists_of(plan, FORWARD)[1][1])]
        assert [problem.code for problem in problems] == 4 * [code]
        assert problems[1].gamma[[1, 2]].tolist() == [num_bytes * rows for rows in sent]


@pytest.mark.parallel([2, 3])
@solvers
def test_a_budget_is_kept_and_spent(plan_of, solver):
    plan = plan_of("undirected")
    for mean_bits in (2.0, 4.0, 8.0):
        bit_plan = solver_of(plan, solver=solver).solve(traces_of(plan), mean_bits)
        spent = [np.concatenate(sent_widths(plan, bit_plan, *site)) for site in SITES]
        total, rows = COMM.allreduce(sum(float(widths.sum()) for widths in spent)), COMM.allreduce(
            sum(map(len, spent)))
        assert total / rows <= mean_bits + 1e-9
        assert total / rows > mean_bits - 0.5


@pytest.mark.parallel([2, 3])
@solvers
def test_a_slow_link_gets_narrower_messages(plan_of, solver):
    """Only messages from rank 0 to rank 1 are slow; what they cost is a round's longest time."""
    plan = plan_of("undirected")
    theta = np.full(COMM.size, 1e-9)
    if COMM.rank == 0:
        theta[1] = 1e-6
    slow = LinkModel(theta, np.full(COMM.size, 1e-6))
    means = []
    for links in (fixed_links(COMM.size), slow):
        bit_plan = solver_of(plan, links, solver=solver).solve(traces_of(plan))
        chosen = sent_widths(plan, bit_plan, 1, FORWARD)
        means.append(COMM.allgather([float(widths.mean()) if len(widths) else 0.0 for widths in chosen]))
    # Other pairs of that round have time to spare, so they send at the largest width.
    assert means[1][0][1] < max(WIDTHS)
    assert means[1][1][(1 + 1) % COMM.size] == max(WIDTHS)
    assert means[1][0][1] < means[1][1][(1 + 1) % COMM.size]


@pytest.mark.parallel([2, 3])
def test_rows_that_did_not_travel_have_the_smallest_width_and_untraced_exchanges_the_largest(plan_of):
    plan = plan_of("undirected")

    def even(rows):
        return rows.node_id % 2 == 0

    bit_plan = solver_of(plan).solve(traces_of(plan, even))
    for layer, purpose in SITES:
        for peer, rows in zip(plan.peers, lists_of(plan, purpose)[0], strict=True):
            rest = rows.where(~even(rows))
            assert (bit_plan.widths(layer, purpose, plan.rank, peer, rest) == WIDTHS[0]).all()
            assert (bit_plan.widths(7, purpose, plan.rank, peer, rows) == WIDTHS[-1]).all()


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("is_restored", [False, True])
def test_widths_from_links_that_nobody_measured_depend_on_no_clock(plan_of, caplog, is_restored):
    """In a run that is to be repeated, a busy machine must not bring the greedy widths; here time is over at once."""
    plan = plan_of("undirected")
    hurried, patient = (solver_of(plan, solver="highs", seconds=seconds) for seconds in (1e-9, 600))
    if is_restored:
        hurried.restore(hurried.state())
    with caplog.at_level(logging.WARNING, "hpcgnn.methods.solving"):
        found, expected = hurried.solve(traces_of(plan)), patient.solve(traces_of(plan))
    assert not caplog.records
    for site in SITES:
        for mine, other in zip(sent_widths(plan, found, *site), sent_widths(plan, expected, *site), strict=True):
            assert (mine == other).all()


@pytest.mark.parallel([2, 3])
def test_a_solver_whose_time_is_over_is_replaced_by_the_greedy_one_and_told_once(plan_of, caplog):
    plan = plan_of("undirected")
    measured = replace(fixed_links(len(plan.peers)), is_measured=True)
    solver = solver_of(plan, measured, solver="highs", seconds=1e-9)
    with caplog.at_level(logging.WARNING, "hpcgnn.methods.solving"):
        found = [solver.solve(traces_of(plan)) for _ in range(3)]
    assert [record.message.startswith("highs gave no widths in ") for record in caplog.records] \
        == [True] * (COMM.rank == 0)
    greedy = solver_of(plan, solver="greedy").solve(traces_of(plan))
    for site in SITES:
        for mine, other in zip(sent_widths(plan, found[2], *site), sent_widths(plan, greedy, *site), strict=True):
            assert (mine == other).all()


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("shape", ["undirected", "downhill"])
def test_widths_that_are_swapped_are_counted_a_byte_a_row_that_another_rank_receives(plan_of, shape):
    plan = plan_of(shape)
    control = ControlTraffic()
    solver_of(plan, control=control).solve(traces_of(plan))
    num_rows = sum(len(rows) for _, purpose in SITES for rows in lists_of(plan, purpose)[0])
    assert control.take() == (1, num_rows)
    assert control.take() == (0, 0)


@given(beta=st.lists(st.floats(0, 1e30), max_size=40), group_size=st.integers(1, 12))
def test_groups_hold_each_row_once_in_ascending_beta(beta, group_size):
    beta = np.array(beta, np.float64)
    order, starts = group_rows(beta, group_size)
    assert sorted(order.tolist()) == list(range(len(beta)))
    assert (np.diff(beta[order]) >= 0).all()
    assert starts[0] == 0 and starts[-1] == len(beta) and len(starts) == -(-len(beta) // group_size) + 1
    sizes = np.diff(starts)
    assert (sizes[:-1] == group_size).all() and (sizes[-1:] == len(beta) - group_size * (len(sizes) - 1)).all()
    sums = group_sums(beta, order, starts)
    assert sums == pytest.approx([beta[order[low:high]].sum() for low, high in itertools.pairwise(starts)])


def test_equal_betas_keep_their_order_so_that_both_sides_agree():
    order, _ = group_rows(np.array([2.0, 1.0, 2.0, 1.0]), 2)
    assert order.tolist() == [1, 3, 0, 2]


def test_each_row_gets_its_groups_width():
    order, starts = group_rows(np.array([5.0, 1.0, 3.0, 2.0, 4.0]), 2)
    assert row_widths(np.array([2, 4, 8], np.uint8), order, starts).tolist() == [8, 2, 4, 2, 4]
    assert row_widths(np.zeros(0, np.uint8), *group_rows(np.zeros(0), 3)).shape == (0,)


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_a_beta_that_is_no_variance_is_refused(bad):
    with pytest.raises(KernelError, match="beta is negative or not finite"):
        group_rows(np.array([1.0, bad]), 2)


LAYERS = [make_problem({1: 4, 2: 3, 5: 2}, seed=seed) for seed in range(5)]


@pytest.mark.parametrize("solver, alone", [("greedy", solve_greedy), ("highs", solve_highs)])
def test_layers_in_threads_get_what_each_gets_alone(solver, alone):
    answers = assign(LAYERS, 0.5, solver, 60)
    assert [answer.solver for answer in answers] == [solver] * 5 and {answer.reason for answer in answers} == {""}
    for answer, problem in zip(answers, LAYERS, strict=True):
        assert np.array_equal(answer.widths, alone(problem, 0.5).widths)


def test_no_layers_need_no_widths():
    assert assign([], 0.5, "highs", 5) == [] == assign([], 0.5, "greedy", 5)


def test_the_greedy_widths_serve_when_the_time_is_over_and_say_why():
    problems = [many_groups(groups=150, seed=seed) for seed in range(3)]
    started = time.perf_counter()
    answers = assign(problems, 0.5, "highs", 0.05)
    assert time.perf_counter() - started < 20
    for answer, problem in zip(answers, problems, strict=True):
        assert answer.solver == "greedy" and np.array_equal(answer.widths, solve_greedy(problem, 0.5).widths)
        assert answer.reason.startswith("highs gave no widths in ") and "ime" in answer.reason.partition(":")[2]


def test_without_a_limit_of_time_the_nodes_of_the_search_are_limited(monkeypatch):
    asked = []

    def spy(*arguments, options, **others):
        asked.append(dict(options))     # milp empties it
        return milp(*arguments, options=options, **others)

    monkeypatch.setattr("scipy.optimize.milp", spy)
    answers = assign(LAYERS, 0.5, "highs", None)
    assert {answer.solver for answer in answers} == {"highs"}
    assert asked and all(set(options) == {"node_limit", "mip_rel_gap"} for options in asked)


def test_the_greedy_widths_serve_when_the_nodes_are_over_and_say_why(monkeypatch):
    def without_an_answer(*arguments, **others):
        return OptimizeResult(status=1, message="iteration limit reached")      # as scipy calls it

    monkeypatch.setattr("scipy.optimize.milp", without_an_answer)
    for answer, problem in zip(assign(LAYERS, 0.5, "highs", None), LAYERS, strict=True):
        assert answer.solver == "greedy" and np.array_equal(answer.widths, solve_greedy(problem, 0.5).widths)
        assert answer.reason.startswith("highs gave no widths in 1000 nodes, so the greedy ones serve: HiGHS ended ")


def test_the_greedy_widths_serve_for_the_one_layer_that_fails(monkeypatch):
    def failing(problem, *limits):
        if problem is LAYERS[2]:
            raise SolverError("HiGHS ended without an answer: numerical trouble")
        return solve_highs(problem, *limits)

    monkeypatch.setattr(solving, "solve_highs", failing)
    answers = assign(LAYERS, 0.5, "highs", 60)
    assert [answer.solver for answer in answers] == ["highs", "highs", "greedy", "highs", "highs"]
    assert answers[2].reason.endswith("HiGHS ended without an answer: numerical trouble")
