"""Rows as bytes: the kernels read and write a tensor's own memory, and only rows that lie there one after another."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from hpcgnn.ops.dispatch import STORAGE_NUMBER, STORAGES, as_bytes


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("shape", [(3, 5), (0, 5), (3, 0)])
def test_bytes_are_those_of_the_tensor(storage, shape):
    rows = torch.arange(shape[0] * shape[1]).reshape(shape).to(storage)
    found = np.asarray(as_bytes(rows))
    assert found.shape == (shape[0], shape[1] * rows.itemsize) and found.dtype == np.uint8
    assert found.tobytes() == bytes(rows.flatten().view(torch.uint8).tolist())
    found[:] = 0
    assert not rows.any()


def test_bytes_hold_their_tensor():
    found = np.asarray(as_bytes(torch.full((1 << 12, 1), 7.0, requires_grad=True)))
    gc.collect()
    others = [torch.zeros(1 << 12, 1) for _ in range(8)]      # would take its memory
    assert (found.view(np.float32) == 7.0).all() and len(others) == 8


@pytest.mark.parametrize("rows", [torch.zeros(4, 6).t(), torch.zeros(4, 6)[:, :3], torch.zeros(2, 3, device="meta")],
                         ids=["transposed", "columns", "elsewhere"])
def test_rows_that_do_not_lie_one_after_another_on_the_host_are_refused(rows):
    with pytest.raises(BufferError, match=r"contiguous on the host, found (cpu|meta)"):
        as_bytes(rows)


def test_numbers_of_storages_are_those_of_the_kernels():
    assert [STORAGE_NUMBER[one] for one in (torch.float32, torch.bfloat16, torch.float16)] == [0, 1, 2]
