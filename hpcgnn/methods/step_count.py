"""StepRule: decides how many optimizer steps an epoch has, and whether a step takes single rows or clusters.

Training starts with many steps of single rows; when the loss falls no further it goes on with steps of clusters. The
number of steps is divided by FEWER whenever the loss or the validation score stands still. The last epochs have one
step, until an evaluation in them is not the best so far.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

WINDOW = 5              # epochs; the mean loss of a window is compared with the window before
LEAST_FALL = 0.01       # least relative fall of the mean loss per window; a smaller fall is noise
PATIENCE = 10           # evaluations without a better score, with steps of clusters; more would be overfitting
FEWER = 4               # factor by which the steps then become fewer
LEAST_GAIN = 1.5        # least ratio of edges inside steps of clusters to edges inside steps of rows
# With steps of single rows, the least fall per epoch, relative to the loss and to the first epoch's loss: on an
# overfitted graph the loss keeps falling relative to itself.
LEAST_EARLY_FALL, LEAST_OF_FIRST = 0.02, 0.01
LAST_SHARE = 10         # the last 1 / LAST_SHARE of the epochs have one step


@dataclass(frozen=True)
class StepRule:
    """How a run chooses the number of steps."""

    first: int = 1             # steps of the first epoch, or of the first one in clusters
    is_adaptive: bool = False  # whether later epochs may have fewer; else all have `first`
    num_epochs: int = 1        # epochs of the run
    num_by_row: int = 1        # steps of the first epochs, of single rows; 1: none

    def begin(self) -> StepCount:
        return StepCount(self.num_by_row, by_row=True) if self.num_by_row > 1 else StepCount(self.first)

    def of_epoch(self, state: StepCount, epoch: int) -> StepCount:
        """Return the steps of an epoch, counted from 0; without adaptation the state is ignored."""
        if not self.is_adaptive:
            return self.begin()
        is_last = state.ends_with_one and epoch >= self.num_epochs - max(1, self.num_epochs // LAST_SHARE)
        return replace(state, count=1, by_row=False, is_turn=False) if is_last else state

    def observe(self, state: StepCount, loss: float, share_inside: float | None = None) -> StepCount:
        """The state after an epoch with this mean loss; `share_inside` is the share of edges in clusters, if any."""
        if not self.is_adaptive:
            return state
        if not state.by_row:
            # If clusters hold hardly more edges than single rows would, one step takes their place.
            is_cut = share_inside is not None and arcs_gained(state.count, share_inside) < LEAST_GAIN
            return StepCount(1) if is_cut else state.observe(loss)
        if not state.losses:
            return replace(state, losses=(loss,))
        # Labels in steps of single rows are distributed as in the whole graph, so the loss falls at once; but hardly
        # any gradient reaches a neighbor, so it soon stops falling.
        first, before = state.losses[0], state.losses[-1]
        if before - loss >= max(LEAST_EARLY_FALL * before, LEAST_OF_FIRST * first):
            return replace(state, losses=(first, loss))
        return StepCount(self.first, is_turn=True)

    def judge(self, state: StepCount, is_best: bool, num_steps: int) -> StepCount:
        """Return the state after an evaluation in an epoch of `num_steps`.

        PATIENCE evaluations without a new best score mean fewer steps. In the last epochs, one is enough to go back to
        many steps.
        """
        if not self.is_adaptive:
            return state
        if num_steps < state.count:
            return state if is_best else replace(state, ends_with_one=False)
        if state.by_row or state.count == 1:
            return state
        num_worse = 0 if is_best else state.num_worse + 1
        return state.fewer() if num_worse == PATIENCE else replace(state, num_worse=num_worse)


def arcs_gained(num_steps: int, share_inside: float) -> float:
    """Edges inside steps of clusters over edges inside steps of single rows, which have 1 / num_steps of all edges.

    Clusters have all their inner edges, and the same share of all other edges.
    """
    return num_steps * share_inside + (1 - share_inside)


@dataclass(frozen=True)
class StepCount:
    """The number of steps, and what happened since it was chosen."""

    count: int
    losses: tuple[float, ...] = ()  # losses of the last 2 * WINDOW epochs; for single rows, of the first and last epoch
    by_row: bool = False            # steps of single rows
    is_turn: bool = False           # the next epoch is the first in clusters
    num_worse: int = 0              # evaluations since the best one
    ends_with_one: bool = True      # whether the last epochs have one step

    def observe(self, loss: float) -> StepCount:
        losses = (*self.losses, loss)[-2 * WINDOW:]
        if self.count == 1 or len(losses) < 2 * WINDOW:
            return replace(self, losses=losses, is_turn=False)
        before, after = sum(losses[:WINDOW]), sum(losses[WINDOW:])
        if after <= (1 - LEAST_FALL) * before:
            return replace(self, losses=losses, is_turn=False)
        return self.fewer()

    def fewer(self) -> StepCount:
        return StepCount(max(1, self.count // FEWER), ends_with_one=self.ends_with_one)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "losses": list(self.losses)}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> StepCount:
        return cls(int(state["count"]), tuple(state["losses"]), bool(state.get("by_row", False)),
                   bool(state.get("is_turn", False)), int(state.get("num_worse", 0)),
                   bool(state.get("ends_with_one", True)))
