"""Rotated rows: bytes and rows against the oracle at every instruction set, and what mathematics says of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import bf16_value, stream_of
from reference_quantization import narrow, widen
from reference_rotation import code_row, encode_rotated

from hpcgnn.errors import KernelError
from hpcgnn.ops.counter import BACKWARD, DROPOUT, FORWARD, CounterKey
from hpcgnn.ops.dispatch import STORAGES
from hpcgnn.ops.quantization import MessageLayout, dequantize_rows, parameters_of, quantize_rows
from hpcgnn.widths import BIT_WIDTHS, ROTATED_ERROR, ROTATED_NORM

DIMS = [1, 2, 3, 7, 16, 24, 64, 100, 256, 300, 1024, 1433]
CODED = [1, 2, 4, 8]
ROUNDINGS = ["stochastic", "nearest"]
KEY = CounterKey(seed=2**32 - 1, epoch=17, purpose=BACKWARD, layer=3, part=5)
ROTATION = KEY.seed, KEY.epoch, stream_of(7, KEY.layer, KEY.part)


def rows_of_every_kind(dim, dtype=torch.float32, seed=0):
    """Ordinary, zero, constant, heavy-tailed, one-hot, offset, rectified, tiny, subnormal and huge rows:
    10 of them, more than a block of the kernel.
    """
    rng = np.random.default_rng(seed + dim)
    rows = rng.normal(size=(10, dim))
    rows[1] = np.copysign(0.0, rows[1])
    rows[2] = -3.14159
    rows[3] = rng.standard_cauchy(dim)
    rows[4] = np.eye(1, dim, dim // 2)
    rows[5] += 1000
    rows[6] = np.maximum(rows[6], 0)
    rows[7] *= 1e-38
    rows[8] *= 1e-43
    rows[9] *= 6e4 / 5 if dtype == torch.float16 else 1e33
    return narrow(rows.astype(np.float32), dtype)


def send(rows, widths, rounding="stochastic", key=KEY, node_id=None):
    """(layout, message, node ids) of all rows in order."""
    node_id = np.arange(len(rows)) + 2**33 if node_id is None else node_id
    layout = MessageLayout.build(np.broadcast_to(widths, len(rows)), rows.shape[1], "rotated")
    message = np.full(layout.num_bytes, 0xAA, np.uint8)
    quantize_rows(rows, np.arange(len(rows), dtype=np.int32), node_id, layout, key, message, rounding)
    return layout, message, node_id


def receive(layout, message, node_id, key=KEY, dtype=torch.float32):
    rows = torch.full((layout.num_rows, layout.dim), torch.nan, dtype=dtype)
    dequantize_rows(message, np.arange(layout.num_rows, dtype=np.int32), node_id, layout, rows, key=key)
    return rows


def round_trip(rows, bits, rounding="stochastic", key=KEY, node_id=None):
    """(num_rows, dim) float64, what arrives."""
    layout, message, node_id = send(torch.from_numpy(rows), bits, rounding, key, node_id)
    return receive(layout, message, node_id, key).numpy().astype(np.float64)


@pytest.mark.covering
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("bits", CODED)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", STORAGES)
def test_bytes_and_rows_equal_the_oracles(simd, dtype, rounding, bits, dim):
    rows = rows_of_every_kind(dim, dtype)
    layout, message, node_id = send(rows, bits, rounding)
    with np.errstate(over="ignore", invalid="ignore"):
        expected, values = encode_rotated(widen(rows), layout.bit_width, rounding == "nearest", node_id, *ROTATION)
    assert message.tobytes() == expected
    assert torch.equal(receive(layout, message, node_id, dtype=dtype).view(torch.uint8),
                       narrow(values, dtype).view(torch.uint8))


@pytest.mark.parametrize("bits, dim", [(1, 32768), (2, 20000), (4, 20000), (8, 32768)])
def test_the_widest_rows_equal_the_oracles(dim, bits):
    rows = torch.from_numpy(np.random.default_rng(dim).normal(size=(2, dim)).astype(np.float32))
    layout, message, node_id = send(rows, bits)
    expected, values = encode_rotated(rows.numpy(), layout.bit_width, False, node_id, *ROTATION)
    assert message.tobytes() == expected
    assert receive(layout, message, node_id).numpy().tobytes() == values.tobytes()


@pytest.mark.covering(3)
@pytest.mark.parametrize("dim", [3, 64, 100])
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("is_added", [False, True])
def test_rows_of_all_widths_lie_side_by_side_and_may_be_added(simd, is_added, dtype, rounding, dim):
    """Rows of 16 and 32 bits are those of an affine message; gathered, and scattered to other rows."""
    rng, rows = np.random.default_rng(3), rows_of_every_kind(dim, dtype)[:9]
    width, node_id = np.resize(BIT_WIDTHS, 9), rng.integers(0, 2**40, 9)
    index, target = rng.permutation(9).astype(np.int32), rng.permutation(12)[:9].astype(np.int32)
    before = narrow(rng.normal(size=(12, dim)).astype(np.float32), dtype)
    received = {}
    for code in ("rotated", "affine"):
        layout = MessageLayout.build(width, dim, code)
        message = np.zeros(layout.num_bytes, np.uint8)
        quantize_rows(rows, index, node_id, layout, KEY, message, rounding)
        received[code] = before.clone()
        dequantize_rows(message, target, node_id, layout, received[code], is_added, KEY)
    is_wide = width > 8
    assert torch.equal(*(table[target[is_wide]].view(torch.uint8) for table in received.values()))
    sent = widen(rows)[index[~is_wide]]
    values = encode_rotated(sent, width[~is_wide], rounding == "nearest", node_id[~is_wide], *ROTATION)[1]
    wanted = narrow(values + widen(before)[target[~is_wide]] if is_added else values, dtype)
    assert torch.equal(received["rotated"][target[~is_wide]].view(torch.uint8), wanted.view(torch.uint8))
    untouched = np.setdiff1d(np.arange(12), target)
    assert torch.equal(received["rotated"][untouched], before[untouched])


@pytest.mark.parametrize("dim", DIMS)
def test_a_row_takes_two_bytes_beside_its_codes(dim):
    for bits in CODED:
        layout = MessageLayout.build([bits, 32, bits], dim, "rotated")
        row_bytes = -(-bits * dim // 8)
        assert (layout.parameter_bytes, layout.payload_bytes) == (4, 2 * row_bytes + 4 * dim)
        assert layout.parameter_offset[[0, 2]].tolist() == [0, 2]
        assert layout.payload_offset.tolist() == [4, 4 + row_bytes, 4 + row_bytes + 4 * dim]
        assert layout.is_rotated
    assert not MessageLayout.build([16, 32], dim, "rotated").is_rotated


@pytest.mark.parametrize("bits", CODED)
@pytest.mark.parametrize("dim", [1, 7, 64, 100, 1433])
def test_the_product_of_what_arrives_with_the_row_is_the_row_s_squared_norm(dim, bits):
    """Up to the rounding of the step to bfloat16, 2^-8 of it at most, and of float32 sums."""
    rows = np.random.default_rng(dim).standard_t(3, size=(50, dim)).astype(np.float32)
    product = (round_trip(rows, bits) * rows).sum(axis=1)
    np.testing.assert_allclose(product, (rows.astype(np.float64) ** 2).sum(axis=1), rtol=2.0**-8 + 1e-4)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dim", [64, 100, 128, 256])
@pytest.mark.parametrize("bits", CODED)
def test_the_mean_over_many_keys_is_the_row(bits, dim):
    """The mean of n independent errors, of e |row|^2 each, leaves e |row|^2 / n; twice its root is allowed.

    So is 2^-9 of the row for the step's rounding, and 3 / dim for the rotation: signs and transforms are no draw from
    all rotations, and only the sum over columns is exact, not each column. Of rows without outliers what that leaves
    falls as 1 / dim; 40,000 keys found 0.010 of the row at 64 columns, 0.021 at 100, in two passes, and 0.002 at 256.
    """
    num, row = 3000, np.random.default_rng(7).normal(size=dim).astype(np.float32)
    rows, node_id = np.repeat(row[None], num, axis=0), np.arange(num)
    mean = round_trip(rows, bits, node_id=node_id).mean(axis=0)
    error = np.linalg.norm(mean - row) / np.linalg.norm(row)
    assert error < 2 * np.sqrt(ROTATED_ERROR[bits] / num) + 2.0**-9 + 3 / dim


@pytest.mark.parametrize("kind", ["gaussian", "heavy", "relu", "one-hot"])
@pytest.mark.parametrize("bits", CODED)
def test_errors_and_norms_are_those_that_widths_tell_whatever_the_row(kind, bits):
    """ROTATED_ERROR and ROTATED_NORM are of normal columns; means over rows of 1,024 columns are within 12 and 5 % of
    them. Of one-hot rows, whose rotated columns have one magnitude, no more is left.
    """
    rng = np.random.default_rng(bits)
    rows = {"gaussian": rng.normal(size=(64, 1024)), "heavy": rng.standard_t(3, size=(64, 1024)),
            "relu": np.maximum(rng.normal(size=(64, 1024)), 0), "one-hot": np.eye(64, 1024)}[kind].astype(np.float32)
    energy = (rows.astype(np.float64) ** 2).sum(axis=1)
    if kind == "one-hot":
        assert (((round_trip(rows, bits) - rows) ** 2).sum(axis=1) <= ROTATED_ERROR[bits] * energy).all()
        return
    error = ((round_trip(rows, bits) - rows) ** 2).sum(axis=1) / energy
    assert error.mean() == pytest.approx(ROTATED_ERROR[bits], rel=0.12)
    layout, message, _ = send(torch.from_numpy(rows), bits)
    norm = ROTATED_NORM[bits] * parameters_of(message, layout)[1] * np.sqrt(1024)
    assert np.mean(norm / np.sqrt(energy)) == pytest.approx(1, rel=0.05)


def test_signs_are_of_their_node_key_direction_and_sender():
    """A row whose codes did not depend on one of them would err alike there."""
    row = np.random.default_rng(2).normal(size=(1, 64)).astype(np.float32)
    node_id = np.array([5])
    keys = [KEY, KEY._replace(seed=1), KEY._replace(epoch=18), KEY._replace(layer=4), KEY._replace(part=6),
            KEY._replace(purpose=FORWARD)]
    found = {send(torch.from_numpy(row), 1, key=key, node_id=node_id)[1].tobytes() for key in keys}
    found.add(send(torch.from_numpy(row), 1, node_id=np.array([5 + 2**32]))[1].tobytes())
    assert len(found) == 7


@pytest.mark.parametrize("dim, most", [(40, 1.3), (47, 1.3), (100, 1.3), (121, 1.8)])
def test_energy_anywhere_in_a_row_that_no_power_of_two_fits_is_spread_over_all_of_it(simd, dim, most):
    """A quarter of the columns holds all. Without a pass that comes again, 1 bit of its end would lose 1.1 to 3.4 times
    what it loses of an even row; the less two passes overlap, the more is left of that.
    """
    for first in (0, dim // 2, dim - dim // 4):
        rows = np.zeros((500, dim), np.float32)
        rows[:, first:first + dim // 4] = np.random.default_rng(dim).normal(size=(500, dim // 4))
        error = ((round_trip(rows, 1) - rows) ** 2).sum() / (rows ** 2).sum()
        assert error < most * ROTATED_ERROR[1], first


@pytest.mark.parametrize("bits", CODED)
def test_the_step_of_the_largest_rows_is_finite(simd, bits):
    rows = np.full((2, 100), 1.6e38, np.float32)
    rows[1, ::2] *= -1
    layout, message, node_id = send(torch.from_numpy(rows), bits)
    steps = [code_row(row, bits, False, node, *ROTATION)[1] for row, node in zip(rows, node_id, strict=True)]
    np.testing.assert_array_equal(parameters_of(message, layout)[1], bf16_value(np.array(steps, np.uint16)))
    assert np.isfinite(parameters_of(message, layout)[1]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.7e38])
@pytest.mark.parametrize("dtype", STORAGES)
def test_a_row_that_can_t_be_coded_is_refused(simd, dtype, bad):
    if dtype == torch.float16 and abs(bad) == 1.7e38:
        bad = np.inf
    rows = torch.ones(31, 33)
    rows[20, 32] = bad
    with pytest.raises(KernelError, match=r"^message row of node 120 \(layer 3, epoch 17\) holds a value that is NaN"):
        send(rows.to(dtype), 2, node_id=100 + np.arange(31))


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_parameters_are_a_step_and_the_value_of_code_zero(rounding):
    rows = rows_of_every_kind(64)[:9]
    width = np.resize(BIT_WIDTHS, 9)
    layout, message, _ = send(rows, width, rounding)
    zero_point, step = parameters_of(message, layout)
    is_coded = width <= 8
    written = bf16_value(message[:layout.parameter_bytes].view("<u2"))
    np.testing.assert_array_equal(step[is_coded], written)
    np.testing.assert_array_equal(zero_point[is_coded], -written * (2.0 ** width[is_coded] - 1) / 2)
    assert not step[~is_coded].any() and not zero_point[~is_coded].any()
    np.testing.assert_array_equal(parameters_of(message[:layout.parameter_bytes], layout)[1], step)


def test_the_contract_is_checked():
    layout, message, node_id = send(torch.ones(2, 8), [4, 32])
    rows, index = torch.zeros(2, 8), np.arange(2, dtype=np.int32)
    with pytest.raises(KernelError, match=r"^rotated rows are read with the key that they were quantized with"):
        dequantize_rows(message, index, node_id, layout, rows)
    wide = MessageLayout.build([16, 32], 8, "rotated")
    plain = np.zeros(wide.num_bytes, np.uint8)
    dequantize_rows(plain, index, node_id, wide, rows)
    with pytest.raises(KernelError, match=r"^rows are rotated for purposes 1, 2, 8, found 0$"):
        send(torch.ones(2, 8), 4, key=CounterKey(0, 0, DROPOUT, 0))
    with pytest.raises(KernelError, match=r"^code must be one of \('affine', 'rotated'\), found 'turned'$"):
        MessageLayout.build([4], 8, "turned")
    with pytest.raises(KernelError, match=r"^rows of at most 32768 columns can be rotated, found 32769"):
        MessageLayout.build([4], 32769, "rotated")
    MessageLayout.build([32], 32769, "rotated")
