"""The base width over time: how fast the loss falls, and whether that calls for more bits.

Pure functions of losses and seconds; who measures them and who acts on the answer is not known here.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import Any

from hpcgnn.errors import TrainingError

LONGEST_WINDOW = 10_000    # as config.py allows
LONGEST_PAST = 2 * LONGEST_WINDOW
CLEAR_DROP = 0.5    # of the relative descent
FLAT = 1e-3         # of the loss: what falls by less over a window has converged


@dataclass(frozen=True)
class Descent:
    """Remember the loss: its running mean, and how fast that fell, epoch by epoch, newest last.

    Attributes
    ----------
    mean_losses : tuple of float     F_t, the running mean after each epoch, at most LONGEST_PAST + 1 of them
    rates : tuple of float           (F_{t-1} - F_t) / seconds of epoch t, as many at most; the first epoch has none

    Reference: SYLVIE, section V-A. Deviation: the rate is positive while the loss falls; with the sign as printed the
    rule would act against the text's words. The running mean starts at the first loss.
    """

    mean_losses: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()

    def observe(self, loss: float, seconds: float, smoothing: float) -> Descent:
        """Return the state after one more epoch.

        Parameters
        ----------
        loss : global training loss of the epoch
        seconds : length of the epoch, measured or modeled; positive
        smoothing : weight of the past in the running mean, in [0, 1)

        Raises
        ------
        TrainingError      seconds is not positive
        """
        if not seconds > 0:
            raise TrainingError(f"an epoch took {seconds} s, where the rate of descent needs a positive time; "
                                "check the clock or the cost model")
        if not self.mean_losses:
            return Descent((loss,))
        before = self.mean_losses[-1]
        mean_loss = smoothing * before + (1 - smoothing) * loss
        rate = (before - mean_loss) / seconds
        return Descent((*self.mean_losses[-LONGEST_PAST:], mean_loss), (*self.rates[-LONGEST_PAST:], rate))

    @property
    def ldr(self) -> float | None:
        """Rate of descent of the newest epoch in loss a second; None before there are two epochs to compare."""
        return self.rates[-1] if self.rates else None

    def as_dict(self) -> dict[str, Any]:
        """Return the state in plain lists and numbers, for a checkpoint."""
        return {name: list(values) for name, values in asdict(self).items()}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Descent:
        """Return the state that `as_dict` wrote."""
        return cls(tuple(state["mean_losses"]), tuple(state["rates"]))


def can_tell(descent: Descent, window: int, test: str) -> bool:
    """Tell whether there are enough losses for `is_slowing` to decide."""
    return len(descent.mean_losses) > 2 * window if test == "relative" else len(descent.rates) > window


def is_slowing(descent: Descent, window: int, test: str) -> bool:
    """Tell whether the loss falls more slowly than `window` epochs ago; False until `can_tell` is true.

    Parameters
    ----------
    window : epochs between the rates that are compared (delta of the paper), at least 1
    test : {"plain", "monotone", "relative"}
        plain: the rate is below that of `window` epochs ago; monotone: it fell at every step between them;
        relative: over the last `window` epochs the mean loss fell by less than FLAT of itself, or, as a share of what
        remains of it, by less than half of what it did over the `window` epochs before

    Reference: SYLVIE, Eq. (5), which is "plain". Deviation: any loss that decays smoothly meets that nearly always, the
    noise of single rates meets it every other time, and a machine that slows down meets it too. "relative" spans two
    windows and leaves the clock out, so it is met where the training itself slows.
    """
    losses, rates = descent.mean_losses, descent.rates
    if not can_tell(descent, window, test):
        return False
    if test == "relative":
        first, middle, last = losses[-1 - 2 * window], losses[-1 - window], losses[-1]
        # Products, not quotients: a loss that has reached 0 is no error.
        fallen = middle - last
        return fallen <= FLAT * last or fallen * middle < CLEAR_DROP * (first - middle) * last
    if test == "monotone":
        return all(later < earlier for earlier, later in itertools.pairwise(rates[-window - 1:]))
    return rates[-1] < rates[-1 - window]


def next_base(base: int, slowing: bool, widths: tuple[int, ...]) -> int:
    """Return the next epoch's base width: the next larger of `widths` where the loss is slowing, else the next smaller.

    Reference: SYLVIE, Eq. (5), once t > delta.
    """
    place = widths.index(base) + (1 if slowing else -1)
    return widths[min(max(place, 0), len(widths) - 1)]
