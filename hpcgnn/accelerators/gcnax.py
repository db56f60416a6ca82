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

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise, permutations
from typing import NamedTuple

import numpy as np
import scipy.sparse

from hpcgnn.accelerators.design import Design, check_needs, check_own_columns
from hpcgnn.accelerators.schedule import (
    WORK_A_RUN,
    AddressSpace,
    Blocks,
    Pass,
    Requests,
    block_starts,
    in_order,
    requests_of,
    runs_of,
)
from hpcgnn.accelerators.workload import FeatureCounts, Product, Workload, dense_start, size_in_bytes, starts_of
from hpcgnn.errors import ConfigError

ORDERS = tuple("".join(order) for order in permutations("mkn"))


def passes(design: Design, workload: Workload) -> list[Pass]:
    """GCNAX's passes: a combination per product, and an aggregation if it has one.

    Raises ConfigError if the design lacks something, a product adds more or fewer columns of the row itself than of its
    neighbors, or a buffer can't hold a value.
    """
    check_needs(design, ("mac",), ("sparse", "dense", "output"), ("sum_bits", "id_bytes"))
    check_own_columns(design, workload)
    space, made = AddressSpace(), []
    value_bytes = design.rules["id_bytes"] + size_in_bytes(1, design.bit_width)
    edges_at = space.reserve(workload.num_arcs * design.rules["id_bytes"])
    input_at = space.reserve(int(workload.products[0].rows.row_nonzeros().sum()) * value_bytes)
    for index, product in enumerate(workload.products):
        # Values with positions if another product reads the rows, else dense.
        after = workload.rows_after(index)
        result = space.place(dense_start(workload, index, design.bit_width) if after is None
                             else starts_of(after.row_nonzeros() * value_bytes))
        made += _product_passes(design, workload, product, space, input_at, edges_at, value_bytes, result)
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


class SparseTiles(NamedTuple):
    """The tiles of a sparse matrix, in runs that each call makes again.

    `first` and `last`, (num_tile_rows,) int64, are the depths of the first and last tile with values of each row of
    tiles, or NOWHERE.
    """

    runs: Callable[[], Iterator[Tiles]]
    first: np.ndarray
    last: np.ndarray


def _is_by_rows(tiling: Tiling) -> bool:
    return tiling.order.index("m") < tiling.order.index("k")


def feature_tiles(rows: FeatureCounts, tiling: Tiling) -> SparseTiles:
    """Tiles of features, in one run. Values are spread evenly in their slice."""
    start = block_starts(rows.num_rows, tiling.rows)
    nonzeros = np.add.reduceat(rows.nonzeros, start[:-1], axis=0, dtype=np.int64)
    counts = np.diff(rows.nonzeros_before(nonzeros, block_starts(rows.dim, tiling.depth)), axis=1)
    is_filled = counts > 0
    is_empty = ~is_filled.any(axis=1)
    first = np.where(is_empty, NOWHERE, is_filled.argmax(axis=1))
    last = np.where(is_empty, NOWHERE, counts.shape[1] - 1 - is_filled[:, ::-1].argmax(axis=1))
    # The first column stands for NOWHERE.
    is_tile, counts = np.column_stack([is_empty, is_filled]), np.pad(counts, ((0, 0), (1, 0)))
    m, k = np.nonzero(is_tile) if _is_by_rows(tiling) else np.nonzero(is_tile.T)[::-1]
    tiles = Tiles(m, k - 1, counts[m, k], starts_of(counts[m, k])[:-1])
    return SparseTiles(lambda: iter([tiles]), first, last)


def arc_tiles(indptr: np.ndarray, indices: np.ndarray, tiling: Tiling) -> SparseTiles:
    """Tiles of the edges by destination."""
    row, num_tile_rows = np.flatnonzero(np.diff(indptr)), -(-(len(indptr) - 1) // tiling.rows)
    first, last = np.full(num_tile_rows, len(indptr)), np.full(num_tile_rows, NOWHERE)
    np.minimum.at(first, row // tiling.rows, indices[indptr[row]] // tiling.depth)
    np.maximum.at(last, row // tiling.rows, indices[indptr[row + 1] - 1] // tiling.depth)
    first[last == NOWHERE] = NOWHERE
    return SparseTiles(partial(_arc_runs, indptr, indices, tiling, np.flatnonzero(last == NOWHERE)), first, last)


def _arc_runs(indptr: np.ndarray, indices: np.ndarray, tiling: Tiling, empty: np.ndarray) -> Iterator[Tiles]:
    # A run ends where the outer of the loops over m and k moves on. If that is k, edges are laid out by source.
    num_rows, is_by_rows = len(indptr) - 1, _is_by_rows(tiling)
    outer_rows, inner_rows = (tiling.rows, tiling.depth) if is_by_rows else (tiling.depth, tiling.rows)
    if not is_by_rows:
        arcs = scipy.sparse.csr_matrix((np.ones(len(indices), np.int8), indices, indptr), (num_rows, num_rows)).tocsc()
        indptr, indices = arcs.indptr.astype(np.int64), arcs.indices
        if len(empty):
            nothing = np.zeros_like(empty)
            yield Tiles(empty, nothing + NOWHERE, nothing, nothing)
    start, stride = block_starts(num_rows, outer_rows), -(-num_rows // inner_rows) + 1
    for begin, end in runs_of(indptr[start] + np.arange(len(start)), WORK_A_RUN):
        before, after = int(indptr[start[begin]]), int(indptr[start[end]])
        tile = np.repeat(np.arange(begin, end), np.diff(indptr[start[begin:end + 1]]))
        key, here = tile * stride + indices[before:after] // inner_rows - NOWHERE, np.empty(0, np.int64)
        if is_by_rows:
            here = empty[(empty >= begin) & (empty < end)] * stride
        key, count = np.unique(np.concatenate([key, here]), return_counts=True)
        outer, inner = np.divmod(key, stride)
        inner += NOWHERE
        count[inner == NOWHERE] = 0
        m, k = (outer, inner) if is_by_rows else (inner, outer)
        if len(m):
            yield Tiles(m, k, count, before + starts_of(count)[:-1])


def with_panels(tiles_of: SparseTiles, tiling: Tiling, num_panels: int) -> Iterator[tuple[Tiles, np.ndarray]]:
    place = tiling.order.index("n")
    for outermost in range(num_panels if place == 0 else 1):
        for tiles in tiles_of.runs():
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
        row_bytes = size_in_bytes(columns, bit_width)
        return cls(num_rows, row_bytes, space.place(starts_of(num_rows * row_bytes))[:-1])

    def cut(self, first: int, last: int) -> Panels:
        return Panels(self.num_rows, self.row_bytes[first:last], self.address[first:last])

    def requests(self, kind: str, is_made: np.ndarray, row_tile: np.ndarray, rows_a_tile: int, panel: np.ndarray
                 ) -> Requests:
        block = np.flatnonzero(is_made)
        row, panel = row_tile[block] * rows_a_tile, panel[block]
        return requests_of(kind, block, self.address[panel] + row * self.row_bytes[panel],
                           np.minimum(rows_a_tile, self.num_rows - row) * self.row_bytes[panel])


@dataclass(frozen=True)
class Phase:
    design: Design
    tiling: Tiling
    columns: np.ndarray             # (num_panels,) int64, of each panel
    tiles: SparseTiles
    # sparse_at, value_bytes: address of the sparse matrix, and bytes of a value with its position
    sparse_at: int
    value_bytes: int
    sparse_kind: str
    dense_kind: str
    # dense, sums: the dense matrix, and sums that leave early
    dense: Panels
    sums: Panels
    own: Panels | None              # what sums begin with
    result: Panels | np.ndarray     # XW, or the address of each row of the output and the end


def _product_passes(design: Design, workload: Workload, product: Product, space: AddressSpace, input_at: int,
                    edges_at: int, value_bytes: int, result: np.ndarray) -> list[Pass]:
    num_nodes, aggregated, rules = workload.num_nodes, product.aggregated_dim, design.rules
    parts = tuple(part for part in (aggregated, product.combined_dim - aggregated) if part)
    shapes = [Shape(num_nodes, product.rows.dim, parts, int(product.rows.row_nonzeros().sum()) * value_bytes)]
    shapes += [Shape(num_nodes, num_nodes, (aggregated,), workload.num_arcs * rules["id_bytes"])] * bool(aggregated)
    tilings = best_tilings(design, shapes)
    columns = np.concatenate([np.diff(block_starts(part, tilings[0].columns)) for part in parts])
    weights = Panels.reserved(space, product.rows.dim, columns, design.bit_width)
    sums = Panels.reserved(space, num_nodes, columns, rules["sum_bits"])
    combined = Panels.reserved(space, num_nodes, columns, design.bit_width)
    combination = Phase(design, tilings[0], columns, feature_tiles(product.rows, tilings[0]), input_at, value_bytes,
                        "input rows", "weights", weights, sums, None, combined if aggregated else result)
    made = [Pass(f"{product.name} combination", ("multiply",), partial(_blocks, combination))]
    if aggregated:
        num = -(-aggregated // tilings[1].columns)
        tiles = arc_tiles(workload.indptr, workload.indices, tilings[1])
        aggregation = Phase(design, tilings[1], columns[:num], tiles, edges_at, rules["id_bytes"], "edges",
                            "combined rows", combined.cut(0, num), sums.cut(0, num),
                            combined.cut(num, 2 * num) if product.own_dim else None, result)
        made.append(Pass(f"{product.name} aggregation", ("multiply",), partial(_blocks, aggregation)))
    return made


def _blocks(phase: Phase) -> Iterator[Blocks]:
    # A run must know which tiles are in the buffers, and which sums the next run takes.
    held = np.full(5, NOWHERE - 1, np.int64)
    for (tiles, n), following in pairwise(chain(with_panels(phase.tiles, phase.tiling, len(phase.columns)), [None])):
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
    is_first = is_begun & (tiles.k == phase.tiles.first[tiles.m])
    is_last = is_left & (tiles.k == phase.tiles.last[tiles.m])
    of_sums = tiles.m, phase.tiling.rows, n
    sparse = requests_of(phase.sparse_kind, np.flatnonzero(loads_sparse),
                         phase.sparse_at + tiles.before[loads_sparse] * phase.value_bytes,
                         tiles.count[loads_sparse] * phase.value_bytes)
    dense = phase.dense.requests(phase.dense_kind, loads_dense, tiles.k, phase.tiling.depth, n)
    reads = [sparse, dense, phase.sums.requests("partial sums", is_begun & ~is_first, *of_sums)]
    own = np.zeros(len(n), np.int64)
    if phase.own is not None:
        reads.append(phase.own.requests("combined rows", is_first, *of_sums))
        own = rows * columns * is_first
    writes = [phase.sums.requests("partial sums", is_left & ~is_last, *of_sums), _results(phase, tiles.m, n, is_last)]
    num_products = tiles.count * columns
    macs, depth = phase.design.units["mac"], np.minimum(tiles.count, phase.tiling.depth)
    num_macs = int((num_products + own).sum())
    sum_bytes = num_macs * phase.design.rules["sum_bits"] // 8
    events = {"mac": num_macs, "write:sparse": sparse.total_bytes,
              "read:sparse": int(tiles.count.sum()) * phase.value_bytes,
              "write:dense": dense.total_bytes, "read:dense": int((depth * phase.dense.row_bytes[n]).sum()),
              "read:output": sum_bytes, "write:output": sum_bytes}
    return Blocks((-(-num_products // macs) + -(-own // macs))[:, None], in_order(*reads), in_order(*writes), events)


def _loads(tiles: Tiles, n: np.ndarray, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    is_used = tiles.count > 0
    m, k, panel = (np.diff(array[is_used], prepend=old) != 0
                   for old, array in zip(held[:3], (tiles.m, tiles.k, n), strict=True))
    loads = np.zeros((2, len(n)), bool)
    loads[:, is_used] = m | k, k | panel
    return loads[0], loads[1]


def _changes(tiles: Tiles, n: np.ndarray, held: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    is_other = ((np.diff(tiles.m, prepend=held[3], append=after[0]) != 0)
                | (np.diff(n, prepend=held[4], append=after[1]) != 0))
    return is_other[:-1], is_other[1:]


def _results(phase: Phase, m: np.ndarray, n: np.ndarray, is_last: np.ndarray) -> Requests:
    if isinstance(phase.result, Panels):
        return phase.result.requests("combined rows", is_last, m, phase.tiling.rows, n)
    start, m, n = phase.result[block_starts(phase.sums.num_rows, phase.tiling.rows)], m[is_last], n[is_last]
    before, size = starts_of(phase.columns), np.diff(start)[m]
    begin, end = size * before[n] // before[-1], size * before[n + 1] // before[-1]
    return requests_of("output rows", np.flatnonzero(is_last), start[m] + begin, end - begin)
