"""Maximum with argmax against the oracle, and its backward, at every instruction set and storage."""

from __future__ import annotations

import numpy as np
import pytest
import reference_attention as reference
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.aggregation import from_csr, maximum, row_maximum

DIMS = [0, 1, 7, 41, 64, 129, 257]
STORAGES = [torch.float32, torch.bfloat16, torch.float16]


def matrices(indptr, indices, num_columns):
    """The matrix by rows and by columns."""
    indptr, indices = np.asarray(indptr, np.int64), np.asarray(indices, np.int32)
    target = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    order = np.lexsort([target, indices])
    columns = np.searchsorted(indices[order], np.arange(num_columns + 1))
    return (from_csr(indptr, indices, num_columns),
            from_csr(columns.astype(np.int64), target[order].astype(np.int32), len(indptr) - 1))


def random_arcs(num_rows, num_columns, density=0.2, seed=0):
    """(indptr, indices, num_columns) with an empty row 2, and the entries of a row in no order."""
    rng = np.random.default_rng(seed)
    is_entry = rng.random((num_rows, num_columns)) < density
    is_entry[2:3] = False
    rows = [rng.permutation(np.flatnonzero(row)) for row in is_entry]
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return indptr, np.concatenate([np.empty(0, int), *rows]).astype(np.int32), num_columns


def rows_of(num_rows, dim, seed=1, dtype=torch.float32):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(num_rows, dim)).astype(np.float32)).to(dtype)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("dim", DIMS)
def test_maxima_and_their_rows_equal_the_oracle(simd, dim, dtype):
    """Values are rounded to quarters, so that many tie: the first entry is taken."""
    arcs = random_arcs(40, 60)
    h = (rows_of(60, dim) * 4).round().div(4).to(dtype)
    out, argmax = row_maximum(matrices(*arcs)[0], h)
    expected, expected_argmax = reference.maximum(*arcs[:2], h.double().numpy())
    assert out.dtype == dtype and argmax.dtype == torch.int32
    np.testing.assert_array_equal(out.double(), expected)
    np.testing.assert_array_equal(argmax, expected_argmax)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("dim", DIMS)
def test_gradients_go_to_the_rows_of_the_maxima(simd, dim, dtype):
    arcs = random_arcs(40, 60)
    h, gradient = rows_of(60, dim, dtype=dtype).requires_grad_(), rows_of(40, dim, seed=2, dtype=dtype)
    maximum(h, *matrices(*arcs)).backward(gradient)
    expected, (_, argmax) = np.zeros((60, dim)), reference.maximum(*arcs[:2], h.detach().double().numpy())
    v, j = np.nonzero(argmax >= 0)
    np.add.at(expected, (argmax[v, j], j), gradient.double().numpy()[v, j])
    # Sums of at most 40 terms below 4 in float32, rounded once.
    rounding = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[dtype]
    np.testing.assert_allclose(h.grad.double(), expected, rtol=rounding, atol=160 * 2.0**-24)


def test_backward_meets_finite_differences():
    arcs = random_arcs(9, 12, 0.4)
    h, gradient = rows_of(12, 5).requires_grad_(), rows_of(9, 5, seed=2)
    maximum(h, *matrices(*arcs)).backward(gradient)
    difference = reference.central_differences(
        lambda x: (reference.maximum(*arcs[:2], x)[0] * gradient.double().numpy()).sum(), h.detach().double().numpy())
    np.testing.assert_allclose(h.grad, difference, atol=1e-5)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("dim", DIMS)
def test_every_instruction_set_gives_the_same_bits(simd, monkeypatch, dim, dtype):
    matrix, transposed = matrices(*random_arcs(60, 90))
    gradient, results = rows_of(60, dim, seed=2, dtype=dtype), []
    for _ in range(2):
        h = rows_of(90, dim, dtype=dtype).requires_grad_()
        out = maximum(h, matrix, transposed)
        out.backward(gradient)
        results.append((out.detach(), h.grad))
        monkeypatch.setenv("HPCGNN_SIMD", "portable")
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("dtype", STORAGES)
def test_not_a_number_and_infinities_pass(simd, dtype):
    values = [[1, torch.nan, 2], [torch.nan, torch.nan, 3], [-torch.inf, -torch.inf], [-torch.inf, 5], [torch.inf, 1],
              [-0.0, 0.0]]
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in values])])
    h = torch.tensor([value for row in values for value in row], dtype=dtype)[:, None].repeat(1, 21)
    matrix, _ = matrices(indptr, np.arange(len(h)), len(h))
    out, argmax = row_maximum(matrix, h)
    assert out[:2].isnan().all() and (out[2] == -torch.inf).all()
    assert (out[3] == 5).all() and (out[4] == torch.inf).all()
    assert argmax[:, 0].tolist() == argmax[:, 20].tolist() == [1, 3, 6, 9, 10, 12]


def test_an_entry_that_is_there_twice_gets_its_gradient_once():
    matrix, transposed = matrices([0, 3, 5], [1, 1, 0, 1, 1], 2)
    h = torch.tensor([[1.0], [2.0]], requires_grad=True)
    maximum(h, matrix, transposed).backward(torch.tensor([[3.0], [4.0]]))
    assert h.grad.tolist() == [[0.0], [7.0]]


@pytest.mark.parametrize("dtype", STORAGES)
def test_60000_gradients_of_one_row_are_summed_in_float32(simd, dtype):
    """One source of 60,000 destinations: a float16 sum of ones would stop at 2,048."""
    num = 60_000
    matrix, transposed = matrices(np.arange(num + 1), np.zeros(num, int), 1)
    h = torch.ones(1, 3, dtype=dtype, requires_grad=True)
    maximum(h, matrix, transposed).backward(torch.ones(num, 3, dtype=dtype))
    assert (h.grad.float() == torch.tensor(60_000.0, dtype=dtype).float()).all()


@pytest.mark.parametrize("num_rows, num_columns", [(0, 0), (0, 5), (5, 0), (3, 5)])
def test_no_entries_give_zeros_and_no_rows(num_rows, num_columns):
    matrix, transposed = matrices(np.zeros(num_rows + 1), [], num_columns)
    h = torch.ones(num_columns, 4, requires_grad=True)
    out = maximum(h, matrix, transposed)
    out.sum().backward()
    assert out.shape == (num_rows, 4) and not out.any() and h.grad.shape == h.shape and not h.grad.any()
    assert (row_maximum(matrix, h.detach())[1] == -1).all()


def test_rows_that_are_not_contiguous_give_the_same_maxima():
    arcs, h = random_arcs(9, 12), rows_of(12, 6)
    assert torch.equal(maximum(h.t().contiguous().t(), *matrices(*arcs)), maximum(h, *matrices(*arcs)))


def test_rows_and_matrices_that_do_not_fit_are_refused():
    arcs = random_arcs(9, 12)
    for h in (rows_of(11, 3), rows_of(12, 3).double(), rows_of(12, 3)[:, 0]):
        with pytest.raises(KernelError, match="12 rows"):
            maximum(h, *matrices(*arcs))
    looped = from_csr(*arcs[:2], 12, num_self=9)
    with pytest.raises(KernelError, match="without scales"):
        row_maximum(looped, rows_of(12, 3))
