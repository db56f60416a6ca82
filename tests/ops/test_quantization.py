"""Messages of rows of every storage against the oracle, byte for byte, and the contract of the codec."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import draws_of, encode_message, round_trip_each
from reference_quantization import encode_stored, narrow, receive_stored, rows_of_every_kind

from hpcgnn.errors import KernelError
from hpcgnn.ops.counter import BACKWARD, FORWARD, CounterKey
from hpcgnn.ops.dispatch import STORAGES
from hpcgnn.ops.quantization import MessageLayout, dequantize_rows, quantize_rows
from hpcgnn.widths import BIT_WIDTHS

DIMS = [1, 7, 41, 128, 129, 257]
KEY = CounterKey(seed=2**32 - 1, epoch=17, purpose=BACKWARD, layer=3, part=5)


def node_ids(num_rows):
    return np.random.default_rng(1).integers(0, 2**40, num_rows)


def send(rows, bit_width, node_id):
    """(layout, message) of all rows in order."""
    layout = MessageLayout.build(np.asarray(bit_width), rows.shape[1])
    message = np.full(layout.num_bytes, 0xAA, np.uint8)
    quantize_rows(rows, np.arange(len(rows), dtype=np.int32), node_id, layout, KEY, message)
    return layout, message


def receive(layout, message, dtype=torch.float32):
    rows, every = torch.full((layout.num_rows, layout.dim), torch.nan, dtype=dtype), np.arange(layout.num_rows)
    dequantize_rows(message, every.astype(np.int32), every, layout, rows)
    return rows


def stored_rows(dim, dtype):
    """Rows of kinds that every storage has; more than the kernel takes at a time."""
    rng = np.random.default_rng(0)
    scale, offset = [1, 0, 1e-6, 0.5, 1e-7, 3e4, 1e-3, 100, 1e-5, 0, 2], [0, 3.14159, -0.1, 20, 0, 0, -7, 0, 0, 0, 1]
    values = np.c_[offset] + np.c_[scale] * rng.uniform(-1, 1, (len(scale), dim))
    values[0, rng.integers(dim)] = -0.0
    return narrow(values.astype(np.float32), dtype)


def bytes_of(rows):
    return rows.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.covering(3)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("bits", BIT_WIDTHS)
@pytest.mark.parametrize("dtype", STORAGES)
def test_message_and_rows_received_equal_the_oracle(simd, dtype, bits, dim):
    rows = stored_rows(dim, dtype)
    node_id = node_ids(len(rows))
    draws = draws_of(node_id, dim, KEY.seed, KEY.epoch, KEY.stream)
    layout, message = send(rows, np.full(len(rows), bits), node_id)
    assert message.tobytes() == encode_stored(rows, bits, draws)
    order = np.random.default_rng(2).permutation(len(rows) + 3)[:len(rows)].astype(np.int32)
    for is_added in (False, True):
        received = narrow(np.random.default_rng(3).normal(size=(len(rows) + 3, dim)).astype(np.float32), dtype)
        expected = received.clone()
        expected[order] = receive_stored(rows, bits, draws, expected[order] if is_added else None)
        dequantize_rows(message, order, node_id, layout, received, is_added)
        assert bytes_of(received) == bytes_of(expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_of_16_bits_cross_as_they_stand_nan_and_infinity_too(simd, dtype):
    every = torch.arange(-2**15, 2**15, dtype=torch.int16).view(1, -1).view(dtype)
    layout, message = send(every, [16], np.zeros(1, np.int64))
    assert message.tobytes() == bytes_of(every) == bytes_of(receive(layout, message, dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_sum_is_rounded_once(simd, dtype):
    """1 plus half a unit in the last place is a tie and goes to even; a value above the tie goes up."""
    unit = torch.finfo(dtype).eps
    rows = torch.tensor([[unit / 2, unit / 2 + unit / 8]], dtype=torch.float32).to(dtype)
    layout, message = send(rows, [32], np.zeros(1, np.int64))
    target = torch.ones(1, 2, dtype=dtype)
    dequantize_rows(message, np.zeros(1, np.int32), np.zeros(1, np.int64), layout, target, accumulate=True)
    assert target.tolist() == [[1.0, 1.0 + unit]]


@pytest.mark.parametrize("dim", DIMS)
def test_rows_of_mixed_widths_share_a_message(simd, dim):
    rows = np.concatenate([rows_of_every_kind(dim, seed) for seed in range(5)])
    width, node_id = np.random.default_rng(dim).choice(BIT_WIDTHS, len(rows)), node_ids(len(rows))
    draws = draws_of(node_id, dim, KEY.seed, KEY.epoch, KEY.stream)
    layout, message = send(torch.from_numpy(rows), width, node_id)
    assert message.tobytes() == encode_message(rows, width, draws)
    np.testing.assert_array_equal(receive(layout, message), round_trip_each(rows, width, draws))


@pytest.mark.parametrize("dim", DIMS)
def test_payload_is_packed_to_the_byte_and_parameters_take_four(dim):
    for bits in BIT_WIDTHS:
        layout = MessageLayout.build(np.full(3, bits), dim)
        assert layout.payload_bytes == 3 * ((dim * bits + 7) // 8)
        assert layout.parameter_bytes == (12 if bits <= 8 else 0)
        assert layout.num_bytes == layout.payload_bytes + layout.parameter_bytes


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_the_top_of_a_row_never_wraps_to_its_bottom(simd, bits):
    """Rows of 0 and 2^b - 1 have step 1. In float32, 255 plus the largest draw is 256, which a byte holds as 0."""
    rows, node_id = np.full((4096, 64), 2**bits - 1, np.float32), np.arange(4096)
    rows[:, 0] = 0
    assert (draws_of(node_id, 64, KEY.seed, KEY.epoch, KEY.stream)[:, 1:] == 2**16 - 1).any()
    np.testing.assert_array_equal(receive(*send(torch.from_numpy(rows), np.full(4096, bits), node_id)), rows)


@pytest.mark.parametrize("num_rows, dim", [(0, 16), (3, 0), (0, 0)])
def test_an_empty_message_is_no_error(num_rows, dim):
    rows = np.empty((num_rows, dim), np.float32)
    layout, message = send(torch.from_numpy(rows), np.full(num_rows, 4), np.arange(num_rows))
    assert layout.payload_bytes == 0
    assert receive(layout, message).shape == (num_rows, dim)


@pytest.mark.covering
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("first_bad", [0, 7, 8, 30])
def test_the_first_row_without_a_code_is_refused_by_node_layer_and_epoch(simd, first_bad, bits, bad):
    """Wherever it lies in the rows that a kernel takes at a time."""
    rows = torch.ones(31, 129)
    rows[[first_bad, 30], 128] = bad
    with pytest.raises(KernelError, match=rf"node {100 + first_bad} \(layer 3, epoch 17\)"):
        send(rows, np.full(31, bits), 100 + np.arange(31))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_the_largest_range_that_is_accepted_stays_finite(simd, bits):
    largest = np.nextafter(np.float32(1.6e38), np.float32(0))
    rows, node_id = np.array([[-largest, 0, largest], [largest] * 3, [-largest] * 3], np.float32), np.arange(3)
    received = receive(*send(torch.from_numpy(rows), np.full(3, bits), node_id)).numpy()
    draws = draws_of(node_id, 3, KEY.seed, KEY.epoch, KEY.stream)
    assert np.isfinite(received).all()
    np.testing.assert_array_equal(received, round_trip_each(rows, np.full(3, bits), draws))


@pytest.mark.parametrize("bits", [16, 32])
def test_wide_rows_carry_nan_and_infinity(simd, bits):
    rows = np.array([[np.nan, np.inf, -np.inf, 1.0, np.finfo(np.float32).max]], np.float32)
    received = receive(*send(torch.from_numpy(rows), [bits], np.zeros(1, np.int64))).numpy()
    np.testing.assert_array_equal(received[0, :4], rows[0, :4])
    assert np.isfinite(received[0, 4])


def test_shapes_and_widths_that_disagree_are_refused():
    layout, key = MessageLayout.build([8, 8], 4), CounterKey(0, 0, FORWARD, 0)
    index, node_id, message = np.arange(2, dtype=np.int32), np.arange(2), np.empty(layout.num_bytes, np.uint8)
    rows = torch.zeros(2, 4)
    with pytest.raises(KernelError, match="bit-widths"):
        MessageLayout.build([3], 4)
    with pytest.raises(KernelError, match="4 columns"):
        quantize_rows(torch.zeros(2, 5), index, node_id, layout, key, message)
    with pytest.raises(KernelError, match="float64"):
        quantize_rows(rows.double(), index, node_id, layout, key, message)
    with pytest.raises(KernelError, match="contiguous"):
        quantize_rows(torch.zeros(4, 2).t(), index, node_id, layout, key, message)
    with pytest.raises(KernelError, match="2 rows"):
        quantize_rows(rows, index[:1], node_id, layout, key, message)
    with pytest.raises(KernelError, match="bytes"):
        dequantize_rows(message[:-1], index, node_id, layout, rows)
