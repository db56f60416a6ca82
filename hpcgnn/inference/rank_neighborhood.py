"""RankNeighborhood: in-neighbors of one rank's rows; codes of halo rows come while central rows are summed.

What the sums are for is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from hpcgnn.inference.code_exchange import CodeExchange
from hpcgnn.inference.neighborhood import row_blocks, row_factor_of
from hpcgnn.ops.arena import empty
from hpcgnn.ops.code_aggregation import sum_codes
from hpcgnn.partition.partition import Partition


class RankNeighborhood:
    """See `hpcgnn.inference.neighborhood.Neighborhood`.

    Parameters
    ----------
    part : Partition
    exchange : CodeExchange
    """

    def __init__(self, part: Partition, exchange: CodeExchange):
        self._part, self._exchange = part, exchange

    def row_factor(self, reduction: str) -> np.ndarray | None:
        """(num_inner,) float32, or None for sum."""
        return row_factor_of(self._part.in_degree[:self._part.num_inner], reduction)

    def sums(self, codes: np.ndarray, bit_width: int) -> Iterator[tuple[int, np.ndarray]]:
        """Collective: exact sums over in-neighbors, int32."""
        part = self._part
        for first, stop, table in self._readable(codes, bit_width):
            yield first, sum_codes(part.indptr[first:stop + 1], part.indices, table)

    def _readable(self, codes: np.ndarray, bit_width: int) -> Iterator[tuple[int, int, np.ndarray]]:
        """Collective: blocks of rows whose neighbors are in a table of codes: (first, last + 1, table)."""
        num_inner, dim = codes.shape
        arrival = self._exchange.start(codes, bit_width)
        table = codes
        if self._exchange.num_halo:
            table = empty((num_inner + self._exchange.num_halo, dim), torch.int8).numpy()
            table[:num_inner] = codes
        for first, stop in row_blocks(0, self._part.num_central, dim):
            yield first, stop, table
            arrival.poll()
        arrival.finish(table[num_inner:])
        for first, stop in row_blocks(self._part.num_central, num_inner, dim):
            yield first, stop, table
