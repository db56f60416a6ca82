"""Solver: computes the widths of every sent or received row from the ranges that every rank traced.

1. Per pair of ranks, sort rows by beta (the variance that one bit would give) and cut them into groups.
2. Choose a width per group: all ranks together (`SharedAssigner`), or rank 0 for all (`GatheredAssigner`). With HiGHS,
   layers and directions are solved in parallel threads, and the greedy solver answers if HiGHS does not finish in time.
3. Spread the groups' widths to their rows, and tell receivers one byte per row.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from mpi4py import MPI

from hpcgnn.errors import KernelError
from hpcgnn.exchange.bits import SolvedBits
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.state import State
from hpcgnn.exchange.trace import Trace
from hpcgnn.exchange.traffic import ControlTraffic
from hpcgnn.exchange.transfer import swap, swap_rows
from hpcgnn.methods.bisection import round_of, solve_budget_together, solve_together
from hpcgnn.methods.greedy import solve_budget, solve_greedy
from hpcgnn.methods.highs import NODE_LIMIT, SolverError, solve_highs
from hpcgnn.methods.problem import Assignment, LinkModel, Problem
from hpcgnn.ops.counter import BACKWARD
from hpcgnn.ops.quantization import PARAMETER_BYTES
from hpcgnn.run.process import usable_cores

GAP = 1e-3      # of HiGHS
ON_ALL_RANKS = "bisection"
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SolverSettings:
    """The widths a solver may choose from, and how: "bisection", on all ranks, or "highs" or "greedy", on rank 0."""

    widths: tuple[int, ...]
    group_size: int
    lam: float = 0.5      # weight of the variance; 1 - lam weighs the seconds
    solver: str = ON_ALL_RANKS
    seconds: float = 5.0      # limit for highs and greedy


class Solver:
    """Finds the widths of a rank's rows.

    `squares`: per peer, (num_rows,) float32; per row of plan.boundary, the sum of the squared coefficients with which
    the peer's rows add it. `links` are the links of this rank's messages; only if they are measured does
    `how.seconds` limit the solver, otherwise its limit does not depend on a clock.
    `control` counts the widths that ranks send to each other.

    Reference: AdaQP, Theorem 3 and Eq. (12); for rotated rows with the squared norm in place of dim * range**2 / 6, and
    with the shares of `variance_factors`. A gradient arrives already weighed by its sender and is added with weight 1,
    so its coefficient is 1.
    """

    def __init__(self, comm: MPI.Comm, plan: ExchangePlan, squares: tuple[np.ndarray, ...], links: LinkModel,
                 how: SolverSettings, control: ControlTraffic | None = None):
        self.widths = how.widths
        self._comm, self._plan, self._squares, self._links = comm, plan, squares, links
        self._group_size, self._control = how.group_size, control or ControlTraffic()
        self._assigner = (SharedAssigner(comm, plan, how.widths, how.lam) if how.solver == ON_ALL_RANKS
                          else GatheredAssigner(comm, plan, how.widths, how.lam, how.solver, how.seconds))

    def state(self) -> State:
        """Return the costs of this rank's messages; a resumed run must not measure them anew."""
        return {"theta": self._links.theta, "gamma": self._links.gamma}

    def restore(self, state: State) -> None:
        """Continue with the costs that `state` returned; KernelError if they don't fit the peers."""
        theta, gamma = state["theta"], state["gamma"]
        for cost in (theta, gamma):
            if cost.shape != (len(self._plan.peers),) or not (np.isfinite(cost) & (cost >= 0)).all():
                raise KernelError(f"costs of links have shape {cost.shape} or hold negative or non-finite values; "
                                  f"expected ({len(self._plan.peers)},) finite values of at least 0")
        self._links = replace(self._links, theta=theta, gamma=gamma)

    def check(self, solved: SolvedBits) -> None:
        """Raise KernelError if widths from a file do not fit this rank's rows."""
        rank = self._plan.rank
        for (layer, purpose, source, destination), width in solved.table.items():
            num_rows = self._num_rows(purpose, source, destination)
            if len(width) != num_rows or not np.isin(width, self.widths).all():
                raise KernelError(f"widths of layer {layer} from rank {source} to {destination} fit no message of "
                                  f"rank {rank}")

    def check_traces(self, traces: dict[tuple[int, int], Trace]) -> None:
        """Raise KernelError if ranges from a file do not fit the rows that this rank sends."""
        rank = self._plan.rank
        for (layer, purpose), trace in traces.items():
            for peer, position, row_range in zip(self._plan.peers, trace.position, trace.row_range, strict=True):
                num_rows = self._num_rows(purpose, rank, peer)
                if len(position) != len(row_range) or not ((position >= 0) & (position < num_rows)).all():
                    raise KernelError(f"ranges of layer {layer} to rank {peer} are not of the {num_rows} rows that "
                                      f"rank {rank} sends there")

    def _num_rows(self, purpose: int, source: int, destination: int) -> int:
        rank, place = self._plan.rank, self._place
        if rank not in (source, destination) or source not in place or destination not in place:
            return -1
        lists = self._plan.halo if (purpose == BACKWARD) == (source == rank) else self._plan.boundary
        return len(lists[place[destination if source == rank else source]])

    @cached_property
    def _place(self) -> dict[int, int]:
        return {peer: place for place, peer in enumerate(self._plan.peers)}

    def agrees(self, solved: SolvedBits | None, sites: list[tuple[int, int]]) -> bool:
        """Collective: whether every rank expects the widths that its peers use; else messages would hang or crash."""
        told = swap_rows(self._comm, self._plan.peers, self._digests(solved, sites, is_sender=True))
        expected = self._digests(solved, sites, is_sender=False)
        return bool(self._comm.allreduce(int((told == expected).all()), MPI.MIN))

    def _digests(self, solved: SolvedBits | None, sites: list[tuple[int, int]], is_sender: bool) -> np.ndarray:
        rank, default = self._plan.rank, None if solved is None else solved.default
        found = {peer: hashlib.blake2b(repr((default, sorted(sites))).encode(), digest_size=8)
                 for peer in self._plan.peers}
        table = {} if solved is None else solved.table
        for place in sorted(table):
            own, peer = place[2:] if is_sender else place[:1:-1]
            if own == rank:
                found[peer].update(repr(place[:2]).encode() + table[place].tobytes())
        return np.array([int.from_bytes(digest.digest(), "little", signed=True) for digest in found.values()], np.int64)

    def solve(self, traces: dict[tuple[int, int], Trace], mean_bits: float | None = None) -> SolvedBits:
        """Collective: the widths of all rows in the traced exchanges, the same on all ranks.

        `mean_bits` is a budget of bits per value; None weighs variance against time.
        """
        sites = sorted(traces)
        groups = [[self._grouped(traces[site], site[1], place) for place in range(len(self._plan.peers))]
                  for site in sites]
        told = [Told(trace.dim, trace.code, tuple(group.beta for group in row),
                     tuple(np.diff(group.group_start) for group in row))
                for trace, row in zip((traces[site] for site in sites), groups, strict=True)]
        return self._spread(sites, traces, groups, self._assigner.assign(told, self._links, mean_bits))

    def _grouped(self, trace: Trace, purpose: int, place: int) -> Groups:
        row_range = trace.row_range[place].astype(np.float64)
        # Variance at one bit; forward it is weighed by how receivers sum the row.
        beta = trace.dim * row_range ** 2 / 6
        if purpose != BACKWARD:
            beta *= self._squares[place][trace.position[place]]
        order, group_start = group_rows(beta, self._group_size)
        return Groups(order, group_start, group_sums(beta, order, group_start))

    def _spread(self, sites: list[tuple[int, int]], traces: dict[tuple[int, int], Trace], groups: list[list[Groups]],
                widths: list[list[np.ndarray]]) -> SolvedBits:
        rank, peers, table = self._plan.rank, self._plan.peers, {}
        sent: list[list[np.ndarray]] = [[] for _ in peers]
        for number, site in enumerate(sites):
            outgoing = self._plan.halo if site[1] == BACKWARD else self._plan.boundary
            for place, rows in enumerate(outgoing):
                chosen = np.full(len(rows), self.widths[0], np.uint8)
                group = groups[number][place]
                chosen[traces[site].position[place]] = row_widths(widths[number][place], group.order, group.group_start)
                table[(*site, rank, peers[place])] = chosen
                sent[place].append(chosen)
        incoming = [self._plan.boundary if site[1] == BACKWARD else self._plan.halo for site in sites]
        for peer, received in zip(peers, self._swap(sent, incoming), strict=True):
            for site, chosen in zip(sites, received, strict=True):
                if peer != rank:
                    table[(*site, peer, rank)] = chosen
        return SolvedBits(table, self.widths[-1])

    def _swap(self, sent: list[list[np.ndarray]], incoming: list) -> list[list[np.ndarray]]:
        # One byte per row to each peer, all exchanges in one message.
        out = [np.concatenate(parts) if parts else np.empty(0, np.uint8) for parts in sent]
        ends = [np.cumsum([len(lists[place]) for lists in incoming]) for place in range(len(sent))]
        into = [np.empty(end[-1] if len(end) else 0, np.uint8) for end in ends]
        self._control.count(sum(map(len, out)) - len(out[self._plan.own_place]))
        swap(self._comm, self._plan.peers, out, into)
        return [np.split(found, end[:-1]) if len(end) else [] for found, end in zip(into, ends, strict=True)]


@dataclass(frozen=True)
class Groups:
    """The rows that one rank sends to one peer in one exchange, in groups."""

    order: np.ndarray        # see `group_rows`
    group_start: np.ndarray
    beta: np.ndarray         # (num_groups,) float64


def group_rows(beta: np.ndarray, group_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Sort the rows of one pair by beta and cut them into groups; the last one may be smaller.

    `beta`, (num_rows,) float64, is the variance that one bit would give each row's message; KernelError if one is
    negative, infinite or NaN. Returns the rows in ascending beta, (num_rows,) int64, stable; and group_start,
    (num_groups + 1,) int64: group g has the rows order[group_start[g]:group_start[g + 1]]. Reference: AdaQP, section
    4.2.
    """
    if not (np.isfinite(beta).all() and (beta >= 0).all()):
        raise KernelError("a row's beta is negative or not finite; expected the variance of finite messages, "
                          "so look for a loss that diverges")
    num_groups = -(-len(beta) // group_size)
    starts = np.minimum(np.arange(num_groups + 1, dtype=np.int64) * group_size, len(beta))
    return np.argsort(beta, kind="stable"), starts


def group_sums(beta: np.ndarray, order: np.ndarray, group_start: np.ndarray) -> np.ndarray:
    if len(group_start) == 1:
        return np.zeros(0)
    return np.add.reduceat(beta[order].astype(np.float64), group_start[:-1])


def row_widths(widths: np.ndarray, order: np.ndarray, group_start: np.ndarray) -> np.ndarray:
    rows = np.empty(len(order), np.uint8)
    rows[order] = np.repeat(widths, np.diff(group_start))
    return rows


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
            ends = [np.cumsum([sum(map(len, of_rank[number].beta)) for of_rank, *_ in gathered])[:-1]
                    for number in range(len(told))]
            by_rank = [np.split(answer.widths, of_one) for answer, of_one in zip(assignments, ends, strict=True)]
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
            assignments = [solve_budget(problem, mean_bits) for problem in problems]
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
    num_threads = min(len(problems), len(usable_cores()))
    share = None if time_limit is None else time_limit / math.ceil(len(problems) / num_threads)
    with ThreadPoolExecutor(num_threads) as threads:
        return list(threads.map(lambda problem: _solve_or_fall_back(problem, lam, share), problems))


def _solve_or_fall_back(problem: Problem, lam: float, time_limit: float | None) -> Assignment:
    try:
        return solve_highs(problem, lam, time_limit, GAP)
    except SolverError as failure:
        limit = f"{NODE_LIMIT} nodes" if time_limit is None else f"{time_limit:.3g} s"
        return replace(solve_greedy(problem, lam), reason=f"highs gave no widths in {limit}, so the greedy ones serve: "
                                                          f"{failure}")
