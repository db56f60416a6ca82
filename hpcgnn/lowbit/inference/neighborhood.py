"""Sums over in-neighbors for a forward pass on integers, in blocks of rows.

`CodeNeighborhood` is what `forward` asks for; `RankNeighborhood` answers for one rank's rows. It starts the exchange of
codes, sums central rows, which have no halo neighbor, while halo codes travel, then sums the marginal rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch

from hpcgnn.graph.reductions import degree_factor
from hpcgnn.lowbit.inference.code_exchange import CodeExchange
from hpcgnn.ops.arena import empty
from hpcgnn.ops.integer_rows import Scores, attend_codes, score_codes, sum_codes
from hpcgnn.partition.partition import Partition

BLOCK_ELEMENTS = 1 << 20     # int32 sums in memory at a time
REDUCTIONS = {"gcn": "gcn", "sage": "mean", "gin": "sum", "gat": "sum"}


class CodeNeighborhood(Protocol):
    """The rows of one pass and their in-neighbors.

    Sums come in blocks (first row, block), which cover rows 0 .. n - 1 in order. A block is valid until the next one.
    """

    def row_factor(self, reduction: str) -> np.ndarray | None:
        """Return `hpcgnn.graph.reductions.degree_factor` of the rows, (n,) float32, or None for sum."""

    def sums(self, codes: np.ndarray, bit_width: int) -> Iterator[tuple[int, np.ndarray]]:
        """Collective: yield exact sums over in-neighbors, (first, (m, dim) contiguous int32).

        Codes, (n, dim) int8, have a magnitude below 2**(bit_width - 1).
        """

    def attended(self, codes: np.ndarray, bit_width: int, vectors: np.ndarray,
                 num_heads: int) -> Iterator[tuple[int, np.ndarray]]:
        """Collective: yield attention over in-neighbors and the row itself, (first, (m, dim) float32).

        `vectors`, (2, dim) float64, apply to codes; see `hpcgnn.ops.integer_rows`.
        """


def row_blocks(start: int, stop: int, dim: int) -> Iterator[tuple[int, int]]:
    step = max(1, BLOCK_ELEMENTS // max(1, dim))
    for first in range(start, stop, step):
        yield first, min(first + step, stop)


class RankNeighborhood:
    def __init__(self, part: Partition, exchange: CodeExchange):
        self._part, self._exchange = part, exchange

    def row_factor(self, reduction: str) -> np.ndarray | None:
        return degree_factor(self._part.in_degree[:self._part.num_inner], reduction)

    def sums(self, codes: np.ndarray, bit_width: int) -> Iterator[tuple[int, np.ndarray]]:
        """Collective: see `CodeNeighborhood`."""
        for first, stop, table in self._readable(codes, bit_width):
            yield first, sum_codes(self._part.indptr[first:stop + 1], self._part.indices, table)

    def attended(self, codes: np.ndarray, bit_width: int, vectors: np.ndarray,
                 num_heads: int) -> Iterator[tuple[int, np.ndarray]]:
        """Collective: see `CodeNeighborhood`."""
        part, scores = self._part, score_codes(codes, vectors, num_heads)
        for first, stop, table in self._readable(codes, bit_width):
            # Halo rows are scored here; their codes are those of their owners, and so are the integer scores.
            if len(scores.source) < len(table):
                scores = _joined(scores, score_codes(table[part.num_inner:], vectors, num_heads))
            yield first, attend_codes(part.indptr[first:stop + 1], part.indices, table, scores, first)

    def _readable(self, codes: np.ndarray, bit_width: int) -> Iterator[tuple[int, int, np.ndarray]]:
        """Collective: yield rows first .. stop - 1 and a table with their neighbors' codes, central rows first."""
        part, (num_inner, dim) = self._part, codes.shape
        arrival = self._exchange.start(codes, bit_width)
        for first, stop in row_blocks(0, part.num_central, dim):
            yield first, stop, codes
            arrival.poll()
        table = codes
        if self._exchange.num_halo:
            table = empty((num_inner + self._exchange.num_halo, dim), torch.int8).numpy()
            table[:num_inner] = codes
        arrival.finish(table[num_inner:])
        for first, stop in row_blocks(part.num_central, num_inner, dim):
            yield first, stop, table


def _joined(inner: Scores, halo: Scores) -> Scores:
    return Scores(np.concatenate([inner.target, halo.target]), np.concatenate([inner.source, halo.source]))
