"""GCNAX: its tiling is the best of all, and its blocks are what loops over tiles count."""

from __future__ import annotations

from itertools import permutations
from itertools import product as all_of

import pytest
from accelerator_workloads import (
    SHAPES,
    columns_added,
    columns_left,
    covered,
    made_design,
    random_workload,
    sizes_of,
    walk,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcgnn.accelerators import gcnax
from hpcgnn.accelerators.gcnax import Shape, Tiling, best_tilings, passes, traffic
from hpcgnn.errors import ConfigError


def gcnax_design(bit_width=32, dense=0.125, output=0.125, sum_bits=32):
    return made_design("gcnax", {"mac": 4}, {"sparse": 1, "dense": dense, "output": output},
                       {"sum_bits": sum_bits, "id_bytes": 4}, bit_width)


def turns(order, trips):
    """Tiles (m, k, n) in the order of the loops."""
    for turn in all_of(*(range(trips[loop]) for loop in order)):
        yield tuple(turn[order.index(loop)] for loop in "mkn")


def loads_by_loop(order, trips):
    """How often a buffer for one tile changes it: of the sparse matrix, the dense one and the sums."""
    changes, held = [0, 0, 0], [None] * 3
    for m, k, n in turns(order, trips):
        for index, tile in enumerate(((m, k), (k, n), (m, n))):
            changes[index] += tile != held[index]
            held[index] = tile
    return changes


@given(st.sampled_from(["".join(order) for order in permutations("mkn")]), st.integers(1, 4), st.integers(1, 4),
       st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_traffic_is_that_of_buffers_that_hold_one_tile(order, m, k, n):
    design, trips = gcnax_design(bit_width=8), {"m": m, "k": k, "n": n}
    sparse, dense, sums = loads_by_loop(order, trips)
    shape = Shape(6 * m, 5 * k, (3 * n,), 7 * m * k)
    expected = sparse * 7 + dense * 5 * 3 + 2 * (sums - m * n) * 6 * 3 * 4
    assert traffic(design, shape, Tiling(order, 6, 5, 3)) == expected


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 7), st.integers(0, 300), st.integers(0, 300),
       st.sampled_from([0.03125, 0.0625, 0.125, 1]), st.sampled_from([0.03125, 0.0625, 0.125, 1]))
@settings(max_examples=40, deadline=None)
def test_no_tiling_moves_less_than_the_chosen_one(rows, depth, columns, features, arcs, dense, output):
    design = gcnax_design(dense=dense, output=output)
    shapes = [Shape(rows, depth, (columns,), features), Shape(rows, rows, (columns,), arcs)]
    tilings = best_tilings(design, shapes)
    chosen = sum(traffic(design, shape, tiling) for shape, tiling in zip(shapes, tilings, strict=True))
    assert all(tiling.rows * tiling.columns * 4 <= output * 512 and tiling.depth * tiling.columns * 4 <= dense * 512
               for tiling in tilings)
    least = min(sum(min(
        sparse * shape.sparse_bytes // (m * k) + dense_loads * shape.depth * columns * 4 / (k * n)
        + 2 * (sums / (m * n) - 1) * rows * columns * 4
        for order in map("".join, permutations("mkn"))
        for tile_rows in range(1, rows + 1) for tile_depth in range(1, shape.depth + 1)
        if tile_rows * width * 4 <= output * 512 and tile_depth * width * 4 <= dense * 512
        for m, k, n in [(-(-rows // tile_rows), -(-shape.depth // tile_depth), -(-columns // width))]
        for sparse, dense_loads, sums in [loads_in_closed_form(order, m, k, n)]) for shape in shapes)
        for width in range(1, columns + 1) if width * 4 <= min(dense, output) * 512)
    assert chosen <= least + 1e-6


def loads_in_closed_form(order, m, k, n, known={}):     # noqa: B006
    if (order, m, k, n) not in known:
        known[order, m, k, n] = loads_by_loop(order, {"m": m, "k": k, "n": n})
    return known[order, m, k, n]


def tile_counts(rows, arcs, tiling):
    """Values of each tile, as {(m, k): number}: of arcs where there are some, else of features spread evenly."""
    counts = {}
    if arcs is not None:
        indptr, indices = arcs
        for v in range(len(indptr) - 1):
            for u in indices[indptr[v]:indptr[v + 1]]:
                tile = v // tiling.rows, int(u) // tiling.depth
                counts[tile] = counts.get(tile, 0) + 1
        return counts
    width = rows.slice_dim
    for m in range(-(-rows.num_rows // tiling.rows)):
        of_tile = rows.nonzeros[m * tiling.rows:(m + 1) * tiling.rows].sum(axis=0)
        for k in range(-(-rows.dim // tiling.depth)):
            number = 0
            for s in range(4):
                own = min(rows.dim, (s + 1) * width) - s * width
                before, after = (min(max(min(column, rows.dim) - s * width, 0), max(own, 0))
                                 for column in (k * tiling.depth, (k + 1) * tiling.depth))
                number += int(of_tile[s]) * after // max(own, 1) - int(of_tile[s]) * before // max(own, 1)
            if number:
                counts[m, k] = number
    return counts


def blocks_by_loop(counts, tiling, num_rows, depth, columns, own, sizes):
    """(sparse, dense, sums read, own, sums written, is complete, cycles) of each block with values, and the cycles of
    those without; `sizes` are bytes of a sparse value, of a dense value and of a sum.
    """
    trips = {"m": -(-num_rows // tiling.rows), "k": -(-depth // tiling.depth), "n": len(columns)}
    filled = {m for m, _ in counts}
    visits, sequence = {}, []
    for m, k, n in turns(tiling.order, trips):
        if (m, k) in counts:
            sequence.append((m, k, n))
            visits[m, n] = visits.get((m, n), 0) + 1
    empty = [own and -(-min(tiling.rows, num_rows - m * tiling.rows) * width // 4)
             for m in range(trips["m"]) if m not in filled for width in columns]
    sparse_held = dense_held = sums_held = None
    blocks, seen = [], {}
    for index, (m, k, n) in enumerate(sequence):
        rows = min(tiling.rows, num_rows - m * tiling.rows)
        seen[m, n] = seen.get((m, n), 0) + 1
        following = sequence[index + 1] if index + 1 < len(sequence) else (None, None, None)
        leaves, complete = following[0::2] != (m, n), seen[m, n] == visits[m, n]
        takes = sums_held != (m, n)
        first = takes and seen[m, n] == 1
        blocks.append((counts[m, k] * sizes[0] * (sparse_held != (m, k)),
                       min(tiling.depth, depth - k * tiling.depth) * columns[n] * sizes[1] * (dense_held != (k, n)),
                       rows * columns[n] * sizes[2] * (takes and not first),
                       rows * columns[n] * sizes[1] * (own and first),
                       rows * columns[n] * sizes[2] * (leaves and not complete), leaves and complete,
                       -(-counts[m, k] * columns[n] // 4) + (own and first) * -(-rows * columns[n] // 4)))
        sparse_held, dense_held, sums_held = (m, k), (k, n), (m, n)
    return blocks, empty


def check_phase(walked, design, counts, tiling, shape, own, kinds):
    num_rows, depth, columns = shape
    value = (4 if kinds[0] == "edges" else 4 + design.bit_width // 8)
    expected, empty = blocks_by_loop(counts, tiling, num_rows, depth, columns, own, (value, design.bit_width // 8, 4))
    assert len(walked.cycles) == len(expected) + len(empty)
    if not empty:
        assert walked.cycles == [(block[6],) for block in expected]
        assert [sizes_of(block, kinds[0]) for block in walked.reads] == [block[0] for block in expected]
        dense = [sizes_of(block, kinds[1]) for block in walked.reads]
        assert dense == [block[1] + block[3] for block in expected]
        assert [sizes_of(block, "partial sums") for block in walked.reads] == [block[2] for block in expected]
        assert [sizes_of(block, "partial sums") for block in walked.writes] == [block[4] for block in expected]
        written = [sizes_of(block, "combined rows", "output rows") > 0 for block in walked.writes]
        assert all(full or not wrote for full, wrote in zip((b[5] for b in expected), written, strict=True))
    else:
        assert sum(cycles for cycles, in walked.cycles) == sum(block[6] for block in expected) + sum(empty)
        assert walked.read_bytes(kinds[0]) == sum(block[0] for block in expected)
        assert walked.read_bytes("partial sums") == sum(block[2] for block in expected)
        assert walked.written_bytes("partial sums") == sum(block[4] for block in expected)


@pytest.mark.covering
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("order", [None, *map("".join, permutations("mkn"))])
@pytest.mark.parametrize("options", [{}, {"bit_width": 8}, {"dense": 0.03125}, {"output": 0.03125},
                                     {"dense": 8, "output": 8}])
def test_blocks_are_what_loops_over_tiles_count(shape, order, options, monkeypatch):
    monkeypatch.setattr(gcnax, "WORK_A_RUN", 9)       # many runs
    workload, design = random_workload(2, **shape), gcnax_design(**options)

    def tilings_in_order(*arguments):
        return [tiling._replace(order=order or tiling.order, columns=min(tiling.columns, 2))
                for tiling in best_tilings(*arguments)]

    monkeypatch.setattr(gcnax, "best_tilings", tilings_in_order)
    made, size = iter(passes(design, workload)), design.bit_width // 8
    for index, product in enumerate(workload.products):
        aggregated, nodes = product.aggregated_dim, workload.num_nodes
        parts = [part for part in (aggregated, product.combined_dim - aggregated) if part]
        first = next(made)
        tiling = first.blocks.args[0].tiling
        columns = [min(tiling.columns, part - begin) for part in parts for begin in range(0, part, tiling.columns)]
        walked = walk(first, design)
        counts = tile_counts(product.rows, None, tiling)
        assert sum(counts.values()) == product.rows.nonzeros.sum()
        check_phase(walked, design, counts, tiling, (nodes, product.rows.dim, columns), 0, ("input rows", "weights"))
        assert walked.events["mac"] == int(product.rows.nonzeros.sum()) * product.combined_dim
        if aggregated:
            assert walked.written_bytes("combined rows") == nodes * product.combined_dim * size
            second = next(made)
            tiling = second.blocks.args[0].tiling
            columns = columns[:-(-aggregated // tiling.columns)]
            walked = walk(second, design)
            check_phase(walked, design, tile_counts(None, (workload.indptr, workload.indices), tiling), tiling,
                        (nodes, nodes, columns), columns_added(product), ("edges", "combined rows"))
            assert walked.events["mac"] == workload.num_arcs * aggregated + nodes * columns_added(product)
        expected = nodes * columns_left(product) * size
        if index + 1 < len(workload.products):
            expected = int(workload.products[index + 1].rows.nonzeros.sum()) * (4 + size)
        assert walked.written_bytes("output rows") == expected
        results = [request for block in walked.writes for request in block if request[0] == "output rows"]
        assert len(covered(results)) == expected
    assert next(made, None) is None


def test_a_buffer_for_no_value_is_refused():
    with pytest.raises(ConfigError, match="can't hold one value"):
        passes(gcnax_design(dense=0.001), random_workload(8, 4, 4, (2, 2)))
