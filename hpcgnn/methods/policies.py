"""Width policies: where the bit widths of an epoch's messages come from.

Fixed widths, widths drawn per row, widths by importance (SYLVIE), solved widths (AdaQP), or solved ones within a budget
(Joint). SYLVIE's widths: the percentile of a boundary node's in-degree decides its level, each level has a width, and
no row is sent below the base width. Example: widths 1,2,4,8 and base 2 give levels 0 to 3 the widths 2, 2, 4, 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcgnn.exchange.bits import BitPlan, DrawnBits, LeveledBits, SolvedBits, UniformBits
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.state import State
from hpcgnn.exchange.trace import Trace

if TYPE_CHECKING:
    from hpcgnn.methods.solving import Solver

Traces = dict[tuple[int, int], Trace]


class WidthPolicy:
    """Chooses widths. The controller moves the base width among `base_widths`, which ascend.

    `keeps_state` says whether it has a `state` to remember.
    """

    keeps_state = False

    def __init__(self, base_widths: tuple[int, ...]):
        self.base_widths = base_widths

    def bit_plan(self, seed: int, epoch: int, base: int) -> BitPlan:
        """The widths of an epoch."""
        raise NotImplementedError

    def bounds(self, seed: int, epoch: int) -> tuple[BitPlan, ...]:
        """The cheapest and the most expensive plan that the epoch may use."""
        return tuple(self.bit_plan(seed, epoch, base) for base in self.base_widths)

    def is_traced(self, epoch: int) -> bool:
        """Whether the ranges of the epoch's rows are needed."""
        return False

    def learn(self, base: int, traces: Traces) -> None:
        """Collective, after a traced epoch or a change of the base width; `traces` is empty after an untraced epoch."""

    def forget(self) -> None:
        """Start anew, for another training."""

    def state(self) -> State:
        """This rank's memory of earlier epochs."""
        return {}

    def restore(self, state: State) -> None:
        """Continue from what `state` returned on this rank; KernelError or KeyError if it came from elsewhere."""

    def agrees(self) -> bool:
        """Collective, after `restore`: whether the ranks' memories fit together."""
        return True


class FixedWidths(WidthPolicy):
    """Every message at one width."""

    def __init__(self, bits: int):
        super().__init__((bits,))
        self._plan = UniformBits(bits)

    def bit_plan(self, seed: int, epoch: int, base: int) -> BitPlan:
        return self._plan


class DrawnWidths(WidthPolicy):
    """Every row at a width drawn in every epoch. Reference: AdaQP, Table 6 (uniform sampling)."""

    def __init__(self, widths: tuple[int, ...]):
        super().__init__(widths[-1:])
        self._widths = widths

    def bit_plan(self, seed: int, epoch: int, base: int) -> BitPlan:
        return DrawnBits(self._widths, seed, epoch)


class LeveledWidths(WidthPolicy):
    """Widths by importance, (num_inner + num_halo,) float32, and base width. Reference: SYLVIE, sections IV-A, V-A."""

    def __init__(self, widths: tuple[int, ...], percentiles: tuple[float, ...], importance: np.ndarray,
                 plan: ExchangePlan):
        super().__init__(widths)
        level = levels(importance, percentiles)
        inner, halo = level[:plan.num_inner], level[plan.num_inner:]
        shared = {(plan.rank, peer): inner[rows.index] for peer, rows in zip(plan.peers, plan.boundary, strict=True)}
        shared |= {(peer, plan.rank): halo[rows.index] for peer, rows in zip(plan.peers, plan.halo, strict=True)
                   if peer != plan.rank}
        self._plans = {base: LeveledBits(shared, width_table(base, widths)) for base in widths}

    def bit_plan(self, seed: int, epoch: int, base: int) -> BitPlan:
        return self._plans[base]


class SolvedWidths(WidthPolicy):
    """Widths solved from traced ranges, once per period; the first epoch is traced at the largest width.

    Reference: AdaQP, section 3.3.
    """

    keeps_state = True

    def __init__(self, solver: Solver, period: int):
        super().__init__(solver.widths[-1:])
        self._solver, self._period = solver, period
        self._solved: SolvedBits | None = None

    def bit_plan(self, seed: int, epoch: int, base: int) -> BitPlan:
        return UniformBits(self._solver.widths[-1]) if self._solved is None else self._solved

    def bounds(self, seed: int, epoch: int) -> tuple[BitPlan, ...]:
        return UniformBits(self._solver.widths[0]), UniformBits(self._solver.widths[-1])

    def is_traced(self, epoch: int) -> bool:
        return self._solved is None or epoch % self._period == 0

    def learn(self, base: int, traces: Traces) -> None:
        if traces:
            self._solved = self._solver.solve(traces)

    def forget(self) -> None:
        self._solved = None

    def state(self) -> State:
        return {"solver": self._solver.state(), "solved": {} if self._solved is None else self._solved.state()}

    def restore(self, state: State) -> None:
        self._solver.restore(state["solver"])
        solved = SolvedBits.restored(state["solved"]) if state["solved"] else None
        if solved is not None:
            self._solver.check(solved)
        self._solved = solved

    def agrees(self) -> bool:
        return self._solver.agrees(self._solved, [])


class BudgetedWidths(SolvedWidths):
    """Widths solved within a budget of mean bits that the base width sets; solved anew when it changes.

    The budget at a base width is the mean width that SYLVIE would spend, given `level_shares` under its percentiles.
    """

    def __init__(self, solver: Solver, period: int, level_shares: np.ndarray):
        super().__init__(solver, period)
        self.base_widths = solver.widths
        self._budget = {base: float(level_shares @ width_table(base, solver.widths)) for base in self.base_widths}
        self._traces: Traces = {}

    def learn(self, base: int, traces: Traces) -> None:
        self._traces = traces or self._traces
        if self._traces:
            self._solved = self._solver.solve(self._traces, self._budget[base])

    def forget(self) -> None:
        super().forget()
        self._traces = {}

    def state(self) -> State:
        traces = {f"{layer}-{purpose}": trace.state() for (layer, purpose), trace in self._traces.items()}
        return {**super().state(), "traces": traces}

    def restore(self, state: State) -> None:
        super().restore(state)
        traces = {}
        for name, trace in state["traces"].items():
            layer, purpose = map(int, name.split("-"))
            traces[layer, purpose] = Trace.restored(trace)
        self._solver.check_traces(traces)
        self._traces = traces

    def agrees(self) -> bool:
        return self._solver.agrees(self._solved, list(self._traces))


def level_shares(percentiles: tuple[float, ...], num_levels: int) -> np.ndarray:
    """Return the shares of rows between percentiles, (num_levels,) float64; surplus lowest levels are merged."""
    shares = np.diff([0.0, *percentiles, 100.0]) / 100
    lowest = len(shares) - num_levels + 1
    return np.concatenate([[shares[:lowest].sum()], shares[lowest:]])


def levels(importance: np.ndarray, percentiles: tuple[float, ...]) -> np.ndarray:
    """Level of each boundary node, (num_nodes,) uint8: how many percentiles its importance reaches.

    `importance`, (num_nodes,) float32, is the rank of the global in-degree among boundary nodes, in [0, 1];
    `percentiles` ascend. Reference: SYLVIE, section IV-A.
    """
    thresholds = np.asarray(percentiles, np.float64) / 100
    return np.searchsorted(thresholds.astype(np.float32), importance, side="right").astype(np.uint8)


def width_table(base: int, widths: tuple[int, ...]) -> np.ndarray:
    """Width of each level, (len(widths),) uint8, at least `base`. Reference: SYLVIE, section V-A and Fig. 7."""
    return np.maximum(np.asarray(widths, np.uint8), np.uint8(base))
