"""Width policies: where the bit widths of an epoch's messages come from.

Fixed widths, widths drawn per row, widths by importance (SYLVIE), solved widths (AdaQP), or solved ones within a budget
(Joint). SYLVIE's widths: the percentile of a boundary node's in-degree decides its level, each level has a width, and
no row is sent below the base width. Example: widths 1,2,4,8 and base 2 give levels 0 to 3 the widths 2, 2, 4, 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from hpcgnn.exchange.bits import BitPlan, DrawnBits, LeveledBits, SolvedBits, UniformBits
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.state import State
from hpcgnn.exchange.trace import Trace
from hpcgnn.methods.node_bits import levels, width_table

if TYPE_CHECKING:
    from hpcgnn.methods.solving import Solver

Traces = dict[tuple[int, int], Trace]


class WidthPolicy(Protocol):
    """Chooses widths. The controller moves the base width among `base_widths`.

    Attributes
    ----------
    base_widths : ascending
    keeps_state : bool      whether it has a `state` to remember
    """

    base_widths: tuple[int, ...]
    keeps_state: bool

    def bit_plan(self, seed: int, epoch: int, base: int) -> BitPlan:
        """Return the widths of an epoch."""

    def bounds(self, seed: int, epoch: int) -> tuple[BitPlan, ...]:
        """Return the cheapest and the most expensive plan that the epoch may use."""

    def is_traced(self, epoch: int) -> bool:
        """Whether the ranges of the epoch's rows are needed."""

    def learn(self, base: int, traces: Traces) -> bool:
        """Collective, after a traced epoch or a change of the base width; return whether widths were chosen anew.

        traces : ranges from a traced epoch, else empty
        """

    def forget(self) -> None:
        """Start anew, for another training."""

    def state(self) -> State:
        """Return this rank's memory of earlier epochs."""

    def restore(self, state: State) -> None:
        """Continue from what `state` returned on this rank.

        Raises
        ------
        KernelError, KeyError      the state does not come from `state`
        """

    def agrees(self) -> bool:
        """Collective, after `restore`: whether the ranks' memories fit together."""


class FixedWidths:
    """Every message at one width."""

    keeps_state = False

    def __init__(self, bits: int):
        self.base_widths: tuple[int, ...] = (bits,)
        self._plan = UniformBits(bits)

    def bit_plan(self, seed: int, epoch: int, base: int) -> BitPlan:
        return self._plan

    def bounds(self, seed: int, epoch: int) -> tuple[BitPlan, ...]:
        return tuple(self.bit_plan(seed, epoch, base) for base in self.base_widths)

    def is_traced(self, epoch: int) -> bool:
        return False

    def learn(self, base: int, traces: Traces) -> bool:
        return False

    def forget(self) -> None:
        pass

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        pass

    def agrees(self) -> bool:
        return True


class DrawnWidths(FixedWidths):
    """Every row at a width drawn in every epoch. Reference: AdaQP, Table 6 (uniform sampling)."""

    def __init__(self, widths: tuple[int, ...]):
        super().__init__(widths[-1])
        self._widths = widths

    def bit_plan(self, seed: int, epoch: int, base: int) -> BitPlan:
        return DrawnBits(self._widths, seed, epoch)


class LeveledWidths(FixedWidths):
    """Widths by importance, (num_inner + num_halo,) float32, and base width. Reference: SYLVIE, sections IV-A, V-A."""

    def __init__(self, widths: tuple[int, ...], percentiles: tuple[float, ...], importance: np.ndarray,
                 plan: ExchangePlan):
        super().__init__(widths[0])
        self.base_widths = widths
        level = levels(importance, percentiles)
        inner, halo = level[:plan.num_inner], level[plan.num_inner:]
        shared = {(plan.rank, peer): inner[rows.index] for peer, rows in zip(plan.peers, plan.boundary, strict=True)}
        shared |= {(peer, plan.rank): halo[rows.index] for peer, rows in zip(plan.peers, plan.halo, strict=True)
                   if peer != plan.rank}
        self._plans = {base: LeveledBits(shared, width_table(base, widths)) for base in self.base_widths}

    def bit_plan(self, seed: int, epoch: int, base: int) -> BitPlan:
        return self._plans[base]


class SolvedWidths(FixedWidths):
    """Widths solved from traced ranges, once per period; the first epoch is traced at the largest width.

    Reference: AdaQP, section 3.3.
    """

    keeps_state = True

    def __init__(self, solver: Solver, period: int):
        super().__init__(solver.widths[-1])
        self._solver, self._period = solver, period
        self._solved: SolvedBits | None = None

    def bit_plan(self, seed: int, epoch: int, base: int) -> BitPlan:
        return self._plan if self._solved is None else self._solved

    def bounds(self, seed: int, epoch: int) -> tuple[BitPlan, ...]:
        return UniformBits(self._solver.widths[0]), UniformBits(self._solver.widths[-1])

    def is_traced(self, epoch: int) -> bool:
        return self._solved is None or epoch % self._period == 0

    def learn(self, base: int, traces: Traces) -> bool:
        if traces:
            self._solved = self._solver.solve(traces)
        return bool(traces)

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

    def learn(self, base: int, traces: Traces) -> bool:
        self._traces = traces or self._traces
        if self._traces:
            self._solved = self._solver.solve(self._traces, self._budget[base])
        return bool(self._traces)

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
