"""BatchNeighborhood sums in-neighbors of packed batches, by bit tiles or by gathering, batch by batch.

It does not know what the sums are for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from hpcgnn.graph.normalization import degree_factor
from hpcgnn.inference.batches.costs import AggregationCosts, BatchShapes, check_aggregation, choose
from hpcgnn.inference.batches.cut import runs_of_batches
from hpcgnn.inference.batches.packed import PackedBatches
from hpcgnn.ops import batch_tiles
from hpcgnn.ops.arena import empty
from hpcgnn.ops.code_aggregation import sum_codes
from hpcgnn.ops.code_attention import attend_codes, score_codes

BLOCK_ELEMENTS = 1 << 18     # of sums that are in memory at a time: they stay in the caches


@dataclass
class AggregationCounts:
    """Counts how batches were summed and how many of their tiles were left out, over all sums so far.

    Attributes
    ----------
    by_tiles, by_gather : int        batches that were summed so
    num_jumped, num_places : int     tiles of zeros that were left out, and all tiles, of the batches by tiles
    """

    by_tiles: int = 0
    by_gather: int = 0
    num_jumped: int = 0
    num_places: int = 0


class BatchNeighborhood:
    """See `hpcgnn.inference.neighborhood.CodeNeighborhood`.

    Parameters
    ----------
    packed : PackedBatches
    aggregation : {"auto", "tiles", "gather"}
    costs : AggregationCosts or None     that auto chooses by; None is this machine's

    Raises
    ------
    ConfigError      another word for aggregation
    """

    def __init__(self, packed: PackedBatches, aggregation: str = "auto", costs: AggregationCosts | None = None):
        check_aggregation(aggregation)
        self._batches, self._tiles = packed.batches, packed.tiles
        self._shapes, self._costs = BatchShapes.of(packed.tiles), costs
        self._aggregation = aggregation
        self._takes_tiles: dict[tuple[int, int], np.ndarray] = {}
        self._factors: dict[str, np.ndarray | None] = {}
        self.counts = AggregationCounts()

    def row_factor(self, reduction: str) -> np.ndarray | None:
        """Return (num_rows,) float32 of in-degrees within the batch, or None for sum."""
        if reduction not in self._factors:
            self._factors[reduction] = degree_factor(self._batches.in_degree, reduction)
        return self._factors[reduction]

    def takes_tiles(self, dim: int, bit_width: int) -> np.ndarray:
        """Return which batches tiles aggregate, (num_batches,) bool."""
        if (dim, bit_width) not in self._takes_tiles:
            self._takes_tiles[dim, bit_width] = choose(self._aggregation, self._shapes, dim, bit_width, self._costs)
        return self._takes_tiles[dim, bit_width]

    def sums(self, codes: np.ndarray, bit_width: int) -> Iterator[tuple[int, np.ndarray]]:
        """Exact sums over in-neighbors, int32."""
        row_begin, takes_tiles = self._batches.row_begin, self.takes_tiles(codes.shape[1], bit_width)
        self.count(codes.shape[1], bit_width)
        for first, end in self._blocks(codes.shape[1]):
            start = int(row_begin[first])
            out = empty((int(row_begin[end]) - start, codes.shape[1]), torch.int32).numpy()
            for low, high in _runs(takes_tiles, first, end):
                self._sum_run(codes, bit_width, low, high, bool(takes_tiles[low]),
                              out[row_begin[low] - start:row_begin[high] - start])
            yield start, out

    def attended(self, codes: np.ndarray, bit_width: int, vectors: np.ndarray,
                 num_heads: int) -> Iterator[tuple[int, np.ndarray]]:
        """Attention over in-neighbors and the row itself, float32; its entries are weighed, so tiles can't do it."""
        row_begin, scores = self._batches.row_begin, score_codes(codes, vectors, num_heads)
        for first, end in self._blocks(codes.shape[1]):
            start, stop = int(row_begin[first]), int(row_begin[end])
            yield start, attend_codes(self._batches.indptr[start:stop + 1], self._batches.indices, codes, scores, start)

    def _sum_run(self, codes: np.ndarray, bit_width: int, first: int, end: int, by_tiles: bool,
                 out: np.ndarray) -> None:
        if by_tiles:
            batch_tiles.sum_batches(self._tiles, codes, bit_width, first, end, out)
            return
        rows = self._batches.row_begin
        sum_codes(self._batches.indptr[rows[first]:rows[end] + 1], self._batches.indices, codes, out)

    def _blocks(self, dim: int) -> Iterator[tuple[int, int]]:
        """(first, last + 1) of batches whose sums have about BLOCK_ELEMENTS."""
        return runs_of_batches(self._batches.row_begin, max(1, BLOCK_ELEMENTS // max(1, dim)))

    def count(self, dim: int, bit_width: int) -> None:
        """Count sums of all batches' codes of so many columns and bits."""
        takes_tiles = self.takes_tiles(dim, bit_width)
        places = self._tiles.num_places[takes_tiles].sum()
        self.counts.by_tiles += int(takes_tiles.sum())
        self.counts.by_gather += int((~takes_tiles).sum())
        self.counts.num_places += int(places)
        self.counts.num_jumped += int(places - self._shapes.num_tiles[takes_tiles].sum())


def _runs(takes_tiles: np.ndarray, first: int, end: int) -> Iterator[tuple[int, int]]:
    """(low, high) of neighboring batches that are summed alike."""
    changes = np.flatnonzero(np.diff(takes_tiles[first:end])) + first + 1
    bounds = [first, *changes.tolist(), end]
    yield from pairwise(bounds)
