"""The tiles of GCNAX's sparse matrices that are not empty, in the order of its loops. No byte is known here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy.sparse

from hpcgnn.accelerators.compressed_rows import starts_of
from hpcgnn.accelerators.feature_columns import nonzeros_before
from hpcgnn.accelerators.gcnax_tiling import Tiling
from hpcgnn.accelerators.row_requests import WORK_A_RUN, block_starts, runs_of
from hpcgnn.accelerators.workload import FeatureCounts

NOWHERE = -1        # the depth of a row of tiles that are all empty


class Tiles(NamedTuple):
    """Tiles of a sparse matrix, (n,) int64 each: which one along rows and depth, how many values it has, and how many
    the tiles before it have. A row of tiles without any value is there once, at depth NOWHERE.
    """

    m: np.ndarray
    k: np.ndarray
    count: np.ndarray
    before: np.ndarray


class Ends(NamedTuple):
    """The first and the last depth at which a row of tiles has values, (num_tile_rows,) int64 each, or NOWHERE."""

    first: np.ndarray
    last: np.ndarray


def feature_tiles(rows: FeatureCounts, tiling: Tiling) -> tuple[list[Tiles], Ends]:
    """Return the tiles of features, whose values are spread evenly in a slice, in one run."""
    start = block_starts(rows.num_rows, tiling.rows)
    nonzeros = np.add.reduceat(rows.nonzeros, start[:-1], axis=0, dtype=np.int64)
    count = np.diff(nonzeros_before(nonzeros, rows, block_starts(rows.dim, tiling.depth)), axis=1)
    m, k = np.nonzero(count)
    ends = _ends(m, k, len(count))
    m, k, size = _with_empty_rows(m, k, count[m, k], ends, np.arange(len(count)))
    return [_ordered(m, k, size, 0, tiling)], ends


def arc_tiles(indptr: np.ndarray, indices: np.ndarray, tiling: Tiling) -> tuple[ArcTiles, Ends]:
    """Return the tiles of arcs by destination, in runs that end where the outer of the loops over m and k goes on."""
    num_rows = len(indptr) - 1
    first, last = (np.full(-(-num_rows // tiling.rows), NOWHERE, np.int64) for _ in range(2))
    start = block_starts(num_rows, tiling.rows)
    for begin, end in runs_of(indptr[start]):
        tile = np.flatnonzero(np.diff(indptr[start[begin:end + 1]])) + begin
        if len(tile):
            k = indices[indptr[start[begin]]:indptr[start[end]]] // tiling.depth
            at = indptr[start[tile]] - indptr[start[begin]]
            first[tile], last[tile] = np.minimum.reduceat(k, at), np.maximum.reduceat(k, at)
    ends = Ends(first, last)
    return ArcTiles(indptr, indices, tiling, ends), ends


class ArcTiles:
    """The tiles of arcs, made anew at each iteration.

    Parameters
    ----------
    indptr, indices      arcs by destination; they are laid out by source, at each iteration and until its end, where
                         the loop over k is outside that over m
    """

    def __init__(self, indptr: np.ndarray, indices: np.ndarray, tiling: Tiling, ends: Ends) -> None:
        self.indptr, self.indices, self.tiling, self.ends = indptr, indices, tiling, ends
        self.is_by_rows = tiling.order.index("m") < tiling.order.index("k")

    def __iter__(self) -> Iterator[Tiles]:
        outer, inner, indptr, indices = self.tiling.rows, self.tiling.depth, self.indptr, self.indices
        if not self.is_by_rows:
            outer, inner = inner, outer
            indptr, indices = _by_source(indptr, indices)
            yield from self._empty_rows()
        num_rows = len(indptr) - 1
        start, stride = block_starts(num_rows, outer), -(-num_rows // inner)
        for begin, end in runs_of(indptr[start] + np.arange(len(start)), WORK_A_RUN):
            first, last = int(indptr[start[begin]]), int(indptr[start[end]])
            tile = np.repeat(np.arange(begin, end), np.diff(indptr[start[begin:end + 1]]))
            key, count = np.unique(tile * stride + indices[first:last] // inner, return_counts=True)
            tiles = self._run(key // stride, key % stride, count, first, np.arange(begin, end))
            if len(tiles.m):
                yield tiles

    def _run(self, outer: np.ndarray, inner: np.ndarray, count: np.ndarray, before: int, tiles: np.ndarray) -> Tiles:
        if not self.is_by_rows:
            return _ordered(inner, outer, count, before, self.tiling)
        m, k, count = _with_empty_rows(outer, inner, count, self.ends, tiles)
        return _ordered(m, k, count, before, self.tiling)

    def _empty_rows(self) -> Iterator[Tiles]:
        nothing = np.empty(0, np.int64)
        m, k, count = _with_empty_rows(nothing, nothing, nothing, self.ends, np.arange(len(self.ends.first)))
        if len(m):
            yield _ordered(m, k, count, 0, self.tiling)


def _by_source(indptr: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    num_nodes = len(indptr) - 1
    arcs = scipy.sparse.csr_matrix((np.ones(len(indices), np.int8), indices, indptr), shape=(num_nodes, num_nodes))
    arcs = arcs.tocsc()
    return arcs.indptr.astype(np.int64), arcs.indices


def _ends(m: np.ndarray, k: np.ndarray, num_tile_rows: int) -> Ends:
    ends = Ends(*(np.full(num_tile_rows, NOWHERE, np.int64) for _ in range(2)))
    ends.first[m[::-1]] = k[::-1]
    ends.last[m] = k
    return ends


def _with_empty_rows(m: np.ndarray, k: np.ndarray, count: np.ndarray, ends: Ends, tile_rows: np.ndarray
                     ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    empty = tile_rows[ends.first[tile_rows] == NOWHERE]
    return (np.concatenate([m, empty]), np.concatenate([k, np.full(len(empty), NOWHERE)]),
            np.concatenate([count, np.zeros(len(empty), np.int64)]))


def _ordered(m: np.ndarray, k: np.ndarray, count: np.ndarray, before: int, tiling: Tiling) -> Tiles:
    is_by_rows = tiling.order.index("m") < tiling.order.index("k")
    order = np.lexsort((k, m) if is_by_rows else (m, k))
    return Tiles(m[order], k[order], count[order], before + starts_of(count[order])[:-1])


def with_panels(runs: list[Tiles] | ArcTiles, tiling: Tiling, num_panels: int) -> Iterator[tuple[Tiles, np.ndarray]]:
    """Yield tiles with the panel (n) that each is multiplied with, (num,) int64, in the order of all three loops."""
    place = tiling.order.index("n")
    for outermost in range(num_panels if place == 0 else 1):
        for tiles in runs:
            index, n = _expanded(tiles, tiling, place, num_panels)
            yield Tiles(*(array[index] for array in tiles)), n + outermost


def _expanded(tiles: Tiles, tiling: Tiling, place: int, num_panels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which tile each turn of the inner loops takes, and its panel."""
    num_tiles = len(tiles.m)
    if place == 0 or num_panels == 1:
        return np.arange(num_tiles), np.zeros(num_tiles, np.int64)
    if place == 2:
        return np.repeat(np.arange(num_tiles), num_panels), np.tile(np.arange(num_panels), num_tiles)
    outer = tiles.m if tiling.order[0] == "m" else tiles.k
    start = np.append(np.flatnonzero(np.diff(outer, prepend=outer[0] - 1)), num_tiles)
    size = np.diff(start)
    turn = np.arange(num_tiles * num_panels)
    group = np.searchsorted(start * num_panels, turn, side="right") - 1
    within = turn - start[group] * num_panels
    return start[group] + within % size[group], within // size[group]
