"""Solver: from the ranges that every rank traced to the widths of every row, solved on rank 0.

It gathers groups, has them assigned, and brings the widths to the senders and receivers of the rows.
"""

from __future__ import annotations

import hashlib
import logging
import time
from dataclasses import dataclass, replace

import numpy as np
from mpi4py import MPI

from hpcgnn.adaptive.assigner import assign, assign_budget
from hpcgnn.adaptive.assignment import Assignment
from hpcgnn.adaptive.cost_model import LinkModel, pair_round
from hpcgnn.adaptive.grouping import group_rows, group_sums, row_widths
from hpcgnn.adaptive.problem import Problem
from hpcgnn.errors import KernelError
from hpcgnn.exchange.bits import SolvedBits
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.state import State
from hpcgnn.exchange.trace import Trace
from hpcgnn.exchange.traffic import ControlTraffic
from hpcgnn.ops.counter import BACKWARD
from hpcgnn.ops.quantization import PARAMETER_BYTES

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Groups:
    """The rows that one rank sends to one peer in one exchange, in groups.

    Attributes
    ----------
    order, group_start : see `group_rows`
    beta : (num_groups,) float64
    """

    order: np.ndarray
    group_start: np.ndarray
    beta: np.ndarray


class Solver:
    """Assigns widths on rank 0.

    Parameters
    ----------
    comm : MPI communicator, one rank a part
    plan : ExchangePlan
    squares : tuple of (num_rows,) float32, one a rank
        for each row of plan.boundary, the sum of the squared coefficients by which that rank's rows sum it
    links : LinkModel
    widths : ascending
    group_size : int
    lam, solver : see `assign`
    seconds : its time_limit, where the links' costs are measured; widths from known costs must not depend on a clock
    control : ControlTraffic or None      counts the widths that ranks tell each other

    Reference: AdaQP, Theorem 3 and Eq. (12), of rotated rows with the squared norm in place of dim * range**2 / 6, and
    with the shares of `variance_factors`. A gradient arrives already weighed by its sender and is added with weight
    1, so its coefficient is 1.
    """

    def __init__(self, comm: MPI.Comm, plan: ExchangePlan, squares: tuple[np.ndarray, ...], links: LinkModel,
                 widths: tuple[int, ...], group_size: int, lam: float = 0.5, solver: str = "greedy",
                 seconds: float = 5.0, control: ControlTraffic | None = None):
        self.widths = widths
        self._comm, self._plan, self._squares, self._links = comm, plan, squares, links
        self._group_size, self._lam, self._solver, self._seconds = group_size, lam, solver, seconds
        self._control = control or ControlTraffic()
        self._has_warned = False

    def state(self) -> State:
        """Return the costs of the links on rank 0, which solves; a resumed run must not measure them anew."""
        return {"theta": self._links.theta, "gamma": self._links.gamma} if self._comm.rank == 0 else {}

    def restore(self, state: State) -> None:
        """Go on with the costs of links that `state` returned.

        Raises
        ------
        KernelError      they are of another number of ranks, or no costs
        """
        if state:
            theta, gamma = state["theta"], state["gamma"]
            for cost in (theta, gamma):
                if cost.shape != (self._comm.size ** 2,) or not (np.isfinite(cost) & (cost >= 0)).all():
                    raise KernelError(f"costs of links have shape {cost.shape} or are no costs")
            self._links = replace(self._links, theta=theta, gamma=gamma)

    def check(self, solved: SolvedBits) -> None:
        """Check that widths read from a file are of this rank's rows.

        Raises
        ------
        KernelError      they are not
        """
        rank = self._plan.rank
        for (layer, purpose, source, destination), width in solved.table.items():
            num_rows = self._num_rows(purpose, source, destination)
            if len(width) != num_rows or not np.isin(width, self.widths).all():
                raise KernelError(f"widths of layer {layer} from rank {source} to {destination} fit no message of "
                                  f"rank {rank}")

    def check_traces(self, traces: dict[tuple[int, int], Trace]) -> None:
        """Check that ranges read from a file are of rows that this rank sends.

        Raises
        ------
        KernelError      they are not
        """
        rank, size = self._plan.rank, self._comm.size
        for (layer, purpose), trace in traces.items():
            for peer in range(size):
                position, row_range = trace.position[peer], trace.row_range[peer]
                num_rows = self._num_rows(purpose, rank, peer)
                if len(position) != len(row_range) or not ((position >= 0) & (position < num_rows)).all():
                    raise KernelError(f"ranges of layer {layer} to rank {peer} are not of the {num_rows} rows that "
                                      f"rank {rank} sends there")

    def _num_rows(self, purpose: int, source: int, destination: int) -> int:
        """Count the rows that can go from `source` to `destination`; -1 where this rank is neither."""
        rank, size = self._plan.rank, self._comm.size
        if rank not in (source, destination) or not (0 <= source < size and 0 <= destination < size):
            return -1
        lists = self._plan.halo if (purpose == BACKWARD) == (source == rank) else self._plan.boundary
        return len(lists[destination if source == rank else source])

    def agrees(self, solved: SolvedBits | None, sites: list[tuple[int, int]]) -> bool:
        """Collective: whether every rank expects the widths that its peers send at, and traced the same exchanges.

        Messages whose sides disagree on their length would end the program or hang it.
        """
        told = np.empty(self._comm.size, np.int64)
        self._comm.Alltoall(self._digests(solved, sites, is_sender=True), told)
        return all(self._comm.allgather(bool((told == self._digests(solved, sites, is_sender=False)).all())))

    def _digests(self, solved: SolvedBits | None, sites: list[tuple[int, int]], is_sender: bool) -> np.ndarray:
        """Digest what goes to each rank, or comes from it, as (num_ranks,) int64."""
        rank, table = self._plan.rank, {} if solved is None else solved.table
        found = np.empty(self._comm.size, np.int64)
        for peer in range(len(found)):
            pair = (rank, peer) if is_sender else (peer, rank)
            default = None if solved is None else solved.default
            digest = hashlib.blake2b(repr((default, sorted(sites))).encode(), digest_size=8)
            for place in sorted(table):
                if place[2:] == pair:
                    digest.update(repr(place[:2]).encode() + table[place].tobytes())
            found[peer] = int.from_bytes(digest.digest(), "little", signed=True)
        return found

    def solve(self, traces: dict[tuple[int, int], Trace], mean_bits: float | None = None) -> SolvedBits:
        """Collective: return the widths of all rows, for every exchange that was traced.

        Parameters
        ----------
        traces : the same exchanges on all ranks
        mean_bits : None weighs variance against time; a number is a budget of bits a value
        """
        sites = sorted(traces)
        groups = [[self._grouped(trace, where[1], peer) for peer in range(self._comm.size)]
                  for where, trace in ((site, traces[site]) for site in sites)]
        told = [[(group.beta, np.diff(group.group_start)) for group in row] for row in groups]
        gathered = self._comm.gather(told)
        answers = None
        if gathered is not None:
            problems = [self._problem([part[number] for part in gathered], traces[site])
                        for number, site in enumerate(sites)]
            answers = self._scatterable(problems, self._assigned(problems, mean_bits))
        mine = self._comm.scatter(answers)
        return self._spread(sites, traces, groups, mine)

    def _grouped(self, trace: Trace, purpose: int, peer: int) -> Groups:
        row_range = trace.row_range[peer].astype(np.float64)
        beta = trace.dim * row_range ** 2 / 6
        if purpose != BACKWARD:
            beta *= self._squares[peer][trace.position[peer]]
        order, group_start = group_rows(beta, self._group_size)
        return Groups(order, group_start, group_sums(beta, order, group_start))

    def _problem(self, told: list[list[tuple[np.ndarray, np.ndarray]]], trace: Trace) -> Problem:
        """Build the problem of one exchange from what all ranks told of it, by sender and receiver.

        Columns and code are the same in every rank's trace.
        """
        size = self._comm.size
        flat = [told[source][destination] for source in range(size) for destination in range(size)]
        rows = np.array([counts.sum() for _, counts in flat], np.float64)
        return Problem(
            group_pair=np.repeat(np.arange(size * size), [len(beta) for beta, _ in flat]),
            beta=np.concatenate([beta for beta, _ in flat]),
            num_values=trace.dim * np.concatenate([counts for _, counts in flat]),
            pair_round=pair_round(size),
            theta=self._links.theta,
            gamma=self._links.gamma + self._links.theta * PARAMETER_BYTES[trace.code] * rows,
            widths=self.widths,
            code=trace.code,
        )

    def _assigned(self, problems: list[Problem], mean_bits: float | None) -> list[Assignment]:
        started = time.perf_counter()
        if mean_bits is None:
            limit = self._seconds if self._links.is_measured else None
            assignments = assign(problems, self._lam, self._solver, limit)
        else:
            assignments = assign_budget(problems, mean_bits)
        reasons = [assignment.reason for assignment in assignments if assignment.reason]
        if reasons and not self._has_warned:
            logger.warning("%s", reasons[0])
            self._has_warned = True
        logger.info("widths of %d groups assigned in %.3f s", sum(problem.num_groups for problem in problems),
                    time.perf_counter() - started)
        return assignments

    def _scatterable(self, problems: list[Problem], assignments: list[Assignment]) -> list[list[list[np.ndarray]]]:
        """Return widths by sender, exchange and receiver."""
        size = self._comm.size
        by_pair = []
        for problem, assignment in zip(problems, assignments, strict=True):
            ends = np.cumsum(np.bincount(problem.group_pair, minlength=size * size))
            by_pair.append(np.split(assignment.widths, ends[:-1]))
        return [[pairs[source * size:(source + 1) * size] for pairs in by_pair] for source in range(size)]

    def _spread(self, sites: list[tuple[int, int]], traces: dict[tuple[int, int], Trace], groups: list[list[Groups]],
                widths: list[list[np.ndarray]]) -> SolvedBits:
        """Collective: from the widths of this rank's groups to those of all rows that it sends or receives."""
        rank, table = self._plan.rank, {}
        sent: list[list[np.ndarray]] = [[] for _ in range(self._comm.size)]
        for number, site in enumerate(sites):
            outgoing = self._plan.halo if site[1] == BACKWARD else self._plan.boundary
            for peer, rows in enumerate(outgoing):
                chosen = np.full(len(rows), self.widths[0], np.uint8)
                group = groups[number][peer]
                chosen[traces[site].position[peer]] = row_widths(widths[number][peer], group.order, group.group_start)
                table[(*site, rank, peer)] = chosen
                sent[peer].append(chosen)
        incoming = [self._plan.boundary if site[1] == BACKWARD else self._plan.halo for site in sites]
        received = self._swap(sent, incoming)
        for peer in range(self._comm.size):
            for site, chosen in zip(sites, received[peer], strict=True):
                if peer != rank:
                    table[(*site, peer, rank)] = chosen
        return SolvedBits(table, self.widths[-1])

    def _swap(self, sent: list[list[np.ndarray]], incoming: list) -> list[list[np.ndarray]]:
        """Collective: one byte a row to each peer; what came from each, by exchange."""
        counts = [sum(map(len, parts)) for parts in sent]
        lengths = [[len(lists[peer]) for lists in incoming] for peer in range(self._comm.size)]
        out = np.concatenate([chosen for parts in sent for chosen in parts] or [np.empty(0, np.uint8)])
        into = np.empty(sum(map(sum, lengths)), np.uint8)
        self._control.count(len(out) - counts[self._plan.rank])
        self._comm.Alltoallv([out, counts], [into, [sum(part) for part in lengths]])
        pieces = iter(np.split(into, np.cumsum([length for part in lengths for length in part])[:-1]))
        return [[next(pieces) for _ in part] for part in lengths]
