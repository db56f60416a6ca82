"""Products of matrices whose entries have weights, against dense float64: far rows dense or packed, and self-loops."""

import numpy as np
import pytest
import scipy.sparse
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.aggregation import PackedRows, aggregate, from_csr, multiply, multiply_weighted, row_maximum
from hpcgnn.ops.counter import FORWARD, CounterKey
from hpcgnn.ops.quantization import MessageLayout, dequantize_rows, quantize_rows

DIMS = [1, 7, 16, 41, 64, 130]
NUM_ROWS, NUM_NEAR, NUM_FAR = 24, 25, 12
# The result's own rounding, relative to the largest sum of magnitudes.
BOUND = {torch.float32: 1e-6, torch.bfloat16: 2.0 ** -8, torch.float16: 2.0 ** -10}


def weighted_matrix(num_columns, num_self, has_scales, seed=0, **shape):
    """The matrix by rows, by columns, and dense in float64."""
    rng = np.random.default_rng(seed)
    arcs = scipy.sparse.random(NUM_ROWS, num_columns, 0.3, "csr", np.float32, rng)
    arcs.sort_indices()
    row_scale, column_scale = (rng.uniform(0.1, 2, n).astype(np.float32) if has_scales else None
                               for n in (NUM_ROWS, num_columns))
    dense = arcs.toarray().astype(np.float64)
    dense[np.arange(num_self), np.arange(num_self)] += 1
    if has_scales:
        dense *= row_scale[:, None].astype(np.float64) * column_scale
    by_column = arcs.T.tocsr()
    return (from_csr(arcs.indptr.astype(np.int64), arcs.indices, num_columns, num_self=num_self, row_scale=row_scale,
                     column_scale=column_scale, entry_scale=arcs.data, **shape),
            from_csr(by_column.indptr.astype(np.int64), by_column.indices, NUM_ROWS, num_self=num_self,
                     row_scale=column_scale, column_scale=row_scale, entry_scale=by_column.data), dense)


def rows_of(num_rows, dim, storage=torch.float32, seed=0):
    return torch.from_numpy(np.random.default_rng((seed, dim)).normal(size=(num_rows, dim))).to(storage)


def assert_near(found, dense, rows, storage):
    scale = (np.abs(dense) @ np.abs(rows.double().numpy())).max() + 1
    assert found.dtype == storage
    assert np.abs(found.double().numpy() - dense @ rows.double().numpy()).max() <= 4 * BOUND[storage] * scale


@pytest.mark.covering
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("has_scales", [False, True])
@pytest.mark.parametrize("num_self", [0, 20])
def test_product_and_backward_equal_the_dense_ones(simd, dim, has_scales, num_self):
    matrix, transposed, dense = weighted_matrix(37, num_self, has_scales)
    h, gradient = rows_of(37, dim).requires_grad_(), rows_of(NUM_ROWS, dim, seed=2)
    out = aggregate(h, matrix, transposed)
    out.backward(gradient)
    assert_near(out.detach(), dense, h.detach(), torch.float32)
    assert_near(h.grad, dense.T, gradient, torch.float32)


@pytest.mark.covering
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("has_scales", [False, True])
@pytest.mark.parametrize("storage", list(BOUND))
def test_far_rows_are_weighed_whether_dense_or_packed(simd, storage, has_scales, dim):
    matrix, _, dense = weighted_matrix(NUM_NEAR + NUM_FAR, 20, has_scales, split=NUM_NEAR)
    near, sent = rows_of(NUM_NEAR, dim, storage), rows_of(NUM_FAR, dim, storage, 1)
    assert_near(multiply(matrix, near, sent), dense, torch.cat([near, sent]), storage)
    width, order = np.array([1, 2, 4, 8] * 3, np.uint8), np.arange(NUM_FAR, dtype=np.int32)
    layout = MessageLayout.build(width, dim)
    message, far = np.empty(layout.num_bytes, np.uint8), torch.empty(NUM_FAR, dim)
    quantize_rows(sent, order, np.arange(NUM_FAR), layout, CounterKey(0, 1, FORWARD, 2), message)
    dequantize_rows(message, order, np.arange(NUM_FAR), layout, far)
    packed = PackedRows(message, width, layout.payload_offset, layout.parameter_offset)
    assert_near(multiply(matrix, near, packed), dense, torch.cat([near.double(), far.double()]), storage)


def test_a_span_of_rows_takes_its_own_entries_weights(simd):
    matrix, _, dense = weighted_matrix(37, 0, True)
    assert_near(multiply(matrix.rows(7, 19), rows_of(37, 9)), dense[7:19], rows_of(37, 9), torch.float32)


@pytest.mark.parametrize("entry_scale, message", [
    (np.ones(3, np.float32), r"entry_scale of a sparse matrix is float32 of shape \(3,\)"),
    (np.ones(2), "entry_scale of a sparse matrix is float64")])
def test_weights_that_do_not_fit_the_entries_are_refused(entry_scale, message):
    matrix = from_csr(np.array([0, 2]), np.array([0, 1], np.int32), 2, entry_scale=entry_scale)
    with pytest.raises(KernelError, match=message):
        multiply(matrix, torch.ones(2, 3))


def test_steps_that_know_no_weights_refuse_them():
    matrix, _, _ = weighted_matrix(37, 0, False)
    with pytest.raises(KernelError, match="take no column_scale, entry_scale"):
        multiply_weighted(matrix, rows_of(37, 4), torch.ones(len(matrix.indices), 2))
    with pytest.raises(KernelError, match="maximum needs a matrix without scales"):
        row_maximum(matrix, rows_of(37, 4))
