"""Uniform: one width for all messages. Random: a random width per row, the baseline for chosen widths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcgnn.methods.choosing import ChoosesWidths
from hpcgnn.methods.method import Method, MethodContext, narrow_sums
from hpcgnn.settings import setting
from hpcgnn.widths import BIT_WIDTHS

if TYPE_CHECKING:
    from hpcgnn.methods.policies import WidthPolicy


@dataclass(frozen=True)
class Uniform(Method):
    """Send every row at the same width, and wait for it."""

    name = "uniform"
    may_leave_out = True
    bits: int = setting(32, "Bits per message value.", BIT_WIDTHS, flag="common")

    @property
    def folder_suffix(self) -> str:
        return str(self.bits)

    def own_code(self) -> str:
        return "rotated" if self.bits < 8 else "affine"

    def own_sum_bits(self) -> int:
        return narrow_sums((self.bits,))

    def width_policy(self, context: MethodContext) -> WidthPolicy:
        from hpcgnn.methods.policies import FixedWidths

        return FixedWidths(self.bits)

    def fixed_bits(self, storage_bits: int) -> int:
        return self.bits


@dataclass(frozen=True)
class Random(ChoosesWidths):
    """Draw the width of every row anew in every epoch, and wait for it. Reference: AdaQP, Table 6."""

    name = "random"
    may_leave_out = True
    automatic = "2,4,8"

    def width_policy(self, context: MethodContext) -> WidthPolicy:
        from hpcgnn.methods.policies import DrawnWidths

        return DrawnWidths(self.choices())
