"""Base widths that do harm: every change of the base is an experiment, and its outcome is remembered for a while.

Pure functions of losses and widths; who measures them and who acts on the answer is not known here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hpcgnn.adaptive.steadiness import period_length

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

    A base that is changed between two epochs shows what the narrower one costs, since little else changes. SYLVIE
    (section V-A) does not look: a loss that a wider base has brought down counts as falling well, so the base
    becomes as narrow as it was, and attention at 1 bit leaps from 0.8 to 4 and back. Each period is four times as long
    as the one before, so that a harmful width is tried again, but ever less often.
    """

    floor: int = 0
    epochs_left: int = 0
    num_periods: int = 0
    first_loss: float | None = None
    last_loss: float | None = None
    last_base: int | None = None

    def observe(self, loss: float, base: int, window: int) -> WidthFloor:
        """The state after one more epoch.

        Parameters
        ----------
        loss : global training loss of the epoch
        base : its base width
        window : epochs of the first period
        """
        first_loss = loss if self.first_loss is None else self.first_loss
        newest = first_loss, loss, base
        if self.last_base not in (None, base):
            (_, loss_of_narrow), (wide, loss_of_wide) = sorted([(base, loss), (self.last_base, self.last_loss)])
            is_harmful = loss_of_narrow > max(HARMFUL * loss_of_wide, loss_of_wide + NOTICEABLE * first_loss)
            # The way back to a floor that has just begun tells nothing new.
            if is_harmful and wide > self.floor:
                return WidthFloor(wide, period_length(window, self.num_periods), self.num_periods + 1, *newest)
        left = max(0, self.epochs_left - 1)
        return WidthFloor(self.floor if left else 0, left, self.num_periods, *newest)

    def as_dict(self) -> dict[str, Any]:
        """The state in plain numbers, for a checkpoint."""
        return asdict(self)
