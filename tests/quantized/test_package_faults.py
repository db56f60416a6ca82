"""Forged, cut and flipped package streams are refused or read as some rows; never past their end.

`python tests/quantized/test_package_faults.py N SEED` reads N flipped streams, and N / 10 of any bytes:
jobs/sanitize_packages.sh runs it.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference_package import field, stream_of

from hpcgnn._ext import combination_sparse
from hpcgnn.errors import KernelError
from hpcgnn.quantized.package import PackageFormat, PackedRows
from hpcgnn.quantized.package_writer import encode


def rows_of(bits, bitmap, dim, form=None, interval=64):
    """Packages of a string of bits; `bitmap` is a list of rows of 0 and 1."""
    stream = np.packbits(np.array([int(bit) for bit in bits], np.uint8), bitorder="little")
    packed = np.packbits(np.array(bitmap, np.uint8).reshape(len(bitmap), dim), axis=1, bitorder="little")
    entries = -(-len(bitmap) // interval)
    return PackedRows(form or PackageFormat(), dim, len(bits), stream, packed, interval, np.zeros(entries, np.int64),
                      np.zeros(entries, np.int32))


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


def test_bit_past_the_last_column_is_refused(simd):
    packed = encode(np.ones((3, 5), np.uint8), np.ones(3, int))
    packed.bitmap[1, 0] |= 1 << 6
    with pytest.raises(KernelError, match="row 1 of 3: the bitmap has a bit past the last column"):
        packed.codes()


@pytest.mark.parametrize("entry, place", [(1, (0, 0)), (1, (-1, 1)), (1, (10**15, 0)), (0, (69, 0)), (2, (0, 10**6)),
                                          (1, (3, 5)), (2, (0, -4))])
def test_forged_index_is_refused_by_a_reader_of_all_rows(simd, entry, place):
    codes = np.ones((200, 6), np.uint8)
    packed = encode(codes, np.full(200, 3))
    packed.index_bit[entry], packed.index_values[entry] = place
    with pytest.raises(KernelError, match="packages can't be read at row"):
        packed.check()


@pytest.mark.parametrize("change, message", [
    ({"num_bits": 10**12}, "have stream of uint8"), ({"num_bits": -8}, "have stream"),
    ({"dim": 17}, "have bitmap"), ({"interval": 0}, "every 0 rows"), ({"interval": 8}, "have index_bit"),
    ({"interval": 2**63}, "every 9223372036854775808 rows"),
    ({"index_values": np.zeros(4, np.int64)}, "have index_values of int64"),
])
def test_arrays_that_do_not_fit_are_refused(change, message):
    packed = encode(np.full((200, 6), 5, np.uint8), np.full(200, 3))
    with pytest.raises(KernelError, match=message):
        replace(packed, **change)


def test_bits_after_the_stream_are_refused():
    packed = encode(np.ones((1, 1), np.uint8), np.ones(1, int))
    packed.stream[-1] |= 0x80
    with pytest.raises(KernelError, match="bits after the last of 69 are not zero"):
        replace(packed)


def flipped(packed, rng, flips):
    """A copy with some bits of its arrays flipped, and sometimes its end cut."""
    arrays = {name: getattr(packed, name).copy() for name in ("stream", "bitmap", "index_bit", "index_values")}
    for _ in range(flips):
        name = rng.choice(["stream", "stream", "bitmap", "index_bit", "index_values"])
        array = arrays[name].reshape(-1).view(np.uint8)
        if array.size:
            array[rng.integers(array.size)] ^= 1 << rng.integers(8)
    num_bits = packed.num_bits
    if rng.integers(4) == 0:
        num_bits = int(rng.integers(packed.num_bits + 1))
        arrays["stream"] = arrays["stream"][:-(-num_bits // 8)]
    if num_bits % 8:
        arrays["stream"][-1] &= (1 << num_bits % 8) - 1
    return replace(packed, num_bits=num_bits, **arrays)


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
    ways = (packed.codes, lambda: packed.chosen(node), packed.bit_width, packed.check, lambda: sums_of(packed, False),
            lambda: sums_of(packed, True))
    refused = sum(is_refused(read) for read in ways)
    try:
        codes, widths = packed.check().codes(), packed.bit_width()
    except KernelError:
        return refused
    for is_by_bit in (False, True):
        weight, sums = sums_of(packed, is_by_bit)
        np.testing.assert_array_equal(sums, codes.astype(np.int64) @ weight.T.astype(np.int64))
    again = encode(codes, np.maximum(widths, 1 + packed.format.is_signed), packed.format)
    for name in ("num_bits", "stream", "bitmap", "index_bit", "index_values"):
        np.testing.assert_array_equal(getattr(again, name), getattr(packed, name))
    return refused


def fuzz(count, seed):
    """Read `count` flipped streams; returns how many readings refused."""
    rng = np.random.default_rng(seed)
    refused = 0
    for _ in range(count):
        signed = bool(rng.integers(2))
        form = PackageFormat([(64, 128, 192), (8, 8, 8), (37, 99, 100)][rng.integers(3)], signed)
        shape = rng.integers(1, 150), rng.integers(1, 40)
        widths = rng.integers(1 + signed, 9, shape[0])
        codes = (rng.integers(0, 256, shape) % (form.max_code(8) + 1) >> (8 - widths)[:, None])
        codes = (codes * (rng.random(shape) < rng.random())).astype(form.dtype)
        refused += read_everything(flipped(encode(codes, widths, form), rng, rng.integers(1, 5)))
    return refused


def test_flipped_bytes_are_refused_or_read_as_the_rows_that_they_spell(simd):
    assert fuzz(400, seed=3) > 400


ANY_BYTES = (st.binary(max_size=120), st.integers(0, 90), st.integers(0, 20), st.booleans(), st.data())


def read_any_bytes(stream, num_rows, dim, signed, data):
    row_bytes, entries = -(-dim // 8), -(-num_rows // 64)
    bitmap = np.frombuffer(data.draw(st.binary(min_size=num_rows * row_bytes, max_size=num_rows * row_bytes)), np.uint8)
    places = st.lists(st.integers(-2**63, 2**63 - 1) | st.integers(-1, 200), min_size=entries, max_size=entries)
    values = st.lists(st.integers(-2**31, 2**31 - 1) | st.integers(-1, 200), min_size=entries, max_size=entries)
    read_everything(PackedRows(PackageFormat(is_signed=signed), dim, 8 * len(stream), np.frombuffer(stream, np.uint8),
                               bitmap.reshape(num_rows, row_bytes), 64, np.array(data.draw(places), np.int64),
                               np.array(data.draw(values), np.int32)))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(*ANY_BYTES)
def test_any_bytes_are_refused_or_read_as_the_rows_that_they_spell(simd, stream, num_rows, dim, signed, data):
    read_any_bytes(stream, num_rows, dim, signed, data)


def test_stream_of_the_oracle_is_accepted():
    """The forgeries above start from good streams."""
    bits = stream_of([[1] * 193], [1])
    assert rows_of(bits, [[1] * 193], 193).check().codes().sum() == 193


if __name__ == "__main__":
    streams, seed = int(sys.argv[1]), int(sys.argv[2])
    refused = fuzz(streams, seed)
    any_bytes = settings(max_examples=streams // 10, deadline=None, database=None, suppress_health_check=[*HealthCheck])
    any_bytes(hypothesis.seed(seed)(given(*ANY_BYTES)(read_any_bytes)))()
    print(f"{streams} flipped streams, {refused} of {6 * streams} readings refused; {streams // 10} of any bytes; "
          "no fault of memory")
