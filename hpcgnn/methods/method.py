"""Method: decides the bits of halo rows, which rows travel, and whether epochs wait for them.

Each method is a small class; its dataclass fields are its settings on the command line.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from hpcgnn.settings import Clash, check_values

# `--help` reads methods without MPI and torch, so code that runs imports them inside functions.
if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI

    from hpcgnn.exchange.kinds import ExchangeKind
    from hpcgnn.exchange.plan import ExchangePlan
    from hpcgnn.exchange.traffic import ControlTraffic
    from hpcgnn.graph.local_graph import LocalGraph
    from hpcgnn.methods.controller import Controller, DescentTest
    from hpcgnn.methods.policies import WidthPolicy
    from hpcgnn.methods.step_count import StepRule

SENDS_SOME = Clash("nodes_aware", "on", "ranks of a node share rows that come in every epoch; use another method")
NARROW_SUMS = 8     # bits per value in sums of gradients beside messages of few bits
KEEPS_ALL_PEERS = Clash("rematerialize", True, "the method keeps the rows of all peers from epoch to epoch; use "
                        "another method")
DIFFERENCES = ("previous", "auto")    # values of the setting `predict` with which messages may hold differences
NOTHING_TO_PREDICT = Clash("predict", DIFFERENCES, "receivers don't get every row in every epoch; use another method")


def narrow_sums(widths: Sequence[int]) -> int:
    """Bits per value in sums of gradients beside messages of these widths, ascending."""
    return NARROW_SUMS if widths[0] <= 8 else 32


@dataclass(frozen=True)
class MethodContext:
    """Facts about its rank that a method gets when training begins.

    Attributes
    ----------
    halo_squares : function                          reduction -> (plan.num_halo,) float32, per halo row the sum of
                                                     squared coefficients by which its readers add it
    importance : (num_inner + plan.num_halo,) float32     rank of the global in-degree among boundary nodes, in [0, 1]
    storage_bits : {32, 16}                          width of unquantized rows
    reduction : {"gcn", "mean", "sum"}               how the model sums rows; it weighs the variance of a message
    attends : bool                                   whether the model weighs rows by a softmax
    rotates : bool                                   whether rows of few bits are rotated; see the setting `code`
    link_bytes_per_second : float                    pace of an imitated link; 0: none
    control : ControlTraffic                         counts messages between ranks for decisions on widths
    steps : StepRule                                 number of steps per epoch
    num_epochs : int                                 epochs of the run, finished ones included when it is resumed
    picks_differences : bool                         whether motion decides which exchanges send differences
    """

    comm: MPI.Comm
    plan: ExchangePlan
    graph: LocalGraph
    halo_squares: Callable[[str], np.ndarray]
    importance: np.ndarray
    storage_bits: int
    num_layers: int
    reduction: str
    attends: bool
    rotates: bool
    link_bytes_per_second: float
    control: ControlTraffic
    steps: StepRule
    num_epochs: int
    picks_differences: bool = False


@dataclass(frozen=True)
class Method(ABC):
    """Decides at which widths halo rows travel, when, and which of them. Fields are the method's own settings.

    Attributes
    ----------
    name : str                       the users' name for it
    asynchrony : {"never", "always", "descent", "measured"}      see `hpcgnn.methods.controller.Controller`
    most_motion : float              relative motion in an epoch up to which a row may be stale, under "measured"
    clashes : tuple of Clash         values of other settings that it can't work with
    deterministic : bool             decide by modeled seconds instead of measured ones
    may_leave_out : bool            whether `--steps auto` may leave out rows and gradients that bring little; a method
                                     that keeps or traces what each row sends needs every row in every epoch

    Raises
    ------
    ConfigError      a setting outside its range
    """

    name: ClassVar[str]
    clashes: ClassVar[tuple[Clash, ...]] = ()
    asynchrony = "never"
    most_motion = 0.0
    deterministic = False
    may_leave_out = False

    def __post_init__(self):
        check_values(self)

    def check(self, others: Mapping[str, Any]) -> None:
        """Raise ConfigError if other settings of the run do not go together with the method."""
        for clash in self.clashes:
            clash.check(others, f"method {self.name}")

    @property
    def folder_suffix(self) -> str:
        return ""

    @abstractmethod
    def width_policy(self, context: MethodContext) -> WidthPolicy:
        """Collective: return the source of every epoch's widths."""

    def exchange(self) -> ExchangeKind:
        """Return the kind of its exchanges; by default they send all rows fresh."""
        from hpcgnn.exchange.kinds import Fresh

        return Fresh()

    def loss_test(self, context: MethodContext) -> DescentTest | None:
        """Return the test by which the method judges the loss; None if the loss decides nothing."""
        return None

    def rule(self) -> str:
        """Return when epochs are asynchronous; see `hpcgnn.methods.controller.Controller`."""
        return self.asynchrony

    def own_code(self) -> str:
        """Return the code of rows of 1 to 8 bits if the user does not choose one; see the setting `code`."""
        return "affine"

    def own_sum_bits(self) -> int:
        """Return the bits per value in sums of gradients if the user does not choose them: the setting `sum_bits`."""
        return 32

    def starts_wide(self, context: MethodContext) -> bool:
        """Whether training begins at the largest base width."""
        # Attention weights form first and need exact rows; rotated rows have small errors even at the smallest width.
        return context.attends and not context.rotates

    def fixed_bits(self, storage_bits: int) -> int | None:
        """Return the width of all messages, if there is only one."""
        return None

    def controller(self, context: MethodContext) -> Controller:
        """Collective: return the Controller that decides the plan of each epoch."""
        from hpcgnn.methods.controller import Controller

        return Controller(context.comm, self.width_policy(context), self.rule(), self.loss_test(context),
                          self.starts_wide(context), self.most_motion, context.steps, context.picks_differences)
