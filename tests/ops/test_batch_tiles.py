"""Sums of signed codes over batches of tiles against NumPy, at every instruction set, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from hpcgnn.errors import KernelError
from hpcgnn.ops.tiles import BatchTiles, sum_batches, tiles_of_csr

SIZES = (1, 7, 130, 40, 300)


def some_batches(sizes=SIZES, density=0.2, seed=0):
    """Tiles of random batches, and their block-diagonal matrix."""
    rng = np.random.default_rng(seed)
    blocks = [scipy.sparse.csr_matrix(rng.random((size, size)) < density) for size in sizes]
    matrix = scipy.sparse.block_diag(blocks, "csr")
    lists = [tiles_of_csr(one.indptr.astype(np.int64), one.indices.astype(np.int32), one.shape[1]) for one in blocks]
    return BatchTiles.stack(lists, matrix.indptr.astype(np.int64)), matrix


def some_codes(num_rows, dim, bits, seed=1):
    rng = np.random.default_rng(seed)
    return rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (num_rows, dim)).astype(np.int8)


@pytest.mark.covering
@pytest.mark.parametrize("bits", [1, 2, 5, 8])
@pytest.mark.parametrize("dim", [1, 16, 41, 64, 130])
def test_sums_equal_those_of_numpy(simd, dim, bits):
    tiles, matrix = some_batches()
    codes = some_codes(len(matrix.indptr) - 1, dim, bits)
    expected = matrix.astype(np.int64) @ codes.astype(np.int64)
    out = np.empty(codes.shape, np.int32)
    assert sum_batches(tiles, codes, bits, 0, len(SIZES), out) == tiles.num_tiles.sum()
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("first, end", [(0, 1), (1, 4), (4, 5), (2, 2)])
def test_some_batches_are_summed_alone(simd, first, end):
    tiles, matrix = some_batches()
    codes = some_codes(len(matrix.indptr) - 1, 9, 4)
    rows = slice(tiles.row_begin[first], tiles.row_begin[end])
    out = np.empty((rows.stop - rows.start, 9), np.int32)
    assert sum_batches(tiles, codes, 4, first, end, out) == tiles.num_tiles[first:end].sum()
    np.testing.assert_array_equal(out, (matrix.astype(np.int64) @ codes.astype(np.int64))[rows])


def test_batches_without_an_arc_sum_to_zero(simd):
    tiles, matrix = some_batches(density=0)
    out = np.ones((len(matrix.indptr) - 1, 5), np.int32)
    assert sum_batches(tiles, some_codes(len(out), 5, 3), 3, 0, len(SIZES), out) == 0
    assert (out == 0).all()


def test_what_the_tiles_do_not_fit_is_refused():
    tiles, matrix = some_batches()
    codes = some_codes(len(matrix.indptr) - 1, 4, 3)
    out = np.empty(codes.shape, np.int32)
    for arguments, words in (((codes[1:], 3, 0, 5, out), "codes of batches"), ((codes, 9, 0, 5, out), "1 to 8 bits"),
                             ((codes, 3, 0, 6, out), "batches that exist"), ((codes, 3, 0, 4, out), "sums of batches"),
                             ((codes, 3, 0, 5, out[:, :3].copy()), "`out` has 3"),
                             ((codes.astype(np.int16), 3, 0, 5, out), "int8")):
        with pytest.raises(KernelError, match=words):
            sum_batches(tiles, *arguments)
    with pytest.raises(KernelError, match="square"):
        BatchTiles.stack([tiles_of_csr(np.zeros(4, np.int64), np.empty(0, np.int32), 5)], np.zeros(4, np.int64))
