"""RankNeighborhood sums in-neighbors of one rank's rows; codes of halo rows come while central rows are summed.

It does not know what the sums are for.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from hpcgnn.graph.normalization import degree_factor
from hpcgnn.inference.code_exchange import CodeExchange
from hpcgnn.inference.neighborhood import row_blocks
from hpcgnn.ops.arena import empty
from hpcgnn.ops.code_aggregation import sum_codes
from hpcgnn.ops.code_attention import Scores, attend_codes, score_codes
from hpcgnn.partition.partition import Partition


class RankNeighborhood:
    """See `hpcgnn.inference.neighborhood.CodeNeighborhood`.

    Parameters
    ----------
    part : Partition
    exchange : CodeExchange
    """

    def __init__(self, part: Partition, exchange: CodeExchange):
        self._part, self._exchange = part, exchange

    def row_factor(self, reduction: str) -> np.ndarray | None:
        """Return (num_inner,) float32, or None for sum."""
        return degree_factor(self._part.in_degree[:self._part.num_inner], reduction)

    def sums(self, codes: np.ndarray, bit_width: int) -> Iterator[tuple[int, np.ndarray]]:
        """Collective: exact sums over in-neighbors, int32."""
        for first, stop, table in self._readable(codes, bit_width):
            yield first, sum_codes(self._part.indptr[first:stop + 1], self._part.indices, table)

    def attended(self, codes: np.ndarray, bit_width: int, vectors: np.ndarray,
                 num_heads: int) -> Iterator[tuple[int, np.ndarray]]:
        """Collective: attention over in-neighbors and the row itself, float32.

        Halo rows are scored here, from the same codes to the same integers as by their owners.
        """
        part, scores = self._part, score_codes(codes, vectors, num_heads)
        for first, stop, table in self._readable(codes, bit_width):
            if len(scores.source) < len(table):
                scores = _joined(scores, score_codes(table[part.num_inner:], vectors, num_heads))
            yield first, attend_codes(part.indptr[first:stop + 1], part.indices, table, scores, first)

    def _readable(self, codes: np.ndarray, bit_width: int) -> Iterator[tuple[int, int, np.ndarray]]:
        """Collective: rows first .. stop - 1 and the table that has their neighbors' codes, central rows first."""
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
