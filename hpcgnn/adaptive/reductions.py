"""Reductions: a few numbers of all ranks brought together, as solvers that share a problem ask for them.

Who the others are, and how they are reached, is not known here.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Reductions(Protocol):
    """Bring numbers of one shape together, as float64, that all ranks hand over in the same order of calls."""

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Collective: return the sums over the ranks."""

    def max(self, values: np.ndarray) -> np.ndarray:
        """Collective: return the largest over the ranks."""

    def before(self, values: np.ndarray) -> np.ndarray:
        """Collective: return the sums over the ranks before this one."""


class Alone:
    """The reductions of one rank that has the whole problem; see `Reductions`."""

    def sum(self, values: np.ndarray) -> np.ndarray:
        """See `Reductions`."""
        return values.copy()

    def max(self, values: np.ndarray) -> np.ndarray:
        """See `Reductions`."""
        return values.copy()

    def before(self, values: np.ndarray) -> np.ndarray:
        """See `Reductions`."""
        return np.zeros(values.shape)
