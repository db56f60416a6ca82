"""Messages of rows stored in float32, bfloat16 and float16 against the oracle, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import draws_of
from reference_quantization import encode_stored, narrow, receive_stored

from hpcgnn.errors import KernelError
from hpcgnn.ops.counter import FORWARD, CounterKey
from hpcgnn.ops.dispatch import STORAGES
from hpcgnn.ops.quantization import MessageLayout, dequantize_rows, quantize_rows
from hpcgnn.widths import BIT_WIDTHS

DIMS = [1, 7, 41, 128, 257]
KEY = CounterKey(seed=3, epoch=2**32 - 1, purpose=FORWARD, layer=1, part=2)
NUM_ROWS = 11    # more than the kernel takes at a time
NODE_ID = np.random.default_rng(1).integers(0, 2**40, NUM_ROWS)


def stored_rows(dim, dtype, seed=0):
    """Ordinary, constant, tiny-range, offset, subnormal and large rows, as far as the storage has such values."""
    rng = np.random.default_rng(seed)
    scale = np.array([1, 0, 1e-6, 0.5, 1e-7, 3e4, 1e-3, 100, 1e-5, 0, 2])
    offset = np.array([0, 3.14159, -0.1, 20, 0, 0, -7, 0, 0, 0, 1])
    values = (offset[:, None] + scale[:, None] * rng.uniform(-1, 1, (NUM_ROWS, dim))).astype(np.float32)
    values[0, rng.integers(dim)] = -0.0
    return narrow(values, dtype)


def bytes_of(rows):
    return rows.contiguous().view(torch.uint8).numpy().tobytes()


def send_stored(rows, bits):
    layout = MessageLayout.build(np.full(len(rows), bits), rows.shape[1])
    message = np.full(layout.num_bytes, 0xAA, np.uint8)
    quantize_rows(rows, np.arange(len(rows), dtype=np.int32), NODE_ID[:len(rows)], layout, KEY, message)
    return layout, message


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("bits", BIT_WIDTHS)
@pytest.mark.parametrize("dtype", STORAGES)
def test_message_and_rows_received_equal_the_oracle(simd, dtype, bits, dim):
    rows = stored_rows(dim, dtype)
    draws = draws_of(NODE_ID, dim, KEY.seed, KEY.epoch, KEY.stream)
    layout, message = send_stored(rows, bits)
    assert message.tobytes() == encode_stored(rows, bits, draws)
    order = np.random.default_rng(2).permutation(NUM_ROWS + 3)[:NUM_ROWS].astype(np.int32)
    for is_added in (False, True):
        received = narrow(np.random.default_rng(3).normal(size=(NUM_ROWS + 3, dim)).astype(np.float32), dtype)
        expected = received.clone()
        expected[order] = receive_stored(rows, bits, draws, expected[order] if is_added else None)
        dequantize_rows(message, order, NODE_ID, layout, received, is_added)
        assert bytes_of(received) == bytes_of(expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_of_16_bits_cross_as_they_stand_nan_and_infinity_too(simd, dtype):
    every = torch.arange(-2**15, 2**15, dtype=torch.int16).view(1, -1).view(dtype)
    layout, message = send_stored(every, 16)
    received = torch.zeros_like(every)
    dequantize_rows(message, np.zeros(1, np.int32), NODE_ID[:1], layout, received)
    assert message.tobytes() == bytes_of(every) == bytes_of(received)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_sum_is_rounded_once(simd, dtype):
    """1 plus half a unit in the last place is a tie and goes to even; a value above the tie goes up."""
    unit = torch.finfo(dtype).eps
    rows = torch.tensor([[unit / 2, unit / 2 + unit / 8]], dtype=torch.float32).to(dtype)
    layout = MessageLayout.build([32], 2)
    message = np.empty(layout.num_bytes, np.uint8)
    index, node_id = np.zeros(1, np.int32), np.zeros(1, np.int64)
    quantize_rows(rows, index, node_id, layout, KEY, message)
    target = torch.ones(1, 2, dtype=dtype)
    dequantize_rows(message, index, node_id, layout, target, accumulate=True)
    assert target.tolist() == [[1.0, 1.0 + unit]]


def test_every_block_of_rows_reports_its_first_row_without_a_code(simd):
    """The position is the least of all, wherever it lies in the rows that a kernel takes at a time."""
    for first_bad in (0, 7, 8, 30):
        rows = torch.ones(31, 9)
        rows[[first_bad, 30], 5] = torch.nan
        layout = MessageLayout.build(np.full(31, 2), 9)
        with pytest.raises(KernelError, match=f"node {100 + first_bad} "):
            quantize_rows(rows, np.arange(31, dtype=np.int32), 100 + np.arange(31), layout, KEY,
                          np.empty(layout.num_bytes, np.uint8))
