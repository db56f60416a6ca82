"""Messages against the oracle, byte for byte, and the contract of the codec."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import draws_of, encode_message, round_trip_each
from reference_quantization import rows_of_every_kind

from hpcgnn.errors import KernelError
from hpcgnn.ops.counter import BACKWARD, FORWARD, CounterKey
from hpcgnn.ops.quantization import MessageLayout, dequantize_rows, quantize_rows
from hpcgnn.widths import BIT_WIDTHS

DIMS = [1, 7, 41, 128, 129, 257]
KEY = CounterKey(seed=2**32 - 1, epoch=17, purpose=BACKWARD, layer=3, part=5)


def node_ids(num_rows):
    return np.random.default_rng(1).integers(0, 2**40, num_rows)


@pytest.mark.parametrize("dim", DIMS)
def test_rows_of_mixed_widths_share_a_message(simd, send, receive, dim):
    rows = np.concatenate([rows_of_every_kind(dim, seed) for seed in range(5)])
    width, node_id = np.random.default_rng(dim).choice(BIT_WIDTHS, len(rows)), node_ids(len(rows))
    draws = draws_of(node_id, dim, KEY.seed, KEY.epoch, KEY.stream)
    layout, message = send(rows, width, node_id, KEY)
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
def test_the_top_of_a_row_never_wraps_to_its_bottom(simd, send, receive, bits):
    """Rows of 0 and 2^b - 1 have step 1. In float32, 255 plus the largest draw is 256, which a byte holds as 0."""
    rows, node_id = np.full((4096, 64), 2**bits - 1, np.float32), np.arange(4096)
    rows[:, 0] = 0
    assert (draws_of(node_id, 64, KEY.seed, KEY.epoch, KEY.stream)[:, 1:] == 2**16 - 1).any()
    np.testing.assert_array_equal(receive(*send(rows, np.full(4096, bits), node_id, KEY)), rows)


@pytest.mark.parametrize("num_rows, dim", [(0, 16), (3, 0), (0, 0)])
def test_an_empty_message_is_no_error(send, receive, num_rows, dim):
    rows = np.empty((num_rows, dim), np.float32)
    layout, message = send(rows, np.full(num_rows, 4), np.arange(num_rows), KEY)
    assert layout.payload_bytes == 0
    assert receive(layout, message).shape == (num_rows, dim)


@pytest.mark.covering
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_a_value_that_has_no_code_is_refused_by_node_layer_and_epoch(simd, send, bits, bad):
    rows, node_id = rows_of_every_kind(129), 100 + np.arange(12)
    rows[6, 128] = bad
    with pytest.raises(KernelError, match=r"node 106 \(layer 3, epoch 17\)"):
        send(rows, np.full(12, bits), node_id, KEY)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_the_largest_range_that_is_accepted_stays_finite(simd, send, receive, bits):
    largest = np.nextafter(np.float32(1.6e38), np.float32(0))
    rows, node_id = np.array([[-largest, 0, largest], [largest] * 3, [-largest] * 3], np.float32), np.arange(3)
    received = receive(*send(rows, np.full(3, bits), node_id, KEY))
    draws = draws_of(node_id, 3, KEY.seed, KEY.epoch, KEY.stream)
    assert np.isfinite(received).all()
    np.testing.assert_array_equal(received, round_trip_each(rows, np.full(3, bits), draws))


@pytest.mark.parametrize("bits", [16, 32])
def test_wide_rows_carry_nan_and_infinity(simd, send, receive, bits):
    rows = np.array([[np.nan, np.inf, -np.inf, 1.0, np.finfo(np.float32).max]], np.float32)
    received = receive(*send(rows, [bits], np.zeros(1, np.int64), KEY))
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
