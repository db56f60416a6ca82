"""Rows as they last were, and what a checkpoint keeps of them."""

from __future__ import annotations

import pytest
import torch

from hpcgnn.errors import KernelError
from hpcgnn.steps.history import History

CPU = torch.device("cpu")


def test_each_layer_and_width_has_a_table_of_its_own_that_begins_with_zeros():
    history = History(5)
    assert history.is_empty and history.num_bytes == 0
    first, wide = history.table(0, torch.ones(2, 3)), history.table(0, torch.ones(2, 4))
    assert first.shape == (5, 3) and wide.shape == (5, 4) and not first.any()
    first[1] = 7
    assert history.table(0, torch.zeros(1, 3))[1].tolist() == [7, 7, 7] and not history.table(1, torch.ones(1, 3)).any()
    assert history.num_bytes == 4 * 5 * (3 + 4 + 3)
    history.forget()
    assert history.is_empty


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_restored_one_has_the_same_bits(dtype):
    history, other = History(4), History(4)
    for layer in (0, 2):
        history.table(layer, torch.zeros(1, 3, dtype=dtype)).copy_(torch.randn(4, 3).to(dtype))
    other.restore({name: values.copy() for name, values in history.state().items()}, CPU)
    assert other.num_bytes == history.num_bytes
    for layer in (0, 2):
        assert torch.equal(other.table(layer, torch.zeros(1, 3, dtype=dtype)),
                           history.table(layer, torch.zeros(1, 3, dtype=dtype)))


def test_rows_may_be_kept_in_half_the_memory():
    history = History(4, torch.bfloat16)
    assert history.table(0, torch.zeros(1, 3)).dtype == torch.bfloat16 and history.num_bytes == 2 * 4 * 3


def test_rows_of_another_part_are_refused():
    history = History(4)
    history.table(0, torch.zeros(1, 3))
    with pytest.raises(KernelError, match="where 6 of 3 are expected"):
        History(6).restore(history.state(), CPU)
