"""Uniform: one width for all messages.

Random: widths without a reason, the baseline of those that have one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcgnn.methods.choosing import ChoosesWidths
from hpcgnn.methods.method import Method, MethodContext
from hpcgnn.settings import setting
from hpcgnn.widths import BIT_WIDTHS

if TYPE_CHECKING:
    from hpcgnn.methods.policies import WidthPolicy


@dataclass(frozen=True)
class Uniform(Method):
    """Send every row at the same width, and wait for it."""

    name = "uniform"
    takes_steps = True
    bits: int = setting(32, "Bits a message value.", BIT_WIDTHS, is_common=True)

    @property
    def folder_suffix(self) -> str:
        """Return the width."""
        return str(self.bits)

    def own_code(self) -> str:
        """Return rotated below 8 bits, where they have less error."""
        return "rotated" if self.bits < 8 else "affine"

    def width_policy(self, context: MethodContext) -> WidthPolicy:
        """Return the width that the user chose."""
        from hpcgnn.methods.policies import FixedWidths

        return FixedWidths(self.bits)

    def fixed_bits(self, storage_bits: int) -> int:
        """Return the width that the user chose."""
        return self.bits


@dataclass(frozen=True)
class Random(ChoosesWidths):
    """Draw the width of every row anew in every epoch, and wait for it. Reference: AdaQP, Table 6."""

    name = "random"
    takes_steps = True
    automatic = "2,4,8"

    def width_policy(self, context: MethodContext) -> WidthPolicy:
        """Widths drawn from the choices."""
        from hpcgnn.methods.policies import DrawnWidths

        return DrawnWidths(self.choices())
