"""Shared by methods that choose widths: the widths to choose from, the test of the loss, the solver."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from hpcgnn.errors import ConfigError
from hpcgnn.methods.method import KEEPS_ALL_PEERS, Method, MethodContext
from hpcgnn.settings import setting
from hpcgnn.widths import BIT_WIDTHS, PACKED_WIDTHS

if TYPE_CHECKING:
    from hpcgnn.exchange.kinds import ExchangeKind
    from hpcgnn.methods.controller import DescentTest
    from hpcgnn.methods.problem import LinkModel
    from hpcgnn.methods.solving import Solver

PERCENTILES = "85,95,99"      # as in SYLVIE


@dataclass(frozen=True)
class Pipelined(Method):
    """Epochs compute with the halo rows of the epoch before, while their own rows travel."""

    clashes = (KEEPS_ALL_PEERS,)

    def exchange(self) -> ExchangeKind:
        from hpcgnn.exchange.kinds import Kept

        return Kept()


@dataclass(frozen=True)
class ChoosesWidths(Method):
    """Chooses among several widths."""

    automatic: ClassVar[str]      # the widths if the user names none
    widths: str = setting("auto", "Bit-widths to choose from, joined by commas; auto is the method's own choice.",
                          flag="none")

    def __post_init__(self):
        super().__post_init__()
        self.choices()

    def choices(self) -> tuple[int, ...]:
        """The widths, ascending; ConfigError if they are malformed."""
        return parse_widths(self.automatic if self.widths == "auto" else self.widths)


@dataclass(frozen=True)
class Reproducible(ChoosesWidths):
    """Decides by measured seconds, unless `deterministic` is set."""

    deterministic: bool = setting(False, "Decide by modeled seconds instead of measured ones, so that two runs agree.",
                                  flag="none")


@dataclass(frozen=True)
class FollowsLoss(Pipelined):
    """Widens messages if the loss slows, and lets rows be an epoch old if they move little."""

    automatic_asynchrony: ClassVar[str] = "measured"
    automatic_test: ClassVar[str] = "relative"
    tries_widths: ClassVar[bool] = True     # see DescentTest
    asynchrony: str = setting(
        "auto", "Which epochs use halo rows of the epoch before: none (never), all (always), epochs after a loss that "
        "was not slowing (descent, SYLVIE's rule), or epochs with rows that move little (measured, per layer and apart "
        "for rows and gradients); auto is the method's own choice.",
        ("auto", "measured", "descent", "always", "never"), flag="none")
    most_motion: float = setting(0.05, "Largest relative motion of a row per epoch at which it may be an epoch old, if "
                                 "motion is measured.", low=0.0, flag="none")
    descent_test: str = setting(
        "auto", "When the loss counts as slowing: its rate of descent is lower than descent_window epochs ago "
        "(plain), or falls throughout the window (monotone); or the loss stands still, or its relative fall is less "
        "than half of the fall over the window before (relative); auto is the method's own choice.",
        ("auto", "plain", "monotone", "relative"), flag="none")
    descent_window: int = setting(10, "Epochs between the two rates that are compared; 5 for quality, 20 for speed.",
                                  low=1, high=10000, flag="none")
    descent_smoothing: float = setting(0.9, "Weight of the past in the running mean of the loss.", low=0.0, high=0.999,
                                       flag="none")

    def own_code(self) -> str:
        return "rotated"

    def rule(self) -> str:
        return self.automatic_asynchrony if self.asynchrony == "auto" else self.asynchrony

    def loss_test(self, context: MethodContext) -> DescentTest:
        from hpcgnn.methods.controller import DescentTest

        test = self.automatic_test if self.descent_test == "auto" else self.descent_test
        return DescentTest(self.descent_window, test, self.descent_smoothing, self.tries_widths)


@dataclass(frozen=True)
class SolvesWidths(Reproducible):
    """Lets a solver assign the widths, from traced ranges and the costs of links."""

    period: int = setting(50, "Epochs between assignments of widths.", low=1, flag="none")
    group_size: int = setting(500, "Number of rows of a message that share a width.", low=1, flag="none")
    solver: str = setting("bisection", "How widths are assigned: by each rank for its own messages, after all ranks "
                          "have agreed on the seconds of a round or on the least gain of a bit (bisection), or by rank "
                          "0 for all (highs, greedy).", ("bisection", "highs", "greedy"), flag="none")

    def check(self, others: Mapping[str, Any]) -> None:
        super().check(others)
        if others["send_share"] < 1.0:
            raise ConfigError(f"method {self.name} can't be used with send_share {others['send_share']}: it solves "
                              "widths from the ranges of all rows; use another method, or leave send_share out")

    def solver_of(self, context: MethodContext, lam: float, solver: str, seconds: float) -> Solver:
        """Collective: return the solver; receivers send squared coefficients, timed rounds give the links' costs."""
        from hpcgnn.exchange.reach import tell_owners
        from hpcgnn.methods.solving import Solver, SolverSettings

        told = tell_owners(context.comm, context.plan, context.halo_squares(context.reduction))
        how = SolverSettings(self.choices(), self.group_size, lam, solver, seconds)
        return Solver(context.comm, context.plan, told, self._links(context), how, context.control)

    def _links(self, context: MethodContext) -> LinkModel:
        from hpcgnn.exchange.transfer import Link, ranks_of_node, swap_rows, time_rounds
        from hpcgnn.methods.problem import LinkModel, fit_links, fixed_links

        comm, peers = context.comm, context.plan.peers
        if self.deterministic:
            return fixed_links(len(peers))
        # A receiver times its messages, so it tells the sender their cost.
        timed = time_rounds(comm, Link(context.link_bytes_per_second))
        told = swap_rows(comm, peers, fit_links(peers, ranks_of_node(comm), *timed))
        return LinkModel(told[:, 0].copy(), told[:, 1].copy())


def parse_widths(text: str) -> tuple[int, ...]:
    """Return the widths of a comma-separated list: ascending ones of 1, 2, 4, 8, or any single one."""
    words = [word.strip() for word in text.split(",")]
    known = {str(width): width for width in (BIT_WIDTHS if len(words) == 1 else PACKED_WIDTHS)}
    widths = tuple(known[word] for word in words if word in known)
    if len(widths) != len(words) or not _ascends(widths):
        raise ConfigError(f"widths is {text!r}; expected some of {', '.join(map(str, PACKED_WIDTHS))} in ascending "
                          f"order, as in 2,4,8, or one of {', '.join(map(str, BIT_WIDTHS))}")
    return widths


def parse_percentiles(text: str, num_levels: int = len(PACKED_WIDTHS)) -> tuple[float, ...]:
    """Return the ascending percentiles of a comma-separated list, one fewer than there are levels; else ConfigError."""
    try:
        percentiles = tuple(float(word) for word in text.split(",") if text.strip())
    except ValueError:
        percentiles = (float("nan"),)
    if not all(0 < percentile < 100 for percentile in percentiles) or not _ascends(percentiles):
        raise ConfigError(f"percentiles is {text!r}; expected numbers between 0 and 100 in ascending order, "
                          "as in 80,92.5,98")
    if len(percentiles) != num_levels - 1:
        raise ConfigError(f"percentiles is {text!r}, {len(percentiles)} of them; {num_levels} widths need "
                          f"{num_levels - 1}, so change percentiles or widths")
    return percentiles


def _ascends(numbers: tuple[float, ...]) -> bool:
    return all(low < high for low, high in itertools.pairwise(numbers))
