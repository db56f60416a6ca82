"""SYLVIE: widths by importance and by how fast the loss falls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcgnn.methods.choosing import PERCENTILES, FollowsLoss, Reproducible
from hpcgnn.methods.method import MethodContext
from hpcgnn.settings import setting

if TYPE_CHECKING:
    from hpcgnn.adaptive.policies import WidthPolicy


@dataclass(frozen=True)
class Sylvie(FollowsLoss, Reproducible):
    """Widen the rows of important nodes, all rows where the loss slows, and pipeline epochs while it falls well.

    Reference: SYLVIE, sections IV and V.
    """

    name = "sylvie"
    automatic = "1,2,4,8"
    percentiles: str = setting(PERCENTILES, "Percentiles of importance at which a boundary node's width doubles.",
                               has_flag=False)

    def __post_init__(self):
        super().__post_init__()
        self.thresholds()

    def thresholds(self) -> tuple[float, ...]:
        """Return the percentiles, one fewer than there are widths; of one width none.

        Raises
        ------
        ConfigError      malformed percentiles
        """
        from hpcgnn.adaptive.node_bits import parse_percentiles

        num_widths = len(self.choices())
        return () if num_widths == 1 else parse_percentiles(self.percentiles, num_widths)

    def width_policy(self, context: MethodContext) -> WidthPolicy:
        """Widths by level of importance."""
        from hpcgnn.adaptive.policies import LeveledWidths

        return LeveledWidths(self.choices(), self.thresholds(), context.importance, context.plan)
