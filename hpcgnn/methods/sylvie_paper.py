"""SYLVIE as its paper has it, without what this program adds, so that anybody can see the difference."""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.methods.method import MethodContext
from hpcgnn.methods.sylvie import Sylvie


@dataclass(frozen=True)
class SylviePaper(Sylvie):
    """Widen messages where the rate of descent falls, and pipeline epochs where it does not, by the paper's own rule.

    Reference: SYLVIE, Eq. (5) and section V-B, with the rate of descent positive while the loss falls. No width is left
    alone after it did harm, and attention has the base widths of all other models.
    """

    name = "sylvie-paper"
    tries_widths = False
    automatic_asynchrony, automatic_test = "descent", "plain"

    def own_code(self) -> str:
        """Return the paper's codes."""
        return "affine"

    def starts_wide(self, context: MethodContext) -> bool:
        """Tell whether training begins at the largest base width: never."""
        return False
