"""Rounding to the nearest, for messages that carry a difference: bytes against the oracle, and contraction."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import bf16_value
from reference_quantization import encode_nearest, narrow, receive_nearest, rows_of_every_kind, widen

from hpcgnn.errors import KernelError
from hpcgnn.ops.counter import FORWARD, CounterKey
from hpcgnn.ops.dispatch import STORAGES
from hpcgnn.ops.quantization import MessageLayout, dequantize_rows, parameters_of, quantize_rows
from hpcgnn.widths import BIT_WIDTHS

DIMS = [1, 7, 41, 128, 257]
CODED = [1, 2, 4, 8]
KEY = CounterKey(seed=3, epoch=5, purpose=FORWARD, layer=1, part=2)


def adversarial_rows(dim):
    """One-hot, alternating, heavy-tailed, constant, antisymmetric outliers, geometric, denormal and huge rows."""
    rng = np.random.default_rng(dim)
    one_hot, pair = np.zeros((2, dim))
    one_hot[dim // 2] = 1.003
    pair[0], pair[-1] = 1, -1
    rows = [one_hot, -one_hot, pair, np.where(np.arange(dim) % 2, -1.7, 1.3), rng.standard_cauchy(dim),
            np.full(dim, -20.37), 3.0 ** -np.arange(dim).clip(max=60), rng.normal(size=dim) * 1e-40,
            rng.uniform(-1.5e38, 1.5e38, dim), 20 + 1e-6 * rng.normal(size=dim)]
    return np.array(rows, np.float32)


def send_nearest(rows, bits):
    layout = MessageLayout.build(np.full(len(rows), bits), rows.shape[1])
    message = np.full(layout.num_bytes, 0xAA, np.uint8)
    every = np.arange(len(rows))
    quantize_rows(rows, every.astype(np.int32), every, layout, KEY, message, "nearest")
    return layout, message


def add_difference(row, reference, bits):
    """One predictive message: the quantized difference of `row` from `reference` is added to it, in place."""
    layout, message = send_nearest(torch.from_numpy(row - reference.numpy()), bits)
    every = np.arange(len(row))
    dequantize_rows(message, every.astype(np.int32), every, layout, reference, accumulate=True)


def energy(rows):
    return (rows.astype(np.float64) ** 2).sum(axis=1)


@pytest.mark.covering
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("bits", [*CODED, 16])
@pytest.mark.parametrize("dtype", STORAGES)
def test_message_equals_the_oracle(simd, dtype, bits, dim):
    for rows in (narrow(rows_of_every_kind(dim), torch.float32), torch.from_numpy(adversarial_rows(dim))):
        values = rows if dtype != torch.float16 else rows.clamp(-6e4, 6e4)
        stored = narrow(values.numpy(), dtype)
        assert send_nearest(stored, bits)[1].tobytes() == encode_nearest(stored, bits)


@pytest.mark.parametrize("bits", CODED)
def test_rows_received_equal_the_oracle(simd, bits):
    rows = rows_of_every_kind(129)
    received = torch.zeros(rows.shape)
    add_difference(rows, received, bits)
    np.testing.assert_array_equal(received.numpy(), receive_nearest(rows, bits))


def test_full_width_loses_nothing(simd):
    rows = torch.from_numpy(rows_of_every_kind(41))
    assert send_nearest(rows, 32)[1].tobytes() == rows.numpy().tobytes()


def test_error_of_gaussian_rows_is_contractive_and_falls_with_the_width(simd):
    rows = np.random.default_rng(0).normal(size=(200, 256)).astype(np.float32)
    left = []
    for bits in CODED:
        received = torch.zeros(rows.shape)
        add_difference(rows, received, bits)
        left.append((energy(rows - received.numpy()) / energy(rows)).max())
    assert all(found < bound for found, bound in zip(left, (0.5, 0.32, 0.03, 1e-4), strict=True))


@pytest.mark.covering
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("bits", CODED)
def test_differences_of_an_adversarial_row_never_diverge(simd, bits, dim):
    """Up to what bfloat16 can't represent, the error never passes the row and has faded after 300 messages."""
    rows = adversarial_rows(dim)
    reference, smallest = torch.zeros(rows.shape), dim * 1e-76   # a step of the denormal bfloat16, squared
    largest = energy(rows)
    for _ in range(300):
        add_difference(rows, reference, bits)
        left = energy(rows - reference.numpy())
        assert (left <= np.maximum(largest, smallest)).all()
    assert (left <= np.maximum(1e-8 * largest, smallest)).all()


@pytest.mark.parametrize("bits", CODED)
def test_a_constant_row_is_exact_to_the_rounding_of_its_parameters(simd, bits):
    values = np.array([0, -0.0, 1, -0.1, 3.14159, 1e38, -1.59e38, 1e-30], np.float32)
    rows = np.repeat(values[:, None], 41, axis=1)
    received = torch.zeros(rows.shape)
    add_difference(rows, received, bits)
    assert (np.abs(received.numpy() - rows) <= 2.0**-14 * np.abs(rows)).all()
    assert (received.numpy()[:3] == rows[:3]).all()


@pytest.mark.parametrize("bits", CODED)
def test_steps_are_finite_and_not_negative_and_the_message_needs_no_draws(simd, bits):
    for rows in (rows_of_every_kind(257), adversarial_rows(257)):
        layout, message = send_nearest(torch.from_numpy(rows), bits)
        zero_point, step = parameters_of(message, layout)
        assert np.isfinite(zero_point).all() and np.isfinite(step).all() and not np.signbit(step).any()
        other, every = np.empty_like(message), np.arange(len(rows))
        quantize_rows(torch.from_numpy(rows), every.astype(np.int32), every + 77, layout,
                      CounterKey(seed=9, epoch=8, purpose=FORWARD, layer=1), other, "nearest")
        np.testing.assert_array_equal(message, other)


def test_16_bits_carry_nan_and_infinity(simd):
    rows = torch.tensor([[torch.nan, torch.inf, -torch.inf, 1.00390625, 1.01171875]])
    received = bf16_value(send_nearest(rows, 16)[1].view(np.uint16))
    np.testing.assert_array_equal(received, [np.nan, np.inf, -np.inf, 1.0, 1.015625])    # ties to even


@pytest.mark.covering
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("bits", CODED)
def test_the_first_row_without_a_code_is_refused_by_its_node(simd, bits, bad):
    rows = torch.ones(21, 41)
    rows[[9, 17], 40] = bad
    with pytest.raises(KernelError, match=r"node 9 \(layer 1, epoch 5\)"):
        send_nearest(rows, bits)


def test_an_unknown_rounding_is_refused():
    layout = MessageLayout.build(np.array([4]), 8)
    with pytest.raises(KernelError, match="found 'up'"):
        quantize_rows(torch.ones(1, 8), np.zeros(1, np.int32), np.zeros(1, np.int64), layout, KEY,
                      np.empty(layout.num_bytes, np.uint8), "up")


@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
def test_parameters_read_back_span_the_rows(rounding):
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 33)).astype(np.float32))
    width = np.random.default_rng(1).choice(BIT_WIDTHS, 60)
    layout, every = MessageLayout.build(width, 33), np.arange(60)
    message = np.empty(layout.num_bytes, np.uint8)
    quantize_rows(rows, every.astype(np.int32), every, layout, KEY, message, rounding)
    zero_point, step = parameters_of(message, layout)
    assert zero_point.dtype == step.dtype == np.float32 and zero_point.shape == step.shape == (60,)
    has_range = width <= 8 if rounding == "stochastic" else width == 8
    low, high = widen(rows).min(axis=1), widen(rows).max(axis=1)
    found = step * (2.0**width - 1)
    assert (zero_point <= low)[has_range].all() and (low - zero_point <= 2.0**-7 * np.abs(low))[has_range].all()
    # The zero point is cut by up to 2^-7 of the least value, the step grows by as much.
    assert (found >= high - low)[has_range].all() and (found <= 1.03 * (high - low))[has_range].all()
    assert (step[width > 8] == 0).all() and (zero_point[width > 8] == 0).all()
    is_fitted = (width <= 8) & ~has_range
    assert (step[is_fitted] > 0).all() and (found < 1.03 * (high - low))[is_fitted].all()


def test_parameters_of_no_rows_are_empty_and_a_short_message_is_refused():
    layout = MessageLayout.build(np.empty(0, np.uint8), 5)
    assert [len(values) for values in parameters_of(np.empty(0, np.uint8), layout)] == [0, 0]
    with pytest.raises(KernelError, match="needs 9 bytes, its buffer has 8"):
        parameters_of(np.empty(8, np.uint8), MessageLayout.build(np.array([8]), 5))
