"""Controller: after every epoch rank 0 decides, and one immutable plan goes to all ranks.

It joins a width policy with an execution mode; the decisions themselves are pure functions of this room.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcgnn.adaptive.policies import Traces, WidthPolicy
from hpcgnn.adaptive.steadiness import Steadiness
from hpcgnn.adaptive.time_bits import Descent, can_tell, drift, is_slowing, next_base
from hpcgnn.adaptive.width_floor import WidthFloor
from hpcgnn.exchange.bits import BitPlan
from hpcgnn.exchange.schedule import EpochPlan
from hpcgnn.exchange.state import State

MODES = ("synchronous", "pipelined", "adaptive")


@dataclass(frozen=True)
class DescentTest:
    """Hold the settings that say when the loss counts as slowing or as too fast for stale rows (see
    `hpcgnn.adaptive.time_bits`), and as swinging (see `hpcgnn.adaptive.steadiness`). The periods of
    `hpcgnn.adaptive.steadiness` and `hpcgnn.adaptive.width_floor` follow from the window.
    """

    window: int
    test: str
    smoothing: float
    most_rises: float
    most_drift: float
    num_layers: int


@dataclass(frozen=True)
class Decision:
    """Record what one epoch was run with, for the metrics. Nothing that a method does not have is filled in."""

    mode: str
    base_bits: int | None
    ldr: float | None
    assign_seconds: float


class Controller:
    """Decides the plan of every epoch.

    Parameters
    ----------
    comm : MPI communicator
    policy : WidthPolicy
    mode : {"synchronous", "pipelined", "adaptive"}
        pipelined epochs compute with the halo rows of the epoch before; adaptive ones are synchronous until the descent
        test can tell, while the loss is slowing or moves too far within the age of stale rows, and for a while after
        it swung
    descent_test : DescentTest or None      needed where the loss decides anything
    starts_wide : bool
        begin at the largest base width, else at the smallest; either way the first window goes by before it changes

    Reference: SYLVIE, section V. The first epoch is synchronous, and so is the first after a resume that finds no state
    of the ranks. Deviation: so are the first two windows, in which weights move fastest and nothing is known yet of how
    the loss falls; attention that begins with rows of the epoch before learns to answer from them only.
    """

    def __init__(self, comm: MPI.Comm, policy: WidthPolicy, mode: str, descent_test: DescentTest | None = None,
                 starts_wide: bool = False):
        self._comm, self._policy, self._mode, self._test = comm, policy, mode, descent_test
        self._first_base = policy.base_widths[-1 if starts_wide else 0]
        self._plan: EpochPlan | None = None
        self._begin()

    def _begin(self) -> None:
        self._descent, self._steadiness, self._floor = Descent(), Steadiness(), WidthFloor()
        self.base = self._first_base
        self._is_held, self._has_rows = True, False

    @property
    def is_adaptive(self) -> bool:
        """Tell whether the loss decides anything."""
        return len(self._policy.base_widths) > 1 or self._mode == "adaptive"

    def plan(self, seed: int, epoch: int) -> EpochPlan:
        """Return the plan of the next epoch."""
        pipelined = self._mode == "pipelined" or (self._mode == "adaptive" and not self._is_held)
        self._plan = EpochPlan(self._policy.bit_plan(seed, epoch, self.base), pipelined and self._has_rows,
                               self._policy.is_traced(epoch))
        return self._plan

    def bounds(self, seed: int, epoch: int) -> tuple[BitPlan, ...]:
        """Return plans of widths between whose bytes those of an epoch lie, whatever the loss does."""
        if not hasattr(self._policy, "bounds"):     # one of one's own need not say
            return (self._policy.bit_plan(seed, epoch, self.base),)
        return self._policy.bounds(seed, epoch)

    def observe(self, loss: float, seconds: float, traces: Traces) -> Decision:
        """Collective: learn from the epoch that ended. Returns what it was run with, and what deciding cost."""
        started = time.perf_counter()
        mode, base = "async" if self._plan.is_asynchronous else "sync", self.base
        self._has_rows = True
        if self.is_adaptive:
            self._decide(loss, seconds)
        traces = traces if self._plan.is_traced else {}
        if traces or self.base != base:
            self._policy.learn(self.base, traces)
        return Decision(mode, base if self.is_adaptive else None, self._descent.ldr, time.perf_counter() - started)

    def forget(self) -> None:
        """Begin another training."""
        self._policy.forget()
        self._begin()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps; rank 0's is complete."""
        return {"descent": self._descent.as_dict(), "steadiness": self._steadiness.as_dict(),
                "floor": self._floor.as_dict(), "base": self.base, "is_held": self._is_held}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint. The next epoch is synchronous, and widths that were solved are traced and solved
        anew, unless `restore_rank` follows.
        """
        if state and state["base"] in self._policy.base_widths:
            self._descent = Descent.from_dict(state["descent"])
            self._steadiness = Steadiness.from_dict(state["steadiness"])
            self._floor = WidthFloor.from_dict(state["floor"])
            self.base, self._is_held = state["base"], state["is_held"]

    @property
    def keeps_rank_state(self) -> bool:
        """Tell whether a rank remembers more than a checkpoint keeps."""
        return self._policy.keeps_state

    def rank_state(self) -> State:
        """Return what this rank remembers beside `state`, which is rank 0's."""
        return {"has_rows": self._has_rows, "policy": self._policy.state()}

    def restore_rank(self, state: State) -> None:
        """Go on from what `rank_state` returned on this rank, after `restore`, as the exchange does from its own."""
        self._has_rows = bool(state["has_rows"])
        self._policy.restore(state["policy"])

    def agrees(self) -> bool:
        """Collective, after `restore_rank`: whether what the ranks remember fits each other."""
        return len(set(self._comm.allgather(self._has_rows))) == 1 and self._policy.agrees()

    def forget_rank(self) -> None:
        """Forget what `restore_rank` read."""
        self._has_rows = False
        self._policy.forget()

    def _decide(self, loss: float, seconds: float) -> None:
        """Collective: rank 0 looks at how the loss moved; its answer holds everywhere."""
        answer = np.zeros(2, np.int64)
        if self._comm.rank == 0:
            test = self._test
            self._descent = self._descent.observe(loss, seconds, test.smoothing)
            is_known = can_tell(self._descent, test.window, test.test)
            if is_known:    # before, no epoch was asynchronous
                self._steadiness = self._steadiness.observe(loss, test.window, test.most_rises)
            self._floor = self._floor.observe(loss, self.base, self._plan.is_asynchronous, test.window)
            slowing = is_slowing(self._descent, test.window, test.test)
            has_window = len(self._descent.rates) > test.window
            widens = slowing or self._floor.has_risen
            base = self.base
            if has_window or self._floor.has_risen:
                base = next_base(base, widens, self._policy.base_widths)
            is_held = (slowing or not is_known or self._steadiness.needs_synchronous
                       or drift(self._descent, test.num_layers, self._floor.first_loss) > test.most_drift)
            answer[:] = max(base, self._floor.floor), is_held
        self._comm.Bcast(answer)
        self.base, self._is_held = int(answer[0]), bool(answer[1])
