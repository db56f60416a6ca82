"""GCNAX, Li et al., HPCA 2021: A(XW) with both sparse matrices in tiles, by the loop order that moves the fewest bytes.

A block is a tile of the sparse matrix times a tile of the dense one. The MACs take outer products of a sparse column
and a dense row, so that all are busy except at a tile's end. A tile stays in its buffer until another one is needed; an
empty tile of the sparse matrix is skipped. `best_tilings` compares tilings by `traffic` and takes the cheapest.

Assumed, where the paper is silent: a value lies in its tile with a position of `id_bytes`; a value of the adjacency
matrix is 1, so only its position is stored (MEGA, §IV). XW goes through DRAM (the paper can also fuse both phases,
which is not modeled). Sums that leave early are `sum_bits` wide. GraphSage's own columns are added when a tile of sums
begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise, permutations
from typing import NamedTuple

import numpy as np
import scipy.sparse

from hpcgnn.accelerators.design import Design, check_needs, check_own_columns
from hpcgnn.accelerators.rows import (
    WORK_A_RUN,
    block_starts,
    dense_start,
    in_order,
    nonzeros_before,
    own_dim,
    requests_of,
    rows_after,
    runs_of,
    size_in_bytes,
    starts_of,
)
from hpcgnn.accelerators.schedule import AddressSpace, Blocks, Pass, Requests
from hpcgnn.accelerators.workload import FeatureCounts, Product, Workload
from hpcgnn.errors import ConfigError

ORDERS = tuple("".join(order) for order in permutations("mkn"))


def passes(design: Design, workload: Workload) -> list[Pass]:
    """GCNAX's passes: a combination per product, and an aggregation if it has one.

    Raises ConfigError if the design lacks something, a product adds more or fewer columns of the row itself than of its
    neighbors, or a buffer can't hold a value.
    """
    check_needs(design, ("mac",), ("sparse", "dense", "output"), ("sum_bits", "id_bytes"))
    check_own_columns(design, workload)
    space, made, value_bytes = AddressSpace(), [], _value_bytes(design)
    edges_at = space.reserve(workload.num_arcs * design.rules["id_bytes"])
    input_at = space.reserve(int(workload.products[0].rows.row_nonzeros().sum()) * value_bytes)
    for index, product in enumerate(workload.products):
        result = _result_start(design, workload, index)
        result += space.reserve(result[-1])
        made += _product_passes(design, workload, product, space, (input_at, edges_at), result)
        input_at = int(result[0])
    return made


class Tiling(NamedTuple):
    order: str    # loops over tiles of rows (m), depth (k) and columns (n), the outermost first
    # rows, depth, columns: of a tile
    rows: int
    depth: int
    columns: int


class Shape(NamedTuple):
    rows: int
    depth: int
    parts: tuple[int, ...]    # columns of the dense matrix; a tile lies within one part
    sparse_bytes: int         # bytes of the sparse matrix


def num_panels(shape: Shape, columns: int) -> int:
    return sum(-(-part // columns) for part in shape.parts)


def num_loads(order: str, trips: dict[str, int], loop: str) -> int:
    """Number of loads of a tile because of a loop that its matrix does not depend on.

    Each turn of the loop loads it again, unless no inner loop moves on to another tile.
    """
    inside = order[order.index(loop) + 1:]
    return trips[loop] if any(trips[other] > 1 for other in inside) else 1


def traffic(design: Design, shape: Shape, tiling: Tiling) -> int:
    """Bytes that a tiling moves if no tile is skipped, without results, which any tiling writes once.

    Counts the sparse matrix, the dense matrix, and sums that leave incomplete and come back (GCNAX, Li et al., HPCA
    2021, the model of DRAM accesses of its dataflow).
    """
    trips = {"m": -(-shape.rows // tiling.rows), "k": -(-shape.depth // tiling.depth),
             "n": num_panels(shape, tiling.columns)}
    columns = sum(shape.parts)
    sums = shape.rows * size_in_bytes(columns, design.rules["sum_bits"])
    return (shape.sparse_bytes * num_loads(tiling.order, trips, "n")
            + shape.depth * size_in_bytes(columns, design.bit_width) * num_loads(tiling.order, trips, "m")
            + 2 * sums * (num_loads(tiling.order, trips, "k") - 1))


def largest_tile(design: Design, shape: Shape, columns: int) -> tuple[int, int]:
    """Most rows and greatest depth of tiles with `columns` columns; 0 where none fits.

    Half of the Dense Buffer holds a dense tile, half of the Output Buffer the sums. assumed: a sparse tile streams
    through its buffer and bounds neither.
    """
    rows = design.buffer_bytes("output") // 2 // size_in_bytes(columns, design.rules["sum_bits"])
    depth = design.buffer_bytes("dense") // 2 // size_in_bytes(columns, design.bit_width)
    return min(rows, shape.rows), min(depth, shape.depth)


def best_tilings(design: Design, shapes: list[Shape]) -> list[Tiling]:
    """Tilings of a product's phases, with equal columns, that together move the fewest bytes.

    assumed: XW lies in DRAM by panels of a tile's columns, so both phases share them. Larger tiles never move more, so
    only the largest tile for each number of columns is compared; among equals, the first with the most columns is
    taken. Raises ConfigError if not even one value fits into half of a buffer.
    """
    best, least = [], np.inf
    for columns in range(max(part for shape in shapes for part in shape.parts), 0, -1):
        tilings = [_best_order(design, shape, columns) for shape in shapes]
        if not all(min(tiling[1:]) > 0 for tiling in tilings):
            continue
        num_bytes = sum(traffic(design, shape, tiling) for shape, tiling in zip(shapes, tilings, strict=True))
        if num_bytes < least:
            best, least = tilings, num_bytes
    if not best:
        raise ConfigError(f"half of a buffer of {design.name} can't hold one value; choose larger buffers")
    return best


def _best_order(design: Design, shape: Shape, columns: int) -> Tiling:
    rows, depth = largest_tile(design, shape, columns)
    if not rows or not depth:
        return Tiling(ORDERS[0], rows, depth, columns)
    return min((Tiling(order, rows, depth, columns) for order in ORDERS),
               key=lambda tiling: traffic(design, shape, tiling))


NOWHERE = -1        # the depth of a row of tiles that are all empty


class Tiles(NamedTuple):
    """Tiles of a sparse matrix, (n,) int64 each: place along rows and depth, number of values, and number before it.

    A row of tiles without values has one tile, at depth NOWHERE.
    """

    m: np.ndarray
    k: np.ndarray
    count: np.ndarray  # type: ignore[assignment]  # it hides tuple.count, which nobody needs here
    before: np.ndarray


class Ends(NamedTuple):
    """First and last depth with values of each row of tiles, (num_tile_rows,) int64 each, or NOWHERE."""

    first: np.ndarray
    last: np.ndarray


def feature_tiles(rows: FeatureCounts, tiling: Tiling) -> tuple[list[Tiles], Ends]:
    """Tiles of features, in one run. Values are spread evenly in their slice."""
    start = block_starts(rows.num_rows, tiling.rows)
    nonzeros = np.add.reduceat(rows.nonzeros, start[:-1], axis=0, dtype=np.int64)
    count = np.diff(nonzeros_before(nonzeros, rows, block_starts(rows.dim, tiling.depth)), axis=1)
    m, k = np.nonzero(count)
    ends = _ends(m, k, len(count))
    m, k, size = _with_empty_rows(m, k, count[m, k], ends, np.arange(len(count)))
    return [_ordered(m, k, size, 0, tiling)], ends


def arc_tiles(indptr: np.ndarray, indices: np.ndarray, tiling: Tiling) -> tuple[ArcTiles, Ends]:
    """Tiles of the edges by destination. A run ends where the outer of the loops over m and k moves on."""
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
    """Tiles of edges, made again in each iteration.

    `indptr` and `indices` hold edges by destination. Where the loop over k is outside the one over m, an iteration lays
    them out by source while it lasts.
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
    place = tiling.order.index("n")
    for outermost in range(num_panels if place == 0 else 1):
        for tiles in runs:
            index, n = _expanded(tiles, tiling, place, num_panels)
            yield Tiles(*(array[index] for array in tiles)), n + outermost


def _expanded(tiles: Tiles, tiling: Tiling, place: int, num_panels: int) -> tuple[np.ndarray, np.ndarray]:
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


@dataclass(frozen=True)
class Panels:
    num_rows: int
    row_bytes: np.ndarray    # (num_panels,) int64, bytes of a row of a panel
    address: np.ndarray      # (num_panels,) int64

    @classmethod
    def reserved(cls, space: AddressSpace, num_rows: int, columns: np.ndarray, bit_width: int) -> Panels:
        row_bytes = np.asarray(size_in_bytes(columns, bit_width), np.int64)
        start = starts_of(num_rows * row_bytes)
        return cls(num_rows, row_bytes, space.reserve(start[-1]) + start[:-1])

    def cut(self, first: int, last: int) -> Panels:
        return Panels(self.num_rows, self.row_bytes[first:last], self.address[first:last])

    def tile(self, row_tile: np.ndarray, rows_a_tile: int, panel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = np.minimum(rows_a_tile, self.num_rows - row_tile * rows_a_tile)
        return self.address[panel] + row_tile * rows_a_tile * self.row_bytes[panel], rows * self.row_bytes[panel]


@dataclass(frozen=True)
class Phase:
    design: Design
    tiling: Tiling
    columns: np.ndarray             # (num_panels,) int64, of each panel
    # runs, ends: tiles of the sparse matrix
    runs: list[Tiles] | ArcTiles
    ends: Ends
    # sparse_at, value_bytes: address of the sparse matrix, and bytes of a value with its position
    sparse_at: int
    value_bytes: int
    sparse_kind: str
    dense_kind: str
    result_kind: str
    # dense, sums: the dense matrix, and sums that leave early
    dense: Panels
    sums: Panels
    own: Panels | None              # what sums begin with
    result: Panels | np.ndarray     # dense, or the address of each row and the end


def _value_bytes(design: Design) -> int:
    return design.rules["id_bytes"] + int(size_in_bytes(1, design.bit_width))


def _result_start(design: Design, workload: Workload, index: int) -> np.ndarray:
    # Values with positions if another product reads the rows, else dense.
    after = rows_after(workload, index)
    return (dense_start(workload, index, design.bit_width) if after is None
            else starts_of(after.row_nonzeros() * _value_bytes(design)))


def _product_passes(design: Design, workload: Workload, product: Product, space: AddressSpace, at: tuple[int, int],
                    result: np.ndarray) -> list[Pass]:
    num_nodes, aggregated, rules = workload.num_nodes, product.aggregated_dim, design.rules
    parts = tuple(part for part in (aggregated, product.combined_dim - aggregated) if part)
    shapes = [Shape(num_nodes, product.rows.dim, parts, int(product.rows.row_nonzeros().sum()) * _value_bytes(design))]
    shapes += [Shape(num_nodes, num_nodes, (aggregated,), workload.num_arcs * rules["id_bytes"])] * bool(aggregated)
    tilings = best_tilings(design, shapes)
    columns = np.concatenate([np.diff(block_starts(part, tilings[0].columns)) for part in parts])
    weights = Panels.reserved(space, product.rows.dim, columns, design.bit_width)
    sums = Panels.reserved(space, num_nodes, columns, rules["sum_bits"])
    combined = Panels.reserved(space, num_nodes, columns, design.bit_width)
    combination = Phase(design, tilings[0], columns, *feature_tiles(product.rows, tilings[0]), at[0],
                        _value_bytes(design), "input rows", "weights", "combined rows" if aggregated else "output rows",
                        weights, sums, None, combined if aggregated else result)
    made = [Pass(f"{product.name} combination", ("multiply",), partial(_blocks, combination))]
    if aggregated:
        num = -(-aggregated // tilings[1].columns)
        tiles = arc_tiles(workload.indptr, workload.indices, tilings[1])
        aggregation = Phase(design, tilings[1], columns[:num], *tiles, at[1], rules["id_bytes"], "edges",
                            "combined rows", "output rows", combined.cut(0, num), sums.cut(0, num),
                            combined.cut(num, 2 * num) if own_dim(product) else None, result)
        made.append(Pass(f"{product.name} aggregation", ("multiply",), partial(_blocks, aggregation)))
    return made


def _blocks(phase: Phase) -> Iterator[Blocks]:
    # A run must know which tiles are in the buffers, and which sums the next run takes.
    held = np.full(5, NOWHERE - 1, np.int64)
    for (tiles, n), following in pairwise(chain(with_panels(phase.runs, phase.tiling, len(phase.columns)), [None])):
        after = np.full(2, NOWHERE - 1) if following is None else np.array([following[0].m[0], following[1][0]])
        yield _run_of_blocks(phase, tiles, n, held, after)
        is_used = np.flatnonzero(tiles.count)
        if len(is_used):
            held[:3] = tiles.m[is_used[-1]], tiles.k[is_used[-1]], n[is_used[-1]]
        held[3:] = tiles.m[-1], n[-1]


def _run_of_blocks(phase: Phase, tiles: Tiles, n: np.ndarray, held: np.ndarray, after: np.ndarray) -> Blocks:
    loads_sparse, loads_dense = _loads(tiles, n, held)
    is_begun, is_left = _changes(tiles, n, held, after)
    columns, rows = phase.columns[n], np.diff(block_starts(phase.sums.num_rows, phase.tiling.rows))[tiles.m]
    is_first = is_begun & (tiles.k == phase.ends.first[tiles.m])
    is_last = is_left & (tiles.k == phase.ends.last[tiles.m])
    sparse = _requests(phase.sparse_kind, loads_sparse, phase.sparse_at + tiles.before * phase.value_bytes,
                       tiles.count * phase.value_bytes)
    dense = _requests(phase.dense_kind, loads_dense, *phase.dense.tile(tiles.k * loads_dense, phase.tiling.depth, n))
    sums = phase.sums.tile(tiles.m, phase.tiling.rows, n)
    reads = [sparse, dense, _requests("partial sums", is_begun & ~is_first, *sums)]
    own = np.zeros(len(n), np.int64)
    if phase.own is not None:
        reads.append(_requests("combined rows", is_first, *phase.own.tile(tiles.m, phase.tiling.rows, n)))
        own = rows * columns * is_first
    writes = [_requests("partial sums", is_left & ~is_last, *sums), _results(phase, tiles.m, n, is_last)]
    num_products = tiles.count * columns
    macs, depth = phase.design.units["mac"], np.minimum(tiles.count, phase.tiling.depth)
    sum_bytes = int((num_products + own).sum()) * phase.design.rules["sum_bits"] // 8
    events = {"mac": int((num_products + own).sum()), "write:sparse": int(sparse.num_bytes.sum()),
              "read:sparse": int(tiles.count.sum()) * phase.value_bytes,
              "write:dense": int(dense.num_bytes.sum()), "read:dense": int((depth * phase.dense.row_bytes[n]).sum()),
              "read:output": sum_bytes, "write:output": sum_bytes}
    return Blocks((-(-num_products // macs) + -(-own // macs))[:, None], in_order(*reads), in_order(*writes), events)


def _loads(tiles: Tiles, n: np.ndarray, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    is_used = tiles.count > 0
    m, k, panel = (np.concatenate([[old], array[is_used]])
                   for old, array in zip(held[:3], (tiles.m, tiles.k, n), strict=True))
    loads = np.zeros((2, len(n)), bool)
    loads[0, is_used] = (np.diff(m) != 0) | (np.diff(k) != 0)
    loads[1, is_used] = (np.diff(k) != 0) | (np.diff(panel) != 0)
    return loads[0], loads[1]


def _changes(tiles: Tiles, n: np.ndarray, held: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    m, panel = np.concatenate([held[3:4], tiles.m, after[:1]]), np.concatenate([held[4:], n, after[1:]])
    is_other = (np.diff(m) != 0) | (np.diff(panel) != 0)
    return is_other[:-1], is_other[1:]


def _results(phase: Phase, m: np.ndarray, n: np.ndarray, is_last: np.ndarray) -> Requests:
    if isinstance(phase.result, Panels):
        return _requests(phase.result_kind, is_last, *phase.result.tile(m, phase.tiling.rows, n))
    start = phase.result[block_starts(phase.sums.num_rows, phase.tiling.rows)]
    before, size = starts_of(phase.columns), np.diff(start)[m]
    begin, end = size * before[n] // before[-1], size * before[n + 1] // before[-1]
    return _requests(phase.result_kind, is_last, start[m] + begin, end - begin)


def _requests(kind: str, is_made: np.ndarray, address: np.ndarray, num_bytes: np.ndarray) -> Requests:
    return requests_of(kind, np.flatnonzero(is_made), address[is_made], num_bytes[is_made])
