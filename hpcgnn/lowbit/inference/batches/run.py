"""BatchedRun: passes of an integer model over packed batches on the host.

If all convolutions sum and there are many batches, each batch runs through all layers at once. Otherwise the pass goes
layer by layer, and `BatchNeighborhood` sums each batch by bit tiles or by gathering, whichever is predicted faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from hpcgnn.graph.reductions import degree_factor
from hpcgnn.lowbit.inference.batches.costs import AggregationCosts, BatchShapes, check_aggregation, choose
from hpcgnn.lowbit.inference.batches.cut import Batches, runs_of_batches
from hpcgnn.lowbit.inference.batches.packed import PackedBatches
from hpcgnn.lowbit.inference.coded_rows import CodedRows, code_rows
from hpcgnn.lowbit.inference.forward import forward_codes
from hpcgnn.lowbit.inference.graph_pass import is_summed, layers_of
from hpcgnn.lowbit.inference.neighborhood import REDUCTIONS
from hpcgnn.lowbit.integer_model import IntegerModel
from hpcgnn.ops import tiles
from hpcgnn.ops.arena import empty
from hpcgnn.ops.integer_layers import BatchedLayers
from hpcgnn.ops.integer_rows import attend_codes, score_codes, sum_codes

BLOCK_ELEMENTS = 1 << 18     # sums in memory at a time, few enough for the caches

LEAST_BATCHES = 16      # with fewer, threads could be idle


class BatchedRun:
    """Passes of one model over the same batches, packed with the first convolution's codes."""

    def __init__(self, model: IntegerModel, packed: PackedBatches, aggregation: str = "auto",
                 costs: AggregationCosts | None = None):
        self._model, self._packed, self._in_degree = model, packed, packed.in_degree
        self._neighborhood = BatchNeighborhood(packed, aggregation, costs)
        self._layers = _layers_of(model, packed, self._neighborhood) if runs_by_batch(model, packed) else None
        if self._layers is None:
            codes = packed.codes()
            self._coded = CodedRows.empty(model.convolutions[0].rows, packed.in_degree, codes.shape[1])
            self._coded.codes[...] = codes

    @property
    def counts(self) -> AggregationCounts:
        return self._neighborhood.counts

    @property
    def row_bytes(self) -> int:
        if self._layers is not None:
            return self._packed.features.words.nbytes + self._layers.space_bytes
        dims = [len(one.neighbor.codes) + one.neighbor.codes.shape[1] for one in self._model.convolutions]
        return self._coded.codes.nbytes + len(self._in_degree) * max(dims)

    def forward(self) -> tuple[np.ndarray, np.ndarray]:
        """Return float32 logits (num_rows, num_classes) and embeddings (num_rows, hidden), in batch order."""
        if self._layers is None:
            return forward_codes(self._model, self._coded, self._in_degree, self._neighborhood)
        for convolution in self._model.convolutions:
            self._neighborhood.count(len(convolution.neighbor.codes), convolution.mapped.bit_width)
        return self._layers.forward()


def pack_features(model: IntegerModel, batches: Batches, features: np.ndarray, in_degree: np.ndarray) -> PackedBatches:
    scale = model.convolutions[0].rows
    coded = code_rows(scale, features, in_degree)
    return PackedBatches.pack(batches, coded.codes, in_degree, int(scale.bit_width.max()))


def runs_by_batch(model: IntegerModel, packed: PackedBatches) -> bool:
    return is_summed(model) and packed.batches.num_batches >= LEAST_BATCHES


def _layers_of(model: IntegerModel, packed: PackedBatches, neighborhood: BatchNeighborhood) -> BatchedLayers:
    factors = [neighborhood.row_factor(REDUCTIONS[one.kind]) for one in model.convolutions]
    choices = [neighborhood.takes_tiles(len(one.neighbor.codes), one.mapped.bit_width).astype(np.uint8)
               for one in model.convolutions]
    return BatchedLayers(layers_of(model, factors, choices), packed.tiles, packed.batches.indices,
                         packed.in_degree.astype(np.int32), packed.features.lines, packed.is_signed)


class BatchNeighborhood:
    """Sums of packed batches; see `CodeNeighborhood`.

    `aggregation` is "auto", "tiles" or "gather", else ConfigError. With "auto", `costs` decide; None takes this
    machine's costs.
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
        if reduction not in self._factors:
            self._factors[reduction] = degree_factor(self._batches.in_degree, reduction)
        return self._factors[reduction]

    def takes_tiles(self, dim: int, bit_width: int) -> np.ndarray:
        if (dim, bit_width) not in self._takes_tiles:
            self._takes_tiles[dim, bit_width] = choose(self._aggregation, self._shapes, dim, bit_width, self._costs)
        return self._takes_tiles[dim, bit_width]

    def sums(self, codes: np.ndarray, bit_width: int) -> Iterator[tuple[int, np.ndarray]]:
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
        # Tiles can't weigh entries, so attention always gathers.
        row_begin, scores = self._batches.row_begin, score_codes(codes, vectors, num_heads)
        for first, end in self._blocks(codes.shape[1]):
            start, stop = int(row_begin[first]), int(row_begin[end])
            yield start, attend_codes(self._batches.indptr[start:stop + 1], self._batches.indices, codes, scores, start)

    def _sum_run(self, codes: np.ndarray, bit_width: int, first: int, end: int, by_tiles: bool,
                 out: np.ndarray) -> None:
        if by_tiles:
            tiles.sum_batches(self._tiles, codes, bit_width, first, end, out)
            return
        rows = self._batches.row_begin
        sum_codes(self._batches.indptr[rows[first]:rows[end] + 1], self._batches.indices, codes, out)

    def _blocks(self, dim: int) -> Iterator[tuple[int, int]]:
        return runs_of_batches(self._batches.row_begin, max(1, BLOCK_ELEMENTS // max(1, dim)))

    def count(self, dim: int, bit_width: int) -> None:
        takes_tiles = self.takes_tiles(dim, bit_width)
        places = self._tiles.num_places[takes_tiles].sum()
        self.counts.by_tiles += int(takes_tiles.sum())
        self.counts.by_gather += int((~takes_tiles).sum())
        self.counts.num_places += int(places)
        self.counts.num_jumped += int(places - self._shapes.num_tiles[takes_tiles].sum())


@dataclass
class AggregationCounts:
    """Number of batches summed by tiles and by gathering, and of skipped and all tiles (`num_places`), so far."""

    by_tiles: int = 0
    by_gather: int = 0
    num_jumped: int = 0
    num_places: int = 0


def _runs(takes_tiles: np.ndarray, first: int, end: int) -> Iterator[tuple[int, int]]:
    # Runs of neighboring batches that are all summed by tiles or all by gathering.
    changes = np.flatnonzero(np.diff(takes_tiles[first:end])) + first + 1
    bounds = [first, *changes.tolist(), end]
    yield from pairwise(bounds)
