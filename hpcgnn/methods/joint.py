"""Joint: AdaQP's solver under the budget that SYLVIE's rule would spend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcgnn.errors import ConfigError
from hpcgnn.methods.adaqp import AdaQP
from hpcgnn.methods.choosing import PERCENTILES, FollowsLoss, SolvesWidths
from hpcgnn.methods.method import MethodContext

if TYPE_CHECKING:
    from hpcgnn.adaptive.policies import WidthPolicy


@dataclass(frozen=True)
class Joint(FollowsLoss, SolvesWidths):
    """Solve for the widths under a budget that follows the loss, and pipeline epochs while it falls well."""

    name = "joint"
    automatic = "1,2,4,8"

    def __post_init__(self):
        super().__post_init__()
        if self.solver == "highs":
            raise ConfigError("method joint spends a budget of bits, which solver highs can't; use bisection or greedy")

    def width_policy(self, context: MethodContext) -> WidthPolicy:
        """Collective: widths that the solver assigns within the budget."""
        from hpcgnn.adaptive.node_bits import parse_percentiles
        from hpcgnn.adaptive.policies import BudgetedWidths, level_shares

        shares = level_shares(parse_percentiles(PERCENTILES), len(self.choices()))
        solver = self.solver_of(context, AdaQP.lam, self.solver, AdaQP.solver_seconds)
        return BudgetedWidths(solver, self.period, shares)
