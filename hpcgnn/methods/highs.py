"""HiGHS: AdaQP's bi-objective as a mixed-integer program, solved to a proven gap."""

from __future__ import annotations

import time

import numpy as np
from scipy.sparse import csr_array

from hpcgnn.methods.problem import Assignment, Problem, extreme_choice, judge

NODE_LIMIT = 1000     # nodes per ring round if no clock may decide; at a gap of 1e-3 one node is nearly always enough


class SolverError(Exception):
    """HiGHS ended without an answer within the gap; the message is its reason."""


def solve_highs(problem: Problem, lam: float, time_limit: float | None = 5.0, gap: float = 1e-3) -> Assignment:
    """Return widths with an objective within the relative `gap` of the best; SolverError if HiGHS does not finish.

    `time_limit` is in seconds for all rounds; None gives each NODE_LIMIT nodes instead, independent of any clock.

    Reference: AdaQP, Eq. (12). Deviation: each ring round has its own Z, and both terms are scaled to [0, 1] before lam
    weighs them.
    """
    started = time.perf_counter()
    choice, bound = extreme_choice(problem, lam), np.inf
    if choice is None:
        weight, rate = problem.weights(lam)
        choice, bound = np.zeros(problem.num_groups, np.int64), 0.0
        # Ring rounds are independent, so each is a separate program.
        for number in np.unique(problem.group_round):
            groups = np.flatnonzero(problem.group_round == number)
            limit = _limit_of_round(time_limit, started)
            choice[groups], round_bound = _solve_round(problem, groups, weight, rate, limit, gap)
            bound += round_bound
    return judge(problem, choice, lam, bound, "highs", time.perf_counter() - started)


def _limit_of_round(time_limit: float | None, started: float) -> dict[str, float]:
    if time_limit is None:
        return {"node_limit": NODE_LIMIT}
    left = time_limit - (time.perf_counter() - started)
    if left <= 0:
        raise SolverError("its time was over before the last ring round")
    return {"time_limit": left}


def _solve_round(problem: Problem, groups: np.ndarray, weight: float, rate: float, limit: dict[str, float],
                 gap: float) -> tuple[np.ndarray, float]:
    from scipy.optimize import Bounds, LinearConstraint, milp  # takes a fifth of a second, only when it solves

    num_widths = len(problem.widths)
    num_binaries = len(groups) * num_widths
    pairs, place = np.unique(problem.group_pair[groups], return_inverse=True)
    seconds = problem.group_seconds[groups]
    unit = max(float(np.bincount(place, seconds[:, -1]).max()), float(problem.used_gamma[pairs].max()))
    unit = unit or 1.0    # unit of Z, so that HiGHS's absolute tolerances mean the same on every link
    # Each group has one binary per width, and exactly one is 1; each round has a Z that none of its pairs may exceed.
    cost = np.append(weight * problem.group_variance[groups].ravel(), rate * unit)
    binary, group = np.arange(num_binaries), np.repeat(np.arange(len(groups)), num_widths)
    one_each = csr_array((np.ones(num_binaries), (group, binary)), (len(groups), num_binaries + 1))
    within = csr_array((np.append(seconds.ravel() / unit, np.full(len(pairs), -1.0)),
                        (np.append(place[group], np.arange(len(pairs))),
                         np.append(binary, np.full(len(pairs), num_binaries)))), (len(pairs), num_binaries + 1))
    gains_nothing = (problem.beta[groups] == 0)[group] & (binary % num_widths > 0)    # the fewest bits if all are equal
    answer = milp(
        cost, integrality=np.append(np.ones(num_binaries), 0), bounds=Bounds(0, np.append(1.0 - gains_nothing, np.inf)),
        constraints=[LinearConstraint(one_each, 1, 1),
                     LinearConstraint(within, -np.inf, -problem.used_gamma[pairs] / unit)],
        options={**limit, "mip_rel_gap": gap})
    if answer.status != 0:
        raise SolverError(f"HiGHS ended without an answer: {answer.message}")
    return answer.x[:-1].reshape(-1, num_widths).argmax(axis=1), float(answer.mip_dual_bound)
