"""Assigners choose the widths of all groups: all ranks together (`SharedAssigner`), or rank 0 (`GatheredAssigner`).

With HiGHS, layers and directions are solved in parallel threads, and the greedy solver answers if HiGHS does not finish
in time.
"""

from __future__ import annotations

import logging
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from mpi4py import MPI

from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.methods.bisection import round_of, solve_budget_together, solve_together
from hpcgnn.methods.cost_model import LinkModel
from hpcgnn.methods.greedy import solve_budget, solve_greedy
from hpcgnn.methods.highs import NODE_LIMIT, SolverError, solve_highs
from hpcgnn.methods.problem import Assignment, Problem
from hpcgnn.ops.quantization import PARAMETER_BYTES

GAP = 1e-3
logger = logging.getLogger(__name__)
ON_ALL_RANKS = "bisection"


class SharedAssigner:
    """Every rank chooses for its own messages, and all agree on a few numbers; see `hpcgnn.methods.bisection`."""

    def __init__(self, comm: MPI.Comm, plan: ExchangePlan, widths: tuple[int, ...], lam: float):
        self._reductions, self._widths, self._lam = RankReductions(comm), widths, lam
        distance = distances(plan)
        # Nothing goes to the rank itself, so its round does not matter.
        self._round = round_of(np.maximum(distance, 1), plan.num_ranks)
        self._num_rounds = 1 + int(round_of(np.array([max(1, plan.num_ranks - 1)]), plan.num_ranks)[0])

    def assign(self, told: list[Told], links: LinkModel, mean_bits: float | None) -> list[list[np.ndarray]]:
        problems = [one.problem(self._round, links, self._widths) for one in told]
        if mean_bits is None:
            answers = [solve_together(problem, self._lam, self._num_messages(problem), self._reductions)
                       for problem in problems]
        else:
            answers = [solve_budget_together(problem, mean_bits, self._num_rounds, self._reductions)
                       for problem in problems]
        return [one.by_peer(answer.widths) for one, answer in zip(told, answers, strict=True)]

    def _num_messages(self, problem: Problem) -> np.ndarray:
        sent = np.bincount(problem.pair_round[np.unique(problem.group_pair)], minlength=self._num_rounds)
        return self._reductions.max(sent.astype(np.float64))


class GatheredAssigner:
    """Rank 0 chooses for all ranks, from the data that each sends about its groups."""

    def __init__(self, comm: MPI.Comm, plan: ExchangePlan, widths: tuple[int, ...], lam: float, solver: str,
                 seconds: float):
        self._comm, self._distance, self._widths, self._lam = comm, distances(plan), widths, lam
        self._solver, self._seconds = solver, seconds
        self._has_warned = False

    def assign(self, told: list[Told], links: LinkModel, mean_bits: float | None) -> list[list[np.ndarray]]:
        gathered, answers = self._comm.gather((told, links, self._distance)), None
        if gathered is not None:
            problems = [self._problem(number, gathered) for number in range(len(told))]
            assignments = self._assigned(problems, mean_bits, links.is_measured)
            by_rank = [np.split(answer.widths, _ends([sum(map(len, of_rank[number].beta)) for of_rank, *_ in gathered]))
                       for number, answer in enumerate(assignments)]
            answers = [[widths[rank] for widths in by_rank] for rank in range(len(gathered))]
        return [one.by_peer(widths) for one, widths in zip(told, self._comm.scatter(answers), strict=True)]

    def _problem(self, number: int, gathered: list[tuple[list[Told], LinkModel, np.ndarray]]) -> Problem:
        # Join the problems of all ranks for one exchange, in rank order.
        parts = [of_rank[number].problem(distance, links, self._widths) for of_rank, links, distance in gathered]
        first = np.cumsum([0, *(part.num_pairs for part in parts[:-1])])
        joined = {name: np.concatenate([getattr(part, name) for part in parts])
                  for name in ("beta", "num_values", "pair_round", "theta", "gamma")}
        pairs = np.concatenate([part.group_pair + start for part, start in zip(parts, first, strict=True)])
        return Problem(group_pair=pairs, **joined, widths=self._widths, code=parts[0].code)

    def _assigned(self, problems: list[Problem], mean_bits: float | None, is_measured: bool) -> list[Assignment]:
        started = time.perf_counter()
        if mean_bits is None:
            assignments = assign(problems, self._lam, self._solver, self._seconds if is_measured else None)
        else:
            assignments = assign_budget(problems, mean_bits)
        reasons = [assignment.reason for assignment in assignments if assignment.reason]
        if reasons and not self._has_warned:
            logger.warning("%s", reasons[0])
            self._has_warned = True
        logger.info("widths of %d groups assigned in %.3f s", sum(problem.num_groups for problem in problems),
                    time.perf_counter() - started)
        return assignments


@dataclass(frozen=True)
class Told:
    """Data of one rank about the messages that it sends in one exchange."""

    # columns and code of the messages, the same on all ranks
    dim: int
    code: str
    beta: tuple[np.ndarray, ...]      # (num_groups,) float64 per peer, see `Problem`
    num_rows: tuple[np.ndarray, ...]  # (num_groups,) int64 per peer

    def problem(self, distance: np.ndarray, links: LinkModel, widths: tuple[int, ...]) -> Problem:
        """Return the problem of these messages only, with one pair per peer; `distance` is each peer's ring round."""
        rows = np.array([counts.sum() for counts in self.num_rows], np.float64)
        return Problem(
            group_pair=np.repeat(np.arange(len(self.beta)), [len(beta) for beta in self.beta]),
            beta=np.concatenate(self.beta),
            num_values=self.dim * np.concatenate(self.num_rows),
            pair_round=distance,
            theta=links.theta,
            gamma=links.gamma + links.theta * PARAMETER_BYTES[self.code] * rows,
            widths=widths,
            code=self.code,
        )

    def by_peer(self, widths: np.ndarray) -> list[np.ndarray]:
        return np.split(widths, np.cumsum([len(beta) for beta in self.beta])[:-1])


def distances(plan: ExchangePlan) -> np.ndarray:
    """Per peer, (num_peers,) int64, the ring round in which this rank sends to it; 0 is itself."""
    return (np.array(plan.peers) - plan.rank) % plan.num_ranks


class RankReductions:
    """Reductions over the ranks of a communicator."""

    def __init__(self, comm: MPI.Comm):
        self._comm = comm

    def sum(self, values: np.ndarray) -> np.ndarray:
        return self._reduced(values, MPI.SUM)

    def max(self, values: np.ndarray) -> np.ndarray:
        return self._reduced(values, MPI.MAX)

    def before(self, values: np.ndarray) -> np.ndarray:
        found = np.zeros(values.shape)
        self._comm.Exscan(np.array(values, np.float64), found, MPI.SUM)  # type: ignore[attr-defined]  # an Intracomm
        return np.zeros(values.shape) if self._comm.rank == 0 else found     # MPI leaves rank 0's result undefined

    def _reduced(self, values: np.ndarray, operation: MPI.Op) -> np.ndarray:
        found = np.array(values, np.float64)     # np.bincount without entries returns integers, even with float weights
        self._comm.Allreduce(MPI.IN_PLACE, found, operation)
        return found


def assign(problems: list[Problem], lam: float, solver: str, time_limit: float | None) -> list[Assignment]:
    """Solve every problem in parallel threads by "highs" or "greedy"; `lam` in [0, 1] weighs variance against time.

    `time_limit`, in seconds, bounds highs over all problems; None limits nodes instead, so that answers do not depend
    on a clock. If highs does not finish, greedy answers, and the assignment says why. Reference: AdaQP, section 3.3.
    """
    if solver == "greedy" or not problems:
        return [solve_greedy(problem, lam) for problem in problems]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    num_threads = min(len(problems), cores)
    share = None if time_limit is None else time_limit / math.ceil(len(problems) / num_threads)
    with ThreadPoolExecutor(num_threads) as threads:
        return list(threads.map(lambda problem: _solve_or_fall_back(problem, lam, share), problems))


def assign_budget(problems: list[Problem], mean_bits: float) -> list[Assignment]:
    return [solve_budget(problem, mean_bits) for problem in problems]


def _solve_or_fall_back(problem: Problem, lam: float, time_limit: float | None) -> Assignment:
    try:
        return solve_highs(problem, lam, time_limit, GAP)
    except SolverError as failure:
        limit = f"{NODE_LIMIT} nodes" if time_limit is None else f"{time_limit:.3g} s"
        return replace(solve_greedy(problem, lam), reason=f"highs gave no widths in {limit}, so the greedy ones serve: "
                                                          f"{failure}")


def _ends(lengths: list[int]) -> np.ndarray:
    return np.cumsum(lengths)[:-1]
