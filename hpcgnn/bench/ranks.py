"""`hpcgnn bench ranks`: the cost of a rank's own work, by the numbers of ranks and neighbors.

One process stands for a rank among many (`StandInComm`): its neighbors are drawn, and nobody answers. So the seconds
are this process's own, without a network.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hpcgnn.bench.result import BenchmarkResult
from hpcgnn.bench.stand_in import StandInComm
from hpcgnn.bench.timing import OURS, Begin, Measurement, say_nothing, wall_seconds
from hpcgnn.exchange.bits import EpochPlan, UniformBits
from hpcgnn.exchange.codec import Codec, MessageArena
from hpcgnn.exchange.halo import HaloExchange
from hpcgnn.exchange.plan import ExchangePlan, check_peers
from hpcgnn.exchange.trace import Trace
from hpcgnn.exchange.transfer import REPETITIONS, SIZES, HostDelivery, Transfer, timed_rounds
from hpcgnn.graph.hop import ExchangeSite
from hpcgnn.methods.problem import fit_links, fixed_links
from hpcgnn.methods.solving import Solver, SolverSettings
from hpcgnn.ops.counter import BACKWARD, FORWARD
from hpcgnn.partition.partition import Partition
from hpcgnn.run.output import size_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


NUM_RANKS, NUM_NEIGHBORS, ROWS = (64, 1024, 10_000), (10, 100, 1000), 20
COLUMNS, BITS, WIDTHS, GROUP_SIZE = 64, 4, (2, 4, 8), 500
SITES = tuple((layer, purpose) for layer in range(1, 4) for purpose in (FORWARD, BACKWARD))
RUN_ID = "bench"
REMARK = ("one process stands for a rank among many, and nobody answers: seconds and the most memory at once are its "
          "own, without a network")

Works = dict[str, Callable[[], object]]      # work by name; each can be repeated


def simulated_part(num_ranks: int, num_neighbors: int, rows: int) -> Partition:
    """Draw the part of the rank in the middle, without edges.

    Half of its neighbors are the nearest ranks around the ring, half are others; each sends and gets `rows` rows.
    """
    rank, rng = num_ranks // 2, np.random.default_rng(num_ranks)
    near = np.arange(1, num_neighbors // 2 + 1)
    near = np.where(near % 2, (near + 1) // 2, -(near // 2))
    far = np.setdiff1d(np.arange(num_ranks), np.append((rank + near) % num_ranks, rank))
    drawn = rng.choice(far, num_neighbors - len(near), replace=False)
    is_neighbor = np.zeros(num_ranks, bool)
    is_neighbor[np.append((rank + near) % num_ranks, drawn)] = True
    offset = np.append(0, np.cumsum(is_neighbor * rows))
    num_inner, num_halo = 2 * rows, int(offset[-1])
    nothing, mask = np.empty(0, np.int32), np.zeros(num_inner, bool)
    return Partition(
        rank, num_ranks, num_ranks * num_inner, num_inner, rank * num_inner + np.arange(num_inner),
        np.repeat(np.flatnonzero(is_neighbor), rows) * num_inner + np.tile(np.arange(rows), num_neighbors), offset,
        np.tile(np.arange(rows, dtype=np.int32), num_neighbors), offset, np.zeros(num_inner + 1, np.int64), nothing,
        np.ones(num_inner + num_halo, np.int32), np.ones(num_inner + num_halo, np.float32),
        np.zeros((num_inner, 1), np.float32), np.zeros(num_inner, np.int64), mask, mask, mask)


def simulated_trace(plan: ExchangePlan, site: tuple[int, int]) -> Trace:
    rng = np.random.default_rng(site)
    send = plan.halo if site[1] == BACKWARD else plan.boundary
    return Trace(COLUMNS, tuple(rows.position for rows in send),
                 tuple(rng.lognormal(0, 2, len(rows)).astype(np.float32) for rows in send))


def simulated_times(num_ranks: int, rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    source = np.repeat((rank - timed_rounds(num_ranks)) % num_ranks, len(SIZES) * REPETITIONS)
    num_bytes = np.tile(np.repeat(SIZES, REPETITIONS), len(source) // (len(SIZES) * REPETITIONS))
    return source, num_bytes, (2e-5 + 1e-9 * num_bytes) * np.random.default_rng(rank).lognormal(0, 0.1, len(source))


@dataclass(frozen=True)
class SimulatedRank:
    part: Partition
    comm: Any                  # a StandInComm
    plan: ExchangePlan

    @classmethod
    def draw(cls, num_ranks: int, num_neighbors: int, rows: int = ROWS) -> SimulatedRank:
        part = simulated_part(num_ranks, num_neighbors, rows)
        return cls(part, StandInComm(part.part, num_ranks), ExchangePlan.build(part))

    def works(self) -> Works:
        timed = simulated_times(self.comm.size, self.comm.rank)
        return {
            "plan": lambda: ExchangePlan.build(self.part),
            "agreement": lambda: check_peers(self.comm, self.part, RUN_ID),
            "links": lambda: fit_links(self.plan.peers, (), *timed),
            "layouts": lambda: [Codec(self.plan, UniformBits(BITS)).messages(*site, COLUMNS) for site in SITES],
            **self._postings(), "exchange": self._exchange(), **self._solvers(),
        }

    def _postings(self) -> Works:
        messages = Codec(self.plan, UniformBits(BITS)).messages(*SITES[0], COLUMNS)
        send, receive = MessageArena().slices(messages.send_sizes, messages.receive_sizes)

        def post(is_open: bool) -> None:
            delivery = HostDelivery(self.comm, self.plan.peers, send, receive, 0)
            Transfer(delivery, self.plan.rounds, is_open=is_open).wait()

        return {"posting": lambda: post(is_open=False), "posting at once": lambda: post(is_open=True)}

    def _exchange(self) -> Callable[[], None]:
        exchange = HaloExchange(self.comm, self.plan, UniformBits(BITS))
        inner, halo = torch.ones(self.plan.num_inner, COLUMNS), torch.empty(self.plan.num_halo, COLUMNS)

        def fetch() -> None:
            exchange.begin_epoch(EpochPlan(UniformBits(BITS)))
            exchange.start_fetch(inner, ExchangeSite(1, 0, 0, is_training=True)).finish(halo)

        return fetch

    def _solvers(self) -> Works:
        squares = tuple(np.ones(len(listed), np.float32) for listed in self.plan.boundary)
        solver = Solver(self.comm, self.plan, squares, fixed_links(len(self.plan.peers)),
                        SolverSettings(WIDTHS, GROUP_SIZE))
        traces = {site: simulated_trace(self.plan, site) for site in SITES}
        return {"solver": lambda: solver.solve(traces), "solver, a budget": lambda: solver.solve(traces, BITS)}


@dataclass(frozen=True)
class RanksBenchmark:
    # num_ranks, num_neighbors: all combinations; a rank's neighbors are at most all other ranks
    num_ranks: tuple[int, ...] = NUM_RANKS
    num_neighbors: tuple[int, ...] = NUM_NEIGHBORS
    rows: int = ROWS                          # rows sent to each neighbor, and received from it
    repeat: int = 5                           # repetitions of each work
    begin: Begin = say_nothing

    def measure(self) -> Iterator[Measurement]:
        cases = sorted({(min(neighbors, ranks - 1), ranks) for ranks in self.num_ranks
                        for neighbors in self.num_neighbors})
        ranks = [SimulatedRank.draw(num_ranks, num_neighbors, self.rows) for num_neighbors, num_ranks in cases]
        works = [rank.works() for rank in ranks]
        for name in works[0]:
            for rank, of_rank in zip(ranks, works, strict=True):
                yield self._measure_work(name, rank, of_rank[name])

    def _measure_work(self, name: str, rank: SimulatedRank, work: Callable[[], object]) -> Measurement:
        case = f"{len(rank.plan.peers) - 1:,} neighbors of {rank.comm.size:,} ranks"
        self.begin(f"{name}: {case}")
        work()      # warm-up: builds what is built only once
        seconds = [wall_seconds(work) for _ in range(self.repeat)]
        before = dict(vars(rank.comm))
        num_bytes = peak_bytes(work)
        counted = {key: value - before[key] for key, value in vars(rank.comm).items() if key not in ("rank", "size")}
        return Measurement(name, f"{case}, {size_text(num_bytes)}", 0.0, "s", {OURS: seconds}, [REMARK], {
            "num_ranks": rank.comm.size, "num_neighbors": len(rank.plan.peers) - 1, "peak_bytes": num_bytes, **counted})


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


RESULT_COLUMNS = 3


@dataclass(frozen=True)
class RanksResult(BenchmarkResult):
    def figure(self) -> Figure:
        from matplotlib.figure import Figure

        works = list(dict.fromkeys(row.group for row in self.measurements))
        num_ranks = sorted({row.details["num_ranks"] for row in self.measurements})
        num_lines = -(-len(works) // RESULT_COLUMNS)
        figure = Figure(figsize=(11, 1 + 2.6 * num_lines), layout="constrained")
        panels = figure.subplots(num_lines, RESULT_COLUMNS, squeeze=False).ravel()
        for panel, work in zip(panels, works, strict=False):
            for ranks in num_ranks:
                rows = [row for row in self.measurements if (row.group, row.details["num_ranks"]) == (work, ranks)]
                panel.plot([row.details["num_neighbors"] for row in rows], [row.median() for row in rows], marker="o",
                           label=f"{ranks:,} ranks")
            panel.set(title=work, xlabel="neighbors", ylabel="seconds", xscale="log", yscale="log")
        for panel in panels[len(works):]:
            panel.set_axis_off()
        panels[0].legend(frameon=False)
        return figure
