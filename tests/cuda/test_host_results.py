"""Operations on the device have the host's results, which tests/ops holds against oracles, at every kind of row.

A case yields calls: an operation and its arguments. What is returned and what is written to arguments is compared.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from cuda.aggregation_cases import (
    HUB,
    NUM_COLUMNS,
    NUM_ROWS,
    ROUNDING,
    SMALLEST,
    STORAGES,
    matrix_of,
    packed_rows,
    rows_of,
    scales,
    stored,
)

from hpcgnn.ops import aggregation, attention, dense, fake_quantization, pointwise
from hpcgnn.ops.aggregation import from_csr
from hpcgnn.ops.counter import DROPOUT, CounterKey
from hpcgnn.ops.cuda import attention as device_attention
from hpcgnn.ops.dispatch import device_kernels_on_cpu
from hpcgnn.ops.pointwise import Activation

DIMS, HEADS, SLOPE = [1, 3, 32, 41, 64, 130], [1, 2, 3, 8, 20, 40], 0.2
HEADS_AND_DIMS = [*((1, dim) for dim in DIMS), (2, 4), (3, 5), (3, 8), (4, 16), (8, 4), (20, 1), (5, 6), (4, 64)]
FLOAT32 = STORAGES[:1]
MATRIX = matrix_of()                    # empty rows, a hub of several blocks, entries that no row names
CSR = stored(MATRIX)                    # the same with the named entries alone
EMPTY = [(n, from_csr(np.zeros(m + 1, np.int64), np.empty(0, np.int32), n))
         for m, n in ((0, 0), (0, 5), (5, 0), (3, 5))]
KEY = CounterKey(seed=3, epoch=4, purpose=DROPOUT, layer=2)
HALF = 1 << 15                          # of the levels of a draw


def sums(dtype):
    """Of a near and a far table, which may be packed; also added to what is there, and of a span of rows."""
    weight = {"entry_scale": np.random.default_rng(5).uniform(0.1, 2, len(MATRIX.indices)).astype(np.float32)}
    for dim in DIMS:
        near, far = rows_of(35, dim, dtype), rows_of(NUM_COLUMNS - 35, dim, dtype, seed=2)
        start = rows_of(NUM_ROWS, dim, dtype, seed=3)
        for scaling in ({}, scales(MATRIX), weight, scales(MATRIX) | weight):
            matrix = matrix_of(split=35, num_self=30, **scaling)
            for table in (far, packed_rows(far)[0]):
                yield aggregation._multiply, (matrix, near, table, start, matrix.tasks, False)
        yield aggregation._multiply, (matrix, near, far, start, matrix.tasks, True)
        yield aggregation._multiply, (MATRIX, rows_of(NUM_COLUMNS, dim, dtype), None, start, MATRIX.tasks, False)
    for span in [(0, 0), (0, 8), (5, HUB), (HUB, HUB + 1), (HUB, NUM_ROWS)]:
        yield aggregation._multiply, (matrix, near, far, start, matrix.tasks_of(*span), False)
    # Rows of exactly one block, two blocks, and one entry more or less than a block.
    indptr = np.cumsum([0, 256, 512, 255, 257, 1, 255, 0, 256])
    indices = np.random.default_rng(0).integers(0, NUM_COLUMNS, indptr[-1]).astype(np.int32)
    for num_columns, matrix in [*EMPTY, (NUM_COLUMNS, from_csr(indptr, indices, NUM_COLUMNS))]:
        h, out = rows_of(num_columns, 41, dtype), rows_of(matrix.num_rows, 41, dtype, seed=2)
        yield aggregation._multiply, (matrix, h, None, out, matrix.tasks, False)


def weighted_sums(dtype):
    """By the entry's own number, and by an index; heads of odd widths begin inside a pair of columns."""
    matrix = matrix_of(row_scale=scales(MATRIX)["row_scale"])
    num_entries = len(matrix.indices)
    index = np.random.default_rng(4).permutation(num_entries + 5)[:num_entries].astype(np.int64)
    for num_heads, head_dim in [(1, 41), (2, 1), (3, 5), (4, 16), (8, 8), (5, 26)]:
        h, weight = rows_of(NUM_COLUMNS, num_heads * head_dim, dtype), rows_of(num_entries + 5, num_heads, seed=3)
        out = rows_of(NUM_ROWS, num_heads * head_dim, dtype, seed=2)
        yield aggregation._multiply_weighted, (matrix, h, weight[:num_entries].contiguous(), None, out)
        yield aggregation._multiply_weighted, (matrix, h, weight, index, out)


def quarters(num_rows, dim, dtype, seed=1):
    """Values of few sizes, so that many tie and sums are exact."""
    return (rows_of(num_rows, dim, seed=seed) * 4).round().div(4).to(dtype)


def transposed_of(matrix):
    target = np.repeat(np.arange(matrix.num_rows), matrix.end - matrix.begin)
    order = np.lexsort([target, matrix.indices])
    columns = np.searchsorted(matrix.indices[order], np.arange(matrix.num_columns + 1)).astype(np.int64)
    return from_csr(columns, target[order].astype(np.int32), matrix.num_rows)


def maxima(dtype):
    odd = quarters(NUM_COLUMNS, 21, dtype)
    odd[[5, 7, 9]] = torch.tensor([[torch.nan], [torch.inf], [-torch.inf]], dtype=dtype)
    for h in (odd, *(quarters(NUM_COLUMNS, dim, dtype) for dim in [*DIMS, 0])):
        yield aggregation._maximum, (MATRIX, h)
    for num_columns, matrix in EMPTY:
        yield aggregation._maximum, (matrix, quarters(num_columns, 4, dtype))


def gradients_of_maxima(dtype):
    """The hub names some columns many times, which count once; 4,096 ones are more than float16 counts."""
    for dim in [*DIMS, 0]:
        _, argmax = aggregation._maximum.host(MATRIX, quarters(NUM_COLUMNS, dim, dtype))
        yield aggregation._maximum_backward, (transposed_of(CSR), quarters(NUM_ROWS, dim, dtype, seed=2), argmax)
    many = from_csr(np.array([0, 4096]), np.arange(4096, dtype=np.int32), 4096)
    yield aggregation._maximum_backward, (many, torch.ones(4096, 3, dtype=dtype), torch.zeros(4096, 3,
                                                                                              dtype=torch.int32))


def scores_of(num_heads):
    return rows_of(NUM_ROWS, num_heads), rows_of(NUM_COLUMNS, num_heads, seed=2)


def softmaxes(dtype):
    """Also of scores far apart, of absent columns, which weigh nothing, and of NaN, which stays in its row and head."""
    for num_heads in HEADS:
        target, source = scores_of(num_heads)
        yield attention._edge_softmax, (CSR, target, source, SLOPE)
        absent, odd = source.clone(), target.clone()
        absent[::2], odd[6, 0] = -torch.inf, torch.nan
        yield attention._edge_softmax, (CSR, odd, absent, SLOPE)
        yield attention._edge_softmax, (CSR, 0 * target, 200 * source, 0.0)
    for num_columns, matrix in EMPTY:
        yield attention._edge_softmax, (matrix, torch.ones(matrix.num_rows, 2), torch.ones(num_columns, 2), SLOPE)


def gradients_of_softmaxes(dtype):
    for num_heads in (1, 3, 40):
        alpha = attention._edge_softmax.host(CSR, *scores_of(num_heads), SLOPE)
        gradient = rows_of(len(CSR.indices), num_heads, seed=3)
        yield attention._edge_softmax_backward, (CSR, *scores_of(num_heads), SLOPE, alpha, gradient)
    nothing = torch.ones(0, 2)
    for num_columns, matrix in EMPTY:
        scores = torch.ones(matrix.num_rows, 2), torch.ones(num_columns, 2)
        yield attention._edge_softmax_backward, (matrix, *scores, SLOPE, nothing, nothing)


def entries(dtype):
    for num_heads in HEADS:
        value = rows_of(len(CSR.indices) + 3, num_heads)
        index = np.random.default_rng(4).permutation(len(value))[:len(CSR.indices)].astype(np.int64)
        yield attention._take_entries, (value, index)
        yield attention._sum_entries, (CSR, value, index)
    for _, matrix in EMPTY:
        yield attention._sum_entries, (matrix, torch.ones(0, 2), np.empty(0, np.int64))
    yield attention._take_entries, (torch.ones(0, 2), np.empty(0, np.int64))


def products_of_entries(dtype):
    for num_heads, head_dim in HEADS_AND_DIMS:
        sides = (rows_of(n, num_heads * head_dim, dtype, seed=n) for n in (NUM_ROWS, NUM_COLUMNS))
        yield attention._sampled_products, (CSR, *sides, num_heads)


def scores(dtype):
    for num_heads, head_dim in HEADS_AND_DIMS:
        rows, vectors = rows_of(37, num_heads * head_dim, dtype), rows_of(2, num_heads * head_dim, seed=2)
        yield attention._head_scores, (rows, vectors, num_heads)
    yield attention._head_scores, (torch.ones(0, 4, dtype=dtype), torch.ones(2, 4), 2)


def gradients_of_scores(dtype):
    for num_heads, head_dim in [(1, 1), (1, 41), (3, 5), (4, 16)]:
        dim = num_heads * head_dim
        score_gradient = rows_of(2 * 37, num_heads, seed=3).view(2, 37, num_heads)
        yield attention._head_scores_backward, (rows_of(37, dim, dtype), rows_of(37, dim, dtype, seed=4),
                                                rows_of(2, dim, seed=2), score_gradient)


def products(dtype):
    """Two products also added to what is there, and both sides of a convolution also in the place of its rows."""
    for n, in_dim, out_dim in [(1, 1, 1), (5, 7, 3), (70, 41, 256), (900, 16, 8), (0, 4, 3)]:
        rows, gradient, weight = (rows_of(*shape, dtype) for shape in ((n, in_dim), (n, out_dim), (out_dim, in_dim)))
        yield dense.weight_gradient, (gradient, rows)
        for sums in (None, gradient):
            yield dense.map_rows, (rows, weight, sums)
        for sums in (None, rows):
            yield dense.map_back, (gradient, weight, sums)
    rows, own, weight, own_weight = (rows_of(*shape, dtype) for shape in ((900, 5), (900, 7), (5, 5), (5, 7)))
    for out in (None, rows):
        yield dense._combine, (rows, weight, own, own_weight, rows_of(1, 5)[0], out)


def sums_of_columns(dtype):
    for shape in [(1, 1), (513, 41), (700, 256), (300, 300), (5, 1000), (1300, 3), (0, 5), (5, 0)]:
        yield dense.column_sums, (rows_of(*shape, dtype),)
        yield dense._column_magnitudes, (rows_of(*shape),)


def fake_quantization_case(shape, is_by_column):
    """Values of which some are zero, some not a number, and some past the largest code."""
    torch.manual_seed(0)
    values = torch.randn(shape) * (torch.rand(shape) < 0.7)
    step = torch.rand((1, shape[1]) if is_by_column else (shape[0], 1)) + 0.05
    max_code = torch.full((1, 1), 7.0) if is_by_column else torch.randint(0, 8, (shape[0], 1)).exp2() - 1
    return values, step, max_code.float(), torch.randn(shape)


def rounded_values(dtype):
    odd = torch.tensor([[torch.nan, torch.inf, -torch.inf, -0.2]])
    yield fake_quantization._quantize_values, (odd, torch.full((1, 1), 0.5), torch.full((1, 1), 7.0))
    for shape in [(0, 4), (1, 1), (7, 5), (200, 33)]:
        for is_by_column in (False, True):
            yield fake_quantization._quantize_values, fake_quantization_case(shape, is_by_column)[:3]


def gradients_of_rounded_values(dtype):
    for shape in [(1, 1), (7, 5), (200, 33)]:
        for is_by_column in (False, True):
            for local_weight in (None, 0.3):
                case = fake_quantization_case(shape, is_by_column)
                yield fake_quantization._quantize_values_backward, (*case, local_weight, True)


def masked(dtype):
    """Dropout, and ReLU with it."""
    node_id = np.array([0, 5, 2**33, 7, 2**40], np.int64)
    for dim in [1, 3, 7, 8, 13, 32, 100, 256, 257, 0]:
        rows, gradient = rows_of(5, dim, dtype), rows_of(5, dim, dtype, seed=2)
        rows[2, 1:2] = torch.nan
        for threshold in (1, HALF, 2**16 - 1):
            yield pointwise._dropout, (rows, node_id, KEY, threshold)
        for threshold in (0, HALF):
            how = Activation(None, None, 1e-5, node_id, KEY, threshold, 5)
            yield pointwise._activate, (rows, how)
            yield pointwise._activate_backward, (gradient, rows, how, torch.empty(0, 2), torch.empty_like(rows))


def normalized(dtype):
    """Rows with a constant one, one of NaN and one far from zero; as many as several blocks of a backward have."""
    for num_rows, dim in [*((19, dim) for dim in (1, 3, 24, 32, 100, 256, 257, 600)), (520, 200), (2053, 8), (0, 5)]:
        rows, gradient = (rows_of(num_rows, dim, dtype, seed) for seed in (1, 2))
        rows[2:3], rows[4:5] = 7.25, rows[4:5] + 100
        weight, bias = 1 + rows_of(1, dim, seed=3)[0] / 2, rows_of(1, dim, seed=4)[0] / 2
        for threshold in (0, HALF):
            how = Activation(weight, bias, 1e-5, np.arange(num_rows) * 7, KEY, threshold, num_rows)
            yield pointwise._activate, (rows, how)
            # Where rounding may decide which side of the ReLU an element is on, no gradient passes.
            _, moments = pointwise._activate.host(rows, how)
            before = (rows.float() - moments[:, :1]) * moments[:, 1:] * weight + bias
            passed = gradient.masked_fill(before.abs() < 1e-3, 0.0)
            yield pointwise._activate_backward, (passed, rows, how, moments, torch.empty_like(rows))


# What two results of float32 may differ by beside 1e-5 of them; 0 stands for the same bits.
CASES = {sums: (STORAGES, 1e-3), weighted_sums: (STORAGES, 1e-3), maxima: (STORAGES, 0),
         gradients_of_maxima: (STORAGES, 0), softmaxes: (FLOAT32, 1e-12),
         gradients_of_softmaxes: (FLOAT32, 2e-5), entries: (FLOAT32, 1e-4), products_of_entries: (STORAGES, 1e-4),
         scores: (STORAGES, 1e-4), gradients_of_scores: (STORAGES, 2e-5), products: (STORAGES, 1e-4),
         sums_of_columns: (STORAGES, 1e-4), rounded_values: (FLOAT32, 0), gradients_of_rounded_values: (FLOAT32, 4e-4),
         masked: (STORAGES, 0), normalized: (STORAGES, 1e-4)}
STORED_IN_PARTS = (products,)           # 16 bits lose a unit of the largest before the rest is added


def results_of(function, arguments):
    """What is returned and what is left in the arguments, on the host."""
    found = function(*arguments)
    return [one.cpu() for one in (*(found if isinstance(found, tuple) else (found,)), *arguments)
            if isinstance(one, torch.Tensor)]


def moved(value, device, made):
    """A copy on the device, the same one for the same tensor."""
    if isinstance(value, torch.Tensor):
        return made.setdefault(id(value), value.to(device, copy=True))
    if isinstance(value, Activation) and value.weight is not None:
        return replace(value, weight=value.weight.to(device), bias=value.bias.to(device))
    return value


@pytest.mark.parametrize("case, dtype", [
    pytest.param(case, dtype, id=f"{case.__name__}-{str(dtype).removeprefix('torch.')}")
    for case, (storages, _) in CASES.items() for dtype in storages])
def test_results_are_the_hosts(device, monkeypatch, case, dtype):
    monkeypatch.setattr(device_attention, "TASK_ROWS", 16)      # several blocks of rows
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")            # whose bfloat16 sums of gradients are rounded
    difference = CASES[case][1]
    for operation, arguments in case(dtype):
        here, there = {}, {}
        expected = results_of(operation.host, [moved(one, "cpu", here) for one in arguments])
        with device_kernels_on_cpu():
            found = results_of(operation.on(torch.device(device)), [moved(one, device, there) for one in arguments])
        for one, other in zip(found, expected, strict=True):
            if difference == 0 or not one.is_floating_point():
                torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
                continue
            # Entries have the rows' type on a device.
            assert one.dtype in (other.dtype, dtype)
            rounding = 0.0 if one.dtype not in STORAGES[1:] else 2 * ROUNDING[one.dtype]
            largest = other.abs().max().item() if case in STORED_IN_PARTS and other.numel() else 0.0
            torch.testing.assert_close(one.double(), other.double(), rtol=1e-5 + rounding, equal_nan=True,
                                       atol=difference + rounding * largest + (SMALLEST[one.dtype] if rounding else 0))
