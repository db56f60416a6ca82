"""Products on the device are summed in float32, whatever torch is told, and no order of blocks changes sums of rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cuda.conftest import both_orders

from hpcgnn.ops.cuda import dense
from hpcgnn.ops.cuda.dense import row_blocks


def test_float16_rows_are_summed_in_float32(device):
    """A float16 sum of 4,096 ones sticks at 2,048, and one of 100,000 is no float16."""
    ones = torch.ones(100_000, 4, dtype=torch.float16, device=device)
    long = ones[:8192].view(8, 4096)
    assert (dense.map_rows(long, long[:2], None) == 4096).all()
    assert (dense.weight_gradient(ones, ones) == 100_000).all()


@pytest.mark.parametrize("has_before", [True, False])
def test_settings_of_torch_are_left_as_they_were(device, monkeypatch, has_before):
    names = ["allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction"]
    settings, seen = torch.backends.cuda.matmul, []
    before = [getattr(settings, name) for name in names]
    monkeypatch.setattr(torch, "addmm", lambda *a, **k: seen.extend(getattr(settings, name) for name in names))
    try:
        for name in names:
            setattr(settings, name, has_before)
        matrix = torch.ones(2, 2, device=device)
        dense.map_rows(matrix, matrix, matrix)
        assert seen == [False, False] and [getattr(settings, name) for name in names] == [has_before] * 2
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(settings, name, value)


@both_orders
def test_column_sums_have_the_same_bits_in_any_order_of_blocks(device, first_results):
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(1500, 70))).float().to(device)
    found = dense.column_sums(rows).cpu().numpy().tobytes()
    assert found == first_results.setdefault("sums", found) == dense.column_sums(rows).cpu().numpy().tobytes()


@pytest.mark.parametrize("num_rows", [1, 256, 257, 131_072, 131_073, 10_000_000])
def test_blocks_of_a_sum_hold_all_rows_and_no_block_is_empty(num_rows):
    rows_a_block, num_blocks = row_blocks(num_rows)
    assert (num_blocks - 1) * rows_a_block < num_rows <= num_blocks * rows_a_block and num_blocks <= 512
