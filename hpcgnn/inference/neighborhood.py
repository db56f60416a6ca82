"""CodeNeighborhood gives a forward pass on integers its sums over in-neighbors, and does not know its arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

BLOCK_ELEMENTS = 1 << 20     # of int32 sums that are in memory at a time
REDUCTIONS = {"gcn": "gcn", "sage": "mean", "gin": "sum", "gat": "sum"}


class CodeNeighborhood(Protocol):
    """The rows of one pass and their in-neighbors.

    Sums come in blocks of rows, (first row, block), which cover rows 0 .. n - 1 in order; a block is valid until
    the next one is asked for.
    """

    def row_factor(self, reduction: str) -> np.ndarray | None:
        """Return (n,) float32, or None for sum: `hpcgnn.graph.normalization.degree_factor` of the rows."""

    def sums(self, codes: np.ndarray, bit_width: int) -> Iterator[tuple[int, np.ndarray]]:
        """Collective: exact sums over in-neighbors.

        Parameters
        ----------
        codes : (n, dim) int8, of magnitude below 2**(bit_width - 1)

        Yields
        ------
        first : int, sums : (m, dim) int32, contiguous
        """

    def attended(self, codes: np.ndarray, bit_width: int, vectors: np.ndarray,
                 num_heads: int) -> Iterator[tuple[int, np.ndarray]]:
        """Collective: attention over in-neighbors and the row itself, see `hpcgnn.ops.code_attention`.

        Parameters
        ----------
        codes, bit_width                as of `sums`
        vectors : (2, dim) float64      in units of a code

        Yields
        ------
        first : int, attended : (m, dim) float32, contiguous
        """


def row_blocks(start: int, stop: int, dim: int) -> Iterator[tuple[int, int]]:
    """(first, last + 1) of blocks of about BLOCK_ELEMENTS."""
    step = max(1, BLOCK_ELEMENTS // max(1, dim))
    for first in range(start, stop, step):
        yield first, min(first + step, stop)
