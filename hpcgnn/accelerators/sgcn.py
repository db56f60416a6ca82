"""SGCN, Yoo et al., HPCA 2023: compressed features, an aggregation engine with a cache, and a systolic array.

Rows of features lie in DRAM in BEICSR, by slices of columns. The array multiplies them with W as if they were dense;
SIMD engines add up rows that they read through the cache, slice after slice, and skip zeros of compressed ones.
rules.order says which product goes first: "combination-first" is A(XW) with a dense XW; "aggregation-first" is (AX)W,
where the engines read compressed rows.

Assumed, where the paper is silent: with rules.sparse_input the first product is always A(XW). The engines compute XW
too, and read X in CSR, as they read edges (the array would multiply the zeros of a very sparse input). W is kept if
the Weight Buffer holds all of it. The results of a block of the array fill half the Output Buffer. An edge takes
`id_bytes`, and each row an offset. The last result is dense.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from hpcgnn._ext import row_cache as kernels
from hpcgnn.accelerators.design import Design, check_needs, check_own_columns
from hpcgnn.accelerators.hybrid_engines import (
    Array,
    array_of,
    checked_order,
    combination_blocks,
    num_cores,
    weight_requests,
)
from hpcgnn.accelerators.schedule import (
    AddressSpace,
    Blocks,
    Pass,
    Requests,
    block_starts,
    by_address,
    in_order,
    requests_of,
    runs_of,
)
from hpcgnn.accelerators.workload import (
    FeatureCounts,
    Product,
    Workload,
    compressed_start,
    size_in_bytes,
    starts_of,
)
from hpcgnn.errors import ConfigError

LINE_BYTES = 64     # assumed: a line of SGCN's cache; slots begin at lines


def passes(design: Design, workload: Workload) -> list[Pass]:
    """SGCN's passes: one or two per product.

    Raises ConfigError if the design lacks something, its units don't fit together, its order is unknown, or
    a product adds more or fewer columns of the row itself than of its neighbors.
    """
    check_needs(design, ("mac", "simd"), ("cache", "weight", "output", "edge"),
                ("slice_columns", "strip_rows", "simd_width", "systolic_rows", "sum_bits", "id_bytes"))
    check_own_columns(design, workload)
    order, array, space, made = checked_order(design), array_of(design), AddressSpace(), []
    size = design.rules["id_bytes"] * (np.arange(workload.num_nodes + 1) + workload.indptr)
    arcs = Names("edges", workload.indptr, space.place(size),
                 lambda first, last: workload.indices[workload.indptr[first]:workload.indptr[last]])
    rows = None if design.rules.get("sparse_input") else compressed_rows(space, design, workload.products[0].rows)
    for index, product in enumerate(workload.products):
        after = workload.rows_after(index)
        result = (compressed_rows(space, design, after) if after is not None else
                  dense_rows(space, design, workload.num_nodes, slices_of(product.result_dim, design)))
        if order == "aggregation-first" and product.aggregated_dim and rows is not None:
            made.append(_aggregation_first(design, array, product, space, arcs, rows, result))
        else:
            made += _combination_first(design, array, product, space, arcs, rows, result)
        rows = result
    return made


@dataclass(frozen=True)
class SlicedRows:
    """A matrix in DRAM: slice s of row v lies at address[s] + v * stride[s]."""

    # columns, address, stride: (num_slices,) int64
    columns: np.ndarray
    address: np.ndarray
    stride: np.ndarray
    num_rows: int
    bit_width: int
    # None: all values are stored. Else each slice is in BEICSR: a bitmap and the nonzeros in place, in a slot with room
    # for all values (SGCN, Yoo et al., HPCA 2023)
    counts: FeatureCounts | None = None

    @property
    def num_slices(self) -> int:
        return len(self.columns)

    def cut(self, first: int, last: int) -> SlicedRows:
        return SlicedRows(self.columns[first:last], self.address[first:last], self.stride[first:last], self.num_rows,
                          self.bit_width)

    def num_values(self, index: int, first: int, last: int) -> np.ndarray:
        if self.counts is None:
            return np.full(last - first, self.columns[index], np.int64)
        bounds = starts_of(self.columns)[index:index + 2]
        return np.diff(self.counts.nonzeros_before(self.counts.nonzeros[first:last], bounds), axis=1)[:, 0]

    def num_bytes(self, index: int, num_values: np.ndarray) -> np.ndarray:
        """Bytes of slices with these numbers of values, with their bitmaps."""
        bitmap = 0 if self.counts is None else size_in_bytes(int(self.columns[index]), 1)
        return bitmap + size_in_bytes(num_values, self.bit_width)

    def requests(self, kind: str, index: int, block: np.ndarray, row: np.ndarray, num_bytes: np.ndarray) -> Requests:
        return requests_of(kind, block, self.address[index] + row * self.stride[index], num_bytes)

    def run_requests(self, kind: str, index: int, start: np.ndarray) -> Requests:
        """Requests for a slice of consecutive rows; block b has the rows start[b] to start[b + 1] - 1."""
        block = np.repeat(np.arange(len(start) - 1), np.diff(start))
        values = self.num_values(index, int(start[0]), int(start[-1]))
        return self.requests(kind, index, block, np.arange(start[0], start[-1]), self.num_bytes(index, values))

    def all_requests(self, kind: str, start: np.ndarray) -> Requests:
        """Requests for all slices of consecutive rows."""
        return by_address(*(self.run_requests(kind, index, start) for index in range(self.num_slices)))


def slices_of(dim: int, design: Design) -> np.ndarray:
    return np.diff(block_starts(dim, design.rules["slice_columns"]))


def dense_rows(space: AddressSpace, design: Design, num_rows: int, columns: np.ndarray) -> SlicedRows:
    stride = size_in_bytes(columns, design.bit_width)
    return SlicedRows(columns, space.place(starts_of(num_rows * stride))[:-1], stride, num_rows, design.bit_width)


def compressed_rows(space: AddressSpace, design: Design, counts: FeatureCounts) -> SlicedRows:
    columns = slices_of(counts.dim, design)
    slot = size_in_bytes(columns, 1) + size_in_bytes(columns, design.bit_width)
    start = starts_of(-(-slot // LINE_BYTES) * LINE_BYTES)
    address = space.reserve(counts.num_rows * start[-1]) + start[:-1]
    return SlicedRows(columns, address, np.full(len(columns), start[-1]), counts.num_rows, design.bit_width, counts)


class RowCache:
    """A fully associative cache, empty at first, that keeps the rows used last within `capacity` bytes.

    num_bytes, (num_rows,) int64, is per row; a row larger than the cache is not kept. Raises ConfigError for more rows
    than 32-bit ids can name.
    """

    def __init__(self, num_bytes: np.ndarray, capacity: int) -> None:
        if len(num_bytes) >= np.iinfo(np.int32).max:
            raise ConfigError(f"a cache can name {np.iinfo(np.int32).max - 1} rows, and there are {len(num_bytes)}")
        self.num_bytes, self.capacity, self.held_bytes = np.ascontiguousarray(num_bytes, np.int64), capacity, 0
        self._newer, self._older = (np.append(np.full(len(num_bytes), -1, np.int32), np.int32(len(num_bytes)))
                                    for _ in range(2))

    def missed(self, row: np.ndarray) -> np.ndarray:
        missed = np.zeros(len(row), np.uint8)
        self.held_bytes = kernels.use_rows(np.ascontiguousarray(row, np.int32), self.num_bytes, self.capacity,
                                           self.held_bytes, self._newer, self._older, missed)
        return missed.astype(bool)


@dataclass(frozen=True)
class Names:
    """A sparse matrix: its entries tell, per row, which rows of another matrix are added up."""

    kind: str
    start: np.ndarray                            # (num_rows + 1,) int64, entries before each row
    address: np.ndarray                          # (num_rows + 1,) int64, address of each row in DRAM, then the end
    of_rows: Callable[[int, int], np.ndarray]    # (first, last) → columns of the entries of rows first to last - 1


@dataclass(frozen=True)
class Multiplication:
    """Multiplies a slice's sums with the slice's rows of W; the results of slices add up in DRAM."""

    array: Array
    product: Product
    # weights_at, sums_at: addresses of W and of these results
    weights_at: int
    sums_at: int


@dataclass(frozen=True)
class Aggregation:
    design: Design
    names: Names
    # rows, row_kind: the named rows
    rows: SlicedRows
    row_kind: str
    own: SlicedRows | None        # what each row's sum begins with, in slices of `rows` or of the result
    result: SlicedRows
    result_kind: str
    multiplication: Multiplication | None = None

    @property
    def rows_a_round(self) -> int:
        return num_cores(self.design) * self.design.rules["strip_rows"]


def aggregation_blocks(work: Aggregation) -> Iterator[Blocks]:
    """Yield a block per round of strips, slice after slice.

    Each engine takes a strip of `strip_rows` consecutive rows, next to the strips of the other engines. All engines
    advance together, row by row, so that they share what the cache holds: SGCN's sparsity-aware cooperation. Assumed:
    the engines wait for each other at the end of their strips; the cache is fully associative with least-recently-used
    replacement; a row without values costs its engine one cycle, for its bitmap.
    """
    rounds = block_starts(len(work.names.start) - 1, work.rows_a_round)
    for index in range(work.rows.num_slices):
        values = work.rows.num_values(index, 0, work.rows.num_rows)
        num_bytes = work.rows.num_bytes(index, values)
        cache = RowCache(-(-num_bytes // LINE_BYTES) * LINE_BYTES, work.design.buffer_bytes("cache"))
        for first, last in runs_of(work.names.start[rounds] + rounds):
            yield _run(work, index, values, num_bytes, cache, rounds[first:last + 1])


def _run(work: Aggregation, index: int, values: np.ndarray, num_bytes: np.ndarray, cache: RowCache, start: np.ndarray
         ) -> Blocks:
    design, width, num_blocks = work.design, work.design.rules["simd_width"], len(start) - 1
    row, engine = _in_step(work, int(start[0]), int(start[-1]))
    block = (row - start[0]) // work.rows_a_round
    named, degree = _named(work.names, row, int(start[0]), int(start[-1]))
    missed = cache.missed(named)
    fetched = work.rows.requests(work.row_kind, index, np.repeat(block, degree)[missed], named[missed],
                                 num_bytes[named[missed]])
    address = work.names.address[start]
    names = requests_of(work.names.kind, np.arange(num_blocks), address[:-1], np.diff(address))
    own = 0 if work.own is None or work.multiplication is not None else int(work.own.columns[index])
    steps = starts_of(np.maximum(1, -(-values // width))[named])
    per_row = np.diff(steps[starts_of(degree)]) + -(-own // width)
    per_engine = np.zeros((num_blocks, num_cores(design)), np.int64)
    np.add.at(per_engine, (block, engine), per_row)
    cycles = per_engine.max(axis=1)[:, None]
    num_sums = int(values[named].sum()) + own * len(row)
    sum_bytes = num_sums * design.rules["sum_bits"] // 8
    events = {"simd": num_sums, "write:cache": int(num_bytes[named[missed]].sum()),
              "read:cache": int(num_bytes[named].sum()), "write:edge": names.total_bytes,
              "read:edge": names.total_bytes, "read:output": sum_bytes, "write:output": sum_bytes}
    reads = [names, fetched]
    if work.own is not None:
        reads.append(work.own.run_requests(work.row_kind, index, start))
    if work.multiplication is not None:
        return _multiplied(work, work.multiplication, index, start, cycles, reads, events)
    return Blocks(cycles, in_order(*reads), work.result.run_requests(work.result_kind, index, start), events)


def _in_step(work: Aggregation, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    # Rows of whole rounds in the order in which the engines take them, and the engine of each.
    strip, row = work.design.rules["strip_rows"], np.arange(first, last)
    number, place = np.divmod(row, work.rows_a_round)
    order = np.lexsort((place // strip, place % strip, number))
    return row[order], place[order] // strip


def _named(names: Names, row: np.ndarray, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    begin, degree = names.start[row] - names.start[first], names.start[row + 1] - names.start[row]
    position = np.arange(degree.sum()) + np.repeat(begin - (np.cumsum(degree) - degree), degree)
    return names.of_rows(first, last)[position], degree


def _multiplied(work: Aggregation, multiplication: Multiplication, index: int, start: np.ndarray, cycles: np.ndarray,
                reads: list[Requests], events: dict[str, int]) -> Blocks:
    design, product, array = work.design, multiplication.product, multiplication.array
    rows, block, columns = np.diff(start), np.arange(len(start) - 1), product.combined_dim
    weights = weight_requests(design, product, multiplication.weights_at, starts_of(work.rows.columns),
                              np.full(len(block), index), start[:-1] == 0)
    sum_bytes = size_in_bytes(product.result_dim, design.rules["sum_bits"])
    sums = requests_of("partial sums", block, multiplication.sums_at + start[:-1] * sum_bytes, rows * sum_bytes)
    is_last = index == work.rows.num_slices - 1
    depth, moved = int(work.rows.columns[index]), int(rows.sum()) * sum_bytes
    events = events | array.events(design, rows, depth, columns, weights) | {
        name: events[name] + moved for name in ("read:output", "write:output")}
    return Blocks(np.column_stack([cycles, array.cycles(rows, depth, columns)]),
                  in_order(*reads, weights, *[sums] * (index > 0)),
                  work.result.all_requests(work.result_kind, start) if is_last else sums, events)


def _aggregation_first(design: Design, array: Array, product: Product, space: AddressSpace, arcs: Names,
                       rows: SlicedRows, result: SlicedRows) -> Pass:
    weights_at = space.reserve(size_in_bytes(product.rows.dim * product.combined_dim, design.bit_width))
    sums_at = space.reserve(rows.num_rows * size_in_bytes(product.result_dim, design.rules["sum_bits"]))
    work = Aggregation(design, arcs, rows, "input rows", rows if product.own_dim else None, result, "output rows",
                       Multiplication(array, product, weights_at, sums_at))
    return Pass(f"{product.name} aggregation, combination", ("aggregation", "combination"),
                partial(aggregation_blocks, work), buffered_until=0)


def _combination_first(design: Design, array: Array, product: Product, space: AddressSpace, arcs: Names,
                       rows: SlicedRows | None, result: SlicedRows) -> list[Pass]:
    aggregated, name = product.aggregated_dim, f"{product.name} combination"
    combined, kind = result, "output rows"
    if aggregated:
        columns = np.concatenate([slices_of(part, design) for part in (aggregated, product.own_dim) if part])
        combined, kind = dense_rows(space, design, product.rows.num_rows, columns), "combined rows"
    if rows is None:
        names = Names("input rows", starts_of(product.rows.row_nonzeros()),
                      space.place(compressed_start(product.rows, design.bit_width, design.rules["id_bytes"])),
                      lambda first, last: product.rows.spread_columns(first, last)[1])
        weights = dense_rows(space, design, product.rows.dim, combined.columns)
        work = Aggregation(design, names, weights, "weights", None, combined, kind)
        made = [Pass(name, ("aggregation",), partial(aggregation_blocks, work))]
    else:
        weights_at = space.reserve(size_in_bytes(product.rows.dim * product.combined_dim, design.bit_width))
        made = [Pass(name, ("combination",), partial(
            combination_blocks, design, array, product, weights_at, partial(rows.all_requests, "input rows"),
            partial(combined.all_requests, kind), "cache", rows.num_slices))]
    if aggregated:
        num = len(slices_of(aggregated, design))
        own = combined.cut(num, 2 * num) if product.own_dim else None
        sums = Aggregation(design, arcs, combined.cut(0, num), "combined rows", own, result, "output rows")
        made.append(Pass(f"{product.name} aggregation", ("aggregation",), partial(aggregation_blocks, sums)))
    return made
