"""Kernels trust the numbers that they follow, so each of them is refused before one would leave its array."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops import aggregation, attention
from hpcgnn.ops.counter import FORWARD, CounterKey
from hpcgnn.ops.quantization import (
    CODES,
    MOST_ROTATED_COLUMNS,
    PARAMETER_BYTES,
    MessageLayout,
    dequantize_rows,
    quantize_rows,
)

KEY = CounterKey(0, 0, FORWARD, 0)
INDPTR, INDICES = np.array([0, 2, 2, 5]), np.array([0, 3, 1, 2, 3], np.int32)


def matrix(**changes):
    return replace(aggregation.from_csr(INDPTR.copy(), INDICES.copy(), 4), **changes)


def changed(array, place, value):
    array = array.copy()
    array[place] = value
    return array


@pytest.mark.parametrize("row, changes", [
    (0, {"indices": changed(INDICES, 1, 4)}), (2, {"indices": changed(INDICES, 4, -1)}),
    (2, {"indices": changed(INDICES, 2, -2**31)}), (2, {"indices": changed(INDICES, 2, 2**31 - 1)}),
    (0, {"begin": np.array([-1, 2, 2])}), (1, {"begin": np.array([0, 3, 2])}), (2, {"end": np.array([2, 2, 6])}),
    (0, {"end": np.array([2**62, 2, 5])}), (2, {"indices": INDICES[:4]}),
    (2, {"split": 3, "num_near": 2})])
def test_entries_that_no_table_has_are_refused_with_their_row(simd, row, changes):
    wrong = matrix(**changes)
    h = torch.ones(wrong.num_near or 4, 8)
    far = torch.ones(1, 8) if wrong.split else None
    with pytest.raises(KernelError, match=rf"row {row} of a sparse matrix has entries .* make the matrix again"):
        aggregation.multiply(wrong, h, far)


@pytest.mark.parametrize("changes, message", [
    ({"num_self": 4}, "has 4 self-loops"), ({"num_self": -1}, "has -1 self-loops"),
    ({"indices": INDICES.astype(np.int64)}, "indices of a sparse matrix is int64"),
    ({"begin": INDPTR[:2]}, r"end of a sparse matrix is int64 of shape \(3,\); expected contiguous int64 of shape"),
    ({"row_scale": np.ones(2, np.float32)}, r"row_scale of a sparse matrix is float32 of shape \(2,\)"),
    ({"column_scale": np.ones(3, np.float32)}, "column_scale of a sparse matrix"),
    ({"column_scale": np.ones(4)}, "column_scale of a sparse matrix is float64")])
def test_arrays_that_do_not_fit_a_matrix_are_refused(changes, message):
    with pytest.raises(KernelError, match=message):
        aggregation.multiply(matrix(**changes), torch.ones(4, 8))


def test_every_kernel_that_follows_entries_refuses_the_matrix():
    wrong, h = matrix(indices=changed(INDICES, 3, 4)), torch.ones(4, 4)
    left, scores = torch.ones(3, 4), torch.ones(3, 2)
    for follow in (lambda: aggregation.row_maximum(wrong, h),
                   lambda: attention.edge_softmax(wrong, scores, torch.ones(4, 2), 0.2),
                   lambda: attention.sum_entries(wrong, torch.ones(5, 2), np.arange(5)),
                   lambda: attention.sampled_products(wrong, left, h, 2)):
        with pytest.raises(KernelError, match="row 2 of a sparse matrix"):
            follow()


def test_entries_behind_those_that_a_matrix_takes_may_name_anything(simd):
    """A prefix of rows is cut by its ends alone; the entries that it leaves out are those of absent rows."""
    prefix = matrix(end=np.array([2, 2, 4]), indices=changed(INDICES, 4, 99))
    out = aggregation.multiply(prefix, torch.eye(4))
    np.testing.assert_array_equal(out.numpy(), [[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 1, 0]])


@pytest.mark.parametrize("changes", [
    {"payload_offset": np.array([8, 10])}, {"payload_offset": np.array([-1, 9])},
    {"bit_width": np.array([8, 4], np.uint8)},
    {"parameter_offset": np.array([0, 9])}, {"parameter_offset": np.array([-4, 4])},
    {"bit_width": np.array([3, 1], np.uint8)}, {"message": np.empty(0, np.uint8)}])
def test_packed_rows_that_do_not_lie_in_their_message_are_refused(simd, changes):
    layout = MessageLayout.build(np.array([1, 1]), 8)
    packed = aggregation.PackedRows(np.zeros(layout.num_bytes, np.uint8), layout.bit_width, layout.payload_offset,
                                    layout.parameter_offset)
    aggregation.multiply(matrix(), torch.ones(2, 8), packed)
    with pytest.raises(KernelError, match="does not lie within its message"):
        aggregation.multiply(matrix(), torch.ones(2, 8), replace(packed, **changes))


@pytest.mark.covering
@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize("place", [-1, 5, -2**31, 2**31 - 1])
@pytest.mark.parametrize("bits", [1, 8, 16, 32])
@pytest.mark.parametrize("code", CODES)
def test_a_message_is_neither_made_of_nor_read_into_rows_that_are_not_there(simd, code, bits, place, row):
    layout = MessageLayout.build(np.full(3, bits), 9, code)
    rows, message = torch.ones(5, 9), np.zeros(layout.num_bytes, np.uint8)
    index = changed(np.array([0, 4, 2], np.int32), row, place)
    for pass_rows in (lambda: quantize_rows(rows, index, np.arange(3), layout, KEY, message),
                      lambda: dequantize_rows(message, index, np.arange(3), layout, rows, key=KEY)):
        with pytest.raises(KernelError, match=f"row {row} of a message has 9 columns at {bits} .* is row {place} of 5"):
            pass_rows()


@pytest.mark.parametrize("code", CODES)
def test_a_layout_that_passes_its_message_is_refused(simd, code):
    layout = MessageLayout.build(np.array([4, 4]), 9, code)
    rows, message = torch.ones(2, 9), np.zeros(layout.num_bytes, np.uint8)
    for name in ("payload_offset", "parameter_offset"):
        for offset in (-1, layout.num_bytes - PARAMETER_BYTES[code] + 1, 2**62):
            wrong = replace(layout, **{name: changed(getattr(layout, name), 1, offset)})
            with pytest.raises(KernelError, match="row 1 of a message has 9 columns at 4 bits"):
                dequantize_rows(message, np.arange(2, dtype=np.int32), np.arange(2), wrong, rows, key=KEY)


def test_rows_that_are_too_wide_to_be_rotated_are_refused_whatever_their_layout_says(simd):
    layout = replace(MessageLayout.build(np.array([1]), MOST_ROTATED_COLUMNS + 8), code="rotated")
    rows, message = torch.ones(1, layout.dim), np.zeros(layout.num_bytes, np.uint8)
    with pytest.raises(KernelError, match="row 0 of a message has 32776 columns at 1 bits"):
        dequantize_rows(message, np.zeros(1, np.int32), np.zeros(1, np.int64), layout, rows, key=KEY)
