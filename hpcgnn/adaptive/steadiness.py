"""Find out whether rows of the epoch before do harm: a loss that swings instead of falling needs synchronous epochs.

Pure functions of losses; who measures them and who acts on the answer is not known here.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import Any

GROWTH = 4               # of a period over the one before
MOST_GROWN = 10


@dataclass(frozen=True)
class Steadiness:
    """Remember how the loss moved, and how long epochs stay synchronous.

    Attributes
    ----------
    losses : tuple of float      of the newest epochs since the last synchronous period, newest last
    epochs_left : int            of the current synchronous period; 0 is none
    num_periods : int            begun so far

    SYLVIE (section V-A) goes back to synchronous epochs while the rate of descent falls; its running means see a loss
    that swings a window late, and one epoch later all is asynchronous again. So a second test has no running mean, and
    each period that it begins is four times as long as the one before: where stale rows do harm they are soon given
    up, and where the loss swung for another reason the test costs time at most.
    """

    losses: tuple[float, ...] = ()
    epochs_left: int = 0
    num_periods: int = 0

    @property
    def needs_synchronous(self) -> bool:
        """Tell whether the next epoch has to be synchronous."""
        return self.epochs_left > 0

    def observe(self, loss: float, window: int, most_rises: float) -> Steadiness:
        """Return the state after one more epoch.

        Parameters
        ----------
        loss : global training loss of the epoch
        window : epochs of the first period, at least 1; rises and falls are added up over half as many
        most_rises : rises of the loss as a share of its falls, above which a period begins
        """
        if self.epochs_left > 0:
            # Only what follows a period tells of asynchronous epochs.
            return Steadiness((loss,), self.epochs_left - 1, self.num_periods)
        num_steps = max(1, window // 2)
        losses = (*self.losses[-num_steps:], loss)
        if len(losses) <= num_steps or not is_swinging(losses, most_rises):
            return Steadiness(losses, 0, self.num_periods)
        return Steadiness((loss,), period_length(window, self.num_periods), self.num_periods + 1)

    def as_dict(self) -> dict[str, Any]:
        """Return the state in plain lists and numbers, for a checkpoint."""
        return {**asdict(self), "losses": list(self.losses)}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Steadiness:
        """Return the state that `as_dict` wrote."""
        return cls(tuple(state["losses"]), state["epochs_left"], state["num_periods"])


def period_length(window: int, num_before: int) -> int:
    """Return a period's epochs: `window`, times GROWTH for each of the (at most MOST_GROWN) periods before it."""
    return window * GROWTH ** min(num_before, MOST_GROWN)


def is_swinging(losses: tuple[float, ...], most_rises: float) -> bool:
    """Tell whether the rises between neighbouring losses add up to more than `most_rises` of the falls."""
    steps = [later - earlier for earlier, later in itertools.pairwise(losses)]
    return sum(step for step in steps if step > 0) > most_rises * sum(-step for step in steps if step < 0)
