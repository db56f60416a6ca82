"""Rows kept as codes for the backward pass, and activations that read them there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops import row_codes
from hpcgnn.ops.counter import DROPOUT, STORE, CounterKey
from hpcgnn.ops.pointwise import Activation
from hpcgnn.ops.row_codes import RowStore, StoredActivation, mask_by_signs, pack_signs

DROP = CounterKey(5, 0, DROPOUT, 0)


def rows_of(num_rows, dim, dtype=torch.float32):
    return torch.from_numpy(np.random.default_rng(dim).normal(size=(num_rows, dim)).astype(np.float32)).to(dtype)


def store_of(rows, bit_width, epoch=0):
    node_id = 1000 + 7 * np.arange(len(rows), dtype=np.int64)
    return RowStore(bit_width, CounterKey(3, epoch, STORE, 2), node_id, rows.shape[1], rows.dtype)


def coded(rows, bit_width, epoch=0):
    store = store_of(rows, bit_width, epoch)
    return torch.cat([values.clone() for _, values in store.decode(store.encode(rows))])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bit_width", [1, 2, 4, 8])
def test_decoded_rows_are_off_by_less_than_a_step(bit_width, dtype):
    rows = rows_of(33, 41, dtype)
    steps = (rows.float().amax(1) - rows.float().amin(1)) / (2 ** bit_width - 1)
    error = (coded(rows, bit_width).float() - rows.float()).abs().amax(1)
    # The bfloat16 parameters widen a step by up to 2**-7, and a 16-bit row is rounded once more.
    assert (error <= steps * 1.02 + 0.03).all() and error.max() > 0
    assert torch.equal(coded(torch.full((2, 9), 0.5, dtype=dtype), bit_width), torch.full((2, 9), 0.5, dtype=dtype))


def test_the_mean_of_decoded_rows_is_the_rows():
    """Rounding has a deviation of at most half a step: 400 epochs, within 5 of the mean's (each 1 - 6e-7)."""
    rows = rows_of(6, 20)
    mean = torch.stack([coded(rows, 2, epoch) for epoch in range(400)]).mean(0)
    steps = (rows.amax(1, keepdim=True) - rows.amin(1, keepdim=True)) / 3 * 1.02
    assert ((mean - rows).abs() < 5 * steps / 2 / 400 ** 0.5 + 1e-4).all()


def test_blocks_change_no_value(monkeypatch):
    rows = rows_of(23, 17)
    whole = coded(rows, 4)
    monkeypatch.setattr(row_codes, "ROWS_A_BLOCK", 5)
    assert torch.equal(coded(rows, 4), whole)
    store = store_of(rows, 4)
    assert len(store.encode(rows)) == 23 * (4 + 9)       # zero_point and step, and 17 columns of 4 bits


@pytest.mark.parametrize("num_rows, dim", [(0, 5), (4, 1), (4, 7), (4, 8), (4, 9), (4, 33)])
def test_signs_tell_what_is_not_0(num_rows, dim):
    rows = torch.relu(rows_of(num_rows, dim))
    signs = pack_signs(rows)
    assert signs.shape == (num_rows, -(-dim // 8)) and signs.dtype == torch.uint8
    values = rows_of(num_rows, dim, torch.bfloat16) + 3
    assert torch.equal(mask_by_signs(values, signs), torch.where(rows != 0, values, 0))


def test_what_can_not_be_kept_is_told():
    rows = rows_of(3, 4)
    with pytest.raises(KernelError, match=r"bit-width of .* found 16"):
        store_of(rows, 16)
    rows[1, 2] = float("nan")
    with pytest.raises(KernelError, match=r"node 1007 \(layer 2, epoch 6\)"):
        store_of(rows, 4, epoch=6).encode(rows)


def gradients(rows, probability, norm, store, gradient):
    """Of rows, weight and bias; norm is a dimension or None."""
    scale = (None, None) if norm is None else (torch.linspace(0.5, 2, norm), torch.linspace(-1, 1, norm))
    activation = Activation.of(rows, probability, np.arange(len(rows)), DROP, *scale)
    if store is not None:
        activation = StoredActivation(activation, store)
    (out, kept), of_rows = activation.forward(rows.clone()), gradient.clone()
    of_norm = activation.backward(of_rows, kept, of_rows)
    return out, [values for values in (of_rows, *of_norm) if values is not None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("probability", [0.0, 0.3, 0.5])
def test_without_a_normalization_the_gradient_is_exact_at_any_width(dtype, probability):
    rows, gradient = rows_of(30, 21, dtype), rows_of(30, 21, dtype) + 1
    expected, (exact,) = gradients(rows, probability, None, None, gradient)
    out, (found,) = gradients(rows, probability, None, store_of(rows, 2), gradient)
    assert torch.equal(out, expected)
    torch.testing.assert_close(found, exact, rtol=2 ** -8 if dtype == torch.bfloat16 else 1e-6, atol=0)


@pytest.mark.parametrize("dim", [1, 24, 131])
def test_a_normalizations_gradients_are_those_of_the_rows_but_for_rounding(dim):
    rows, gradient = rows_of(200, dim), rows_of(200, dim) + 0.5
    expected, exact = gradients(rows, 0.5, dim, None, gradient)
    found = {}
    for bit_width in (4, 8):
        trials = [gradients(rows, 0.5, dim, store_of(rows, bit_width, epoch), gradient) for epoch in range(30)]
        assert all(torch.equal(out, expected) for out, _ in trials)
        found[bit_width] = [torch.stack(one) for one in zip(*(made for _, made in trials), strict=True)]
    for of_four, of_eight, of_rows in zip(found[4], found[8], exact, strict=True):
        norm = of_rows.norm() + 1e-6
        assert (of_eight[0] - of_rows).norm() < 0.02 * norm       # a step is a 255th of the range
        one, mean = (of_four[0] - of_rows).norm(), (of_four.mean(0) - of_rows).norm()
        assert one < 0.3 * norm and mean < 0.45 * one + 1e-6 * norm   # 30 epochs: independent errors leave 0.18
    assert torch.equal(found[4][-1][0], exact[-1])                # the bias's needs no codes
