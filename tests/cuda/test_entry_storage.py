"""What an entry has on a device, its weight, product and gradients, in 16 bits: rounded once, summed in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cuda.aggregation_cases import (
    NUM_COLUMNS,
    NUM_ROWS,
    ROUNDING,
    STORAGES,
    indptr_of,
    matrix_of,
    multiply,
    rows_of,
    stored,
)
from cuda.conftest import need_compiler
from cuda.emulation import EmulatedBackend
from cuda.test_attention import SLOPE

from hpcgnn.errors import KernelError
from hpcgnn.graph.reductions import build_adjacency
from hpcgnn.ops import attention
from hpcgnn.ops.aggregation import from_csr, multiply_weighted
from hpcgnn.ops.cuda import attention as cuda
from hpcgnn.ops.cuda.module import use_backend
from hpcgnn.ops.dispatch import device_kernels_on_cpu

HALVES = [torch.bfloat16, torch.float16]


def scores_of(num_heads):
    return rows_of(NUM_ROWS, num_heads), rows_of(NUM_COLUMNS, num_heads, seed=2)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("spread, offset", [(1.0, 0.0), (80.0, 0.0), (1.0, 1e4), (1.0, -1e4)])
@pytest.mark.parametrize("num_heads", [1, 3, 8, 40])
def test_weights_and_their_gradients_are_those_of_float32_rounded_once(device, num_heads, spread, offset, dtype):
    """Scores near 10,000 have steps of 8 and more in 16 bits: they are never stored. Sums are of what was not."""
    matrix, (target, source) = stored(matrix_of()), scores_of(num_heads)
    scores = (target + offset).to(device), (source * spread).to(device), SLOPE
    alpha, whole = cuda.edge_softmax(matrix, *scores, dtype), cuda.edge_softmax(matrix, *scores)
    assert torch.equal(alpha, whole.to(dtype))
    gradient = rows_of(len(matrix.indices), num_heads, dtype, seed=3).to(device)
    of_whole = gradient.float()
    of_target = cuda.edge_softmax_backward(matrix, *scores, alpha, gradient)
    assert torch.equal(of_target, cuda.edge_softmax_backward(matrix, *scores, alpha.float(), of_whole))
    assert of_target.dtype == torch.float32 and torch.equal(gradient, of_whole.to(dtype))


@pytest.mark.covering
@pytest.mark.parametrize("has_half_sums", [False, True])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("num_heads, head_dim", [(1, 41), (1, 64), (2, 1), (3, 5), (4, 16), (8, 8)])
def test_weights_of_16_bits_give_the_bits_of_the_same_weights_in_float32(device, num_heads, head_dim, dtype,
                                                                         has_half_sums):
    matrix = matrix_of(has_half_sums=has_half_sums)
    h = rows_of(NUM_COLUMNS, num_heads * head_dim, dtype).to(device)
    weight = rows_of(len(matrix.indices), num_heads, dtype, seed=3).to(device)
    index = np.random.default_rng(4).permutation(len(weight)).astype(np.int64)
    for entry_index in (None, index):
        found, expected = (multiply(matrix, h, entry_scale=one, entry_index=entry_index)
                           for one in (weight, weight.float()))
        assert torch.equal(found, expected)
    assert torch.equal(cuda.take_entries(weight, index), weight[torch.from_numpy(index).to(weight.device)])
    assert torch.equal(cuda.sum_entries(matrix, weight, index), cuda.sum_entries(matrix, weight.float(), index))


def attended(dtype, num_heads, entry_weight):
    """Attention and its gradients over rows with all kinds of lengths, and what it keeps of each entry."""
    csr = stored(matrix_of(num_columns=NUM_ROWS))
    arcs = build_adjacency(indptr_of(csr), csr.indices, NUM_ROWS, with_self=False)
    leaves = [rows_of(NUM_ROWS, 8 * num_heads, dtype).requires_grad_(),
              (rows_of(2, 8 * num_heads, seed=2) / 3).requires_grad_()]
    out = attention.attend(*leaves, arcs, num_heads, SLOPE, entry_weight=entry_weight)
    alpha = out.grad_fn.saved_tensors[3]
    out.backward(rows_of(NUM_ROWS, 8 * num_heads, dtype, seed=3))
    return [out.detach(), *(leaf.grad for leaf in leaves)], alpha


@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("num_heads, is_weighted", [(1, False), (4, False), (4, True)])
def test_attention_keeps_entries_in_the_rows_own_type_and_is_right_up_to_its_rounding(emulated, num_heads, is_weighted,
                                                                                      dtype):
    num_entries = len(stored(matrix_of(num_columns=NUM_ROWS)).indices)
    weight = rows_of(num_entries, 1, seed=6).flatten().abs() if is_weighted else None
    expected, _ = attended(dtype, num_heads, weight)      # the host's, which keeps entries in float32
    with device_kernels_on_cpu():
        found, alpha = attended(dtype, num_heads, weight)
    assert alpha.dtype == dtype and found[0].dtype == dtype and found[2].dtype == torch.float32
    for one, exact in zip(found, expected, strict=True):
        assert (one.double() - exact).abs().max() <= (8 * ROUNDING[dtype] + 2e-6) * exact.abs().max()


def test_the_host_keeps_entries_in_float32_and_refuses_others():
    matrix = from_csr(np.array([0, 2]), np.array([0, 0], np.int32), 1)
    rows, half, score = torch.ones(1, 4).half(), torch.ones(2, 1).half(), torch.ones(1, 1)
    assert attention.sampled_products(matrix, rows, rows, 1).dtype == torch.float32
    for refused in (lambda: multiply_weighted(matrix, rows, half),
                    lambda: attention.sum_entries(matrix, half, np.arange(2)),
                    lambda: attention.edge_softmax_backward(matrix, score, score, SLOPE, half, half)):
        with pytest.raises(KernelError, match="needs contiguous float32"):
            refused()


def test_what_entries_have_takes_half_the_bytes():
    """Bytes that the launches store; loads of weights in 16 bits are fewer by as much."""
    need_compiler()
    matrix, (target, source) = stored(matrix_of()), scores_of(4)
    num_values, h = 4 * len(matrix.indices), rows_of(NUM_COLUMNS, 64, torch.float16)

    def counted(work):
        with use_backend(EmulatedBackend(counts=True)) as backend:
            work()
        return tuple(sum(getattr(one, side).bytes for _, one in backend.traffic) for side in ("load", "store"))

    def bytes_of(dtype):
        alpha, gradient = torch.ones(num_values // 4, 4, dtype=dtype), torch.ones(num_values // 4, 4, dtype=dtype)
        index = np.arange(num_values // 4)
        return {"softmax": counted(lambda: cuda.edge_softmax(matrix, target, source, SLOPE, dtype)),
                "backward": counted(lambda: cuda.edge_softmax_backward(matrix, target, source, SLOPE, alpha, gradient)),
                "taken": counted(lambda: cuda.take_entries(alpha, index)),
                "summed": counted(lambda: cuda.sum_entries(matrix, alpha, index)),
                "weighted": counted(lambda: multiply(matrix, h, entry_scale=alpha))}

    half, whole = bytes_of(torch.float16), bytes_of(torch.float32)
    assert half["softmax"][1] == 2 * num_values
    assert whole["softmax"][1] == 8 * num_values      # weights, and scores that wait in their place
    assert half["backward"][1] == 2 * num_values + 4 * target.numel()
    assert whole["backward"][1] - half["backward"][1] == 2 * num_values
    assert whole["backward"][0] - half["backward"][0] == 2 * 4 * num_values      # two values an entry, read twice
    assert half["taken"][1] == 2 * num_values and whole["taken"][1] == 4 * num_values
    for name in ("summed", "weighted"):
        assert half[name][1] == whole[name][1] and half[name][0] < whole[name][0]
    assert whole["summed"][0] - half["summed"][0] == 2 * num_values
    rows = [rows_of(n, 64, torch.float16, seed=n) for n in (NUM_ROWS, NUM_COLUMNS)]
    assert counted(lambda: cuda.sampled_products(matrix, *rows, 4))[1] == 2 * num_values
