"""How many optimizer steps an epoch has: many while loss and validation score improve, fewer where one of them stands,
one at the end; and whether their rows are dealt out one by one, as at the start, or in clusters.

Pure functions of losses and evaluations; who measures them and who acts on the answer is not known here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

WINDOW = 5              # epochs whose mean loss is compared with that of as many before
LEAST_FALL = 0.01       # of the mean loss, from one window to the next; less is noise of steps that are too small
PATIENCE = 10           # evaluations of steps of clusters without a better score; more is learning by heart
FEWER = 4               # times fewer steps then
LEAST_GAIN = 1.5        # times the arcs that steps of clusters hold beside those of rows dealt out one by one
# While rows are dealt out one by one, from one epoch to the next: of the loss, and of the first epoch's loss, next to
# which the loss of a graph that is learned by heart goes on falling by any share of itself.
LEAST_EARLY_FALL, LEAST_OF_FIRST = 0.02, 0.01
LAST_SHARE = 10         # the last 1 / LAST_SHARE of the epochs have one step


@dataclass(frozen=True)
class StepRule:
    """Say how a run chooses the number of steps.

    Attributes
    ----------
    first : int            steps of the first epoch, or of the first one in clusters
    is_adaptive : bool     later epochs may have fewer; else all have `first`
    num_epochs : int       of the run
    num_by_row : int       steps of the first epochs, whose rows are dealt out one by one; 1 where none are
    """

    first: int = 1
    is_adaptive: bool = False
    num_epochs: int = 1
    num_by_row: int = 1

    def begin(self) -> StepCount:
        """Return the state before the first epoch."""
        return StepCount(self.num_by_row, by_row=True) if self.num_by_row > 1 else StepCount(self.first)

    def of_epoch(self, state: StepCount, epoch: int) -> StepCount:
        """Return what holds in an epoch, counted from 0; a fixed number whatever the state is, which may be of a run
        with another.
        """
        if not self.is_adaptive:
            return self.begin()
        is_last = epoch >= self.num_epochs - max(1, self.num_epochs // LAST_SHARE)
        return replace(state, count=1, by_row=False, is_turn=False) if is_last else state

    def observe(self, state: StepCount, loss: float, share_inside: float | None = None) -> StepCount:
        """Return the state after an epoch with this mean loss.

        Labels of rows that are dealt out one by one are like all, so the loss falls at once; but next to no gradient
        reaches a neighbor, so it soon falls no further. Steps of clusters that hold hardly more arcs lack such labels
        too, so one step takes their place.

        Parameters
        ----------
        share_inside : float in [0, 1]      of all arcs, those that lie inside a cluster; None where the epoch had no
                                            steps of clusters
        """
        if not self.is_adaptive:
            return state
        if not state.by_row:
            is_cut = share_inside is not None and arcs_gained(state.count, share_inside) < LEAST_GAIN
            return StepCount(1) if is_cut else state.observe(loss)
        if not state.losses:
            return replace(state, losses=(loss,))
        first, before = state.losses[0], state.losses[-1]
        if before - loss >= max(LEAST_EARLY_FALL * before, LEAST_OF_FIRST * first):
            return replace(state, losses=(first, loss))
        return StepCount(self.first, is_turn=True)

    def judge(self, state: StepCount, is_best: bool) -> StepCount:
        """Return the state after an evaluation, whose validation score is the best so far or not: steps of clusters
        that bring no better one become fewer, whatever the loss does, which falls on where a graph is learned by heart.
        """
        if not self.is_adaptive or state.by_row or state.count == 1:
            return state
        num_worse = 0 if is_best else state.num_worse + 1
        return state.fewer() if num_worse == PATIENCE else replace(state, num_worse=num_worse)


def arcs_gained(num_steps: int, share_inside: float) -> float:
    """Return the arcs that lie inside steps of clusters, as a multiple of those inside steps of rows that are dealt out
    one by one, 1 / num_steps of all: arcs inside a cluster, and that share of the others.
    """
    return num_steps * share_inside + (1 - share_inside)


@dataclass(frozen=True)
class StepCount:
    """Remember the number of steps, and the losses since it was chosen.

    Attributes
    ----------
    count : int
    losses : tuple of float      of the last 2 * WINDOW epochs with so many steps; one by one, of the first and the last
    by_row : bool                rows are dealt out one by one
    is_turn : bool               the next epoch is the first in clusters after some in which they were not
    num_worse : int              evaluations with so many steps since the best one
    """

    count: int
    losses: tuple[float, ...] = ()
    by_row: bool = False
    is_turn: bool = False
    num_worse: int = 0

    def observe(self, loss: float) -> StepCount:
        """Return the state after one more epoch: steps that leave the mean loss where it was become fewer."""
        losses = (*self.losses, loss)[-2 * WINDOW:]
        if self.count == 1 or len(losses) < 2 * WINDOW:
            return replace(self, losses=losses, is_turn=False)
        before, after = sum(losses[:WINDOW]), sum(losses[WINDOW:])
        if after <= (1 - LEAST_FALL) * before:
            return replace(self, losses=losses, is_turn=False)
        return self.fewer()

    def fewer(self) -> StepCount:
        """Return the state before the first epoch with fewer steps."""
        return StepCount(max(1, self.count // FEWER))

    def as_dict(self) -> dict[str, Any]:
        """Return the state in plain numbers, for a checkpoint."""
        return {**asdict(self), "losses": list(self.losses)}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> StepCount:
        """Return the state that `as_dict` wrote."""
        return cls(int(state["count"]), tuple(state["losses"]), bool(state.get("by_row", False)),
                   bool(state.get("is_turn", False)), int(state.get("num_worse", 0)))
