"""Sums of codes against NumPy's int64, at every instruction set, and what they refuse."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

from hpcgnn.errors import KernelError
from hpcgnn.ops.integer_rows import sum_codes

DIMS = [0, 1, 7, 15, 16, 31, 32, 33, 64, 65, 96, 130, 160, 200, 256, 300]
TYPES = [np.int8, np.uint8]


def random_rows(num_rows, num_codes, most=9, seed=0):
    """(indptr, indices) whose row 1 is empty."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, most, num_rows)
    counts[1:2] = 0
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return indptr, rng.integers(0, num_codes, indptr[-1]).astype(np.int32)


def random_codes(num_codes, dim, dtype, seed=1):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return np.random.default_rng(seed).integers(low, high, (num_codes, dim), dtype, endpoint=True)


def expected_sums(indptr, indices, codes):
    """Row by row in int64."""
    out = np.zeros((len(indptr) - 1, codes.shape[1]), np.int64)
    for v in range(len(out)):
        out[v] = codes[indices[indptr[v]:indptr[v + 1]]].astype(np.int64).sum(axis=0)
    return out


@pytest.mark.covering
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dim", DIMS)
def test_sums_equal_those_of_int64(simd, dim, dtype):
    arcs, codes = random_rows(70, 50), random_codes(50, dim, dtype)
    out = sum_codes(*arcs, codes)
    assert out.dtype == np.int32
    np.testing.assert_array_equal(out, expected_sums(*arcs, codes))


@pytest.mark.parametrize("dim", [1, 40, 64])
def test_rows_far_apart_are_fetched_ahead_and_summed_by_many_tasks(simd, dim):
    """The table is larger than what is taken for cached, and the entries fill several tasks."""
    arcs, codes = random_rows(6000, 40_000, most=12), random_codes(40_000, dim, np.int8)
    np.testing.assert_array_equal(sum_codes(*arcs, codes), expected_sums(*arcs, codes))


@pytest.mark.parametrize("dtype, code", [(np.int8, 127), (np.int8, -127), (np.int8, -128), (np.uint8, 255)])
def test_a_hub_of_largest_codes_is_exact(simd, dtype, code):
    codes = np.full((3, 33), code, dtype)
    out = sum_codes(np.array([0, 100_000, 100_000], np.int64), np.full(100_000, 2, np.int32), codes)
    assert (out[0] == 100_000 * code).all() and (out[1] == 0).all()


def test_isolated_rows_and_empty_tables_give_zeros_and_nothing(simd):
    no_entries = np.empty(0, np.int32)
    assert (sum_codes(np.zeros(4, np.int64), no_entries, np.ones((5, 20), np.int8)) == 0).all()
    assert (sum_codes(np.zeros(4, np.int64), no_entries, np.ones((0, 20), np.int8)) == np.zeros((3, 20))).all()
    assert sum_codes(np.zeros(1, np.int64), no_entries, np.ones((5, 20), np.int8)).shape == (0, 20)


@pytest.mark.parametrize("dim", [1, 16, 30, 40, 70])
def test_nothing_past_the_table_is_read(simd, dim):
    """The table ends where a page that can't be read begins."""
    rows = random_codes(8, dim, np.int8)
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    codes = np.frombuffer(memory, np.int8, 8 * dim, mmap.PAGESIZE - 8 * dim).reshape(8, dim)
    codes[:] = rows
    out = sum_codes(np.array([0, 8], np.int64), np.arange(8, dtype=np.int32), codes)
    np.testing.assert_array_equal(out[0], rows.astype(np.int64).sum(axis=0))


def test_a_given_out_is_overwritten():
    out = np.full((1, 3), 7, np.int32)
    assert sum_codes(np.array([0, 1], np.int64), np.zeros(1, np.int32), np.ones((1, 3), np.int8), out) is out
    assert (out == 1).all()


ENTRY, INDPTR, CODES = np.zeros(1, np.int32), np.array([0, 1], np.int64), np.ones((2, 4), np.int8)


@pytest.mark.parametrize("arguments, words", [
    ((INDPTR.astype(np.int32), ENTRY, CODES), "int64 indptr"),
    ((INDPTR, ENTRY.astype(np.int64), CODES), "int32 indices"),
    ((INDPTR[:0], ENTRY, CODES), "int64 indptr"),
    ((INDPTR, ENTRY, CODES.astype(np.int16)), "int8 or uint8"),
    ((INDPTR, ENTRY, CODES[:, ::2]), "contiguous"),
    ((INDPTR, ENTRY, CODES, np.empty((2, 4), np.int32)), "out of shape"),
    ((INDPTR, ENTRY + 2, CODES), r"in \[0, 2\)"),
    ((INDPTR, ENTRY - 1, CODES), r"in \[0, 2\)"),
    ((np.array([0, 2], np.int64), ENTRY, CODES), "within the 1 entries"),
    ((np.array([-1, 1], np.int64), ENTRY, CODES), "within the 1 entries"),
    ((np.array([0, 1, 0], np.int64), ENTRY, CODES), "within the 1 entries"),
])
def test_what_is_no_csr_of_such_codes_is_refused(simd, arguments, words):
    with pytest.raises(KernelError, match=words):
        sum_codes(*arguments)


def test_a_row_whose_sum_could_overflow_is_refused():
    with pytest.raises(KernelError, match="8421504 entries"):
        sum_codes(np.array([0, 8_421_505], np.int64), np.zeros(8_421_505, np.int32), CODES)
