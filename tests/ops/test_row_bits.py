"""Rows of codes as bits, each at its own width, come back, take as many bits, and refuse what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from hpcgnn.errors import KernelError
from hpcgnn.ops.row_codes import RowBits


def some_rows(rng, num_rows, length, is_signed):
    """Codes of the whole range of each row's width."""
    widths = rng.integers(1, 9, num_rows)
    low, high = (-(2 ** (widths - 1)), 2 ** (widths - 1)) if is_signed else (0 * widths, 2**widths)
    codes = rng.integers(low[:, None], high[:, None], (num_rows, length))
    return codes.astype(np.int8 if is_signed else np.uint8), widths


@pytest.mark.parametrize("is_signed", [False, True])
@pytest.mark.parametrize("num_rows, length", [(0, 5), (1, 1), (40, 127), (41, 300)])
def test_codes_come_back_whole_and_in_part(num_rows, length, is_signed):
    codes, widths = some_rows(np.random.default_rng(length), num_rows, length, is_signed)
    rows = RowBits.pack(codes, widths)
    assert rows.codes().tobytes() == codes.tobytes() and rows.codes().dtype == codes.dtype
    np.testing.assert_array_equal(rows.bit_width, widths)
    for first, stop in ((0, num_rows), (num_rows // 3, num_rows // 2), (num_rows, num_rows)):
        some = rows.some(first, stop)
        assert some.codes().tobytes() == codes[first:stop].tobytes()
        assert not some.words.size or np.shares_memory(some.words, rows.words)


def test_a_row_takes_as_many_planes_as_it_has_bits():
    codes, widths = some_rows(np.random.default_rng(0), 50, 300, False)
    # A plane of 300 columns has 384 bits; each row has a number that says where it begins.
    assert RowBits.pack(codes, widths).nbytes == widths.sum() * 384 // 8 + 51 * 4


def test_bits_lie_where_the_kernel_reads_them():
    rows = RowBits.pack(np.array([[1, 0, 2], [-3, 3, -4]], np.int8), np.array([3, 3]))
    # 4 is added: 5, 4, 6 and 1, 7, 0, a bit of each in a plane.
    assert rows.words[:, 0].tolist() == [0b001, 0b100, 0b111, 0b011, 0b010, 0b010]


@pytest.mark.parametrize("codes, widths, words", [
    (np.array([[4]], np.uint8), [2], "rows of 2 bits have codes that need more"),
    (np.array([[-3]], np.int8), [2], "rows of 2 bits have codes that need more"),
    (np.array([[1]], np.uint8), [0], "one width from 1 to 8 per row"),
    (np.array([[1]], np.uint8), [9], "one width from 1 to 8 per row"),
    (np.array([[1]], np.uint8), [1, 1], "1 rows of bits need one width"),
])
def test_what_does_not_fit_is_refused(codes, widths, words):
    with pytest.raises(KernelError, match=words):
        RowBits.pack(codes, np.array(widths))
