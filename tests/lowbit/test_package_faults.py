"""Forged, cut and flipped package streams are refused or read as some rows; never past their end.

`jobs/campaign.sh sanitize` runs these tests, and many more forged streams, with kernels built under sanitizers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference_package import field, positions_of

from hpcgnn._ext import combination_sparse
from hpcgnn.errors import KernelError
from hpcgnn.lowbit.package import PackagedRows, PackageFormat, encode

ARRAYS = ("stream", "positions", "index_bit", "index_values", "index_position")


def bytes_of(bits):
    return np.packbits(np.array([int(bit) for bit in bits], np.uint8), bitorder="little")


def placed(bits, positions, num_rows, dim, form=None):
    """Packages of two strings of bits, of fewer rows than an interval has."""
    return PackagedRows(form or PackageFormat(), num_rows, dim, len(bits), len(positions), bytes_of(bits),
                        bytes_of(positions), 64, np.zeros(1, np.int64), np.zeros(1, np.int32), np.zeros(1, np.int64))


def rows_of(bits, bitmap, dim, form=None):
    """Packages of a string of bits; `bitmap` is a list of rows of 0 and 1."""
    return placed(bits, positions_of(bitmap)[0], len(bitmap), dim, form)


def package(values, width, mode, length):
    return field(mode, 2) + field(width - 1, 3) + "".join(field(value, width) for value in values).ljust(length, "0")


SIGNED = PackageFormat(is_signed=True)
FORGED = {
    "a package passes the end of the stream": [
        ("", [[1]], None), ("0000", [[1]], None), (package([1], 1, 0, 64)[:-1], [[1]], None),
        (package([1], 1, 1, 64), [[1]], None), (package([1] * 64, 1, 0, 64), [[1] * 65], None)],
    "a package has mode 3": [(package([1], 1, 3, 192), [[1]], None)],
    "the bit-width changes inside the row": [
        (package([1] * 192, 1, 2, 192) + package([1], 2, 0, 64), [[1] * 193], None)],
    "a stored value is zero": [
        (package([1, 0, 1], 2, 0, 64), [[1, 1, 1]], None), (package([0], 2, 0, 64), [[1]], None),
        (package([2], 2, 0, 64), [[1]], SIGNED), (package([1], 1, 0, 64), [[1]], SIGNED)],
    "the padding of a package is not zero": [
        (package([1, 1], 2, 0, 64), [[1, 0]], None), (package([1], 2, 0, 64)[:-1] + "1", [[1]], None)],
    "a package is longer than its values need, or was left before it was full": [
        (package([1], 1, 1, 128), [[1]], None), (package([1] * 65, 1, 2, 192), [[1] * 65], None),
        (package([1], 1, 0, 64) + package([1], 1, 0, 64), [[1], [1]], None)],
    "the stream goes on after the last package": [
        (package([1], 1, 0, 64) * 2, [[1]], None), (package([1], 1, 0, 64) + "0", [[1]], None), ("0" * 8, [[0]], None)],
}


@pytest.mark.parametrize("fault, bits, bitmap, form",
                         [(fault, *case) for fault, cases in FORGED.items() for case in cases])
def test_forged_stream_is_refused_by_its_fault(simd, fault, bits, bitmap, form):
    with pytest.raises(KernelError, match=f"packages can't be read at row .*: {fault}"):
        rows_of(bits, bitmap, len(bitmap[0]), form).check()


ONE_LISTED = field(1, 5) + "10" + "1"      # of 8 columns: two low bits, then the high ones
WIDE_LISTED = field(1, 5) + "10" + "1"     # of 5000 columns: eleven low bits
FORGED_POSITIONS = {
    "its positions pass the end of the positions": [
        ("0000", 8), (field(0, 5), 8), (field(0, 5) + "0" + "1" * 7, 8), (field(3, 5) + "10" + "10", 8),
        (ONE_LISTED, 8), (ONE_LISTED + "0", 8), (ONE_LISTED + "00", 8), (ONE_LISTED + "00" + "0", 8),
        (WIDE_LISTED + "1" * 11 + "0" * 64, 5000), (field(31, 5) + "10", 8)],
    "a column is past the last one": [
        (ONE_LISTED + "00" + "001", 8), (ONE_LISTED + "00" + "0" * 100, 8),
        (ONE_LISTED + "11" + "0" * 60 + "1", 8), (ONE_LISTED + "01" + "001", 8),
        (WIDE_LISTED + "0" * 11 + "0" * 3 + "1", 5000), (WIDE_LISTED + "1" * 11 + "001", 5000),
        (field(2, 5) + "11" + field(3, 2) + "111" + "0001" + "01" + "1", 8)],
    "its list of columns is longer than a list of the other columns would be": [
        (field(3, 5) + "10" + field(5, 3) + "1" * 40, 8), (field(3, 5) + "11" + field(4, 3) + "1" * 40, 8),
        (field(31, 5) + "10" + "1" * 31 + "1" * 40, 8)],
    "the positions go on after the last row": [
        (ONE_LISTED + "11" + "1" + "0", 8), (ONE_LISTED + "11" + "1" * 70, 8), (field(0, 5) + "0" + "1" * 9, 8)],
}


@pytest.mark.parametrize("fault, positions, dim",
                         [(fault, *case) for fault, cases in FORGED_POSITIONS.items() for case in cases])
def test_forged_positions_are_refused_by_their_fault(simd, fault, positions, dim):
    packed = placed(package([1] * (1 if positions.startswith(ONE_LISTED) else 8), 1, 0, 64), positions, 1, dim)
    for read in (packed.check, packed.bitmap, lambda: sums_of(packed, False)):
        with pytest.raises(KernelError, match=f"packages can't be read at row 0 of 1: {fault}"):
            read()


@pytest.mark.parametrize("row, positions", [
    ([1] * 40, field(0, 5) + "0" + "1" * 40), ([0] * 40, field(1, 5) + "100"), ([0] * 40, field(0, 5) + "0" + "0" * 40),
    ([1] + [0] * 39, field(2, 5) + "10" + "10" + "0000" + "1"), ([1] + [0] * 39, field(0, 5) + "01" + "0" * 39)])
def test_rows_are_read_but_no_bit_more_is_accepted_than_they_need(simd, row, positions):
    packed = placed(package([1] * sum(row), 1, 0, 64) if any(row) else "", positions, 1, 40)
    np.testing.assert_array_equal(packed.codes(), [row])
    with pytest.raises(KernelError, match="row 0 of 1: positions take more bits than they need"):
        packed.check()


def test_wasted_bits_are_found_in_their_block():
    codes = np.ones((150, 8), np.uint8)
    codes[70] = [0, 1] * 4
    good = encode(codes, np.ones(150, int))
    starts = [*good.index_position, good.num_position_bits]
    bits = "".join(map(str, np.unpackbits(good.positions, bitorder="little")))
    block = [field(1, 5), "110" * 6, "0" + "01" * 4, "110" * 57]
    wasteful = "".join([bits[:starts[1]], *block, bits[starts[2]:starts[3]]])
    packed = replace(good, num_position_bits=len(wasteful), positions=bytes_of(wasteful),
                     index_position=good.index_position + np.array([0, 0, 63]))
    np.testing.assert_array_equal(packed.codes(), codes)
    with pytest.raises(KernelError, match="row 64 of 150: positions take more bits than they need"):
        packed.check()


@pytest.mark.parametrize("entry, place", [
    (1, (0, 0, 69)), (1, (-1, 1, 69)), (1, (10**15, 0, 69)), (0, (69, 0, 0)), (2, (0, 10**6, 138)), (1, (3, 5, 69)),
    (2, (0, -4, 138))])
def test_forged_index_is_refused_by_a_reader_of_all_rows(simd, entry, place):
    packed = encode(np.ones((200, 6), np.uint8), np.full(200, 3))
    packed.index_bit[entry], packed.index_values[entry], packed.index_position[entry] = place
    with pytest.raises(KernelError, match="packages can't be read at row"):
        packed.check()


@pytest.mark.parametrize("entry, bit", [(0, 1), (0, -1), (1, 0), (1, -8), (1, 10**15), (2, -2**63), (3, 2**63 - 1)])
def test_forged_index_of_positions_is_refused_by_a_reader_of_all_rows(simd, entry, bit):
    packed = encode(np.ones((200, 6), np.uint8), np.full(200, 3))
    packed.index_position[entry] = bit
    with pytest.raises(KernelError, match="packages can't be read at row"):
        packed.check()


@pytest.mark.parametrize("change, message", [
    ({"num_bits": 10**12}, "have stream of uint8"), ({"num_bits": -8}, "have stream"),
    ({"num_position_bits": 10**12}, "have positions of uint8"), ({"num_position_bits": -8}, "expected at least one"),
    ({"num_position_bits": 199}, "packages of 200 rows of 6 columns have 199 bits of positions; expected at least"),
    ({"num_rows": 10**12}, "expected at least one"), ({"num_rows": -1}, "expected at least one"),
    ({"dim": -1}, "at most 1073741824 columns"), ({"dim": 2**31}, "at most 1073741824 columns"),
    ({"interval": 0}, "every 0 rows"), ({"interval": 8}, "have index_bit"),
    ({"index_position": np.zeros(3, np.int64)}, "have index_position of int64"),
    ({"interval": 2**63}, "every 9223372036854775808 rows"),
    ({"index_values": np.zeros(4, np.int64)}, "have index_values of int64"),
])
def test_arrays_that_do_not_fit_are_refused(change, message):
    packed = encode(np.full((200, 6), 5, np.uint8), np.full(200, 3))
    with pytest.raises(KernelError, match=message):
        replace(packed, **change)


@pytest.mark.parametrize("name, num_bits", [("stream", 69), ("positions", 7)])
def test_bits_after_the_last_are_refused(name, num_bits):
    packed = encode(np.ones((1, 1), np.uint8), np.ones(1, int))
    getattr(packed, name)[-1] |= 0x80
    with pytest.raises(KernelError, match=f"bits after the last of {num_bits} are not zero"):
        replace(packed)


def flipped(packed, rng, flips):
    """A copy with some bits of its arrays flipped, and sometimes its end cut."""
    arrays = {name: getattr(packed, name).copy() for name in ARRAYS}
    for _ in range(flips):
        name = rng.choice([*ARRAYS, "stream", "positions", "positions"])
        array = arrays[name].reshape(-1).view(np.uint8)
        if array.size:
            array[rng.integers(array.size)] ^= 1 << rng.integers(8)
    sizes = {"stream": packed.num_bits, "positions": packed.num_position_bits}
    for name, fewest in (("stream", 0), ("positions", packed.num_rows)):
        if rng.integers(5) == 0:
            sizes[name] = int(rng.integers(fewest, sizes[name] + 1))
            arrays[name] = arrays[name][:-(-sizes[name] // 8)]
        if sizes[name] % 8:
            arrays[name][-1] &= (1 << sizes[name] % 8) - 1
    return replace(packed, num_bits=sizes["stream"], num_position_bits=sizes["positions"], **arrays)


def is_refused(read):
    try:
        read()
    except KernelError:
        return True
    return False


def sums_of(packed, is_by_bit):
    """Rows times weights that follow from their place, by the kernel that reads packages as it multiplies."""
    weight = (np.arange(5 * packed.dim).reshape(5, packed.dim) * 37 % 255 - 127).astype(np.int8)
    sums = np.empty((packed.num_rows, 5), np.int32)
    packed.refuse(*combination_sparse.combine_packages(packed.source, 0, packed.num_rows, weight, is_by_bit, sums))
    return weight, sums


def read_everything(packed):
    """Number of ways of reading that refuse; what is accepted whole is what the writer makes of its rows."""
    node = np.arange(packed.num_rows)
    ways = (packed.codes, lambda: packed.chosen(node), packed.bit_width, packed.bitmap, packed.check,
            lambda: sums_of(packed, False), lambda: sums_of(packed, True))
    refused = sum(is_refused(read) for read in ways)
    try:
        codes, widths = packed.check().codes(), packed.bit_width()
    except KernelError:
        return refused
    for is_by_bit in (False, True):
        weight, sums = sums_of(packed, is_by_bit)
        np.testing.assert_array_equal(sums, codes.astype(np.int64) @ weight.T.astype(np.int64))
    again = encode(codes, np.maximum(widths, 1 + packed.format.is_signed), packed.format)
    for name in ("num_bits", "num_position_bits", *ARRAYS):
        np.testing.assert_array_equal(getattr(again, name), getattr(packed, name))
    return refused


def fuzz(count, seed):
    """Read `count` flipped streams; returns how many readings refused."""
    rng = np.random.default_rng(seed)
    refused = 0
    for _ in range(count):
        signed = bool(rng.integers(2))
        form = PackageFormat([(64, 128, 192), (8, 8, 8), (37, 99, 100)][rng.integers(3)], signed)
        # Some rows are longer than a block of columns, and some of their lists have low bits of more than a byte.
        shape = (rng.integers(1, 150), rng.integers(1, 40)) if rng.integers(8) else (20, rng.integers(500, 3000))
        widths = rng.integers(1 + signed, 9, shape[0])
        codes = (rng.integers(0, 256, shape) % (form.max_code(8) + 1) >> (8 - widths)[:, None])
        codes = (codes * (rng.random(shape) < rng.choice([rng.random(), 0.003, 0.997]))).astype(form.dtype)
        refused += read_everything(flipped(encode(codes, widths, form), rng, rng.integers(1, 5)))
    return refused


def test_flipped_bytes_are_refused_or_read_as_the_rows_that_they_spell(simd):
    assert fuzz(150, seed=3) > 150


ANY_BYTES = (st.binary(max_size=120), st.integers(0, 90), st.integers(0, 20) | st.integers(0, 3000), st.booleans(),
             st.data())


def read_any_bytes(stream, num_rows, dim, signed, data):
    entries = -(-num_rows // 64)
    positions = data.draw(st.binary(min_size=-(-num_rows // 8), max_size=num_rows // 8 + 80))
    places = st.lists(st.integers(-2**63, 2**63 - 1) | st.integers(-1, 200), min_size=entries, max_size=entries)
    values = st.lists(st.integers(-2**31, 2**31 - 1) | st.integers(-1, 200), min_size=entries, max_size=entries)
    read_everything(PackagedRows(PackageFormat(is_signed=signed), num_rows, dim, 8 * len(stream), 8 * len(positions),
                               *(np.frombuffer(one, np.uint8) for one in (stream, positions)), 64,
                               np.array(data.draw(places), np.int64), np.array(data.draw(values), np.int32),
                               np.array(data.draw(places), np.int64)))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(*ANY_BYTES)
def test_any_bytes_are_refused_or_read_as_the_rows_that_they_spell(simd, stream, num_rows, dim, signed, data):
    read_any_bytes(stream, num_rows, dim, signed, data)
