"""Widths for all layers and directions at once: solvers in threads, and the greedy answer where one does not finish.

Pure: problems in, assignments out, each with the reason of a fallback; who logs it is not known here.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from hpcgnn.adaptive.assignment import Assignment
from hpcgnn.adaptive.budget import solve_budget
from hpcgnn.adaptive.greedy import solve_greedy
from hpcgnn.adaptive.highs import NODE_LIMIT, SolverError, solve_highs
from hpcgnn.adaptive.problem import Problem

GAP = 1e-3


def assign(problems: list[Problem], lam: float, solver: str, time_limit: float | None) -> list[Assignment]:
    """Return widths of every problem; layers don't depend on each other and are solved in parallel threads.

    Parameters
    ----------
    lam : in [0, 1]               weight of variance against time
    solver : {"highs", "greedy"}
    time_limit : seconds that highs may take for all of them, of which each problem gets its share; None limits the
        nodes of its search instead, so that answers don't depend on a clock

    Returns
    -------
    assignments : one a problem, in their order; with solver "greedy" and a reason where highs did not serve

    Reference: AdaQP, section 3.3.
    """
    if solver == "greedy" or not problems:
        return [solve_greedy(problem, lam) for problem in problems]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    num_threads = min(len(problems), cores)
    share = None if time_limit is None else time_limit / math.ceil(len(problems) / num_threads)
    with ThreadPoolExecutor(num_threads) as threads:
        return list(threads.map(lambda problem: _solve_or_fall_back(problem, lam, share), problems))


def assign_budget(problems: list[Problem], mean_bits: float) -> list[Assignment]:
    """Return widths of every problem with the least variance at a given mean of bits a value; see `solve_budget`."""
    return [solve_budget(problem, mean_bits) for problem in problems]


def _solve_or_fall_back(problem: Problem, lam: float, time_limit: float | None) -> Assignment:
    try:
        return solve_highs(problem, lam, time_limit, GAP)
    except SolverError as failure:
        limit = f"{NODE_LIMIT} nodes" if time_limit is None else f"{time_limit:.3g} s"
        return replace(solve_greedy(problem, lam), reason=f"highs gave no widths in {limit}, so the greedy ones serve: "
                                                          f"{failure}")
