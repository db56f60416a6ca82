"""The device's attention kernels against float64 oracles, finite differences and the host, at every storage."""

from __future__ import annotations

import numpy as np
import pytest
import reference_attention as reference
import torch
from cuda.aggregation_cases import (
    NUM_COLUMNS,
    NUM_ROWS,
    ROUNDING,
    SMALLEST,
    STORAGES,
    indptr_of,
    matrix_of,
    rows_of,
    stored,
)
from cuda.emulation import EmulatedBackend

from hpcgnn.ops import attention as host
from hpcgnn.ops.aggregation import SparseRows, from_csr
from hpcgnn.ops.cuda import attention as cuda
from hpcgnn.ops.cuda.module import use_backend

DIMS, SLOPE = [1, 3, 32, 41, 64, 130], 0.2
HEADS = [1, 2, 3, 8, 20, 40]


def named(matrix: SparseRows) -> np.ndarray:
    """The entries that a row names, in the order of the rows."""
    return np.concatenate([np.arange(*span) for span in zip(matrix.begin, matrix.end, strict=True)])


def wide(rows: torch.Tensor) -> np.ndarray:
    return rows.double().cpu().numpy()


@pytest.mark.parametrize("num_heads", HEADS)
def test_softmax_equals_the_oracle_for_short_rows_longer_ones_and_a_hub(device, num_heads):
    """8 lanes take a short row, a warp a longer one, a block the hub."""
    matrix = matrix_of()
    assert all(len(rows) for rows in matrix.geometry.rows_by_length)
    target, source = rows_of(NUM_ROWS, num_heads), rows_of(NUM_COLUMNS, num_heads, seed=2)
    alpha = cuda.edge_softmax(matrix, target.to(device), source.to(device), SLOPE)
    csr = stored(matrix)
    expected = reference.edge_softmax(indptr_of(csr), csr.indices, wide(target), wide(source), SLOPE)
    np.testing.assert_allclose(wide(alpha)[named(matrix)], expected, rtol=2e-5, atol=1e-12)


@pytest.mark.parametrize("num_heads", [1, 3, 40])
def test_softmax_backward_equals_the_host_and_the_formula(device, num_heads):
    matrix = stored(matrix_of())
    target, source = rows_of(NUM_ROWS, num_heads), rows_of(NUM_COLUMNS, num_heads, seed=2)
    alpha = host._edge_softmax.host(matrix, target, source, SLOPE)
    gradient = rows_of(len(matrix.indices), num_heads, seed=3)
    of_host, of_device = gradient.clone(), gradient.clone().to(device)
    expected = host._edge_softmax_backward.host(matrix, target, source, SLOPE, alpha, of_host)
    found = cuda.edge_softmax_backward(matrix, target.to(device), source.to(device), SLOPE, alpha.to(device),
                                       of_device)
    np.testing.assert_allclose(wide(of_device), wide(of_host), atol=2e-6)
    np.testing.assert_allclose(wide(found), wide(expected), atol=2e-5)
    assert not found[[3, 4, NUM_ROWS - 1]].any()     # no entries


@pytest.mark.parametrize("num_heads", [1, 2])
def test_softmax_backward_meets_finite_differences(device, num_heads):
    matrix = stored(matrix_of(hub=8, num_rows=9, num_columns=6))
    target, source = rows_of(9, num_heads), rows_of(6, num_heads, seed=2)
    gradient = rows_of(len(matrix.indices), num_heads, seed=3)
    alpha = cuda.edge_softmax(matrix, target.to(device), source.to(device), SLOPE)
    of_entries = gradient.clone().to(device)
    of_target = cuda.edge_softmax_backward(matrix, target.to(device), source.to(device), SLOPE, alpha, of_entries)

    def loss(target):
        return (reference.edge_softmax(indptr_of(matrix), matrix.indices, target, wide(source), SLOPE)
                * wide(gradient)).sum()

    np.testing.assert_allclose(wide(of_target), reference.central_differences(loss, wide(target)), atol=2e-6)


@pytest.mark.parametrize("slope", [0.0, SLOPE])
@pytest.mark.parametrize("num_heads", [1, 3])
def test_absent_columns_weigh_nothing_and_rows_of_them_alone_are_zero(device, num_heads, slope):
    """Also in the hub, whose entries are all absent but one; NaN stays in its row and head."""
    length = [0, 3, 2, 600, 4]
    indptr = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    indices = np.array([0, 1, 2, 1, 2, *[1] * 599, 0, 0, 3, 3, 0], np.int32)
    target, source = rows_of(5, num_heads), rows_of(4, num_heads, seed=2)
    source[1:3] = -torch.inf
    target[4, 0] = torch.nan
    alpha = cuda.edge_softmax(from_csr(indptr, indices, 4), target.to(device), source.to(device), slope).cpu()
    assert (alpha[:3] == torch.tensor([[1.0], [0], [0]])).all() and not alpha[3:5].any()
    assert not alpha[5:604].any() and (alpha[604] == 1).all()
    assert alpha[605:, 0].isnan().all() and not alpha[605:, 1:].isnan().any()


@pytest.mark.parametrize("spread", [1.0, 80.0, 200.0])
def test_weights_keep_their_relative_precision_down_to_the_smallest(device, spread):
    matrix = stored(matrix_of())
    target, source = torch.zeros(NUM_ROWS, 2), rows_of(NUM_COLUMNS, 2) * spread
    alpha = cuda.edge_softmax(matrix, target.to(device), source.to(device), SLOPE)
    expected = reference.edge_softmax(indptr_of(matrix), matrix.indices, wide(target), wide(source), SLOPE)
    np.testing.assert_allclose(wide(alpha), expected, rtol=2e-5, atol=1e-37)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("num_heads, head_dim", [*((1, dim) for dim in DIMS), (2, 4), (3, 8), (4, 16), (20, 1), (5, 6)])
def test_sampled_products_equal_the_oracle_at_every_width_of_loads(device, num_heads, head_dim, dtype):
    matrix = matrix_of()
    left, right = (rows_of(n, num_heads * head_dim, dtype, seed=n) for n in (NUM_ROWS, NUM_COLUMNS))
    found = cuda.sampled_products(matrix, left.to(device), right.to(device), num_heads)
    csr = stored(matrix)
    expected, magnitude = (reference.sampled_products(indptr_of(csr), csr.indices, change(wide(left)),
                                                      change(wide(right)), num_heads) for change in (np.array, abs))
    difference = abs(wide(found)[named(matrix)] - expected)
    stored_as = 0.0 if dtype == torch.float32 else ROUNDING[dtype]
    assert found.dtype == dtype
    bound = (head_dim + 1) * 2.0**-24 * magnitude * (1 + stored_as) + stored_as * abs(expected)
    assert (difference <= bound + SMALLEST[dtype]).all()


@pytest.mark.parametrize("dtype, widest", [(torch.float32, 4), (torch.bfloat16, 8), (torch.float16, 8)])
def test_loads_are_as_wide_as_heads_and_addresses_allow(device, dtype, widest):
    def shifted(elements):
        flat = torch.zeros(elements + 10 * 64, dtype=dtype).to(device)
        return flat[elements:].view(10, 64)

    aligned = shifted(0)
    assert cuda._vector(64, aligned, aligned) == widest
    assert [cuda._vector(head_dim, aligned) for head_dim in (4, 6, 7)] == [min(4, widest), 2, 1]
    assert [cuda._vector(64, aligned, shifted(elements)) for elements in (1, 2, 4)] == [1, 2, min(4, widest)]


@pytest.mark.parametrize("dtype", STORAGES)
def test_rows_off_every_alignment_give_the_products_of_aligned_ones(device, dtype):
    matrix, left, right = stored(matrix_of()), rows_of(NUM_ROWS, 16, dtype), rows_of(NUM_COLUMNS, 16, dtype, seed=2)
    expected = cuda.sampled_products(matrix, left.to(device), right.to(device), 1)
    for elements in (1, 2, 4):
        moved = torch.cat([torch.zeros(elements, dtype=dtype), right.flatten()]).to(device)[elements:].view(-1, 16)
        found = cuda.sampled_products(matrix, left.to(device), moved, 1)
        np.testing.assert_allclose(wide(found), wide(expected), atol=1e-5)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("num_heads, head_dim", [*((1, dim) for dim in DIMS), (3, 5), (8, 4), (4, 64)])
def test_head_scores_equal_the_oracle(device, num_heads, head_dim, dtype):
    rows, vectors = rows_of(37, num_heads * head_dim, dtype), rows_of(2, num_heads * head_dim, seed=2)
    found = wide(cuda.head_scores(rows.to(device), vectors.to(device), num_heads))
    by_head = wide(rows).reshape(37, num_heads, head_dim), wide(vectors).reshape(2, num_heads, head_dim)
    expected, magnitude = (np.einsum("uhj,khj->kuh", *(change(x) for x in by_head)) for change in (np.array, abs))
    assert found.shape == (2, 37, num_heads)
    assert (abs(found - expected) <= (head_dim + 1) * 2.0**-24 * magnitude).all()


@pytest.mark.covering
@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("num_heads, head_dim", [(1, 1), (1, 41), (3, 5), (4, 16)])
def test_backward_of_scores_equals_the_formula_over_several_blocks_of_rows(device, monkeypatch, num_heads, head_dim,
                                                                           dtype):
    monkeypatch.setattr(cuda, "TASK_ROWS", 16)
    dim, rounding = num_heads * head_dim, {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
    rows, start = rows_of(37, dim, dtype), rows_of(37, dim, dtype, seed=4)
    vectors, score_gradient = rows_of(2, dim, seed=2), rows_of(2 * 37, num_heads, seed=3).view(2, 37, num_heads)
    gradient = start.clone().to(device)
    of_vectors = cuda.head_scores_backward(rows.to(device), gradient, vectors.to(device), score_gradient.to(device))
    by_column = wide(score_gradient).repeat(head_dim, axis=2)
    of_rows = wide(start) + (by_column * wide(vectors)[:, None]).sum(axis=0)
    np.testing.assert_allclose(wide(gradient), of_rows, rtol=rounding[dtype], atol=1e-6)
    np.testing.assert_allclose(wide(of_vectors), (by_column * wide(rows)).sum(axis=1), atol=2e-5)


@pytest.mark.parametrize("num_heads", HEADS)
def test_values_of_entries_are_summed_and_taken_by_their_index(device, num_heads):
    matrix = matrix_of()
    value = rows_of(len(matrix.indices) + 3, num_heads)
    index = np.random.default_rng(4).permutation(len(value))[:len(matrix.indices)].astype(np.int64)
    taken = cuda.take_entries(value.to(device), index).cpu()
    assert torch.equal(taken, value[index])
    found = wide(cuda.sum_entries(matrix, value.to(device), index))
    for v in range(NUM_ROWS):
        terms = wide(taken)[matrix.begin[v]:matrix.end[v]]
        assert (abs(found[v] - terms.sum(axis=0)) <= (len(terms) + 1) * 2.0**-24 * abs(terms).sum(axis=0)).all()


@pytest.mark.parametrize("dtype", STORAGES)
def test_sums_of_4_096_ones_are_4_096(device, dtype):
    """Sums in float16 stop at 2,048, in bfloat16 at 256: HalfGNN, Section 3.1.1."""
    matrix = from_csr(np.array([0, 4096]), np.arange(4096, dtype=np.int32), 4096)
    assert (cuda.sum_entries(matrix, torch.ones(4096, 2).to(device), np.arange(4096)) == 4096).all()
    one, long = from_csr(np.array([0, 1]), np.zeros(1, np.int32), 1), torch.ones(1, 4096, dtype=dtype).to(device)
    assert (cuda.sampled_products(one, long, long, 1) == 4096).all()


def test_what_is_above_the_largest_float16_is_infinite_and_no_sum_before_it_is(device):
    """Sums of 4,096 products; the first one's parts pass 65,504 many times."""
    one = from_csr(np.array([0, 1]), np.zeros(1, np.int32), 1)
    signs = torch.tensor([1.0, -1.0]).repeat(2048)
    for left, right, expected in ((2048 * signs, 2048 + 0 * signs, 0.0), (4.0 + 0 * signs, 4.0 + 0 * signs, torch.inf),
                                  (4.0 + 0 * signs, 3.5 + 0 * signs, 57344.0)):
        found = cuda.sampled_products(one, *(rows.half()[None].to(device) for rows in (left, right)), 1)
        assert found.item() == expected


@pytest.mark.parametrize("num_rows, num_columns, num_heads", [(0, 0, 2), (0, 5, 2), (3, 5, 2), (3, 5, 0)])
def test_no_entries_give_zeros(device, num_rows, num_columns, num_heads):
    matrix = from_csr(np.zeros(num_rows + 1, np.int64), np.empty(0, np.int32), num_columns)
    target, source, nothing = (torch.ones(n, num_heads).to(device) for n in (num_rows, num_columns, 0))
    index = np.empty(0, np.int64)
    assert cuda.edge_softmax(matrix, target, source, SLOPE).shape == (0, num_heads)
    for found in (cuda.edge_softmax_backward(matrix, target, source, SLOPE, nothing, nothing),
                  cuda.sum_entries(matrix, nothing, index)):
        assert found.shape == (num_rows, num_heads) and not found.any()
    assert cuda.take_entries(nothing, index).shape == (0, num_heads)
    for rows in (target, source):
        vectors = torch.ones(2, num_heads).to(device)
        score = cuda.head_scores(rows, vectors, max(num_heads, 1))
        assert score.shape == (2, len(rows), max(num_heads, 1)) and (score == num_heads // max(num_heads, 1)).all()
        assert cuda.head_scores_backward(rows, rows.clone(), vectors, torch.zeros_like(score)).shape == vectors.shape


@pytest.mark.parametrize("dtype", STORAGES)
def test_all_orders_of_blocks_give_the_same_bits(device, dtype):
    """Compared with the ascending order: the fixture shuffles blocks by its seed."""
    if device == "cuda":
        pytest.skip("a device does not let its order of blocks be chosen")
    matrix = stored(matrix_of())
    target, source = rows_of(NUM_ROWS, 3), rows_of(NUM_COLUMNS, 3, seed=2)
    left, right = (rows_of(n, 30, dtype, seed=n) for n in (NUM_ROWS, NUM_COLUMNS))
    vectors, index = rows_of(2, 30, seed=5), np.arange(len(matrix.indices))

    def everything():
        alpha, gradient = cuda.edge_softmax(matrix, target, source, SLOPE, dtype), rows_of(len(index), 3, dtype)
        of_target = cuda.edge_softmax_backward(matrix, target, source, SLOPE, alpha, gradient)
        score, of_rows = cuda.head_scores(left, vectors, 3), left.clone()
        return (alpha, gradient, of_target, score, cuda.head_scores_backward(left, of_rows, vectors, score), of_rows,
                cuda.sum_entries(matrix, gradient, index), cuda.sampled_products(matrix, left, right, 3))

    found = everything()
    with use_backend(EmulatedBackend(0)):
        assert all(torch.equal(*pair) for pair in zip(found, everything(), strict=True))
