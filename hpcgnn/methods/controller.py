"""Controller: after every epoch, rank 0 decides on widths and asynchrony, and one immutable plan goes to all ranks.

A width policy gives the bits (`policies.py`); the loss moves the base width (`time_bits.py`); the measured motion of
rows decides which exchanges may read rows of the last epoch (`staleness.py`); `step_count.py` sets the optimizer steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcgnn.exchange.bits import BitPlan, EpochPlan
from hpcgnn.exchange.kinds.kind import NUM_SUMS
from hpcgnn.exchange.state import State
from hpcgnn.methods.policies import Traces, WidthPolicy
from hpcgnn.methods.staleness import Drift, Site
from hpcgnn.methods.step_count import StepCount, StepRule
from hpcgnn.methods.time_bits import Descent, WidthFloor, WidthTrial, is_slowing, next_base
from hpcgnn.ops.counter import BACKWARD

NEVER, DESCENT, MEASURED = "never", "descent", "measured"      # and "always", which needs no decision
ONE_STEP = StepRule()
NO_ROWS, WHOLE, IN_STEPS = range(3)      # rows that the last epoch has kept for an asynchronous one
NUM_PURPOSES = 4     # more than an exchange of rows has
Movements = Mapping[Site, np.ndarray]


@dataclass(frozen=True)
class DescentTest:
    """The test of whether the loss is slowing; see `hpcgnn.methods.time_bits`."""

    window: int
    test: str
    smoothing: float
    # keep a wider base only if it pays, and avoid a harmful base for a while; else SYLVIE's Eq. (5)
    tries_widths: bool = True


@dataclass(frozen=True)
class Decision:
    """The decisions under which an epoch ran, for the metrics."""

    mode: str  # "sync" or "async": the epoch read some rows of the one before
    base_bits: int | None
    ldr: float | None
    assign_seconds: float
    stale_share: float = 0.0                            # share of the epoch's exchanges that read such rows
    num_steps: int = 1
    by_row: bool = False
    # exchange -> relative motion of its rows per epoch, see `Drift.of`; None: unknown
    motion: dict[str, float | None] = field(default_factory=dict)


class Controller:
    """Decides the plan of every epoch.

    `asynchrony` says which epochs compute with the halo rows of the epoch before: none; all but the first; epochs
    after a loss that was not slowing; or, layer by layer, epochs with rows that move little, relatively at most
    `most_motion` per epoch. `descent_test` is needed if the loss decides anything. With `starts_wide` training begins
    at the largest base width.

    Reference: SYLVIE, section V; "descent" is its rule. Deviation: "measured". SYLVIE is asynchronous while the loss
    falls well, but then rows move fast; and stale rows may do harm in one layer and none in another. The first epoch is
    synchronous, and so is the first after a resume that finds no state of the ranks.
    """

    def __init__(self, comm: MPI.Comm, policy: WidthPolicy, asynchrony: str, descent_test: DescentTest | None = None,
                 starts_wide: bool = False, most_motion: float = 0.0, steps: StepRule = ONE_STEP,
                 picks_differences: bool = False):
        self._comm, self._policy, self._asynchrony, self._test = comm, policy, asynchrony, descent_test
        self._picks = picks_differences
        self._most_motion, self._steps = most_motion, steps
        self._first_base = policy.base_widths[-1 if starts_wide else 0]
        self._plan: EpochPlan | None = None
        self._begin()

    def _begin(self) -> None:
        self._descent, self._drift, self._floor = Descent(), Drift(), WidthFloor()
        self.base, self._step_count = self._first_base, self._steps.begin()
        self._trial = WidthTrial(self.base)
        self._is_held, self._kept = False, NO_ROWS
        self._sites: list[Site] | None = None
        self._fresh: frozenset[Site] = frozenset()
        self._differing: frozenset[Site] = frozenset()

    @property
    def is_adaptive(self) -> bool:
        return len(self._policy.base_widths) > 1 or self._asynchrony in (DESCENT, MEASURED)

    @property
    def measures(self) -> bool:
        return self._asynchrony == MEASURED or self._picks

    def plan(self, seed: int, epoch: int) -> EpochPlan:
        steps = self._steps.of_epoch(self._step_count, epoch)
        # An epoch of one step keeps its rows in another form than an epoch of several steps.
        has_rows = self._kept == (IN_STEPS if steps.count > 1 else WHOLE)
        is_asynchronous = has_rows and self._asynchrony != NEVER and not self._is_held
        self._plan = EpochPlan(self._policy.bit_plan(seed, epoch, self.base), is_asynchronous,
                               self._policy.is_traced(epoch), self._fresh, self.measures,
                               self._differing, steps.count, steps.by_row, steps.is_turn)
        return self._plan

    def bounds(self, seed: int, epoch: int) -> tuple[BitPlan, ...]:
        """The cheapest and the most expensive width plan this epoch may use."""
        if not hasattr(self._policy, "bounds"):     # a user's own policy need not have bounds
            return (self._policy.bit_plan(seed, epoch, self.base),)
        return self._policy.bounds(seed, epoch)

    def observe(self, loss: float, seconds: float, traces: Traces, movements: Movements | None = None,
                share_inside: float | None = None) -> Decision:
        """Collective: learn from the epoch that ended; return its Decision.

        `movements` say by site how far this rank's rows moved; see `hpcgnn.exchange.kinds.kept_messages.Movement.sums`.
        `share_inside` is the share of edges inside clusters, the same on all ranks.
        """
        started = time.perf_counter()
        base, stale_share = self.base, self._stale_share(movements or {})
        kept = IN_STEPS if self._plan.num_steps > 1 else WHOLE
        if kept != self._kept:      # a step may have other exchanges than a whole epoch
            self._kept, self._sites = kept, None
        if self.measures:
            self._measure(movements or {})
        if self.is_adaptive or self.measures:
            self._decide(loss, seconds)
        # All ranks have the same loss, and decide alike.
        self._step_count = self._steps.observe(self._step_count, loss, share_inside)
        traces = traces if self._plan.is_traced else {}
        if traces or self.base != base:
            self._policy.learn(self.base, traces)
        return Decision("async" if stale_share else "sync", base if self.is_adaptive else None, self._descent.ldr,
                        time.perf_counter() - started, stale_share, self._plan.num_steps, self._plan.by_row,
                        {_name(site): motion if math.isfinite(motion) else None
                         for site, motion in ((site, self._drift.of(site)) for site in self._drift.sums)})

    def judge(self, is_best: bool) -> None:
        """Learn whether an evaluation was the best so far; `is_best` is the same on all ranks."""
        self._step_count = self._steps.judge(self._step_count, is_best, self._plan.num_steps)

    def forget(self) -> None:
        self._policy.forget()
        self._begin()

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint; only rank 0's is complete."""
        return {"descent": self._descent.as_dict(), "drift": self._drift.as_dict(), "floor": self._floor.as_dict(),
                "trial": self._trial.as_dict(), "base": self.base, "is_held": self._is_held,
                "fresh": sorted(self._fresh), "differing": sorted(self._differing), "steps": self._step_count.as_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint; without `restore_rank` the next epoch is synchronous and solves widths anew."""
        if state.get("trial") and state["base"] in self._policy.base_widths:
            self._descent = Descent.from_dict(state["descent"])
            self._drift = Drift.from_dict(state["drift"])
            self._floor = WidthFloor.from_dict(state["floor"])
            self._trial = WidthTrial.from_dict(state["trial"])
            self.base, self._is_held = state["base"], state["is_held"]
            self._fresh = frozenset(map(tuple, state["fresh"]))
            self._differing = frozenset(map(tuple, state.get("differing", ())))
        if "steps" in state:
            self._step_count = StepCount.from_dict(state["steps"])

    @property
    def keeps_rank_state(self) -> bool:
        return self._policy.keeps_state

    def rank_state(self) -> State:
        return {"has_rows": self._kept, "policy": self._policy.state()}

    def restore_rank(self, state: State) -> None:
        self._kept = int(state["has_rows"])
        self._policy.restore(state["policy"])

    def agrees(self) -> bool:
        """Collective, after `restore_rank`: whether the ranks' memories fit together."""
        least, most = self._comm.allreduce(self._kept, MPI.MIN), self._comm.allreduce(self._kept, MPI.MAX)
        return least == most and self._policy.agrees()

    def forget_rank(self) -> None:
        self._kept = NO_ROWS
        self._policy.forget()

    def _stale_share(self, movements: Movements) -> float:
        if not self._plan.is_asynchronous:
            return 0.0
        places = self._sites or list(movements)
        return sum(self._plan.reads_stale(*place) for place in places) / len(places) if places else 1.0

    def _measure(self, movements: Movements) -> None:
        if self._sites is None:     # a rank without neighbors exchanges nothing, and names no site
            self._sites = _sites_of(self._comm.allreduce(_bits_of(movements), MPI.BOR))
        nothing = np.zeros(NUM_SUMS)
        sums = np.array([movements.get(site, nothing) for site in self._sites]).reshape(len(self._sites), NUM_SUMS)
        self._comm.Reduce(MPI.IN_PLACE if self._comm.rank == 0 else sums, sums)
        if self._comm.rank == 0:
            self._drift = self._drift.observe(dict(zip(self._sites, map(tuple, sums.tolist()), strict=True)))

    def _decide(self, loss: float, seconds: float) -> None:
        sites = self._sites or []
        # Decides the base width, whether the loss makes the next epoch synchronous, and per site whether it must be
        # fresh and whether it sends differences.
        answer = np.zeros(2 + 2 * len(sites), np.int64)
        if self._comm.rank == 0:
            answer[:2] = self._judge_loss(loss, seconds) if self.is_adaptive else (self.base, False)
            answer[2::2] = [self._asynchrony == MEASURED and (
                _is_gradient(site) or self._drift.at_most(site) > self._most_motion) for site in sites]
            answer[3::2] = [self._picks and self._drift.changes_less(site) for site in sites]
        self._comm.Bcast(answer)
        self.base, self._is_held = int(answer[0]), bool(answer[1])
        self._fresh, self._differing = (frozenset(site for site, is_so in zip(sites, of_sites, strict=True) if is_so)
                                        for of_sites in (answer[2::2], answer[3::2]))

    def _judge_loss(self, loss: float, seconds: float) -> tuple[int, bool]:
        test, widths = self._test, self._policy.base_widths
        self._descent = self._descent.observe(loss, seconds, test.smoothing)
        slowing = is_slowing(self._descent, test.window, test.test)
        is_held = self._asynchrony == DESCENT and slowing
        if not test.tries_widths:
            has_window = len(self._descent.rates) > test.window
            return next_base(self.base, slowing, widths) if has_window else self.base, is_held
        self._floor = self._floor.observe(loss, self.base, self._plan.is_asynchronous, test.window)
        self._trial = self._trial.observe(self._descent, slowing or self._floor.has_risen, test.window, widths,
                                          self._floor.floor)
        return self._trial.base, is_held


def _bits_of(sites: Iterable[Site]) -> int:
    # One bit per site, so that a bitwise OR joins the sites of all ranks.
    return sum(1 << (NUM_PURPOSES * layer + purpose) for layer, purpose in sites)


def _sites_of(bits: int) -> list[Site]:
    return [divmod(place, NUM_PURPOSES) for place in range(bits.bit_length()) if bits >> place & 1]


def _is_gradient(site: Site) -> bool:
    return site[1] == BACKWARD


def _name(site: Site) -> str:
    return f"{site[0]}-{'backward' if _is_gradient(site) else 'forward'}"
