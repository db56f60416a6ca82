"""Rotated messages of the device against the host's, byte for byte and bit for bit, and how it holds their rows."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from covering import long_but
from cuda.test_quantization import CODED, KEY, assert_crosses_alike, device_message, host_message, rows_of_every_kind

import hpcgnn.ops.cuda.quantization as device_side
from hpcgnn.ops.cuda import rotation
from hpcgnn.ops.cuda.module import STATIC_SHARED_BYTES
from hpcgnn.ops.cuda.rotation import MOST_SCRATCH_ROWS, RotationShape
from hpcgnn.ops.dispatch import STORAGES
from hpcgnn.ops.quantization import MessageLayout
from hpcgnn.widths import BIT_WIDTHS

DIMS = [1, 2, 3, 7, 16, 31, 33, 64, 100, 128, 300, 512]
WIDE_DIMS = [1000, 1024, 1433]
EVERY_KIND = [1, 2, 15, 16, 17, 100, 128, 511, 512, 600, 1023, 1024, 1025, 2000, 12256, 12257, 20000, 32768]
assert_crosses = partial(assert_crosses_alike, code="rotated")


def rows_of_most_kinds(dim, dtype, seed=0):
    """As `rows_of_every_kind`, with sums of 1,024 columns in reach of float32: a receiver adds before it scales."""
    rows = rows_of_every_kind(dim, dtype, seed)
    rows[7] *= 2.0**-14
    return rows


@pytest.mark.covering
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("bits", CODED)
@pytest.mark.parametrize("is_nearest", [False, True])
@pytest.mark.parametrize("dtype", STORAGES)
def test_bytes_and_rows_equal_the_hosts(device, dtype, is_nearest, bits, dim):
    rows = rows_of_most_kinds(dim, dtype)
    assert_crosses(rows, np.full(len(rows), bits), is_nearest, device)


@pytest.mark.covering
@pytest.mark.parametrize("dim", WIDE_DIMS)
@pytest.mark.parametrize("is_nearest", [False, True])
@pytest.mark.parametrize("dtype", STORAGES)
def test_rows_of_many_passes_equal_the_hosts(device, dtype, is_nearest, dim):
    rows = rows_of_most_kinds(dim, dtype)[[0, 3, 7, 11]]
    assert_crosses(rows, np.array(CODED), is_nearest, device)


@pytest.mark.parametrize("dim", long_but((0,), [12257, 32768]))
def test_rows_beyond_shared_memory_take_turns_in_scratch(device, dim, monkeypatch):
    """Nine rows, of which the lanes of a block hold eight at a time."""
    monkeypatch.setattr(rotation, "MOST_SCRATCH_ROWS", 8)
    rows = torch.from_numpy(np.random.default_rng(dim).normal(size=(9, dim)).astype(np.float32))
    assert_crosses(rows, np.resize(CODED, 9), False, device)


@pytest.mark.parametrize("bits", long_but((0, len(CODED) - 1), CODED))
def test_rows_of_many_scales_equal_the_hosts(device, bits):
    rng = np.random.default_rng(bits)
    rows = (rng.normal(size=(24, 77)) ** 3 * 10.0 ** rng.integers(-36, 34, (24, 1))).astype(np.float32)
    for is_nearest in (False, True):
        assert_crosses(torch.from_numpy(rows), np.full(24, bits), is_nearest, device)


@pytest.mark.parametrize("bits", CODED)
def test_the_largest_rows_are_coded(device, bits):
    """Their norms are beyond float32, those of their units are not; their steps stay finite."""
    rng = np.random.default_rng(bits)
    rows = np.full((4, 100), 1.6e38, np.float32) * np.sign(rng.normal(size=(4, 100))).astype(np.float32)
    rows[2:] *= rng.uniform(size=(2, 100)).astype(np.float32)
    layout = MessageLayout.build([bits] * 4, 100, "rotated")
    sent = torch.from_numpy(rows), np.arange(4, dtype=np.int32), np.arange(4), layout
    for is_nearest in (False, True):
        message = device_message(*sent, is_nearest, device)
        assert message.cpu().numpy().tobytes() == host_message(*sent, is_nearest).tobytes()


@pytest.mark.covering
@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("dim", [24, 260])
@pytest.mark.parametrize("dtype", STORAGES)
def test_a_message_of_mixed_widths_may_begin_at_any_byte(device, dtype, dim, shift):
    rows = rows_of_most_kinds(dim, dtype)
    for is_nearest in (False, True):
        assert_crosses(rows, np.resize(CODED, len(rows)), is_nearest, device, shift)


@pytest.mark.covering
@pytest.mark.parametrize("is_nearest", [False, True])
@pytest.mark.parametrize("is_added", [False, True])
@pytest.mark.parametrize("dtype", STORAGES)
def test_wide_rows_beside_rotated_ones_are_those_of_an_affine_message(device, dtype, is_added, is_nearest):
    rows, width, index = rows_of_every_kind(33, dtype), np.tile(BIT_WIDTHS, 2), np.arange(12, dtype=np.int32)
    node_id, is_wide = np.arange(12) + 2**33, width > 8
    received, payloads = [], []
    for code in ("affine", "rotated"):
        layout = MessageLayout.build(width, 33, code)
        message = device_message(rows, index, node_id, layout, is_nearest, device)
        table = rows.flip(0).to(device, copy=True)
        device_side.dequantize_rows(message, index, node_id, layout, table, is_added, KEY)
        received.append(table.cpu()[is_wide].view(torch.uint8))
        ends = layout.payload_offset + (width.astype(int) * 33 + 7) // 8
        payloads.append([message.cpu()[first:end].tolist()
                         for first, end in zip(layout.payload_offset[is_wide], ends[is_wide], strict=True)])
    assert torch.equal(*received) and payloads[0] == payloads[1]


@pytest.mark.parametrize("bits", CODED)
@pytest.mark.parametrize("dtype", STORAGES)
def test_a_message_of_ones_is_nan_in_every_column(device, dtype, bits):
    """So a device says that gradients in float16 have overflowed."""
    layout, index = MessageLayout.build([bits, bits], 100, "rotated"), np.arange(2, dtype=np.int32)
    message = torch.full((layout.num_bytes,), 0xFF, dtype=torch.uint8, device=device)
    received = torch.ones(2, 100, dtype=dtype, device=device)
    device_side.dequantize_rows(message, index, index.astype(np.int64), layout, received, True, KEY)
    assert received.isnan().all()


@pytest.mark.covering
@pytest.mark.parametrize("is_nearest", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.7e38])
@pytest.mark.parametrize("bits", CODED)
def test_the_first_row_without_a_code_is_reported(device, bits, bad, is_nearest):
    """Row 7 is at position 4, row 3 at position 8; the rows beside them are coded as without them."""
    rows = rows_of_every_kind(33, torch.float32)
    index, node_id = np.arange(11, -1, -1, dtype=np.int32), np.arange(12)
    layout = MessageLayout.build(np.full(12, bits), 33, "rotated")
    whole = device_message(rows, index, node_id, layout, is_nearest, device)
    rows[3, 32], rows[7, 0] = bad, np.nan
    message = torch.zeros_like(whole)
    assert device_side.quantize_rows(rows.to(device), index, node_id, layout, KEY, message, is_nearest) == 4
    sizes = np.append(layout.payload_offset, layout.num_bytes)
    for i in set(range(12)) - {4, 8}:
        assert torch.equal(message[sizes[i]:sizes[i + 1]], whole[sizes[i]:sizes[i + 1]])


@pytest.mark.parametrize("code, widths, dim, started", [
    *((code, *empty, []) for code in ("affine", "rotated") for empty in (([], 16), ([4] * 3, 0), ([], 0))),
    ("rotated", [16, 32], 8, ["quantize_f32"]), ("rotated", [16, 1], 8, ["quantize_rotated_f32"])])
def test_only_rows_that_are_rotated_start_rotation_and_none_nothing(emulated, code, widths, dim, started):
    num = len(widths)
    layout, index = MessageLayout.build(np.array(widths), dim, code), np.arange(num, dtype=np.int32)
    message, rows = torch.empty(layout.num_bytes, dtype=torch.uint8), torch.ones(num, dim)
    assert device_side.quantize_rows(rows, index, np.arange(num), layout, KEY, message, False) == -1
    device_side.dequantize_rows(message, index, np.arange(num), layout, rows, False, KEY)
    assert [name for name, _, _ in emulated.launches] == [*started, *(f"de{name}" for name in started)]


@pytest.mark.parametrize("dim, block, lanes", [(1, 1, 16), (3, 2, 16), (16, 16, 16), (100, 64, 16), (1023, 512, 16),
                                               (1024, 1024, 32), (1025, 1024, 32), (32768, 1024, 32)])
def test_passes_are_of_the_largest_power_of_two_that_fits(dim, block, lanes):
    shape = RotationShape.of_rows(dim)
    assert (shape.block, shape.lanes) == (block, lanes)
    assert shape.scale == np.float32(block**-0.5)


@pytest.mark.parametrize("dim", EVERY_KIND)
def test_a_block_of_threads_has_memory_for_its_rows(dim):
    shape = RotationShape.of_rows(dim)
    rows_a_block = shape.threads // shape.lanes
    assert shape.stride >= dim and shape.stride % 4 == 0      # rows begin on 16 bytes
    assert shape.threads % 32 == 0 and rows_a_block >= 1 and shape.shared_bytes <= STATIC_SHARED_BYTES
    assert shape.shared_bytes in (0, 4 * rows_a_block * shape.stride)
    assert (shape.shared_bytes == 0) == (dim > 12256)         # 48 KiB are 12,288 floats, 16 of them padding


@pytest.mark.parametrize("dim", EVERY_KIND)
def test_two_rows_of_a_warp_lie_in_different_banks(dim):
    """Lanes 0 to 15 read neighboring columns of one row while the others do of the next."""
    stride = RotationShape.of_rows(dim).stride
    banks = np.concatenate([np.arange(16), stride + np.arange(16)]) % 32
    assert len(set(banks.tolist())) == 32


@pytest.mark.parametrize("dim, num_rows, num_blocks", [(64, 16, 1), (64, 17, 2), (1024, 8, 1), (1024, 9, 2),
                                                       (20000, 3, 1), (20000, 10**6, MOST_SCRATCH_ROWS // 8)])
def test_blocks_take_every_row_and_scratch_stays_small(dim, num_rows, num_blocks):
    shape = RotationShape.of_rows(dim)
    assert shape.num_blocks(num_rows) == num_blocks
    scratch = shape.scratch(num_rows, "meta")
    if dim == 64 or dim == 1024:
        assert scratch is None
    else:
        assert scratch.numel() == num_blocks * 8 * shape.stride
