"""Bit-widths of the rows of a message, as both its sides compute them. Policies that need traces are in `adaptive`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


class BitPlan(Protocol):
    """An immutable choice of widths. Sender and receiver ask with the same arguments and get the same answer."""

    def widths(self, layer: int, purpose: int, source: int, destination: int, num_rows: int) -> np.ndarray:
        """(num_rows,) uint8, the width of each row of one message."""


@dataclass(frozen=True)
class UniformBits:
    """Every row at the same width."""

    bits: int

    def widths(self, layer: int, purpose: int, source: int, destination: int, num_rows: int) -> np.ndarray:
        """(num_rows,) uint8, all equal to `bits`."""
        return np.full(num_rows, self.bits, dtype=np.uint8)

