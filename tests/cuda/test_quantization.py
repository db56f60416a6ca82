"""Messages of the device against the host's, byte for byte, and what is read back from them, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import reference_quantization as reference
import torch
from reference import draws_of

import hpcgnn.ops.cuda.quantization as device_side
import hpcgnn.ops.quantization as host_side
from hpcgnn.ops.counter import BACKWARD, CounterKey
from hpcgnn.ops.dispatch import STORAGES
from hpcgnn.ops.quantization import MessageLayout
from hpcgnn.widths import BIT_WIDTHS

DIMS = [1, 3, 7, 16, 33, 100, 128]
KEY = CounterKey(seed=2**32 - 1, epoch=17, purpose=BACKWARD, layer=3, part=5)
CODED = [bits for bits in BIT_WIDTHS if bits <= 8]


def rows_of_every_kind(dim, dtype, seed=0):
    """Also zeros of either sign."""
    rows = torch.from_numpy(reference.rows_of_every_kind(dim, seed))
    rows[10] = torch.where(rows[10] < -30, -0.0, 0.0)
    return rows.clamp(-6e4, 6e4).half() if dtype == torch.float16 else rows.to(dtype)


def node_ids(num_rows):
    return np.random.default_rng(1).integers(0, 2**40, num_rows)


def host_message(rows, index, node_id, layout, is_nearest):
    message = np.full(layout.num_bytes, 0xAA, np.uint8)
    assert host_side._quantize_rows.host(rows, index, node_id, layout, KEY, message, is_nearest) == -1
    return message


def device_message(rows, index, node_id, layout, is_nearest, device, shift=0):
    """The message, written `shift` bytes behind the start of a buffer."""
    buffer = torch.full((layout.num_bytes + shift,), 0xAA, dtype=torch.uint8, device=device)
    bad = device_side.quantize_rows(rows.to(device), index, node_id, layout, KEY, buffer[shift:], is_nearest)
    assert bad == -1
    return buffer[shift:]


def assert_crosses_alike(rows, width, is_nearest, device, shift=0, index=None, code="affine"):
    """Gathered rows become the host's bytes, and those the host's rows, assigned and added."""
    rng = np.random.default_rng(7)
    num, dim = len(width), rows.shape[1]
    layout, node_id = MessageLayout.build(width, dim, code), node_ids(num)
    index = (rng.integers(0, len(rows), num) if index is None else index).astype(np.int32)
    expected = host_message(rows, index, node_id, layout, is_nearest)
    message = device_message(rows, index, node_id, layout, is_nearest, device, shift)
    assert message.cpu().numpy().tobytes() == expected.tobytes()
    target = rng.permutation(num + 3)[:num].astype(np.int32)
    for is_added in (False, True):
        before = torch.from_numpy(rng.normal(size=(num + 3, dim)).astype(np.float32)).to(rows.dtype)
        received, wanted = before.to(device, copy=True), before.clone()
        device_side.dequantize_rows(message, target, node_id, layout, received, is_added, KEY)
        host_side._dequantize_rows.host(expected, target, node_id, layout, wanted, is_added, KEY)
        assert torch.equal(received.cpu().view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.covering(3)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("bits", BIT_WIDTHS)
@pytest.mark.parametrize("is_nearest", [False, True])
@pytest.mark.parametrize("dtype", STORAGES)
def test_bytes_and_rows_equal_the_hosts(device, dtype, is_nearest, bits, dim):
    rows = rows_of_every_kind(dim, dtype)
    assert_crosses_alike(rows, np.full(len(rows), bits), is_nearest, device)


@pytest.mark.covering
@pytest.mark.parametrize("dim", [1, 7, 33, 128, 260])
@pytest.mark.parametrize("is_nearest", [False, True])
@pytest.mark.parametrize("dtype", STORAGES)
def test_rows_of_mixed_widths_share_a_message(device, dtype, is_nearest, dim):
    rows = torch.cat([rows_of_every_kind(dim, dtype, seed) for seed in range(3)])
    assert_crosses_alike(rows, np.random.default_rng(dim).choice(BIT_WIDTHS, 50), is_nearest, device)


@pytest.mark.covering
@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("dtype", STORAGES)
def test_a_message_may_begin_at_any_byte(device, dtype, shift):
    rows = rows_of_every_kind(24, dtype)
    for is_nearest in (False, True):
        assert_crosses_alike(rows, np.tile(BIT_WIDTHS, 2), is_nearest, device, shift)


@pytest.mark.parametrize("bits", CODED)
def test_rows_of_many_scales_equal_the_hosts(device, bits):
    """Parameters to the nearest are sums, whose order shows in their last bit where scales are many."""
    rng = np.random.default_rng(bits)
    rows = (rng.normal(size=(60, 77)) ** 3 * 10.0 ** rng.integers(-6, 6, (60, 1))).astype(np.float32)
    for is_nearest in (False, True):
        assert_crosses_alike(torch.from_numpy(rows), np.full(60, bits), is_nearest, device)


@pytest.mark.parametrize("bits", CODED)
def test_values_where_a_rounding_turns_equal_the_hosts(device, bits):
    """A step just above a bfloat16, steps halfway between two, and values that the draw just lifts to the next code."""
    unit = 2.0**-8
    rows = np.zeros((4, 16), np.float32)
    rows[0] = np.linspace(-1, 0, 16)
    rows[0, 3] = 1e-9
    rows[1], rows[2] = np.arange(16) % 4 * (1 + unit), np.arange(16) % 4 * (1 + 3 * unit)
    draws = draws_of(node_ids(4), 16, KEY.seed, KEY.epoch, KEY.stream)
    rows[3] = 1 - (draws[3] + 0.5) / 2**16
    rows[3, :2] = 0, 2**bits - 1
    for is_nearest in (False, True):
        assert_crosses_alike(torch.from_numpy(rows), np.full(4, bits), is_nearest, device, index=np.arange(4))


@pytest.mark.covering
@pytest.mark.parametrize("is_nearest", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("bits", CODED)
def test_the_first_row_without_a_code_is_reported(device, bits, bad, is_nearest):
    """As the host reports it, whichever of two bad rows a block meets first."""
    rows = rows_of_every_kind(33, torch.float32)
    rows[3, 32], rows[7, 0] = bad, np.nan
    index, layout = np.arange(11, -1, -1, dtype=np.int32), MessageLayout.build(np.full(12, bits), 33)
    message = torch.zeros(layout.num_bytes, dtype=torch.uint8, device=device)
    found = device_side.quantize_rows(rows.to(device), index, node_ids(12), layout, KEY, message, is_nearest)
    expected = host_side._quantize_rows.host(rows, index, node_ids(12), layout, KEY, message.cpu().numpy().copy(),
                                       is_nearest)
    assert found == expected == 4


@pytest.mark.covering
@pytest.mark.parametrize("is_nearest", [False, True])
@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("dtype", STORAGES)
def test_wide_rows_carry_nan_and_infinity_as_the_host_does(device, dtype, bits, is_nearest):
    largest = torch.tensor([0x7f7f, 0x7f7e, -0x81, -0x82], dtype=torch.int16)    # of bfloat16, and what precedes it
    every = torch.cat([torch.arange(-2**15, 2**15, 7, dtype=torch.int16), largest]).view(1, -1)
    rows = every.view(dtype) if dtype.itemsize == 2 else (every.int() << 16 | 0xffff).view(dtype)
    layout, index = MessageLayout.build([bits], rows.shape[1]), np.zeros(1, np.int32)
    expected = host_message(rows, index, node_ids(1), layout, is_nearest)
    message = device_message(rows, index, node_ids(1), layout, is_nearest, device)
    assert message.cpu().numpy().tobytes() == expected.tobytes()
    received, wanted = torch.zeros_like(rows).to(device), torch.zeros_like(rows)
    device_side.dequantize_rows(message, index, node_ids(1), layout, received, False)
    host_side._dequantize_rows.host(expected, index, node_ids(1), layout, wanted, False)
    assert torch.equal(received.cpu().view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.parametrize("dim, lanes", [(1, 1), (8, 1), (9, 2), (16, 2), (33, 8), (128, 16), (129, 32), (5000, 32)])
def test_a_row_has_the_lanes_that_take_it_at_once(dim, lanes):
    assert device_side.lanes_a_row(dim) == lanes


@pytest.mark.parametrize("num_rows", [1, 7, 8, 9, 255, 256, 257, 10**9])
@pytest.mark.parametrize("lanes", [1, 2, 16, 32])
def test_blocks_hold_every_row_and_no_block_is_idle(num_rows, lanes):
    rows_in_blocks = device_side.num_blocks(num_rows, lanes) * device_side.BLOCK_THREADS // lanes
    assert num_rows <= rows_in_blocks < num_rows + device_side.BLOCK_THREADS // lanes
