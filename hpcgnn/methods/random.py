"""Random: widths without a reason, the baseline of those that have one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcgnn.methods.choosing import ChoosesWidths
from hpcgnn.methods.method import MethodContext

if TYPE_CHECKING:
    from hpcgnn.adaptive.policies import WidthPolicy


@dataclass(frozen=True)
class Random(ChoosesWidths):
    """Draw the width of every row anew in every epoch, and wait for it. Reference: AdaQP, Table 6."""

    name = "random"
    takes_steps = True
    automatic = "2,4,8"

    def width_policy(self, context: MethodContext) -> WidthPolicy:
        """Widths drawn from the choices."""
        from hpcgnn.adaptive.policies import DrawnWidths

        return DrawnWidths(self.choices())
