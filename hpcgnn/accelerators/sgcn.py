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

from hpcgnn.accelerators.design import Design, check_needs, check_own_columns
from hpcgnn.accelerators.hybrid_engines import Array, array_of, checked_order
from hpcgnn.accelerators.rows import (
    RowCache,
    block_starts,
    by_address,
    compressed_start,
    in_order,
    nonzeros_before,
    own_dim,
    requests_of,
    result_dim,
    rows_after,
    runs_of,
    size_in_bytes,
    spread_columns,
    starts_of,
)
from hpcgnn.accelerators.schedule import AddressSpace, Blocks, Pass, Requests
from hpcgnn.accelerators.workload import FeatureCounts, Product, Workload

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
    arcs = _arcs(design, workload, space)
    rows = None if design.rules.get("sparse_input") else compressed_rows(space, design, workload.products[0].rows)
    for index, product in enumerate(workload.products):
        result = _result(design, workload, index, space)
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
        return np.diff(nonzeros_before(self.counts.nonzeros[first:last], self.counts, bounds), axis=1)[:, 0]

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


def slices_of(dim: int, slice_columns: int) -> np.ndarray:
    return np.diff(np.append(np.arange(0, dim, slice_columns, dtype=np.int64), dim))


def dense_rows(space: AddressSpace, design: Design, num_rows: int, columns: np.ndarray) -> SlicedRows:
    stride = np.asarray(size_in_bytes(columns, design.bit_width), np.int64)
    start = starts_of(num_rows * stride)
    return SlicedRows(columns, space.reserve(start[-1]) + start[:-1], stride, num_rows, design.bit_width)


def compressed_rows(space: AddressSpace, design: Design, counts: FeatureCounts) -> SlicedRows:
    columns = slices_of(counts.dim, design.rules["slice_columns"])
    slot = size_in_bytes(columns, 1) + size_in_bytes(columns, design.bit_width)
    start = starts_of(-(-slot // LINE_BYTES) * LINE_BYTES)
    address = space.reserve(counts.num_rows * start[-1]) + start[:-1]
    return SlicedRows(columns, address, np.full(len(columns), start[-1]), counts.num_rows, design.bit_width, counts)


@dataclass(frozen=True)
class Names:
    """A sparse matrix: its entries tell, per row, which rows of another matrix are added up."""

    kind: str
    start: np.ndarray                            # (num_rows + 1,) int64, entries before each row
    address: np.ndarray                          # (num_rows + 1,) int64, address of each row in DRAM, then the end
    of_rows: Callable[[int, int], np.ndarray]    # (first, last) → columns of the entries of rows first to last - 1


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
    # multiplies a slice's sums with the slice's rows of W; the results of slices add up in DRAM
    array: Array | None = None
    # weights_at, sums_at: addresses of W and of these results, if there is an array
    weights_at: int = 0
    sums_at: int = 0
    weight_columns: int = 0
    sum_columns: int = 0


def aggregation_blocks(work: Aggregation) -> Iterator[Blocks]:
    """Yield a block per round of strips, slice after slice.

    Each engine takes a strip of `strip_rows` consecutive rows, next to the strips of the other engines. All engines
    advance together, row by row, so that they share what the cache holds: SGCN's sparsity-aware cooperation. Assumed:
    the engines wait for each other at the end of their strips; the cache is fully associative with least-recently-used
    replacement; a row without values costs its engine one cycle, for its bitmap.
    """
    design, num_rows = work.design, len(work.names.start) - 1
    rounds = block_starts(num_rows, _num_engines(design) * design.rules["strip_rows"])
    for index in range(work.rows.num_slices):
        values = work.rows.num_values(index, 0, work.rows.num_rows)
        num_bytes = work.rows.num_bytes(index, values)
        cache = RowCache(-(-num_bytes // LINE_BYTES) * LINE_BYTES, design.buffer_bytes("cache"))
        for first, last in runs_of(work.names.start[rounds] + rounds):
            yield _run(work, index, values, num_bytes, cache, rounds[first:last + 1])


def _num_engines(design: Design) -> int:
    return design.units["simd"] // design.rules["simd_width"]


def _run(work: Aggregation, index: int, values: np.ndarray, num_bytes: np.ndarray, cache: RowCache, start: np.ndarray
         ) -> Blocks:
    design, width, num_blocks = work.design, work.design.rules["simd_width"], len(start) - 1
    row, engine = _in_step(design, int(start[0]), int(start[-1]))
    block = (row - start[0]) // (_num_engines(design) * design.rules["strip_rows"])
    named, degree = _named(work.names, row, int(start[0]), int(start[-1]))
    missed = cache.missed(named)
    of_block = np.repeat(block, degree)
    fetched = work.rows.requests(work.row_kind, index, of_block[missed], named[missed], num_bytes[named[missed]])
    address = work.names.address[start]
    names = requests_of(work.names.kind, np.arange(num_blocks), address[:-1], np.diff(address))
    own = _own_columns(work, index)
    steps = starts_of(np.maximum(1, -(-values // width))[named])
    per_row = np.diff(steps[starts_of(degree)]) + -(-own // width)
    per_engine = np.zeros((num_blocks, _num_engines(design)), np.int64)
    np.add.at(per_engine, (block, engine), per_row)
    num_sums = int(values[named].sum()) + own * len(row)
    sum_bytes = num_sums * design.rules["sum_bits"] // 8
    events = {"simd": num_sums, "write:cache": int(num_bytes[named[missed]].sum()),
              "read:cache": int(num_bytes[named].sum()), "write:edge": int(names.num_bytes.sum()),
              "read:edge": int(names.num_bytes.sum()), "read:output": sum_bytes, "write:output": sum_bytes}
    reads = [names, fetched]
    if work.own is not None:
        reads.append(work.own.run_requests(work.row_kind, index, start))
    cycles = per_engine.max(axis=1)[:, None]
    if work.array is None:
        return Blocks(cycles, in_order(*reads), work.result.run_requests(work.result_kind, index, start), events)
    return _multiplied(work, index, start, cycles, reads, events)


def _own_columns(work: Aggregation, index: int) -> int:
    return 0 if work.own is None or work.array is not None else int(work.own.columns[index])


def _in_step(design: Design, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    # Rows of whole rounds in the order in which the engines take them, and the engine of each.
    num_engines, strip = _num_engines(design), design.rules["strip_rows"]
    row = np.arange(first, last)
    place = row % (num_engines * strip)
    order = np.lexsort((place // strip, place % strip, row // (num_engines * strip)))
    return row[order], place[order] // strip


def _named(names: Names, row: np.ndarray, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    begin, degree = names.start[row] - names.start[first], names.start[row + 1] - names.start[row]
    position = np.arange(degree.sum()) + np.repeat(begin - (np.cumsum(degree) - degree), degree)
    return names.of_rows(first, last)[position], degree


def _multiplied(work: Aggregation, index: int, start: np.ndarray, cycles: np.ndarray, reads: list[Requests],
                events: dict[str, int]) -> Blocks:
    design, rows, block = work.design, np.diff(start), np.arange(len(start) - 1)
    depth, is_last = int(work.rows.columns[index]), index == work.rows.num_slices - 1
    before = int(work.rows.columns[:index].sum())
    at, end, size = (int(size_in_bytes(column * work.weight_columns, design.bit_width))
                     for column in (before, before + depth, int(work.rows.columns.sum())))
    needed = np.ones(len(block), bool) if size > design.buffer_bytes("weight") else start[:-1] == 0
    weights = requests_of("weights", block, work.weights_at + at, (end - at) * needed)
    sum_bytes = int(size_in_bytes(work.sum_columns, design.rules["sum_bits"]))
    sums = requests_of("partial sums", block, work.sums_at + start[:-1] * sum_bytes, rows * sum_bytes)
    reads += [weights] + [sums] * (index > 0)
    writes = [sums]
    if is_last:
        writes = [by_address(*(work.result.run_requests(work.result_kind, out, start)
                               for out in range(work.result.num_slices)))]
    array_cycles = work.array.cycles(rows, depth, work.weight_columns)
    events = events | {
        "mac": int(rows.sum()) * depth * work.weight_columns, "write:weight": int(weights.num_bytes.sum()),
        "read:weight": int(size_in_bytes(int((-(-rows // work.array.rows)).sum()) * depth * work.weight_columns,
                                         design.bit_width))}
    moved = int(rows.sum()) * sum_bytes
    events = events | {name: events[name] + moved for name in ("read:output", "write:output")}
    return Blocks(np.column_stack([cycles, array_cycles]), in_order(*reads), in_order(*writes), events)


@dataclass(frozen=True)
class Combination:
    design: Design
    array: Array
    rows: SlicedRows
    result: SlicedRows
    result_kind: str
    dim: int                 # W is dim x columns, at address `weights_at`
    columns: int
    weights_at: int


def _arcs(design: Design, workload: Workload, space: AddressSpace) -> Names:
    size = design.rules["id_bytes"] * (np.arange(workload.num_nodes + 1) + workload.indptr)
    return Names("edges", workload.indptr, space.reserve(size[-1]) + size,
                 lambda first, last: workload.indices[workload.indptr[first]:workload.indptr[last]])


def _result(design: Design, workload: Workload, index: int, space: AddressSpace) -> SlicedRows:
    after = rows_after(workload, index)
    if after is not None:
        return compressed_rows(space, design, after)
    columns = slices_of(result_dim(workload.products[index]), design.rules["slice_columns"])
    return dense_rows(space, design, workload.num_nodes, columns)


def _aggregation_first(design: Design, array: Array, product: Product, space: AddressSpace, arcs: Names,
                       rows: SlicedRows, result: SlicedRows) -> Pass:
    weights_at = space.reserve(size_in_bytes(product.rows.dim * product.combined_dim, design.bit_width))
    sums_at = space.reserve(rows.num_rows * size_in_bytes(result_dim(product), design.rules["sum_bits"]))
    own = rows if own_dim(product) else None
    work = Aggregation(design, arcs, rows, "input rows", own, result, "output rows", array, weights_at, sums_at,
                       product.combined_dim, result_dim(product))
    return Pass(f"{product.name} aggregation, combination", ("aggregation", "combination"),
                partial(aggregation_blocks, work), buffered_until=0)


def _combination_first(design: Design, array: Array, product: Product, space: AddressSpace, arcs: Names,
                       rows: SlicedRows | None, result: SlicedRows) -> list[Pass]:
    width, aggregated = design.rules["slice_columns"], product.aggregated_dim
    combined, kind = result, "output rows"
    if aggregated:
        columns = np.concatenate([slices_of(part, width) for part in (aggregated, own_dim(product)) if part])
        combined, kind = dense_rows(space, design, product.rows.num_rows, columns), "combined rows"
    if rows is None:
        made = [_sparse_combination(design, product, space, combined, kind)]
    else:
        weights_at = space.reserve(size_in_bytes(product.rows.dim * product.combined_dim, design.bit_width))
        work = Combination(design, array, rows, combined, kind, product.rows.dim, product.combined_dim, weights_at)
        made = [Pass(f"{product.name} combination", ("combination",), partial(_combination_blocks, work))]
    if aggregated:
        num = len(slices_of(aggregated, width))
        own = combined.cut(num, 2 * num) if own_dim(product) else None
        sums = Aggregation(design, arcs, combined.cut(0, num), "combined rows", own, result, "output rows")
        made.append(Pass(f"{product.name} aggregation", ("aggregation",), partial(aggregation_blocks, sums)))
    return made


def _sparse_combination(design: Design, product: Product, space: AddressSpace, combined: SlicedRows, kind: str) -> Pass:
    nonzeros = product.rows.row_nonzeros()
    address = compressed_start(nonzeros, design.bit_width, design.rules["id_bytes"])
    names = Names("input rows", starts_of(nonzeros), space.reserve(address[-1]) + address,
                  lambda first, last: spread_columns(product.rows, first, last)[1])
    weights = dense_rows(space, design, product.rows.dim, combined.columns)
    work = Aggregation(design, names, weights, "weights", None, combined, kind)
    return Pass(f"{product.name} combination", ("aggregation",), partial(aggregation_blocks, work))


def _combination_blocks(work: Combination) -> Iterator[Blocks]:
    design, columns = work.design, work.columns
    results = design.buffer_bytes("output") // 2 * 8 // design.rules["sum_bits"]
    start = block_starts(work.rows.num_rows, max(1, results // columns))
    weight_bytes = int(size_in_bytes(work.dim * columns, design.bit_width))
    is_resident = weight_bytes <= design.buffer_bytes("weight")
    for first, last in runs_of(start * work.rows.num_slices):
        here, block = start[first:last + 1], np.arange(last - first)
        rows = np.diff(here)
        is_needed = (first + block == 0) | (not is_resident)
        weights = requests_of("weights", block, work.weights_at, weight_bytes * is_needed)
        inputs = [work.rows.run_requests("input rows", index, here) for index in range(work.rows.num_slices)]
        writes = [work.result.run_requests(work.result_kind, index, here) for index in range(work.result.num_slices)]
        input_bytes = sum(int(requests.num_bytes.sum()) for requests in inputs)
        sum_bytes = int(rows.sum()) * columns * design.rules["sum_bits"] // 8
        groups = int((-(-rows // work.array.rows)).sum())
        events = {"mac": int(rows.sum()) * work.dim * columns, "write:cache": input_bytes, "read:cache": input_bytes,
                  "write:weight": int(weights.num_bytes.sum()),
                  "read:weight": int(size_in_bytes(groups * work.dim * columns, design.bit_width)),
                  "read:output": sum_bytes, "write:output": sum_bytes}
        cycles = work.array.cycles(rows, work.dim, columns)
        yield Blocks(cycles[:, None], in_order(weights, by_address(*inputs)), by_address(*writes), events)
