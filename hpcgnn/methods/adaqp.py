"""AdaQP: widths solved for the least variance and time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcgnn.methods.choosing import SolvesWidths
from hpcgnn.methods.method import MethodContext
from hpcgnn.settings import setting

if TYPE_CHECKING:
    from hpcgnn.adaptive.policies import WidthPolicy


@dataclass(frozen=True)
class AdaQP(SolvesWidths):
    """Solve for the widths from traced ranges and measured links, and wait for the rows.

    Reference: AdaQP, section 4 and Eq. (10)-(12).
    """

    name = "adaqp"
    automatic = "2,4,8"
    lam: float = setting(0.5, "Weight of variance against time when widths are assigned.", low=0.0, high=1.0,
                         has_flag=False)
    solver_seconds: float = setting(5.0, "Limit of one assignment by highs; past it the greedy one serves.", low=0.01,
                                    has_flag=False)

    def width_policy(self, context: MethodContext) -> WidthPolicy:
        """Collective: widths that the solver assigns."""
        from hpcgnn.adaptive.policies import SolvedWidths

        return SolvedWidths(self.solver_of(context, self.lam, self.solver, self.solver_seconds), self.period)
