"""Base widths that do harm: every change of the base is an experiment, and its outcome is remembered for a while.

Pure functions of losses and widths; who measures them and who acts on the answer is not known here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

GROWTH = 4             # of a period over the one before
MOST_GROWN = 3         # times; a run of any length goes on trying
HARMFUL = 1.25         # times the loss of the wider base
NOTICEABLE = 0.1       # of the first loss: small losses of few training nodes leap by themselves


@dataclass(frozen=True)
class WidthFloor:
    """The least base width for the time being.

    Attributes
    ----------
    floor : int                     0 is none
    epochs_left : int               that the floor holds
    num_periods : int               begun so far
    first_loss : float or None      of the first epoch
    last_loss, last_base            of the newest epoch; None before the first
    losses : tuple of float         of the newest epochs at one base, all synchronous, newest last
    has_risen : bool                over half a window of them, noticeably: a wider base is worth a try

    A base that is changed between two epochs shows what the narrower one costs, since little else changes. SYLVIE
    (section V-A) does not look: a loss that a wider base has brought down counts as falling well, so the base
    becomes as narrow as it was, and attention at 1 bit leaps from 0.8 to 4 and back. Where rows are not stale and the
    loss rises all the same, a wider base is tried. Each period is four times as long
    as the one before, so that a harmful width is tried again, but ever less often.
    """

    floor: int = 0
    epochs_left: int = 0
    num_periods: int = 0
    first_loss: float | None = None
    last_loss: float | None = None
    last_base: int | None = None
    losses: tuple[float, ...] = ()
    has_risen: bool = False

    def observe(self, loss: float, base: int, is_asynchronous: bool, window: int) -> WidthFloor:
        """Return the state after one more epoch.

        Parameters
        ----------
        loss : global training loss of the epoch
        base : its base width
        is_asynchronous : whether it read rows of the epoch before
        window : epochs of the first period
        """
        first_loss = loss if self.first_loss is None else self.first_loss
        floor, left, num_periods = self.floor, max(0, self.epochs_left - 1), self.num_periods
        if self.last_base not in (None, base):
            (_, loss_of_narrow), (wide, loss_of_wide) = sorted([(base, loss), (self.last_base, self.last_loss)])
            is_harmful = loss_of_narrow > max(HARMFUL * loss_of_wide, loss_of_wide + NOTICEABLE * first_loss)
            # Returning to a base that already is the floor shows the same harm again, so it begins no new period.
            if is_harmful and wide > floor:
                floor, left, num_periods = wide, period_length(window, num_periods), num_periods + 1
        num_steps = max(1, window // 2)
        before = self.losses if base == self.last_base else ()
        losses = () if is_asynchronous else (*before[-num_steps:], loss)
        has_risen = len(losses) > num_steps and losses[-1] - losses[0] > NOTICEABLE * first_loss
        return WidthFloor(floor if left else 0, left, num_periods, first_loss, loss, base, losses, has_risen)

    def as_dict(self) -> dict[str, Any]:
        """Return the state in plain lists and numbers, for a checkpoint."""
        return {**asdict(self), "losses": list(self.losses)}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> WidthFloor:
        """Return the state that `as_dict` wrote."""
        return cls(**{**state, "losses": tuple(state["losses"])})


def period_length(window: int, num_before: int) -> int:
    """Return a period's epochs: `window`, times GROWTH for each of the (at most MOST_GROWN) periods before it."""
    return window * GROWTH ** min(num_before, MOST_GROWN)
