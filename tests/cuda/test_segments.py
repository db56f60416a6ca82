"""Geometry of the edge-parallel kernels: what each block holds, and that blocks of every shape give the product."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from cuda.aggregation_cases import NUM_COLUMNS, ROUNDING, assert_near, dense_of, matrix_of, rows_of, scales

from hpcgnn.ops.aggregation import from_csr
from hpcgnn.ops.cuda import aggregation as cuda
from hpcgnn.ops.cuda import segments

BATCH = 16               # products that half arithmetic sums in half precision


@pytest.mark.covering
@pytest.mark.parametrize("is_half", [False, True])
@pytest.mark.parametrize("warps, items_a_warp", [(1, 64), (4, 64), (3, 96), (8, 128)])
def test_blocks_of_every_shape_give_the_product(device, warps, items_a_warp, is_half):
    """A hub of three of the largest blocks; several column blocks, the last one of a single pair."""
    matrix = matrix_of(hub=2500, num_self=30, has_half_sums=is_half, **scales(matrix_of()))
    h = rows_of(NUM_COLUMNS, 66, torch.float16)
    cut = segments.cut(segments.item_offsets(matrix), 0, matrix.num_rows, warps, items_a_warp)
    out = torch.empty(matrix.num_rows, 66, dtype=torch.float16).to(device)
    cuda.launch(cut, matrix, h.to(device), None, out, False)
    rounding = (BATCH + 1) * ROUNDING[torch.float16] if is_half else 2500 * 2.0**-24
    assert_near(out, dense_of(matrix), h, torch.float16, rounding=rounding)


@pytest.mark.parametrize("num_items", [1, 63, 64, 1000])
def test_segments_cover_every_item_once_and_name_the_rows_of_their_ends(num_items):
    rng = np.random.default_rng(num_items)
    offset = np.unique(np.concatenate([[0, num_items], rng.integers(0, num_items + 1, 20)]))
    row_of_item = np.repeat(np.arange(len(offset) - 1), np.diff(offset))
    cut = segments.cut(offset, 0, len(offset) - 1, warps=1, items_a_warp=64)
    bounds = np.append(np.arange(0, num_items, 64), num_items)
    assert cut.num_blocks == len(bounds) - 1 and (cut.start, cut.stop) == (0, num_items)
    np.testing.assert_array_equal(cut.block_row, np.append(row_of_item[bounds[:-1]], row_of_item[-1]))
    blocks = [np.unique(np.flatnonzero(row_of_item == v) // 64) for v in range(len(offset) - 1)]
    spilled = [v for v, of_row in enumerate(blocks) if len(of_row) > 1]
    assert cut.spilled_row.tolist() == spilled
    assert cut.spilled_first.tolist() == [blocks[v][0] for v in spilled]
    assert cut.spilled_last.tolist() == [blocks[v][-1] for v in spilled]


def test_items_are_self_loops_and_entries_and_one_of_each_row_that_has_none():
    matrix = from_csr(np.array([0, 2, 2, 5, 5]), np.zeros(5, np.int32), 4, num_self=2)
    assert segments.item_offsets(matrix).tolist() == [0, 3, 4, 7, 8]


def test_segments_are_kept_as_long_as_their_matrix():
    matrix = matrix_of()
    one = weakref.ref(matrix.geometry.segments(0, 9))
    assert matrix.geometry.segments(0, 9) is one() and matrix.geometry.segments(0, 8) is not one()
    del matrix
    assert one() is None


def test_every_block_holds_at_least_64_items_a_warp_and_what_shared_memory_is_for():
    for num_items in (1, segments.LARGE, 1 << 40):
        warps, items_a_warp = segments.block_shape(num_items)
        assert items_a_warp >= 64 and warps * items_a_warp <= 1024 and warps * 32 <= 256


def test_rows_are_split_by_their_length():
    length = [0, 16, 17, 512, 513, 5]
    indptr = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    rows = from_csr(indptr, np.zeros(indptr[-1], np.int32), 1).geometry.rows_by_length
    assert [of_kind.tolist() for of_kind in rows] == [[0, 1, 5], [2, 3], [4]]


@pytest.mark.parametrize("num_loads, lanes", [(0, 1), (1, 1), (2, 2), (3, 4), (8, 8), (9, 16), (33, 32), (1000, 32)])
def test_sub_warps_are_the_powers_of_two_that_hold_the_loads(num_loads, lanes):
    assert segments.sub_warp(num_loads) == lanes
