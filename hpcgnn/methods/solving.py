"""Solver: computes the widths of every sent or received row from the ranges that every rank traced.

1. Per pair of ranks, sort rows by beta (the variance that one bit would give) and cut them into groups.
2. Let an assigner choose a width per group (`assigning.py`).
3. Spread the groups' widths to their rows, and tell receivers one byte per row.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from mpi4py import MPI

from hpcgnn.errors import KernelError
from hpcgnn.exchange.bits import SolvedBits
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.state import State
from hpcgnn.exchange.swap import swap, swap_rows
from hpcgnn.exchange.trace import Trace
from hpcgnn.exchange.traffic import ControlTraffic
from hpcgnn.methods.assigning import ON_ALL_RANKS, GatheredAssigner, SharedAssigner, Told
from hpcgnn.methods.cost_model import LinkModel
from hpcgnn.ops.counter import BACKWARD


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
