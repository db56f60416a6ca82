"""Edge softmax, SDDMM, weighted sums and attention against float64 oracles, at every instruction set and storage."""

from __future__ import annotations

import numpy as np
import pytest
import reference_attention as reference
import scipy.sparse
import torch

from hpcgnn.errors import KernelError
from hpcgnn.graph.reductions import build_adjacency
from hpcgnn.ops import attention
from hpcgnn.ops.aggregation import from_csr, multiply, multiply_weighted

DIMS, HEADS, SLOPE = [1, 7, 41, 64], [1, 2, 3, 4, 8, 16, 20], 0.2
STORAGES = [torch.float32, torch.bfloat16, torch.float16]
# Half a unit in the last place of the storage, relative.
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


class Arcs:
    """A random CSR with empty rows and one row of all columns; its rows are the first of its columns."""

    def __init__(self, num_rows=23, num_columns=37, density=0.2, seed=0):
        arcs = scipy.sparse.csr_matrix(np.random.default_rng(seed).random((num_rows, num_columns)) < density).tolil()
        if num_rows > 4:
            arcs[2], arcs[4] = 0, 1
        arcs = arcs.tocsr()
        arcs.eliminate_zeros()
        self.indptr, self.indices = arcs.indptr.astype(np.int64), arcs.indices.astype(np.int32)
        self.matrix = from_csr(self.indptr, self.indices, num_columns)
        self.num_rows, self.num_columns = num_rows, num_columns

    def adjacency(self):
        return build_adjacency(self.indptr, self.indices, self.num_columns, with_self=False)


def rows_of(num_rows, dim, seed=1, dtype=torch.float32):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(num_rows, dim)).astype(np.float32)).to(dtype)


def wide(rows):
    return rows.detach().double().numpy()


@pytest.mark.parametrize("num_heads", [1, 3, 20])
def test_softmax_backward_meets_finite_differences(simd, num_heads):
    arcs = Arcs(7, 9, 0.5)
    target, source = rows_of(7, num_heads), rows_of(9, num_heads, seed=2)
    gradient = rows_of(len(arcs.indices), num_heads, seed=3)

    def loss(target, source):
        alpha = reference.edge_softmax(arcs.indptr, arcs.indices, target, source, SLOPE)
        return (alpha * wide(gradient)).sum()

    alpha, of_entries = attention.edge_softmax(arcs.matrix, target, source, SLOPE), gradient.clone()
    of_target = attention.edge_softmax_backward(arcs.matrix, target, source, SLOPE, alpha, of_entries)
    _, transposed, entry_index = arcs.adjacency()
    of_source = attention.sum_entries(transposed, of_entries, entry_index)
    for found, expected in [
            (of_target, reference.central_differences(lambda x: loss(x, wide(source)), wide(target))),
            (of_source, reference.central_differences(lambda x: loss(wide(target), x), wide(source)))]:
        np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("num_heads", HEADS)
@pytest.mark.parametrize("head_dim", DIMS)
def test_sampled_products_equal_the_oracle(simd, head_dim, num_heads, dtype):
    arcs = Arcs()
    left, right = (rows_of(n, num_heads * head_dim, seed=n, dtype=dtype) for n in (23, 37))
    found = attention.sampled_products(arcs.matrix, left, right, num_heads)
    expected = reference.sampled_products(arcs.indptr, arcs.indices, wide(left), wide(right), num_heads)
    magnitude = reference.sampled_products(arcs.indptr, arcs.indices, abs(wide(left)), abs(wide(right)), num_heads)
    assert (abs(wide(found) - expected) <= (head_dim + 1) * 2.0**-24 * magnitude).all()


@pytest.mark.covering
@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("head_dim", DIMS)
def test_attention_equals_the_oracle(simd, head_dim, num_heads, dtype):
    arcs = Arcs()
    dim = num_heads * head_dim
    z, vectors = rows_of(37, dim, dtype=dtype), rows_of(2, dim, seed=2) / head_dim**0.5
    found = attention.attend(z, vectors, arcs.adjacency(), num_heads, SLOPE)
    expected = reference.attend(arcs.indptr, arcs.indices, wide(z), wide(vectors), num_heads, SLOPE)
    assert found.dtype == dtype
    assert (abs(wide(found) - expected) <= 1e-5 + ROUNDING[dtype] * abs(expected)).all()
    assert (wide(found)[2] == 0).all()     # no entries


@pytest.mark.parametrize("num_heads, head_dim", [(1, 7), (3, 2), (8, 2)])
def test_attention_backward_meets_finite_differences(simd, num_heads, head_dim):
    arcs, dim = Arcs(7, 9, 0.5), num_heads * head_dim
    z, vectors, gradient = rows_of(9, dim).requires_grad_(), rows_of(2, dim, 2).requires_grad_(), rows_of(7, dim, 3)
    attention.attend(z, vectors, arcs.adjacency(), num_heads, SLOPE).backward(gradient)

    def loss(z, vectors):
        return (reference.attend(arcs.indptr, arcs.indices, z, vectors, num_heads, SLOPE) * wide(gradient)).sum()

    for found, expected in [
            (z.grad, reference.central_differences(lambda x: loss(x, wide(vectors)), wide(z))),
            (vectors.grad, reference.central_differences(lambda x: loss(wide(z), x), wide(vectors)))]:
        np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("in_dim, head_dim", [(1, 1), (7, 3), (41, 2), (256, 8), (300, 5)])
def test_attention_of_shared_rows_equals_the_oracle(simd, in_dim, head_dim, num_heads, dtype):
    arcs = Arcs(23, 37)
    x, weight = rows_of(37, in_dim, dtype=dtype), rows_of(num_heads * head_dim, in_dim, seed=2) / in_dim**0.5
    vectors = rows_of(2, num_heads * head_dim, seed=3) / head_dim**0.5
    found = attention.attend_shared(x, weight, vectors, arcs.adjacency(), num_heads, SLOPE)
    mapped, size = wide(x) @ wide(weight.to(dtype)).T, abs(wide(x)) @ abs(wide(weight)).T
    expected = reference.attend(arcs.indptr, arcs.indices, mapped, wide(vectors), num_heads, SLOPE)
    assert found.dtype == dtype
    # A head's sums are rounded once to the storage type before they are mapped, the result once more.
    bound = 1e-5 + ROUNDING[dtype] * (abs(expected) + size.max(axis=0))
    assert (abs(wide(found) - expected) <= bound).all()
    assert (wide(found)[2] == 0).all()     # no entries


@pytest.mark.covering
@pytest.mark.parametrize("num_back", [7, 8, None])
@pytest.mark.parametrize("num_heads, in_dim, head_dim", [(1, 1, 1), (2, 5, 3), (4, 18, 2), (5, 9, 1)])
def test_gradients_of_attention_of_shared_rows_meet_finite_differences(simd, num_heads, in_dim, head_dim, num_back):
    arcs, dim = Arcs(7, 9, 0.5), num_heads * head_dim
    entry_weight, gradient = rows_of(len(arcs.indices), 1, 5).abs()[:, 0], rows_of(7, dim, 4)
    shapes = [(9, in_dim), (dim, in_dim), (2, dim)]
    leaves = [rows_of(*shape, seed).requires_grad_() for seed, shape in enumerate(shapes)]
    out = attention.attend_shared(*leaves, arcs.adjacency(), num_heads, SLOPE, None, entry_weight, num_back)
    out.backward(gradient)

    def loss(x, weight, vectors):
        z, by_head = x @ weight.T, (num_heads, -1)
        target, source = ((z.reshape(9, *by_head) * vector.reshape(by_head)).sum(axis=2) for vector in vectors)
        alpha = reference.edge_softmax(arcs.indptr, arcs.indices, target[:7], source, SLOPE)
        out = reference.weighted_sum(arcs.indptr, arcs.indices, alpha * wide(entry_weight)[:, None], z)
        return (out * wide(gradient)).sum()

    for place, leaf in enumerate(leaves):
        values = [wide(other) for other in leaves]
        expected = reference.central_differences(
            lambda x, place=place, values=values: loss(*values[:place], x, *values[place + 1:]), values[place])
        if place == 0:
            expected[7 if num_back is None else num_back:] *= num_back is None
        np.testing.assert_allclose(leaf.grad, expected, atol=5e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_in_16_bits_are_those_of_float32_up_to_rounding(dtype):
    arcs = Arcs()
    z, vectors, gradient = rows_of(37, 64, dtype=dtype), rows_of(2, 64, seed=2), rows_of(23, 64, seed=3, dtype=dtype)
    found, expected = [], []
    for rows, gradients in ((z, found), (z.float(), expected)):
        leaves = rows.clone().requires_grad_(), vectors.clone().requires_grad_()
        attention.attend(*leaves, arcs.adjacency(), 4, SLOPE).backward(gradient.to(rows.dtype))
        gradients.extend(leaf.grad.float() for leaf in leaves)
    # The gradient of z is stored after its sum and once more after that of the scores.
    assert (found[0] - expected[0]).abs().max() <= 4 * ROUNDING[dtype] * expected[0].abs().max()
    assert (found[1] - expected[1]).abs().max() <= 1e-5 * expected[1].abs().max()


def everything(arcs, num_heads, head_dim, dtype):
    z = rows_of(arcs.num_columns, num_heads * head_dim, dtype=dtype).requires_grad_()
    vectors = rows_of(2, num_heads * head_dim, seed=2).requires_grad_()
    out = attention.attend(z, vectors, arcs.adjacency(), num_heads, SLOPE)
    out.backward(rows_of(*out.shape, seed=3, dtype=dtype))
    return out, z.grad, vectors.grad, *sums_by_head_of(arcs, z.detach(), num_heads)


def sums_by_head_of(arcs, rows, num_heads):
    (matrix, transposed, _), weight = arcs.adjacency(), rows_of(len(arcs.indices), num_heads, seed=4)
    sums, back = attention.sums_by_head(matrix, rows, weight), torch.empty_like(rows)
    attention.sum_over_heads(transposed, weight, sums, back)
    return sums, back, attention.products_by_head(matrix, sums, rows)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("num_heads, head_dim", [(1, 41), (2, 7), (4, 64), (5, 9), (8, 17), (16, 1)])
def test_every_instruction_set_gives_the_same_bits(simd, monkeypatch, num_heads, head_dim, dtype):
    arcs = Arcs(60, 90)
    found = everything(arcs, num_heads, head_dim, dtype)
    monkeypatch.setenv("HPCGNN_SIMD", "portable")
    for one, other in zip(found, everything(arcs, num_heads, head_dim, dtype), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("num_heads", [1, 3, 4])
def test_scores_of_any_size_give_weights_that_sum_to_one(simd, num_heads):
    """The row's maximum is subtracted first: exponentials of 3e38 do not overflow, those of -3e38 do not all vanish."""
    arcs = Arcs()
    for offset in (1e4, -1e4, 1.5e38, -1.5e38):
        target, source = torch.full((23, num_heads), offset), rows_of(37, num_heads) + offset
        alpha = attention.edge_softmax(arcs.matrix, target, source, SLOPE)
        sums = np.add.reduceat(wide(alpha), arcs.indptr[:-1][np.diff(arcs.indptr) > 0])
        np.testing.assert_allclose(sums, 1, rtol=1e-5)


@pytest.mark.covering
@pytest.mark.parametrize("num_heads", HEADS)
@pytest.mark.parametrize("spread", [1.0, 20.0, 80.0, 200.0])
def test_weights_keep_their_relative_precision_down_to_the_smallest(simd, num_heads, spread):
    arcs = Arcs()
    target, source = torch.zeros(23, num_heads), rows_of(37, num_heads) * spread
    alpha = wide(attention.edge_softmax(arcs.matrix, target, source, SLOPE))
    expected = reference.edge_softmax(arcs.indptr, arcs.indices, wide(target), wide(source), SLOPE)
    np.testing.assert_allclose(alpha, expected, rtol=3e-6 if spread == 1 else 2e-5, atol=1e-37)


@pytest.mark.parametrize("num_heads", [1, 3, 4])
def test_not_a_number_reaches_every_weight_of_its_row_and_head_only(simd, num_heads):
    arcs = Arcs()
    target = rows_of(23, num_heads)
    target[4, 0] = torch.nan
    alpha = attention.edge_softmax(arcs.matrix, target, rows_of(37, num_heads), SLOPE)
    is_hit = torch.zeros(alpha.shape, dtype=torch.bool)
    is_hit[arcs.indptr[4]:arcs.indptr[5], 0] = True
    assert torch.equal(alpha.isnan(), is_hit)


@pytest.mark.parametrize("dtype", STORAGES)
def test_a_sum_of_4096_ones_is_4096(simd, dtype):
    """Sums in float16 stop at 2,048, in bfloat16 at 256: HalfGNN, Section 3.1.1."""
    indptr, indices = np.array([0, 4096]), np.arange(4096, dtype=np.int32)
    matrix, ones = from_csr(indptr, indices, 4096), torch.ones(4096, 3, dtype=dtype)
    assert (multiply(matrix, ones) == 4096).all()
    assert (multiply_weighted(matrix, ones, torch.ones(4096, 3)) == 4096).all()
    assert (attention.sum_entries(matrix, torch.ones(4096, 2), np.arange(4096)) == 4096).all()
    one, long = from_csr(np.array([0, 1]), np.zeros(1, np.int32), 1), torch.ones(1, 4096, dtype=dtype)
    assert (attention.sampled_products(one, long, long, 1) == 4096).all()


@pytest.mark.parametrize("num_rows, num_columns", [(0, 0), (0, 5), (3, 5)])
def test_no_entries_give_zeros(num_rows, num_columns):
    arcs = Arcs(num_rows, num_columns, density=0.0)
    z, vectors = torch.ones(num_columns, 8, requires_grad=True), torch.ones(2, 8, requires_grad=True)
    out = attention.attend(z, vectors, arcs.adjacency(), 2, SLOPE)
    out.sum().backward()
    assert out.shape == (num_rows, 8) and not out.any() and not z.grad.any() and not vectors.grad.any()


def test_rows_that_are_not_contiguous_give_the_same_result():
    arcs, vectors = Arcs(), rows_of(2, 8)
    z = rows_of(37, 8)
    turned = z.t().contiguous().t()
    assert torch.equal(attention.attend(turned, vectors, arcs.adjacency(), 2), attention.attend(
        z, vectors, arcs.adjacency(), 2))


def test_rows_vectors_heads_and_indices_that_do_not_fit_are_refused():
    arcs = Arcs()
    adjacency = matrix, transposed, entry_index = arcs.adjacency()
    z, vectors = rows_of(37, 8), rows_of(2, 8)
    for arguments, message in [
            ((z[:36], vectors, adjacency, 2), "37 rows"),
            ((z.double(), vectors, adjacency, 2), "float64"),
            ((z, vectors[:, :7], adjacency, 2), "two vectors of 8 columns"),
            ((z, vectors.double(), adjacency, 2), "float64"),
            ((z, vectors, adjacency, 3), "3 heads can't share 8 columns"),
            ((z, vectors, adjacency, 0), "0 heads"),
            ((z, vectors, (matrix, transposed, entry_index[1:]), 2), "int64 entry_index")]:
        with pytest.raises(KernelError, match=message):
            attention.attend(*arguments)


def test_weights_that_do_not_fit_the_entries_are_refused():
    arcs = Arcs()
    h, weight = rows_of(37, 8), rows_of(len(arcs.indices), 2)
    for arguments, message in [
            ({"entry_scale": weight[1:]}, f"{len(weight)} rows"),
            ({"entry_scale": weight.double()}, "float64"),
            ({"entry_scale": rows_of(len(weight), 3)}, "3 heads can't share 8 columns"),
            ({"entry_scale": weight, "entry_index": np.arange(3)}, "int64 entry_index")]:
        with pytest.raises(KernelError, match=message):
            multiply_weighted(arcs.matrix, h, **arguments)


def test_implied_self_loops_are_refused():
    matrix = from_csr(np.array([0, 1]), np.zeros(1, np.int32), 1, num_self=1)
    with pytest.raises(KernelError, match="stored entries"):
        attention.edge_softmax(matrix, rows_of(1, 2), rows_of(1, 2), SLOPE)
