"""Base widths that do harm: every change of the base is an experiment, and its outcome is remembered for a while.

Pure functions of losses and widths; who measures them and who acts on the answer is not known here.

A wider base is tried where the loss slows, and kept only where it pays: where the loss then falls faster.

Pure functions of losses and widths; who measures them and who acts on the answer is not known here.

The base width over time: how fast the loss falls, and whether that calls for more bits.

Pure functions of losses and seconds; who measures them and who acts on the answer is not known here.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, replace
from typing import Any

from hpcgnn.errors import TrainingError

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


FASTER = 2.0       # times the fall of the window before
NOTICEABLE_GAIN = 0.02  # of the loss, in a window: less is noise


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
        is_slowing : bool        see `hpcgnn.methods.time_bits.is_slowing`
        window : int             epochs of a trial, and of the first rest
        widths : ascending       to choose the base from
        floor : int              the least of them for the time being; see `hpcgnn.methods.time_bits`
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
        if _fall(descent, window) > max(FASTER * self.fall, NOTICEABLE_GAIN):
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
