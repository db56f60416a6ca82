"""StepsTaken: what the steps of an epoch have done so far on one rank, so that a run may end between two of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hpcgnn.exchange.state import State
from hpcgnn.exchange.traffic import Traffic
from hpcgnn.ops.adam import StepCheck, worst_of


@dataclass
class StepsTaken:
    """Sum up the steps of one epoch.

    Attributes
    ----------
    losses : list of float         this rank's share of the epoch's mean loss, a number a step
    checks : list of StepCheck     of the steps since this process began, and one for all before
    seconds : float                before this process began, as all of `traffic`
    """

    losses: list[float] = field(default_factory=list)
    checks: list[StepCheck] = field(default_factory=list)
    seconds: float = 0.0
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def check(self) -> StepCheck:
        """Return what all steps have found."""
        return worst_of(self.checks)

    def state(self, num_steps: int, by_row: bool, seconds: float, traffic: Traffic) -> State:
        """Return all of it for a checkpoint, with what this process has spent."""
        check, traffic = self.check, traffic.plus(self.traffic)
        return {"num_steps": num_steps, "by_row": int(by_row), "seconds": self.seconds + seconds,
                "losses": np.array(self.losses), "traffic": traffic.state(),
                "largest": np.array([check.largest_gradient, check.largest_result]),
                "hash": np.array([check.hash], np.uint64)}

    @classmethod
    def of_state(cls, state: State | None) -> StepsTaken:
        """Go on from what `state` returned; None is an epoch that begins."""
        if state is None:
            return cls()
        check = StepCheck(*state["largest"].tolist(), int(state["hash"][0]))
        return cls(state["losses"].tolist(), [check], float(state["seconds"]), Traffic.of_state(state["traffic"]))
