"""SGCN's aggregation engines: rows that a sparse matrix names are read through the cache and added up, a slice of
columns after the other. The order of passes is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from hpcgnn.accelerators.compressed_rows import starts_of
from hpcgnn.accelerators.design import Design
from hpcgnn.accelerators.hybrid_engines import Array
from hpcgnn.accelerators.row_cache import RowCache
from hpcgnn.accelerators.row_requests import block_starts, by_address, in_order, requests_of, runs_of, size_in_bytes
from hpcgnn.accelerators.schedule import Blocks, Requests
from hpcgnn.accelerators.sgcn_rows import LINE_BYTES, SlicedRows


@dataclass(frozen=True)
class Names:
    """A sparse matrix: which rows of another one each of its rows adds up.

    Attributes
    ----------
    kind : str                                 of KINDS
    start : (num_rows + 1,) int64              names before each row
    address : (num_rows + 1,) int64            in DRAM, where each row begins, and the end
    of_rows : function of first, last          returns the names of rows first to last - 1, (num_names,) integer
    """

    kind: str
    start: np.ndarray
    address: np.ndarray
    of_rows: Callable[[int, int], np.ndarray]


@dataclass(frozen=True)
class Aggregation:
    """A sparse matrix times rows.

    Attributes
    ----------
    names : Names
    rows : SlicedRows                 that are named
    row_kind : str                    of KINDS, of what is named
    own : SlicedRows or None          that each row's sum begins with; the slices are those of `rows`, or of the result
    result : SlicedRows
    result_kind : str
    array : Array or None             where there is one, a slice's sums are multiplied with the slice's rows of W,
                                      and the results of slices added up in DRAM
    weights_at, sums_at : int         addresses of W and of these results, where there is an array
    weight_columns : int              of W
    sum_columns : int                 of these results
    """

    design: Design
    names: Names
    rows: SlicedRows
    row_kind: str
    own: SlicedRows | None
    result: SlicedRows
    result_kind: str
    array: Array | None = None
    weights_at: int = 0
    sums_at: int = 0
    weight_columns: int = 0
    sum_columns: int = 0


def aggregation_blocks(work: Aggregation) -> Iterator[Blocks]:
    """Yield a block for each round of strips, slice after slice.

    Each engine takes a strip of `strip_rows` consecutive rows, next to the other engines' strips, and all go through
    theirs in step, row by row, so that they share what the cache holds: SGCN's sparsity-aware cooperation. assumed:
    the engines wait for each other at the end of their strips; the cache is fully associative and forgets the row that
    was used longest ago; a row without values costs its engine a cycle, for its bitmap.
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
    """Return the columns of a row's own that are added: with an array, W multiplies them instead."""
    return 0 if work.own is None or work.array is not None else int(work.own.columns[index])


def _in_step(design: Design, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows first to last - 1 of whole rounds in the order in which the engines take them, and their engines."""
    num_engines, strip = _num_engines(design), design.rules["strip_rows"]
    row = np.arange(first, last)
    place = row % (num_engines * strip)
    order = np.lexsort((place // strip, place % strip, row // (num_engines * strip)))
    return row[order], place[order] // strip


def _named(names: Names, row: np.ndarray, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what rows of first to last - 1 name, in this order, and how many names each has."""
    begin, degree = names.start[row] - names.start[first], names.start[row + 1] - names.start[row]
    position = np.arange(degree.sum()) + np.repeat(begin - (np.cumsum(degree) - degree), degree)
    return names.of_rows(first, last)[position], degree


def _multiplied(work: Aggregation, index: int, start: np.ndarray, cycles: np.ndarray, reads: list[Requests],
                events: dict[str, int]) -> Blocks:
    """Return the blocks with the product of a slice's sums and its rows of W, on top of the slices before."""
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
