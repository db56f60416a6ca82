"""GCNAX, Li et al., HPCA 2021: A(XW) with both sparse matrices in tiles, by the loops that move least.

How long a request takes is not known here.

A tile of the sparse matrix times one of the dense matrix is a block. The MACs take outer products of a sparse column
and a dense row, so that all are busy but at a tile's end. A tile stays in its buffer until another one is needed; an
empty tile of the sparse matrix is skipped. assumed, where the paper is silent: a value lies in its tile with a position
of `id_bytes`, a value of the adjacency matrix is 1 and has the position only (MEGA, §IV); XW goes through DRAM (the
paper can also fuse both phases, which is not modeled); sums that leave early are `sum_bits` wide; GraphSage's own
columns are added when a tile of sums begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain, pairwise

import numpy as np

from hpcgnn.accelerators.compressed_rows import starts_of
from hpcgnn.accelerators.design import Design
from hpcgnn.accelerators.gcnax_phase import Panels, Phase
from hpcgnn.accelerators.gcnax_tiles import NOWHERE, Tiles, arc_tiles, feature_tiles, with_panels
from hpcgnn.accelerators.gcnax_tiling import Shape, best_tilings
from hpcgnn.accelerators.needs import check_needs, check_own_columns
from hpcgnn.accelerators.row_requests import block_starts, in_order, own_dim, requests_of, result_dim, size_in_bytes
from hpcgnn.accelerators.schedule import AddressSpace, Blocks, Pass, Requests
from hpcgnn.accelerators.workload import Product, Workload


def passes(design: Design, workload: Workload) -> list[Pass]:
    """Return GCNAX's passes: combination, and aggregation where a product has one.

    Raises
    ------
    ConfigError      the design lacks something, a product adds other columns than it aggregates, or a buffer can't
                     hold a value
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


def _value_bytes(design: Design) -> int:
    return design.rules["id_bytes"] + int(size_in_bytes(1, design.bit_width))


def _result_start(design: Design, workload: Workload, index: int) -> np.ndarray:
    """Return where the result's rows begin, as values with positions if another product reads them, else dense."""
    dim, after = result_dim(workload.products[index]), workload.products[index + 1:index + 2]
    if after and after[0].rows.dim == dim:
        return starts_of(after[0].rows.row_nonzeros() * _value_bytes(design))
    return starts_of(np.full(workload.num_nodes, size_in_bytes(dim, design.bit_width), np.int64))


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
    """Yield blocks run by run; a run must know which tiles are in the buffers, and which sums the next one takes."""
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
    """Return which blocks load their sparse tile, and which their dense one, (num_blocks,) bool each."""
    is_used = tiles.count > 0
    m, k, panel = (np.concatenate([[old], array[is_used]])
                   for old, array in zip(held[:3], (tiles.m, tiles.k, n), strict=True))
    loads = np.zeros((2, len(n)), bool)
    loads[0, is_used] = (np.diff(m) != 0) | (np.diff(k) != 0)
    loads[1, is_used] = (np.diff(k) != 0) | (np.diff(panel) != 0)
    return loads[0], loads[1]


def _changes(tiles: Tiles, n: np.ndarray, held: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which blocks take up a tile of sums, and which leave theirs, (num_blocks,) bool each."""
    m, panel = np.concatenate([held[3:4], tiles.m, after[:1]]), np.concatenate([held[4:], n, after[1:]])
    is_other = (np.diff(m) != 0) | (np.diff(panel) != 0)
    return is_other[:-1], is_other[1:]


def _results(phase: Phase, m: np.ndarray, n: np.ndarray, is_last: np.ndarray) -> Requests:
    """Return the writes of complete tiles: a panel's, or the panel's share of the rows' bytes."""
    if isinstance(phase.result, Panels):
        return _requests(phase.result_kind, is_last, *phase.result.tile(m, phase.tiling.rows, n))
    start = phase.result[block_starts(phase.sums.num_rows, phase.tiling.rows)]
    before, size = starts_of(phase.columns), np.diff(start)[m]
    begin, end = size * before[n] // before[-1], size * before[n + 1] // before[-1]
    return _requests(phase.result_kind, is_last, start[m] + begin, end - begin)


def _requests(kind: str, is_made: np.ndarray, address: np.ndarray, num_bytes: np.ndarray) -> Requests:
    return requests_of(kind, np.flatnonzero(is_made), address[is_made], num_bytes[is_made])
