"""The choice between bit tiles and gathering for each batch, from predicted seconds.

QGTC leaves open when tiles pay. Here a linear model of each method's seconds is fitted once per process: some random
batches are timed with both, and non-negative least squares gives the seconds per row, entry, tile and so on.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import scipy.optimize
import torch

from hpcgnn.errors import ConfigError
from hpcgnn.ops.bit_gemm import pack_codes, padded
from hpcgnn.ops.integer_layers import PADDING, BatchedLayers, DegreeScales, IntegerLayer
from hpcgnn.ops.simd import least_seconds, simd_level
from hpcgnn.ops.tiles import BatchTiles, tiles_of_csr

AGGREGATIONS = ("auto", "tiles", "gather")
PANEL_COLUMNS = 16      # multiplied with a tile at once
GATHER_COLUMNS = 32     # added for an entry at once
# Timed products: rows per batch, entries per row, and rows per cluster.
FITTED_BATCHES = ((32, 4, 32), (128, 4, 128), (128, 48, 128), (384, 12, 384), (384, 160, 384), (2048, 6, 128))
FITTED_DIMS, FITTED_WIDTHS = (16, 64), (2, 8)
BATCHES_A_PRODUCT, REPETITIONS = 16, 4
LEAST_SHARE = 1 / 20            # an aggregation below this share of the layer's other seconds is noise


@dataclass(frozen=True)
class BatchShapes:
    """Per batch, (num_batches,) int64: rows, entries, and tiles with an entry."""

    num_rows: np.ndarray
    num_entries: np.ndarray
    num_tiles: np.ndarray

    @classmethod
    def of(cls, tiles: BatchTiles) -> BatchShapes:
        return cls(np.diff(tiles.row_begin), np.diff(tiles.indptr[tiles.row_begin]), tiles.num_tiles)

    def gather_terms(self, dim: int) -> np.ndarray:
        vectors = -(-dim // GATHER_COLUMNS)
        return np.stack([self.num_rows, self.num_rows * vectors, self.num_entries, self.num_entries * vectors],
                        axis=1).astype(np.float64)

    def tile_terms(self, dim: int, bit_width: int) -> np.ndarray:
        sums, panels = self.num_rows * dim, -(-dim // PANEL_COLUMNS)
        return np.stack([np.ones_like(sums), sums, sums * bit_width, self.num_tiles * panels * bit_width],
                        axis=1).astype(np.float64)


@dataclass(frozen=True)
class AggregationCosts:
    """Seconds per term of `BatchShapes.gather_terms` and `tile_terms`, (4,) float64 each, 0 or more."""

    gather: np.ndarray
    tiles: np.ndarray

    def takes_tiles(self, shapes: BatchShapes, dim: int, bit_width: int) -> np.ndarray:
        return shapes.tile_terms(dim, bit_width) @ self.tiles < shapes.gather_terms(dim) @ self.gather


def check_aggregation(aggregation: str) -> None:
    if aggregation not in AGGREGATIONS:
        raise ConfigError(f"aggregation is {aggregation!r}; expected one of {', '.join(AGGREGATIONS)}")


def choose(aggregation: str, shapes: BatchShapes, dim: int, bit_width: int,
           costs: AggregationCosts | None = None) -> np.ndarray:
    """Return the batches to sum by tiles, (num_batches,) bool; `costs` None is this machine's.

    `aggregation` is "auto", "tiles" or "gather", else ConfigError; the summed codes have `dim` columns of `bit_width`.
    """
    check_aggregation(aggregation)
    if aggregation != "auto":
        return np.full(len(shapes.num_rows), aggregation == "tiles")
    return (costs or machine_costs()).takes_tiles(shapes, dim, bit_width)


def machine_costs() -> AggregationCosts:
    return _measured(simd_level())


def fit_costs(terms: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Non-negative seconds per term, of least relative error, from terms (num_products, num_terms) and seconds."""
    scale = np.maximum(terms.max(axis=0), 1)
    return scipy.optimize.nnls(terms / scale / seconds[:, None], np.ones(len(seconds)))[0] / scale


@functools.lru_cache
def _measured(level: str) -> AggregationCosts:
    gather: tuple[list, list] = [], []
    tiles: tuple[list, list] = [], []
    rng = np.random.default_rng(0)
    for num_rows, degree, cluster_rows in FITTED_BATCHES:
        made, no_arc = (_random_batches(num_rows, of_rows, cluster_rows, rng) for of_rows in (degree, 0))
        shapes = BatchShapes.of(made[0])
        for dim in FITTED_DIMS:
            # Seconds without edges, which both methods spend, are subtracted.
            rest = _layer_seconds(*no_arc, dim, FITTED_WIDTHS[0], by_tiles=False)
            gather[0].append(shapes.gather_terms(dim).sum(axis=0))
            least = LEAST_SHARE * rest
            gather[1].append(max(least, _layer_seconds(*made, dim, FITTED_WIDTHS[0], by_tiles=False) - rest))
            for width in FITTED_WIDTHS:
                tiles[0].append(shapes.tile_terms(dim, width).sum(axis=0))
                tiles[1].append(max(least, _layer_seconds(*made, dim, width, by_tiles=True) - rest))
    return AggregationCosts(*(fit_costs(np.array(terms), np.array(seconds)) for terms, seconds in (gather, tiles)))


def _layer_seconds(batches: BatchTiles, indices: np.ndarray, dim: int, bit_width: int, by_tiles: bool) -> float:
    num_rows, columns = int(batches.row_begin[-1]), np.ones(padded(dim, PADDING), np.float32)
    one = DegreeScales(np.ones(1, np.float32), np.ones(1, np.float32))
    layer = IntegerLayer(
        map=np.ones((dim, 1), np.int8), ratio=columns, mapped_step=columns, bias=columns, rows=one, row_factor=None,
        mapped_limit=1.0, epsilon=0.0, mapped_bits=bit_width,
        takes_tiles=np.full(batches.num_batches, by_tiles, np.uint8), adds_near=False, scales_mapped=False)
    rows = pack_codes(torch.ones(num_rows, 1, dtype=torch.uint8), 1, False)
    layers = BatchedLayers([layer], batches, indices, np.zeros(num_rows, np.int32), rows, False)
    return least_seconds(layers.forward, REPETITIONS)


def _random_batches(num_rows: int, degree: int, cluster_rows: int,
                    rng: np.random.Generator) -> tuple[BatchTiles, np.ndarray]:
    first = np.sort(rng.permuted(np.tile(np.arange(cluster_rows), (num_rows, 1)), axis=1)[:, :degree], axis=1)
    first += cluster_rows * (np.arange(num_rows) // cluster_rows)[:, None]
    indptr = np.arange(BATCHES_A_PRODUCT * num_rows + 1, dtype=np.int64) * degree
    tiles = tiles_of_csr(indptr[:num_rows + 1].copy(), first.ravel().astype(np.int32), num_rows)
    shifts = num_rows * np.arange(BATCHES_A_PRODUCT, dtype=np.int32)
    indices = (first.ravel() + shifts[:, None]).astype(np.int32).ravel()
    return BatchTiles.stack([tiles] * BATCHES_A_PRODUCT, indptr), indices
