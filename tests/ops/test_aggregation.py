"""SpMM: its gradient, the same bits at every level and width, and every shape that a part can take."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops import aggregation
from hpcgnn.ops.aggregation import aggregate, from_csr, multiply_weighted

DIMS = [1, 7, 41, 128, 129, 257]


def sparse_rows(arcs, num_self=0, row_scale=None, column_scale=None):
    return from_csr(arcs.indptr.astype(np.int64), arcs.indices.astype(np.int32), arcs.shape[1],
                    num_self=num_self, row_scale=row_scale, column_scale=column_scale)


def random_matrix(num_rows, num_columns, density=0.2, is_scaled=True, num_self=None, seed=0):
    """A random 0/1 matrix with an empty row, by rows and by columns."""
    rng = np.random.default_rng(seed)
    is_arc = rng.random((num_rows, num_columns)) < density
    is_arc[2:3] = False
    arcs = scipy.sparse.csr_matrix(is_arc)
    num_self = min(num_rows, num_columns) if num_self is None else num_self
    row_scale, column_scale = (rng.uniform(0.1, 2, n).astype(np.float32) if is_scaled else None
                               for n in (num_rows, num_columns))
    return (sparse_rows(arcs, num_self, row_scale, column_scale),
            sparse_rows(arcs.T.tocsr(), num_self, column_scale, row_scale))


def rows_of(num_rows, dim, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(num_rows, dim)).astype(np.float32))


@pytest.mark.parametrize("dim", DIMS)
def test_every_instruction_set_gives_the_same_bits(simd, monkeypatch, dim):
    matrix, transposed = random_matrix(60, 90)
    h = rows_of(90, dim)
    out = aggregate(h, matrix, transposed)
    monkeypatch.setenv("HPCGNN_SIMD", "portable")
    assert torch.equal(out, aggregate(h, matrix, transposed))


WIDE = 5000, 460     # more rows and columns than the cache has room for, though it has for 128 of the columns


def test_columns_that_take_turns_in_the_cache_have_the_bits_of_narrow_products(simd):
    matrix, transposed = random_matrix(60, WIDE[0])
    h = rows_of(*WIDE)
    out = aggregate(h, matrix, transposed)
    for first in range(0, WIDE[1], 128):
        columns = slice(first, first + 128)
        assert torch.equal(out[:, columns], aggregate(h[:, columns].contiguous(), matrix, transposed))


def test_columns_of_each_head_take_turns_in_the_cache(simd):
    matrix, _ = random_matrix(60, WIDE[0], is_scaled=False, num_self=0)
    h, head_dim = rows_of(*WIDE), WIDE[1] // 2
    scale = rows_of(len(matrix.indices), 2, seed=3)
    out = multiply_weighted(matrix, h, scale)
    for head, columns in enumerate((slice(0, head_dim), slice(head_dim, WIDE[1]))):
        narrow = multiply_weighted(matrix, h[:, columns].contiguous(), scale[:, head:head + 1].contiguous())
        assert torch.equal(out[:, columns], narrow)


def test_backward_meets_central_differences():
    """The product is linear, so differences are exact but for float32: 10 terms of up to 16, each within 2^-24."""
    matrix, transposed = random_matrix(9, 12)
    h, gradient = rows_of(12, 3).requires_grad_(), rows_of(9, 3, seed=2)
    (aggregate(h, matrix, transposed) * gradient).sum().backward()
    for i, j in np.ndindex(12, 3):
        shift = torch.zeros(12, 3)
        shift[i, j] = 0.5
        higher, lower = (aggregate(h.detach() + sign * shift, matrix, transposed).double() for sign in (1, -1))
        assert h.grad[i, j].item() == pytest.approx(((higher - lower) * gradient).sum().item(), abs=160 * 2.0**-24)


@pytest.mark.parametrize("num_rows, num_columns, dim", [(0, 5, 4), (5, 0, 4), (0, 0, 4), (4, 6, 0)])
def test_empty_shapes_give_zeros(num_rows, num_columns, dim):
    matrix, transposed = random_matrix(num_rows, num_columns, num_self=0)
    h = torch.ones(num_columns, dim, requires_grad=True)
    out = aggregate(h, matrix, transposed)
    out.sum().backward()
    assert out.shape == (num_rows, dim) and h.grad.shape == h.shape
    assert not out.any() and not h.grad.any()


def test_rows_of_many_neighbors_pass_the_prefetch_distance():
    arcs = scipy.sparse.csr_matrix(np.ones((3, 500)))
    matrix, transposed = sparse_rows(arcs), sparse_rows(arcs.T.tocsr())
    h = torch.arange(500, dtype=torch.float32)[:, None].repeat(1, 130)
    assert (aggregate(h, matrix, transposed) == 499 * 250).all()


def test_rows_that_are_not_contiguous_give_the_same_product():
    matrix, transposed = random_matrix(9, 12)
    h = rows_of(12, 6)
    assert torch.equal(aggregate(h.t().contiguous().t(), matrix, transposed), aggregate(h, matrix, transposed))


def test_rows_that_do_not_fit_the_matrix_are_refused():
    matrix, transposed = random_matrix(9, 12)
    for h in (rows_of(11, 3), rows_of(12, 3).double(), rows_of(12, 3)[:, 0]):
        with pytest.raises(KernelError, match="12 rows"):
            aggregate(h, matrix, transposed)


def test_a_device_without_kernels_is_refused():
    with pytest.raises(KernelError, match="aggregation has no kernel for device meta"):
        aggregation._multiply.on(torch.device("meta"))
