"""SGCN, Yoo et al., HPCA 2023: compressed features, an aggregation engine behind a cache, and a systolic array.

How long a request takes is not known here.

Rows of features lie in DRAM in BEICSR. The array multiplies them with W as if they were dense; SIMD engines add up rows
that they read through the cache, and skip zeros of compressed ones. rules.order says which goes first:
"combination-first" is A(XW), where XW is dense; "aggregation-first" is (AX)W, where the engines read compressed rows.
assumed, where the paper is silent: with rules.sparse_input the first product is A(XW) in either order, and the engines
make its XW, which take X in CSR as they take arcs (the array would multiply the zeros of a very sparse input); W is
kept where the Weight Buffer holds all of it; a block of the array has as many rows as half the Output Buffer holds
results of; an arc takes `id_bytes`, and each row an offset. A last result is dense.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from hpcgnn.accelerators.compressed_rows import compressed_start, starts_of
from hpcgnn.accelerators.design import Design
from hpcgnn.accelerators.feature_columns import spread_columns
from hpcgnn.accelerators.hybrid_engines import Array, array_of, checked_order
from hpcgnn.accelerators.needs import check_needs, check_own_columns
from hpcgnn.accelerators.row_requests import (
    block_starts,
    by_address,
    in_order,
    own_dim,
    requests_of,
    result_dim,
    runs_of,
    size_in_bytes,
)
from hpcgnn.accelerators.schedule import AddressSpace, Blocks, Pass
from hpcgnn.accelerators.sgcn_aggregation import Aggregation, Names, aggregation_blocks
from hpcgnn.accelerators.sgcn_rows import SlicedRows, compressed_rows, dense_rows, slices_of
from hpcgnn.accelerators.workload import Product, Workload


@dataclass(frozen=True)
class Combination:
    """Rows times W in the systolic array.

    Attributes
    ----------
    rows, result : SlicedRows
    result_kind : str             of KINDS
    dim, columns : int            of W
    weights_at : int              address
    """

    design: Design
    array: Array
    rows: SlicedRows
    result: SlicedRows
    result_kind: str
    dim: int
    columns: int
    weights_at: int


def passes(design: Design, workload: Workload) -> list[Pass]:
    """Return SGCN's passes: one or two for each product.

    Raises
    ------
    ConfigError      the design lacks something, its units don't fit together, its order is unknown, or a product
                     adds other columns than it aggregates
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


def _arcs(design: Design, workload: Workload, space: AddressSpace) -> Names:
    size = design.rules["id_bytes"] * (np.arange(workload.num_nodes + 1) + workload.indptr)
    return Names("edges", workload.indptr, space.reserve(size[-1]) + size,
                 lambda first, last: workload.indices[workload.indptr[first]:workload.indptr[last]])


def _result(design: Design, workload: Workload, index: int, space: AddressSpace) -> SlicedRows:
    """Return the rows that a product leaves: in BEICSR where another product reads them."""
    dim, after = result_dim(workload.products[index]), workload.products[index + 1:index + 2]
    if after and after[0].rows.dim == dim:
        return compressed_rows(space, design, after[0].rows)
    return dense_rows(space, design, workload.num_nodes, slices_of(dim, design.rules["slice_columns"]))


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
        work = Aggregation(design, arcs, combined.cut(0, num), "combined rows", own, result, "output rows")
        made.append(Pass(f"{product.name} aggregation", ("aggregation",), partial(aggregation_blocks, work)))
    return made


def _sparse_combination(design: Design, product: Product, space: AddressSpace, combined: SlicedRows, kind: str) -> Pass:
    """Return XW by the engines: X's columns name rows of W, as arcs name rows of XW."""
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
