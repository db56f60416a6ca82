"""Rows as they last were, and what a checkpoint keeps of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.aggregation import from_csr, multiply
from hpcgnn.ops.counter import FORWARD, CounterKey
from hpcgnn.steps.history import History

CPU = torch.device("cpu")
KEY = CounterKey(0, 3, FORWARD, 1)
PLACE = 1 + 8 + 8      # bytes that say where a row of codes lies


def history_of(num_rows, kind="stored"):
    return History(100 + np.arange(num_rows), kind)


def read_all(table, num_rows, dim, dtype=torch.float32):
    rows = torch.empty(num_rows, dim, dtype=dtype)
    table.read(np.arange(num_rows), rows)
    return rows


@pytest.mark.parametrize("kind, row_bytes", [("stored", 4 * 3), ("bf16", 2 * 3), ("8", 4 + 3 + PLACE),
                                             ("4", 4 + 2 + PLACE)])
def test_each_layer_and_width_has_a_table_of_its_own_that_begins_with_zeros(kind, row_bytes):
    history = history_of(5, kind)
    assert history.is_empty and history.num_bytes == 0
    first, wide = history.table(0, torch.ones(2, 3)), history.table(0, torch.ones(2, 6))
    assert first is not wide and first is history.table(0, torch.zeros(1, 3))
    assert first.num_bytes == 5 * row_bytes
    assert not read_all(first, 5, 3).any() and not read_all(wide, 5, 6).any()
    first.keep(np.array([1]), torch.full((1, 3), 7.0), KEY)
    assert read_all(first, 5, 3).tolist() == [[0] * 3, [7] * 3, [0] * 3, [0] * 3, [0] * 3]
    assert not read_all(history.table(1, torch.ones(1, 3)), 5, 3).any()
    assert history.num_bytes == 2 * first.num_bytes + wide.num_bytes
    history.forget()
    assert history.is_empty


@pytest.mark.parametrize("kind, dtype", [("stored", torch.float32), ("stored", torch.bfloat16),
                                         ("stored", torch.float16), ("bf16", torch.float32), ("8", torch.float32),
                                         ("4", torch.bfloat16)])
def test_a_restored_one_has_the_same_bits(kind, dtype):
    history, other = history_of(4, kind), history_of(4, kind)
    for layer in (0, 2):
        history.table(layer, torch.zeros(1, 3, dtype=dtype)).keep(np.arange(4), torch.randn(4, 3).to(dtype), KEY)
    other.restore({name: values.copy() for name, values in history.state().items()}, CPU)
    assert other.num_bytes == history.num_bytes
    for layer in (0, 2):
        found, expected = (read_all(kept.table(layer, torch.zeros(1, 3, dtype=dtype)), 4, 3, dtype)
                           for kept in (other, history))
        assert torch.equal(found, expected) and found.any()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dim", [1, 7, 64])
def test_coded_rows_are_off_by_at_most_a_step(bits, dim):
    table = history_of(9, str(bits)).table(0, torch.ones(1, dim))
    rows, index = torch.randn(4, dim) * torch.tensor([[1e-3], [1.0], [1e3], [0.0]]), np.array([8, 0, 3, 5])
    table.keep(index, torch.ones(4, dim), KEY)      # what was there before leaves no trace
    table.keep(index, rows, KEY)
    found = read_all(table, 9, dim)
    span = rows.amax(1) - rows.amin(1)
    # bfloat16 parameters are off by up to 2^-7 of the largest value.
    allowed = span / (2**bits - 1) + 2.0**-7 * rows.abs().amax(1)
    assert ((found[index] - rows).abs().amax(1) <= allowed).all()
    assert not found[[1, 2, 4, 6, 7]].any()


@pytest.mark.parametrize("kind", ["stored", "8", "4"])
def test_sums_in_place_are_those_of_the_rows_that_are_read(kind):
    table = history_of(6, kind).table(0, torch.ones(1, 40))
    table.keep(np.arange(6), torch.randn(6, 40), KEY)
    near, rows = torch.randn(2, 40), read_all(table, 6, 40)
    matrix = from_csr(np.array([0, 3, 3, 5]), np.array([0, 7, 3, 2, 1], np.int32), 8)
    expected = torch.stack([near[0] + rows[5] + rows[1], torch.zeros(40), rows[0] + near[1]])
    found = multiply(matrix, near, table.in_place(torch.float32))
    assert torch.allclose(found, expected, atol=1e-5)


def test_rows_of_another_type_are_not_summed_in_place():
    table = history_of(4, "bf16").table(0, torch.zeros(1, 3))
    assert table.in_place(torch.float32) is None and table.in_place(torch.bfloat16) is not None


def test_a_row_that_can_not_be_coded_is_named():
    table = history_of(4, "8").table(0, torch.zeros(1, 3))
    with pytest.raises(KernelError, match=r"node 102 \(layer 1, epoch 3\) holds a value that is NaN"):
        table.keep(np.array([0, 2]), torch.tensor([[1.0, 2, 3], [1, float("nan"), 3]]), KEY)


@pytest.mark.parametrize("kind, found", [("stored", "where 6 of 3 are expected"), ("8", "its layout has 42")])
def test_rows_of_another_part_are_refused(kind, found):
    history = history_of(4, kind)
    history.table(0, torch.zeros(1, 3))
    with pytest.raises(KernelError, match=found):
        history_of(6, kind).restore(history.state(), CPU)


def test_rows_that_were_kept_in_another_way_are_refused():
    history = history_of(4, "8")
    history.table(0, torch.zeros(1, 3))
    with pytest.raises(KernelError, match="kept as 8bit, and this run keeps them as 4bit"):
        history_of(4, "4").restore(history.state(), CPU)
