"""AdaQP: widths solved for the least variance and time. Joint: AdaQP's solver under the budget of SYLVIE's rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcgnn.errors import ConfigError
from hpcgnn.methods.choosing import PERCENTILES, FollowsLoss, SolvesWidths, parse_percentiles
from hpcgnn.methods.method import MethodContext, narrow_sums
from hpcgnn.settings import setting

if TYPE_CHECKING:
    from hpcgnn.methods.policies import WidthPolicy


@dataclass(frozen=True)
class AdaQP(SolvesWidths):
    """Solve for the widths from traced ranges and measured links, and wait for the rows.

    Reference: AdaQP, section 4 and Eq. (10)-(12).
    """

    name = "adaqp"
    automatic = "2,4,8"
    lam: float = setting(0.5, "Weight of variance against time when widths are assigned.", low=0.0, high=1.0,
                         flag="none")
    solver_seconds: float = setting(5.0, "Limit of one assignment by highs; after it, greedy assigns.", low=0.01,
                                    flag="none")

    def width_policy(self, context: MethodContext) -> WidthPolicy:
        from hpcgnn.methods.policies import SolvedWidths

        return SolvedWidths(self.solver_of(context, self.lam, self.solver, self.solver_seconds), self.period)


@dataclass(frozen=True)
class Joint(FollowsLoss, SolvesWidths):
    """Solve for the widths under a budget that follows the loss, and pipeline epochs while it falls well."""

    name = "joint"
    automatic = "1,2,4,8"

    def __post_init__(self):
        super().__post_init__()
        if self.solver == "highs":
            raise ConfigError("method joint spends a budget of bits, which solver highs can't; use bisection or greedy")

    def own_sum_bits(self) -> int:
        return narrow_sums(self.choices())

    def width_policy(self, context: MethodContext) -> WidthPolicy:
        from hpcgnn.methods.policies import BudgetedWidths, level_shares

        shares = level_shares(parse_percentiles(PERCENTILES), len(self.choices()))
        solver = self.solver_of(context, AdaQP.lam, self.solver, AdaQP.solver_seconds)
        return BudgetedWidths(solver, self.period, shares)
