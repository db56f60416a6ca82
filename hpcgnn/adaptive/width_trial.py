"""A wider base is tried where the loss slows, and kept only where it pays: where the loss then falls faster.

Pure functions of losses and widths; who measures them and who acts on the answer is not known here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from hpcgnn.adaptive.time_bits import Descent, next_base
from hpcgnn.adaptive.width_floor import period_length

FASTER = 2.0       # times the fall of the window before
NOTICEABLE = 0.02  # of the loss, in a window: less is noise


@dataclass(frozen=True)
class WidthTrial:
    """Remember the base width, and the wider one that is being tried.

    Attributes
    ----------
    base : int               of the next epoch
    narrow : int             the base before the trial; 0 outside one
    fall : float             of the mean loss over the window before the trial, as a share of it
    epochs_left : int        of the trial, or of the rest after one that did not pay
    num_failed : int         trials in a row that did not pay

    SYLVIE (Eq. (5)) keeps a wider base for as long as the loss slows, which near convergence is always, whether the
    bits help or not: most of a training's bytes would buy nothing. Each rest is longer than the one before, up to a
    limit.
    """

    base: int
    narrow: int = 0
    fall: float = 0.0
    epochs_left: int = 0
    num_failed: int = 0

    def observe(self, descent: Descent, is_slowing: bool, window: int, widths: tuple[int, ...],
                floor: int = 0) -> WidthTrial:
        """Return the state after one more epoch.

        Parameters
        ----------
        descent : Descent        with the epoch's loss
        is_slowing : bool        see `hpcgnn.adaptive.time_bits.is_slowing`
        window : int             epochs of a trial, and of the first rest
        widths : ascending       to choose the base from
        floor : int              the least of them for the time being; see `hpcgnn.adaptive.width_floor`
        """
        now = replace(self, base=max(self.base, floor), epochs_left=max(0, self.epochs_left - 1))
        if now.narrow:
            return now if now.epochs_left else now._judged(descent, window, floor)
        if len(descent.mean_losses) <= window + 1:
            return now
        if not is_slowing:
            return replace(now, base=max(next_base(now.base, False, widths), floor))
        if now.epochs_left or now.base == widths[-1]:
            return now
        return replace(now, base=next_base(now.base, True, widths), narrow=now.base, fall=_fall(descent, window),
                       epochs_left=window)

    def _judged(self, descent: Descent, window: int, floor: int) -> WidthTrial:
        """End the trial."""
        if _fall(descent, window) > max(FASTER * self.fall, NOTICEABLE):
            return WidthTrial(self.base)
        rest = period_length(window, self.num_failed)
        return WidthTrial(max(self.narrow, floor), epochs_left=rest, num_failed=self.num_failed + 1)

    def as_dict(self) -> dict[str, Any]:
        """Return the state in plain numbers, for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> WidthTrial:
        """Return the state that `as_dict` wrote."""
        return cls(**state)


def _fall(descent: Descent, window: int) -> float:
    """Return how far the mean loss fell over the last window, as a share of what it was; negative where it rose."""
    first, last = descent.mean_losses[-1 - window], descent.mean_losses[-1]
    return (first - last) / first if first else 0.0
