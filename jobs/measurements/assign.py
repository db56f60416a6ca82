"""Compare the solvers that assign bit-widths, HiGHS and the greedy one: seconds and objective for one exchange.

    python jobs/measurements/assign.py [--ranks 8] [--repeat 5] [--out DIR]

The problems are drawn: a number of halo rows for each pair of ranks, a weight for each row, a speed for each link. No
message is sent. Each repetition has its own seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from hpcgnn.bench.timing import OURS, Begin, Measurement, say_nothing
from hpcgnn.cli.measurement import Shared, announce, finish, prepare_output
from hpcgnn.methods.greedy import solve_greedy
from hpcgnn.methods.highs import SolverError, solve_highs
from hpcgnn.methods.problem import Assignment, Problem, pair_round
from hpcgnn.methods.solving import group_rows, group_sums

HIGHS = "highs"
WIDTH = 256                     # columns of the rows
BETA_SPREAD = 2.0               # of the logarithm: some rows matter a thousand times as much as others
PAIR_SPREAD = 1.0               # of the logarithm: METIS cuts far more arcs between some parts than between others
LINK_SPREAD = 0.3
SECONDS_PER_BYTE, LATENCY = 1e-9, 2e-5
BYTES_PER_MESSAGE = 4           # parameters of a row
SIZES = (100_000, 400_000, 1_600_000)           # halo rows of all ranks together
GROUP_SIZE, WIDTHS, LAM = 500, (2, 4, 8), 0.5   # as `hpcgnn train --method adaqp` has them
TIME_LIMIT, GAP = 60.0, 1e-3    # seconds that HiGHS gets a problem, and the relative gap within which it stops
GREEDY_TRIES = 5                # whose median counts: milliseconds are easily doubled by another process


def simulated_problem(num_ranks: int, num_rows: int, group_size: int, widths: tuple[int, ...], seed: int) -> Problem:
    """Draw one exchange of `num_rows` halo rows, shared unevenly among all pairs of ranks."""
    rng = np.random.default_rng(seed)
    number = pair_round(num_ranks)
    share = np.where(number > 0, rng.lognormal(0, PAIR_SPREAD, len(number)), 0)
    rows = np.floor(num_rows * share / share.sum()).astype(np.int64)
    groups, betas, values = [], [], []
    for pair in np.flatnonzero(rows):
        beta = rng.lognormal(0, BETA_SPREAD, rows[pair])
        order, group_start = group_rows(beta, group_size)
        betas.append(group_sums(beta, order, group_start))
        values.append(np.diff(group_start) * WIDTH)
        groups.append(np.full(len(betas[-1]), pair))
    theta = SECONDS_PER_BYTE * rng.lognormal(0, LINK_SPREAD, len(number))
    return Problem(np.concatenate(groups), np.concatenate(betas), np.concatenate(values), number, theta,
                   LATENCY + theta * BYTES_PER_MESSAGE * rows, widths)


@dataclass(frozen=True)
class AssignBenchmark:
    """Solves `repeat` drawn problems of each size with both solvers.

    Attributes
    ----------
    num_ranks : int, at least 2
    sizes : tuple of int      halo rows of all ranks together
    group_size : int          messages that share a width
    widths, lam               see `hpcgnn.methods.problem`
    time_limit : float        seconds for each run of HiGHS
    gap : float               relative gap at which HiGHS stops
    """

    num_ranks: int
    repeat: int
    sizes: tuple[int, ...] = SIZES
    group_size: int = GROUP_SIZE
    widths: tuple[int, ...] = WIDTHS
    lam: float = LAM
    time_limit: float = TIME_LIMIT
    gap: float = GAP
    begin: Begin = say_nothing

    def measure(self) -> Iterator[Measurement]:
        for size in self.sizes:
            yield self._measure_size(size)

    def _measure_size(self, num_rows: int) -> Measurement:
        greedy, exact, failures, num_groups = [], [], [], []
        for seed in range(self.repeat):
            self.begin(f"greedy: {num_rows:,} rows, problem {seed + 1} of {self.repeat}")
            problem = self._problem(num_rows, seed)
            num_groups.append(problem.num_groups)
            try:
                exact.append(solve_highs(problem, self.lam, self.time_limit, self.gap))
            except SolverError as failure:
                failures.append(f"{num_rows:,} rows, seed {seed}: {failure}")
            tries = [solve_greedy(self._problem(num_rows, seed), self.lam) for _ in range(GREEDY_TRIES)]
            greedy.append(sorted(tries, key=lambda answer: answer.solve_seconds)[GREEDY_TRIES // 2])
        seconds = {OURS: [answer.solve_seconds for answer in greedy]}
        if len(exact) == self.repeat:
            seconds[HIGHS] = [answer.solve_seconds for answer in exact]
        case = f"{num_rows:,} rows, {int(np.median(num_groups)):,} groups"
        return Measurement("greedy", case, 0.0, "s", seconds, [*failures, self._objectives(case, greedy, exact)],
                           {"objective": [answer.objective for answer in greedy],
                            "bound": [answer.bound for answer in greedy],
                            "highs_objective": [answer.objective for answer in exact]})

    def _problem(self, num_rows: int, seed: int) -> Problem:
        # Built again for each solver: a problem caches what a solver has computed.
        return simulated_problem(self.num_ranks, num_rows, self.group_size, self.widths, seed)

    def _objectives(self, case: str, greedy: list[Assignment], exact: list[Assignment]) -> str:
        over_bound = max(answer.objective / answer.bound - 1 for answer in greedy)
        text = (f"{case}: median objective {np.median([answer.objective for answer in greedy]):.6f}, at most "
                f"{100 * over_bound:.3f} % above the relaxation's bound")
        if len(exact) == self.repeat:
            worst = max(ours.objective / theirs.objective - 1 for ours, theirs in zip(greedy, exact, strict=True))
            text += f", at most {100 * worst:+.3f} % beside highs"
        return text


@click.command(help=__doc__.partition("\n")[0])
@click.option("--ranks", type=click.IntRange(min=2), default=8, show_default=True)
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for bench.json, table.txt and bench.png.")
def main(ranks: int, repeat: int, out: Path | None) -> None:
    shared = Shared(out=out)
    prepare_output(out)
    finish("assign", announce("assign", 1), AssignBenchmark(ranks, repeat, begin=shared.steps.begin), shared)


if __name__ == "__main__":
    main()
