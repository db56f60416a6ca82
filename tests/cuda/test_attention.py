"""The device's attention kernels at every address, order of blocks and size of sums; see also test_host_results.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cuda.aggregation_cases import (
    NUM_COLUMNS,
    NUM_ROWS,
    STORAGES,
    matrix_of,
    rows_of,
    stored,
)
from cuda.emulation import EmulatedBackend

from hpcgnn.ops.aggregation import from_csr
from hpcgnn.ops.cuda import attention as cuda
from hpcgnn.ops.cuda.module import use_backend

SLOPE = 0.2


def wide(rows: torch.Tensor) -> np.ndarray:
    return rows.double().cpu().numpy()


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
