"""The base width over time: how fast the loss falls, and whether that calls for more bits.

`Descent` remembers the smoothed loss, and `is_slowing` judges it (SYLVIE, Eq. (5)). Two refinements build on it. A
`WidthTrial` widens the base when the loss slows and keeps it only if the loss then falls faster. A `WidthFloor` notes a
base at which the loss leapt and avoids it for a period; each period is longer than the one before. All states are
immutable; `observe` returns the next one.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, replace
from typing import Any

from hpcgnn.errors import TrainingError

GROWTH = 4             # ratio of a period to the one before
MOST_GROWN = 3         # a period grows at most this often, so that a run of any length goes on trying
HARMFUL = 1.25         # a base is harmful at this multiple of the wider base's loss
NOTICEABLE = 0.1       # share of the first loss: small losses of few training nodes leap at random
FASTER = 2.0       # least ratio of a window's fall to the fall of the window before
NOTICEABLE_GAIN = 0.02  # share of the loss per window: less is noise
LONGEST_WINDOW = 10_000    # as config.py allows
LONGEST_PAST = 2 * LONGEST_WINDOW
CLEAR_DROP = 0.5    # ratio of a window's relative descent to the relative descent of the window before
FLAT = 1e-3         # share of the loss: a smaller fall over a window counts as converged


@dataclass(frozen=True)
class Descent:
    """The running mean of the loss, from its first value, and its rate of descent, epoch by epoch, newest last.

    Reference: SYLVIE, section V-A. Deviation: the rate is positive while the loss falls; with the printed sign the rule
    would contradict the paper's text.
    """

    mean_losses: tuple[float, ...] = ()  # F_t, the running mean after each epoch, at most LONGEST_PAST + 1 of them
    rates: tuple[float, ...] = ()        # (F_{t-1} - F_t) / seconds of epoch t; the first epoch has none

    def observe(self, loss: float, seconds: float, smoothing: float) -> Descent:
        """Return the state after an epoch; `smoothing` in [0, 1) weighs the past. TrainingError if seconds <= 0."""
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
        return self.rates[-1] if self.rates else None

    def as_dict(self) -> dict[str, Any]:
        return {name: list(values) for name, values in asdict(self).items()}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Descent:
        return cls(tuple(state["mean_losses"]), tuple(state["rates"]))


def can_tell(descent: Descent, window: int, test: str) -> bool:
    return len(descent.mean_losses) > 2 * window if test == "relative" else len(descent.rates) > window


def is_slowing(descent: Descent, window: int, test: str) -> bool:
    """Whether the loss falls more slowly than `window` (the paper's delta) epochs ago; False until `can_tell`.

    With `test` "plain" the rate is below the one `window` epochs ago; "monotone": it fell in every epoch between;
    "relative": over the last `window` epochs the mean loss fell by less than the share FLAT, or relatively by less than
    half of its fall over the `window` epochs before.

    Reference: SYLVIE, Eq. (5), which is "plain". Deviation: any smoothly decaying loss passes "plain" nearly always,
    noise in single rates passes it every other time, and a slowing machine passes it too. "relative" spans two windows
    and uses no clock, so that only training itself can slow.
    """
    losses, rates = descent.mean_losses, descent.rates
    if not can_tell(descent, window, test):
        return False
    if test == "relative":
        first, middle, last = losses[-1 - 2 * window], losses[-1 - window], losses[-1]
        # Products, not quotients, so that a loss of 0 is no error.
        fallen = middle - last
        return fallen <= FLAT * last or fallen * middle < CLEAR_DROP * (first - middle) * last
    if test == "monotone":
        return all(later < earlier for earlier, later in itertools.pairwise(rates[-window - 1:]))
    return rates[-1] < rates[-1 - window]


def next_base(base: int, slowing: bool, widths: tuple[int, ...]) -> int:
    """The next larger of `widths` if the loss is slowing, else the next smaller (SYLVIE, Eq. (5), once t > delta)."""
    place = widths.index(base) + (1 if slowing else -1)
    return widths[min(max(place, 0), len(widths) - 1)]


@dataclass(frozen=True)
class WidthTrial:
    """The base width, and the wider one that is being tried.

    SYLVIE (Eq. (5)) keeps a wider base while the loss slows. Near convergence it always slows, so most bytes would gain
    nothing. Here a longer rest follows each failed trial.
    """

    base: int             # base of the next epoch
    narrow: int = 0       # base before the trial; 0 outside a trial
    fall: float = 0.0     # relative fall of the mean loss over the window before the trial
    epochs_left: int = 0  # epochs left of the trial, or of the rest after a failed one
    num_failed: int = 0   # failed trials in a row

    def observe(self, descent: Descent, is_slowing: bool, window: int, widths: tuple[int, ...],
                floor: int = 0) -> WidthTrial:
        """Return the state after an epoch; `window` is the length of a trial and of the first rest."""
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
        if _fall(descent, window) > max(FASTER * self.fall, NOTICEABLE_GAIN):
            return WidthTrial(self.base)
        rest = period_length(window, self.num_failed)
        return WidthTrial(max(self.narrow, floor), epochs_left=rest, num_failed=self.num_failed + 1)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> WidthTrial:
        return cls(**state)


def _fall(descent: Descent, window: int) -> float:
    first, last = descent.mean_losses[-1 - window], descent.mean_losses[-1]
    return (first - last) / first if first else 0.0


@dataclass(frozen=True)
class WidthFloor:
    """The least base width for the time being.

    If the base changes between two epochs, their losses show what the narrower one costs. SYLVIE (section V-A) does not
    look at this: after a wider base has brought the loss down, the rule returns to the narrow one, and the loss of
    attention models at 1 bit leaps from 0.8 to 4 and back. Here a harmful base is avoided for a period, four times as
    long each time.
    """

    floor: int = 0                  # 0 is none
    epochs_left: int = 0            # epochs for which the floor still holds
    num_periods: int = 0            # periods started so far
    first_loss: float | None = None
    last_loss: float | None = None
    last_base: int | None = None
    losses: tuple[float, ...] = ()  # losses of the newest synchronous epochs at one base, newest last
    has_risen: bool = False         # whether losses rose noticeably over half a window, so a wider base is worth a try

    def observe(self, loss: float, base: int, is_asynchronous: bool, window: int) -> WidthFloor:
        """Return the state after an epoch; `window` is the length of the first period."""
        first_loss = loss if self.first_loss is None else self.first_loss
        floor, left, num_periods = self.floor, max(0, self.epochs_left - 1), self.num_periods
        if self.last_base not in (None, base):
            (_, loss_of_narrow), (wide, loss_of_wide) = sorted([(base, loss), (self.last_base, self.last_loss)])
            is_harmful = loss_of_narrow > max(HARMFUL * loss_of_wide, loss_of_wide + NOTICEABLE * first_loss)
            # A return to the base below the floor shows the same harm again, so it begins no new period.
            if is_harmful and wide > floor:
                floor, left, num_periods = wide, period_length(window, num_periods), num_periods + 1
        num_steps = max(1, window // 2)
        before = self.losses if base == self.last_base else ()
        losses = () if is_asynchronous else (*before[-num_steps:], loss)
        has_risen = len(losses) > num_steps and losses[-1] - losses[0] > NOTICEABLE * first_loss
        return WidthFloor(floor if left else 0, left, num_periods, first_loss, loss, base, losses, has_risen)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "losses": list(self.losses)}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> WidthFloor:
        return cls(**{**state, "losses": tuple(state["losses"])})


def period_length(window: int, num_before: int) -> int:
    """Epochs of a period: `window`, times GROWTH for each of at most MOST_GROWN earlier periods."""
    return window * GROWTH ** min(num_before, MOST_GROWN)
