"""Adaptive-Package streams against an oracle of bit strings, at every SIMD level; reading in order and by row."""

from __future__ import annotations

import numpy as np
import pytest
from reference_package import bits_of, positions_of, stream_of

from hpcgnn.errors import KernelError
from hpcgnn.lowbit.package import PackageFormat, PackageWriter, encode

LENGTHS = [(64, 128, 192), (8, 8, 8), (37, 99, 100), (400, 512, 800)]


def random_rows(num_rows, dim, density, form, seed=0, widths=None):
    """Codes of (num_rows, dim) and widths that hold them."""
    rng = np.random.default_rng(seed)
    widths = rng.integers(1 + form.is_signed, 9, num_rows) if widths is None else np.broadcast_to(widths, num_rows)
    largest = 2 ** (widths - form.is_signed) - 1
    codes = rng.integers(0, 1 << 30, (num_rows, dim)) % largest[:, None] + 1
    codes *= rng.random(codes.shape) < density
    if form.is_signed:
        codes *= rng.choice([-1, 1], codes.shape)
    return codes.astype(form.dtype), widths


def assert_as_written_by_hand(packed, codes, widths):
    expected = stream_of(codes.tolist(), widths.tolist(), packed.format.lengths, packed.format.is_signed)
    assert packed.num_bits == len(expected)
    assert bits_of(packed.stream)[:packed.num_bits] == expected
    positions, starts = positions_of(codes.tolist(), packed.interval)
    assert packed.num_position_bits == len(positions) and packed.index_position.tolist() == starts
    assert bits_of(packed.positions)[:packed.num_position_bits] == positions


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("density", [0.0, 0.02, 0.25, 0.5, 0.9, 1.0])
def test_stream_is_the_one_written_by_hand_and_reads_back(simd, lengths, signed, density):
    form = PackageFormat(lengths, signed)
    for num_rows, dim in ((1, 1), (130, 7), (9, 64), (2, 1030)):
        codes, widths = random_rows(num_rows, dim, density, form, seed=dim)
        packed = encode(codes, widths, form)
        assert_as_written_by_hand(packed, codes, widths)
        np.testing.assert_array_equal(packed.check().codes(), codes)
        assert packed.codes().dtype == codes.dtype


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("width", range(1, 9))
def test_every_value_of_every_width_comes_back(simd, width, signed):
    form = PackageFormat(is_signed=signed)
    largest = form.max_code(width)
    codes = np.arange(-largest if signed else 0, largest + 1).astype(form.dtype)[None].repeat(3, 0)
    packed = encode(codes, np.full(3, width), form)
    assert_as_written_by_hand(packed, codes, np.full(3, width))
    np.testing.assert_array_equal(packed.codes(), codes)


def test_example_of_the_paper_pads_two_bits_in_short_mode():
    """MEGA, Fig. 9(d): lengths matter only through the mode that the held values choose."""
    packed = encode(np.full((1, 31), 3, np.uint8), np.array([2]))
    assert bits_of(packed.stream)[:5] == "00" + "100" and packed.num_bits == 5 + 64


@pytest.mark.parametrize("row, positions", [
    ([0] * 40, "1" + "0"),                                              # no column, and no bits for their number
    ([1] * 40, "1" + "1"),
    ([0] * 9 + [1] + [0] * 30, "1" + "0" + "1" + "1001" + "1"),         # 41 // 2: the gap's four lowest bits apart
    ([0] * 20 + [1] + [0] * 19, "1" + "0" + "1" + "0010" + "01"),
    ([1] * 20 + [0] + [1] * 19, "1" + "1" + "1" + "0010" + "01"),
    ([0, 1] * 20, "0" + "01" * 20), ([0, 0], "1" + "0"), ([0], "0" + "0"),
])
def test_a_row_is_its_bitmap_or_the_columns_of_the_fewer_kind(row, positions):
    packed = encode(np.array([row], np.uint8), np.array([1]))
    assert bits_of(packed.positions)[5:packed.num_position_bits] == positions


def test_rows_may_follow_after_a_first_result():
    codes, widths = random_rows(100, 33, 0.1, PackageFormat())
    writer = PackageWriter(33)
    writer.append(codes[:70], widths[:70])
    np.testing.assert_array_equal(writer.finish().check().codes(), codes[:70])
    writer.append(codes[70:], widths[70:])
    np.testing.assert_array_equal(writer.finish().positions, encode(codes, widths).positions)


@pytest.mark.parametrize("cuts", [[1], [10, 64, 65], [64, 128], list(range(1, 150))])
def test_rows_that_come_in_blocks_give_the_same_stream(simd, cuts):
    codes, widths = random_rows(150, 33, 0.4, PackageFormat())
    writer = PackageWriter(33)
    for block, width in zip(np.split(codes, cuts), np.split(widths, cuts), strict=True):
        writer.append(block, width)
    found, expected = writer.finish(), encode(codes, widths)
    for name in ("stream", "positions", "index_bit", "index_values", "index_position", "num_bits", "num_position_bits"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("density", [0.05, 0.3, 0.95])
def test_any_rows_can_be_read_alone(simd, signed, density):
    codes, widths = random_rows(300, 50, density, PackageFormat(is_signed=signed))
    packed = encode(codes, widths, PackageFormat(is_signed=signed))
    node = np.random.default_rng(1).integers(0, 300, 100)
    np.testing.assert_array_equal(packed.chosen(node), codes[node])
    for first, last in ((0, 1), (63, 65), (64, 128), (200, 300), (7, 7)):
        np.testing.assert_array_equal(packed.codes(first, last), codes[first:last])
    np.testing.assert_array_equal(np.concatenate([block for _, block in packed.blocks(37)]), codes)
    assert packed.chosen(np.empty(0, np.int64)).shape == (0, 50)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("density", [0.01, 0.5, 0.95])
def test_values_are_codes_times_scales_to_the_bit(simd, signed, density):
    form = PackageFormat(is_signed=signed)
    codes, widths = random_rows(90, 600, density, form)
    scale = np.random.default_rng(2).random(90, np.float32)
    packed = encode(codes, widths, form)
    np.testing.assert_array_equal(packed.values(scale), codes.astype(np.float32) * scale[:, None])
    out = np.full((26, 600), np.nan, np.float32)
    assert packed.values(scale[64:], 64, out=out) is out
    np.testing.assert_array_equal(out, codes[64:].astype(np.float32) * scale[64:, None])


@pytest.mark.parametrize("density", [0.03, 0.5, 0.97])
@pytest.mark.parametrize("dim", [1, 8, 63, 130, 1030])
def test_bitmaps_tell_where_values_stand(simd, density, dim):
    codes, widths = random_rows(130, dim, density, PackageFormat())
    np.testing.assert_array_equal(encode(codes, widths).bitmap(), np.packbits(codes != 0, axis=1, bitorder="little"))


def test_widths_come_back_except_of_rows_of_zeros(simd):
    codes, widths = random_rows(200, 20, 0.1, PackageFormat())
    packed = encode(codes, widths)
    np.testing.assert_array_equal(packed.bit_width(), np.where(codes.any(axis=1), widths, 0))


@pytest.mark.parametrize("shape", [(0, 0), (0, 9), (5, 0)])
def test_no_rows_and_no_columns_are_packages_of_nothing(simd, shape):
    packed = encode(np.zeros(shape, np.uint8), np.ones(shape[0], int)).check()
    assert packed.num_bits == 0 and packed.codes().shape == shape


@pytest.mark.parametrize("change, message", [
    ({"codes": np.array([[4]], np.uint8)}, "row 0 has the code 4, and its 2 bits reach 3"),
    ({"codes": np.array([[2]], np.int8), "signed": True}, "row 0 has the code 2, and its 2 bits reach 1"),
    ({"codes": np.array([[-128]], np.int8), "signed": True, "width": [8]}, "the code -128, and its 8 bits reach 127"),
    ({"codes": np.array([[1]], np.int8), "signed": True, "width": [1]}, "its 1 bits reach 0"),
    ({"width": [0]}, "a row has bit-width 0; expected 1 to 8"),
    ({"width": [9]}, "a row has bit-width 9; expected 1 to 8"),
    ({"width": [1, 1]}, "expected one entry for each of 1 rows"),
    ({"codes": np.array([[1.0]])}, "codes are float64 of shape"),
    ({"codes": np.ones((1, 2), np.uint8)}, "expected uint8 of 1 columns"),
])
def test_what_does_not_fit_is_refused(simd, change, message):
    writer = PackageWriter(1, PackageFormat(is_signed=change.get("signed", False)))
    with pytest.raises(KernelError, match=message):
        writer.append(change.get("codes", np.ones((1, 1), np.uint8)), np.array(change.get("width", [2])))


@pytest.mark.parametrize("lengths", [(64, 128), (128, 64, 192), (7, 64, 128), (64, 128, 4097)])
def test_lengths_out_of_range_are_refused(lengths):
    with pytest.raises(KernelError, match="expected three numbers of bits that do not descend, from 8 to 4096"):
        PackageFormat(lengths)


def test_rows_that_are_not_there_are_refused():
    packed = encode(np.ones((3, 2), np.uint8), np.ones(3, int))
    for ask in (lambda: packed.codes(0, 4), lambda: packed.codes(2, 1), lambda: packed.chosen(np.array([3])),
                lambda: packed.chosen(np.array([-1]))):
        with pytest.raises(KernelError, match="were asked for"):
            ask()


@pytest.mark.parametrize("out", [np.empty((3, 2), np.int8), np.empty((2, 2), np.uint8),
                                 np.empty((3, 4), np.uint8)[:, ::2]])
def test_an_array_to_decode_to_must_fit(out):
    packed = encode(np.ones((3, 2), np.uint8), np.ones(3, int))
    with pytest.raises(KernelError, match=r"out is .*expected contiguous uint8 of shape"):
        packed.codes(out=out)
    with pytest.raises(KernelError, match=r"scale is float64 of shape \(3,\)"):
        packed.values(np.ones(3))
