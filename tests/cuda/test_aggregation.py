"""The device's SpMM: the same bits of two tables, odd rows and other addresses; see also test_host_results.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cuda.aggregation_cases import (
    NUM_COLUMNS,
    NUM_ROWS,
    STORAGES,
    matrix_of,
    multiply,
    rows_of,
    scales,
)
from cuda.conftest import need_compiler
from cuda.emulation import EmulatedBackend

from hpcgnn.ops.aggregation import PackedRows, SparseRows
from hpcgnn.ops.cuda import aggregation as device_side
from hpcgnn.ops.cuda.module import use_backend
from hpcgnn.ops.quantization import MessageLayout

DIMS = [1, 3, 32, 41, 64, 130]


@pytest.mark.covering
@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("dim", DIMS)
def test_two_tables_are_one_matrix(device, dim, dtype):
    matrix = matrix_of(split=35, column_scale=scales(matrix_of())["column_scale"])
    near, far = rows_of(35, dim, dtype), rows_of(NUM_COLUMNS - 35, dim, dtype, seed=2)
    found = multiply(matrix, near.to(device), far.to(device))
    assert torch.equal(found, multiply(matrix_of(column_scale=matrix.column_scale), torch.cat([near, far]).to(device)))


def test_a_table_may_lack_rows_that_no_entry_names(device):
    matrix = matrix_of(num_columns=20)
    wide = SparseRows(matrix.begin, matrix.end, matrix.indices, 50, split=30, num_near=20)
    near, far = rows_of(20, 41), rows_of(20, 41, seed=2)
    assert torch.equal(multiply(wide, near.to(device), far.to(device)), multiply(matrix, near.to(device)))


def test_no_packed_row_is_read_by_a_span_without_any(device):
    """Central rows are computed before messages are here: the bytes may hold anything."""
    matrix = matrix_of(num_columns=35)
    wide = SparseRows(matrix.begin, matrix.end, matrix.indices, NUM_COLUMNS, split=35)
    width = np.full(NUM_COLUMNS - 35, 4, np.uint8)
    layout = MessageLayout.build(width, 41)
    packed = PackedRows(np.full(layout.num_bytes, 255, np.uint8), width, layout.payload_offset, layout.parameter_offset)
    near = rows_of(35, 41).to(device)
    assert torch.equal(multiply(wide, near, packed=packed), multiply(matrix, near))


@pytest.mark.covering
@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("dim", [4, 41, 64])
def test_rows_that_begin_off_a_pair_of_columns_give_the_same_bits(device, dim, dtype):
    matrix, h = matrix_of(), rows_of(NUM_COLUMNS, dim, dtype)
    shifted = off_a_pair(h.to(device))
    assert torch.equal(multiply(matrix, shifted), multiply(matrix, h.to(device)))
    start = rows_of(matrix.num_rows, dim, dtype, seed=4).to(device)
    expected = multiply(matrix, h.to(device), out=start.clone())
    for near in (h.to(device), shifted):      # sums are added to rows that begin there too
        assert torch.equal(multiply(matrix, near, out=off_a_pair(start)), expected)


@pytest.mark.covering
@pytest.mark.parametrize("has_half_sums", [False, True])
@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("dim", [25, 41, 47, 63, 257])
def test_odd_rows_give_the_bits_of_wide_ones_and_read_no_byte_outside_of_a_table(device, dim, dtype, has_half_sums):
    """Tables of one row, two, and more; the emulation refuses every other address."""
    rng, wider = np.random.default_rng(0), dim + -dim % (16 // dtype.itemsize)
    for num_near, num_far in ((1, 1), (2, 1), (1, 2), (50, 30)):
        num_columns = num_near + num_far
        indptr = np.array([0, 3, 3, 400, 405])
        matrix = SparseRows(indptr[:-1], indptr[1:], rng.integers(0, num_columns, 405).astype(np.int32), num_columns,
                            split=num_near, has_half_sums=has_half_sums)
        table = rows_of(num_columns, wider, dtype).to(device)
        start = rows_of(4, wider, dtype, seed=2).to(device)
        near, far = (part[:, :dim].contiguous() for part in (table[:num_near], table[num_near:]))
        for out in (None, start):
            narrow, wide = (None if out is None else out[:, :columns].clone() for columns in (dim, wider))
            found = multiply(matrix, near, far, out=narrow)
            expected = multiply(matrix, table[:num_near], table[num_near:], out=wide)
            assert torch.equal(found, expected[:, :dim])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("dim", [41, 47])
def test_odd_rows_take_fewer_requests_and_sectors_than_columns_that_are_loaded_one_by_one(dim, dtype):
    need_compiler()
    matrix, h = matrix_of(), rows_of(NUM_COLUMNS, dim, dtype)

    def loads(columns):
        with use_backend(EmulatedBackend(counts=True)) as backend:
            device_side.launch(matrix.geometry.segments(0, NUM_ROWS), matrix, h, None,
                               torch.empty(NUM_ROWS, dim, dtype=dtype), False, columns=columns)
        return backend.traffic[0][1].load

    ragged, one_by_one = loads(None), loads(2)
    assert ragged.requests <= {torch.float16: 0.40, torch.float32: 0.55}[dtype] * one_by_one.requests
    assert ragged.sectors <= one_by_one.sectors


def off_a_pair(rows):
    """A copy that begins one element behind the start of its memory."""
    return torch.cat([rows.new_zeros(1), rows.flatten()])[1:].view(rows.shape)


def test_all_orders_of_blocks_give_the_same_bits(device):
    """Compared with the ascending order: the fixture shuffles blocks by its seed."""
    if device == "cuda":
        pytest.skip("a device does not let its order of blocks be chosen")
    matrix = matrix_of(num_self=30, **scales(matrix_of()))
    for dtype in STORAGES:
        h = rows_of(NUM_COLUMNS, 130, dtype)
        found = multiply(matrix, h)
        with use_backend(EmulatedBackend(0)):
            assert torch.equal(found, multiply(matrix, h))


@pytest.mark.parametrize("dim, num_heads, itemsize, columns", [
    (64, 1, 2, 8), (32, 1, 2, 8), (24, 1, 2, 2), (41, 1, 2, 8), (25, 1, 2, 8), (23, 1, 2, 2), (42, 1, 2, 2),
    (41, 1, 4, 4), (13, 1, 4, 4), (11, 1, 4, 2), (82, 2, 2, 2), (16, 1, 4, 4), (12, 1, 4, 2), (32, 2, 2, 8),
    (64, 16, 2, 2)])
def test_a_lane_has_sixteen_bytes_of_wide_rows_and_heads(dim, num_heads, itemsize, columns):
    weights = None if num_heads == 1 else torch.empty(1, num_heads)
    assert device_side.lane_columns(dim, weights, itemsize) == columns
