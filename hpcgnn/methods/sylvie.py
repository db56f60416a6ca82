"""SYLVIE: widths by importance and by how fast the loss falls. SylviePaper: the same, strictly by the paper's rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcgnn.methods.choosing import PERCENTILES, FollowsLoss, Reproducible, parse_percentiles
from hpcgnn.methods.method import MethodContext, narrow_sums
from hpcgnn.settings import setting

if TYPE_CHECKING:
    from hpcgnn.methods.policies import WidthPolicy


@dataclass(frozen=True)
class Sylvie(FollowsLoss, Reproducible):
    """Widen the rows of important nodes, all rows when the loss slows, and pipeline epochs while it falls well.

    Reference: SYLVIE, sections IV and V.
    """

    name = "sylvie"
    automatic = "1,2,4,8"
    percentiles: str = setting(PERCENTILES, "Percentiles of importance at which a boundary node's width doubles.",
                               flag="none")

    def __post_init__(self):
        super().__post_init__()
        self.thresholds()

    def thresholds(self) -> tuple[float, ...]:
        """Return the percentiles, one fewer than there are widths; ConfigError if they are malformed."""
        num_widths = len(self.choices())
        return () if num_widths == 1 else parse_percentiles(self.percentiles, num_widths)

    def own_sum_bits(self) -> int:
        return narrow_sums(self.choices())

    def width_policy(self, context: MethodContext) -> WidthPolicy:
        from hpcgnn.methods.policies import LeveledWidths

        return LeveledWidths(self.choices(), self.thresholds(), context.importance, context.plan)


@dataclass(frozen=True)
class SylviePaper(Sylvie):
    """Widen messages when the rate of descent falls, and pipeline epochs when it does not.

    Reference: SYLVIE, Eq. (5) and section V-B, with the rate of descent positive while the loss falls. No width is
    avoided after it did harm, and attention starts at the base widths of all other models.
    """

    name = "sylvie-paper"
    tries_widths = False
    automatic_asynchrony, automatic_test = "descent", "plain"

    def own_code(self) -> str:
        return "affine"

    def own_sum_bits(self) -> int:
        return 32

    def starts_wide(self, context: MethodContext) -> bool:
        return False
