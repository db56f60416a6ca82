"""Products over a near and a far table, in every storage, with far rows dense or packed, against dense float64."""

import numpy as np
import pytest
import scipy.sparse
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.aggregation import PackedRows, SparseRows, add_product, from_csr, multiply
from hpcgnn.ops.counter import FORWARD, CounterKey
from hpcgnn.ops.quantization import MessageLayout, dequantize_rows, quantize_rows

DIMS = [1, 7, 17, 41, 64, 100, 128, 200, 256, 257]
NUM_ROWS, NUM_NEAR, NUM_FAR = 30, 25, 12
# The result's own rounding, relative to the largest sum of magnitudes.
BOUND = {torch.float32: 1e-5, torch.bfloat16: 2.0 ** -8, torch.float16: 2.0 ** -10}


def matrix_over(num_columns, seed=0, **scaling):
    rng = np.random.default_rng(seed)
    arcs = scipy.sparse.csr_matrix(rng.random((NUM_ROWS, num_columns)) < 0.3)
    sparse = from_csr(arcs.indptr.astype(np.int64), arcs.indices.astype(np.int32), num_columns, **scaling)
    return sparse, torch.from_numpy(arcs.toarray().astype(np.float64))


def rows_of(num_rows, dim, storage, seed):
    return torch.from_numpy(np.random.default_rng((seed, dim)).normal(size=(num_rows, dim))).to(storage)


def assert_near(found, dense, rows, storage, start=None):
    exact, scale = dense @ rows, dense.abs() @ rows.abs()
    exact = exact if start is None else exact + start
    assert found.dtype == storage
    assert ((found.double() - exact).abs() <= 4 * BOUND[storage] * (scale.max() + 1)).all()


@pytest.mark.covering
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("storage", list(BOUND))
def test_two_tables_are_one_matrix(simd, storage, dim):
    column_scale = np.random.default_rng(1).random(NUM_NEAR + NUM_FAR).astype(np.float32)
    sparse, dense = matrix_over(NUM_NEAR + NUM_FAR, split=NUM_NEAR, column_scale=column_scale)
    dense = dense * torch.from_numpy(column_scale).double()
    near, far = rows_of(NUM_NEAR, dim, storage, 0), rows_of(NUM_FAR, dim, storage, 1)
    rows = torch.cat([near, far]).double()
    assert_near(multiply(sparse, near, far), dense, rows, storage)
    out = rows_of(NUM_ROWS, dim, storage, 2)
    total = out.clone()
    add_product(sparse, near, far, total)
    assert_near(total, dense, rows, storage, start=out.double())


@pytest.mark.parametrize("dim", [5, 41, 130])
def test_a_table_may_lack_rows_that_no_entry_names(simd, dim):
    sparse, dense = matrix_over(20, num_near=20, split=NUM_NEAR)
    wide = SparseRows(sparse.begin, sparse.end, sparse.indices, NUM_NEAR + NUM_FAR, split=NUM_NEAR, num_near=20)
    near, far = rows_of(20, dim, torch.float32, 0), rows_of(NUM_FAR, dim, torch.float32, 1)
    assert_near(multiply(wide, near, far), dense, near.double(), torch.float32)
    with pytest.raises(KernelError, match="20 rows"):
        multiply(wide, near[:19], far)
    with pytest.raises(KernelError, match="needs 12 far rows, found 11"):
        multiply(wide, near, far[:11])


@pytest.mark.covering
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("storage", list(BOUND))
def test_packed_far_rows_are_those_of_the_message(simd, storage, dim):
    """Widths differ from row to row, and rows lie in the message in another order than in the table."""
    sparse, dense = matrix_over(NUM_NEAR + NUM_FAR, split=NUM_NEAR)
    near, sent = rows_of(NUM_NEAR, dim, storage, 0), rows_of(NUM_FAR, dim, storage, 1)
    width = np.array([1, 2, 4, 8] * 3, np.uint8)
    layout, node_id = MessageLayout.build(width, dim), np.arange(NUM_FAR)
    message = np.empty(layout.num_bytes, np.uint8)
    order = np.random.default_rng(3).permutation(NUM_FAR).astype(np.int32)
    quantize_rows(sent, order, node_id, layout, CounterKey(0, 1, FORWARD, 2), message)
    far = torch.empty(NUM_FAR, dim)
    dequantize_rows(message, order, node_id, layout, far)
    place = np.argsort(order)
    packed = PackedRows(message, width[place], layout.payload_offset[place], layout.parameter_offset[place])
    rows = torch.cat([near.double(), far.double()])
    assert_near(multiply(sparse, near, packed), dense, rows, storage)
    if storage == torch.float32:
        assert torch.equal(multiply(sparse, near, packed), multiply(sparse, near, far))


def test_packed_rows_of_more_than_8_bits_are_refused():
    sparse, _ = matrix_over(NUM_NEAR + 1, split=NUM_NEAR)
    packed = PackedRows(np.zeros(8, np.uint8), np.array([16], np.uint8), np.zeros(1, np.int64), np.zeros(1, np.int64))
    with pytest.raises(KernelError, match="1 to 8 bits, found 16"):
        multiply(sparse, torch.zeros(NUM_NEAR, 4), packed)


def test_the_mean_of_100_000_tens_is_ten_in_float16(simd):
    matrix = from_csr(np.array([0, 100_000]), np.arange(100_000, dtype=np.int32), 100_000,
                      row_scale=np.array([1e-5], np.float32))
    mean = multiply(matrix, torch.full((100_000, 3), 10.0, dtype=torch.float16))
    assert (mean == 10).all()
