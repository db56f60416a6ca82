"""Products over one table or two, dense or packed, of weighted entries or plain ones, against dense float64."""

import numpy as np
import pytest
import scipy.sparse
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.aggregation import (
    PackedRows,
    SparseRows,
    add_product,
    aggregate,
    from_csr,
    multiply,
    multiply_weighted,
    row_maximum,
)
from hpcgnn.ops.counter import FORWARD, CounterKey
from hpcgnn.ops.quantization import MessageLayout, dequantize_rows, quantize_rows

DIMS = [1, 7, 17, 41, 64, 100, 128, 200, 256, 257]
NUM_ROWS, NUM_NEAR, NUM_FAR = 30, 25, 12
# The result's own rounding, relative to the largest sum of magnitudes.
BOUND = {torch.float32: 1e-6, torch.bfloat16: 2.0 ** -8, torch.float16: 2.0 ** -10}


def matrix_over(num_columns, is_weighted=False, has_scales=False, num_self=0, **shape):
    """The matrix by rows, by columns, and dense in float64."""
    rng = np.random.default_rng(0)
    arcs = scipy.sparse.random(NUM_ROWS, num_columns, 0.3, "csr", np.float32, rng)
    arcs = scipy.sparse.csr_matrix(arcs.toarray() * (np.arange(NUM_ROWS) != 2)[:, None])
    arcs.data[:] = arcs.data if is_weighted else 1
    row_scale, column_scale = (rng.uniform(0.1, 2, n).astype(np.float32) if has_scales else None
                               for n in (NUM_ROWS, num_columns))
    dense = arcs.toarray().astype(np.float64)
    dense[np.arange(num_self), np.arange(num_self)] += 1
    if has_scales:
        dense *= row_scale[:, None].astype(np.float64) * column_scale
    by_column = arcs.T.tocsr()
    return (from_csr(arcs.indptr.astype(np.int64), arcs.indices, num_columns, num_self=num_self, row_scale=row_scale,
                     column_scale=column_scale, entry_scale=arcs.data if is_weighted else None, **shape),
            from_csr(by_column.indptr.astype(np.int64), by_column.indices, NUM_ROWS, num_self=num_self,
                     row_scale=column_scale, column_scale=row_scale,
                     entry_scale=by_column.data if is_weighted else None), dense)


def rows_of(num_rows, dim, storage=torch.float32, seed=0):
    return torch.from_numpy(np.random.default_rng((seed, dim)).normal(size=(num_rows, dim))).to(storage)


def assert_near(found, dense, rows, storage, start=0.0):
    rows, scale = rows.double().numpy(), (np.abs(dense) @ np.abs(rows.double().numpy())).max() + 1
    assert found.dtype == storage
    assert np.abs(found.double().numpy() - dense @ rows - start).max() <= 4 * BOUND[storage] * scale


@pytest.mark.covering
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("has_scales", [False, True])
@pytest.mark.parametrize("num_self", [0, 20])
def test_products_and_their_backward_equal_the_dense_ones(simd, dim, is_weighted, has_scales, num_self):
    matrix, transposed, dense = matrix_over(37, is_weighted, has_scales, num_self)
    assert not np.diff(np.append(matrix.begin, len(matrix.indices))).all()      # one row has no entry
    h, gradient = rows_of(37, dim).requires_grad_(), rows_of(NUM_ROWS, dim, seed=2)
    out = aggregate(h, matrix, transposed)
    out.backward(gradient)
    assert_near(out.detach(), dense, h.detach(), torch.float32)
    assert_near(h.grad, dense.T, gradient, torch.float32)


def packed_rows(sent):
    """Rows of several widths in a message, in another order than in the table; and their values."""
    width, node_id = np.array([1, 2, 4, 8] * 3, np.uint8), np.arange(NUM_FAR)
    layout, order = MessageLayout.build(width, sent.shape[1]), np.random.default_rng(3).permutation(NUM_FAR)
    message, far = np.empty(layout.num_bytes, np.uint8), torch.empty(sent.shape)
    quantize_rows(sent, order.astype(np.int32), node_id, layout, CounterKey(0, 1, FORWARD, 2), message)
    dequantize_rows(message, order.astype(np.int32), node_id, layout, far)
    place = np.argsort(order)
    return PackedRows(message, width[place], layout.payload_offset[place], layout.parameter_offset[place]), far


@pytest.mark.covering
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("is_weighted, has_scales", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("storage", list(BOUND))
def test_two_tables_are_one_matrix_whether_far_rows_are_dense_or_packed(simd, storage, is_weighted, has_scales, dim):
    matrix, _, dense = matrix_over(NUM_NEAR + NUM_FAR, is_weighted, has_scales, 20, split=NUM_NEAR)
    near, sent = rows_of(NUM_NEAR, dim, storage), rows_of(NUM_FAR, dim, storage, 1)
    rows, out = torch.cat([near, sent]), rows_of(NUM_ROWS, dim, storage, 2)
    assert_near(multiply(matrix, near, sent), dense, rows, storage)
    total = out.clone()
    add_product(matrix, near, sent, total)
    assert_near(total, dense, rows, storage, start=out.double().numpy())
    packed, far = packed_rows(sent)
    assert_near(multiply(matrix, near, packed), dense, torch.cat([near.double(), far.double()]), storage)
    if storage == torch.float32:
        assert torch.equal(multiply(matrix, near, packed), multiply(matrix, near, far))


def test_a_span_of_rows_takes_its_own_entries_weights(simd):
    matrix, _, dense = matrix_over(37, True, True)
    assert_near(multiply(matrix.rows(7, 19), rows_of(37, 9)), dense[7:19], rows_of(37, 9), torch.float32)


@pytest.mark.parametrize("dim", [5, 41, 130])
def test_a_table_may_lack_rows_that_no_entry_names(simd, dim):
    sparse, _, dense = matrix_over(20, num_near=20, split=NUM_NEAR)
    wide = SparseRows(sparse.begin, sparse.end, sparse.indices, NUM_NEAR + NUM_FAR, split=NUM_NEAR, num_near=20)
    near, far = rows_of(20, dim), rows_of(NUM_FAR, dim, seed=1)
    assert_near(multiply(wide, near, far), dense, near, torch.float32)
    with pytest.raises(KernelError, match="20 rows"):
        multiply(wide, near[:19], far)
    with pytest.raises(KernelError, match="needs 12 far rows, found 11"):
        multiply(wide, near, far[:11])


def test_packed_rows_of_more_than_8_bits_are_refused():
    matrix, _, _ = matrix_over(NUM_NEAR + 1, split=NUM_NEAR)
    packed = PackedRows(np.zeros(8, np.uint8), np.array([16], np.uint8), np.zeros(1, np.int64), np.zeros(1, np.int64))
    with pytest.raises(KernelError, match="1 to 8 bits, found 16"):
        multiply(matrix, torch.zeros(NUM_NEAR, 4), packed)


@pytest.mark.parametrize("entry_scale, message", [
    (np.ones(3, np.float32), r"entry_scale of a sparse matrix is float32 of shape \(3,\)"),
    (np.ones(2), "entry_scale of a sparse matrix is float64")])
def test_weights_that_do_not_fit_the_entries_are_refused(entry_scale, message):
    matrix = from_csr(np.array([0, 2]), np.array([0, 1], np.int32), 2, entry_scale=entry_scale)
    with pytest.raises(KernelError, match=message):
        multiply(matrix, torch.ones(2, 3))


def test_steps_that_know_no_weights_refuse_them():
    matrix, _, _ = matrix_over(37, True)
    with pytest.raises(KernelError, match="take no column_scale, entry_scale"):
        multiply_weighted(matrix, rows_of(37, 4), torch.ones(len(matrix.indices), 2))
    with pytest.raises(KernelError, match="maximum needs a matrix without scales"):
        row_maximum(matrix, rows_of(37, 4))


def test_the_mean_of_20_000_tens_is_ten_in_float16(simd):
    matrix = from_csr(np.array([0, 20_000]), np.arange(20_000, dtype=np.int32), 20_000,
                      row_scale=np.array([5e-5], np.float32))
    assert (multiply(matrix, torch.full((20_000, 3), 10.0, dtype=torch.float16)) == 10).all()
