"""The device's maximum with argmax and its backward: equal to the host's kernels, at every storage and kind of row."""

from __future__ import annotations

import numpy as np
import pytest
import reference_attention as reference
import torch
from cuda.aggregation_cases import NUM_COLUMNS, NUM_ROWS, STORAGES, indptr_of, matrix_of, rows_of, stored

from hpcgnn.ops import aggregation as host
from hpcgnn.ops.aggregation import SparseRows, from_csr
from hpcgnn.ops.cuda import aggregation as cuda

DIMS = [1, 3, 32, 41, 64, 130]


def transposed_of(matrix: SparseRows) -> SparseRows:
    csr = stored(matrix)
    target = np.repeat(np.arange(matrix.num_rows), np.diff(indptr_of(csr)))
    order = np.lexsort([target, csr.indices])
    columns = np.searchsorted(csr.indices[order], np.arange(matrix.num_columns + 1)).astype(np.int64)
    return from_csr(columns, target[order].astype(np.int32), matrix.num_rows)


def quarters(num_rows, dim, dtype, seed=1):
    """Values of few sizes, so that many tie."""
    return (rows_of(num_rows, dim, seed=seed) * 4).round().div(4).to(dtype)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("dim", DIMS)
def test_maxima_and_their_rows_equal_the_oracle_and_the_host(device, dim, dtype):
    matrix, h = matrix_of(), quarters(NUM_COLUMNS, dim, dtype)
    out, argmax = (found.cpu() for found in cuda.maximum(matrix, h.to(device)))
    assert out.dtype == dtype and argmax.dtype == torch.int32
    csr = stored(matrix)
    expected, expected_argmax = reference.maximum(indptr_of(csr), csr.indices, h.double().numpy())
    np.testing.assert_array_equal(out.double(), expected)
    np.testing.assert_array_equal(argmax, expected_argmax)
    assert all(torch.equal(*pair) for pair in zip((out, argmax), host._maximum.host(matrix, h), strict=True))


@pytest.mark.covering
@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("dim", DIMS)
def test_gradients_go_to_the_rows_of_the_maxima(device, dim, dtype):
    """The hub names some columns many times, which count once; column sums are exact, as all terms are quarters."""
    matrix, h = matrix_of(), quarters(NUM_COLUMNS, dim, dtype)
    transposed, gradient = transposed_of(matrix), quarters(NUM_ROWS, dim, dtype, seed=2)
    _, argmax = host._maximum.host(matrix, h)
    found = cuda.maximum_backward(transposed, gradient.to(device), argmax.to(device)).cpu()
    expected = np.zeros((NUM_COLUMNS, dim))
    v, j = np.nonzero(argmax.numpy() >= 0)
    np.add.at(expected, (argmax.numpy()[v, j], j), gradient.double().numpy()[v, j])
    assert torch.equal(found, torch.from_numpy(expected).to(dtype))
    assert torch.equal(found, host._maximum_backward.host(transposed, gradient, argmax))


@pytest.mark.parametrize("dtype", STORAGES)
def test_a_hub_of_several_blocks_keeps_the_first_of_equals(device, dtype):
    """900 equal values but one: in a middle block, at a block's first item, or nowhere."""
    indptr, indices = np.array([0, 900]), np.arange(900, dtype=np.int32)
    for place in (None, 0, 256, 400, 899):
        h = torch.full((900, 3), -2.0, dtype=dtype)
        if place is not None:
            h[place:] = 5
        out, argmax = cuda.maximum(from_csr(indptr, indices, 900), h.to(device))
        assert (out == (5 if place is not None else -2)).all() and (argmax == (place or 0)).all()


@pytest.mark.parametrize("dtype", STORAGES)
def test_not_a_number_and_infinities_pass(device, dtype):
    values = [[1, torch.nan, 2], [torch.nan, torch.nan, 3], [-torch.inf, -torch.inf], [-torch.inf, 5], [torch.inf, 1],
              [-0.0, 0.0], [0] * 300 + [torch.nan] + [1] * 300]
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in values])])
    h = torch.tensor([value for row in values for value in row], dtype=dtype)[:, None].repeat(1, 21)
    out, argmax = cuda.maximum(from_csr(indptr, np.arange(len(h), dtype=np.int32), len(h)), h.to(device))
    assert out[[0, 1, 6]].isnan().all() and (out[2] == -torch.inf).all()
    assert (out[3] == 5).all() and (out[4] == torch.inf).all()
    assert argmax[:, 0].tolist() == argmax[:, 20].tolist() == [1, 3, 6, 9, 10, 12, 314]


@pytest.mark.parametrize("dtype", STORAGES)
def test_4_096_gradients_of_one_row_are_summed_in_float32(device, dtype):
    """A float16 sum of ones would stop at 2,048."""
    transposed = from_csr(np.array([0, 4096]), np.arange(4096, dtype=np.int32), 4096)
    found = cuda.maximum_backward(transposed, torch.ones(4096, 3, dtype=dtype).to(device),
                                  torch.zeros(4096, 3, dtype=torch.int32).to(device))
    assert (found == 4096).all()


@pytest.mark.parametrize("num_rows, num_columns, dim", [(0, 0, 4), (0, 5, 4), (5, 0, 4), (3, 5, 4), (3, 5, 0)])
def test_no_entries_give_zeros(device, num_rows, num_columns, dim):
    matrix = from_csr(np.zeros(num_rows + 1, np.int64), np.empty(0, np.int32), num_columns)
    transposed = from_csr(np.zeros(num_columns + 1, np.int64), np.empty(0, np.int32), num_rows)
    out, argmax = cuda.maximum(matrix, torch.ones(num_columns, dim).to(device))
    assert out.shape == (num_rows, dim) and not out.any() and (argmax == -1).all()
    gradient = cuda.maximum_backward(transposed, out, argmax)
    assert gradient.shape == (num_columns, dim) and not gradient.any()
