"""Tiles of a 0/1 matrix and their products against int64, with every switch on and off."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from reference_bits import tiles_with_an_entry

from hpcgnn.errors import KernelError
from hpcgnn.ops.bit_gemm import pack_codes
from hpcgnn.ops.tiles import count_entries, multiply_tiles, tiles_of_csr

SHAPES = [(1, 1), (8, 128), (9, 129), (70, 513), (300, 300)]
SWITCHES = [(False, True, True), (False, True, False), (True, True, True), (True, True, False), (True, False, True),
            (True, False, False)]    # dense, jump, reuse


def random_matrix(shape, density=0.03, seed=0):
    return (np.random.default_rng(seed).random(shape) < density).astype(np.uint8)


def tiles_of(matrix, is_dense):
    pattern = scipy.sparse.csr_matrix(matrix)
    return tiles_of_csr(pattern.indptr.astype(np.int64), pattern.indices.astype(np.int32), matrix.shape[1], is_dense)


def matrix_of(tiles):
    """The matrix that tiles hold, one column at a time."""
    matrix = np.zeros((8 * (len(tiles.begin) - 1), 128 * -(-tiles.num_columns // 128)), np.uint8)
    for row in range(len(tiles.begin) - 1):
        for tile in range(tiles.begin[row], tiles.begin[row + 1]):
            words = tiles.words[tile].numpy()
            for k in range(128):
                matrix[8 * row:8 * row + 8, 128 * tiles.column[tile] + k] = words[:, k // 32] >> (k % 32) & 1
    return matrix


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("is_dense", [False, True])
def test_tiles_hold_the_matrix_and_a_list_holds_no_zero_tile(shape, is_dense):
    matrix = random_matrix(shape)
    tiles = tiles_of(matrix, is_dense)
    held = matrix_of(tiles)
    assert np.array_equal(held[:shape[0], :shape[1]], matrix) and held.sum() == matrix.sum()
    assert tiles.num_tiles == (tiles.num_places if is_dense else tiles_with_an_entry(matrix))
    assert np.array_equal(count_entries(tiles), matrix.sum(1))


@pytest.mark.covering
@pytest.mark.parametrize("is_dense, jump, reuse", SWITCHES)
@pytest.mark.parametrize("bit_width", range(1, 9))
def test_products_equal_int64_with_every_switch(simd, is_dense, jump, reuse, bit_width):
    for number, (m, k) in enumerate(SHAPES):
        matrix = random_matrix((m, k), seed=number)
        codes = np.random.default_rng(number).integers(0, 2**bit_width, (k, 3 + 20 * number), dtype=np.uint8)
        tiles = tiles_of(matrix, is_dense)
        sums, num_multiplied = multiply_tiles(tiles, pack_codes(torch.from_numpy(codes), bit_width, True), jump, reuse)
        assert np.array_equal(sums, matrix.astype(np.int64) @ codes), (m, k)
        assert num_multiplied == (tiles_with_an_entry(matrix) if jump else tiles.num_places)


@pytest.mark.parametrize("is_dense", [False, True])
@pytest.mark.parametrize("fill", [0, 1])
def test_all_zeros_jump_every_tile_and_all_ones_none(simd, is_dense, fill):
    matrix, codes = np.full((20, 260), fill, np.uint8), np.full((260, 5), 7, np.uint8)
    tiles = tiles_of(matrix, is_dense)
    sums, num_multiplied = multiply_tiles(tiles, pack_codes(torch.from_numpy(codes), 3, True))
    assert np.array_equal(sums, np.full((20, 5), fill * 7 * 260))
    assert num_multiplied == fill * tiles.num_places == fill * 9


@pytest.mark.covering
@pytest.mark.parametrize("shape", [(0, 5, 3), (4, 0, 3), (4, 5, 0)])
@pytest.mark.parametrize("is_dense", [False, True])
def test_empty_sides_give_empty_products_or_zeros(simd, shape, is_dense):
    m, k, n = shape
    sums, num_multiplied = multiply_tiles(tiles_of(np.zeros((m, k), np.uint8), is_dense),
                                          pack_codes(torch.zeros(k, n, dtype=torch.uint8), 2, True))
    assert sums.shape == (m, n) and not sums.any() and num_multiplied == 0


def test_an_entry_that_is_there_twice_counts_once():
    tiles = tiles_of_csr(np.array([0, 3], np.int64), np.array([4, 4, 130], np.int32), 200)
    assert tiles.num_tiles == 2 and count_entries(tiles).item() == 2


def test_columns_past_one_chunk_do_not_count_tiles_twice():
    matrix = random_matrix((50, 300))
    codes = torch.ones(300, 1100, dtype=torch.uint8)
    sums, num_multiplied = multiply_tiles(tiles_of(matrix, False), pack_codes(codes, 1, True))
    assert num_multiplied == tiles_with_an_entry(matrix)
    assert np.array_equal(sums, np.repeat(matrix.sum(1, keepdims=True), 1100, axis=1))


def test_a_list_can_not_multiply_the_zero_tiles_that_it_lacks():
    right = pack_codes(torch.ones(5, 2, dtype=torch.uint8), 1, True)
    with pytest.raises(KernelError, match="make the tiles by tiles_of_csr with is_dense=True"):
        multiply_tiles(tiles_of(np.ones((3, 5), np.uint8), False), right, jump=False)


@pytest.mark.parametrize("indptr, indices, complaint", [
    (np.array([0, 1], np.int32), np.array([0], np.int32), "int64 indptr and int32 indices, found int32 and int32"),
    (np.array([0, 2], np.int64), np.array([0], np.int32), "rises from 0 to the number of entries, 1"),
    (np.array([0, 2, 1], np.int64), np.array([0], np.int32), "rises from 0"),
    (np.array([], np.int64), np.array([], np.int32), "rises from 0"),
    (np.array([0, 1], np.int64), np.array([5], np.int32), "tiles of 5 columns have entries in columns 5 to 5"),
    (np.array([0, 1], np.int64), np.array([-1], np.int32), "in columns -1 to -1"),
])
def test_what_is_no_csr_is_refused(indptr, indices, complaint):
    with pytest.raises(KernelError, match=complaint):
        tiles_of_csr(indptr, indices, 5)


def test_sums_that_could_overflow_and_lengths_that_disagree_are_refused():
    codes = pack_codes(torch.zeros(6, 1, dtype=torch.uint8), 1, True)
    with pytest.raises(KernelError, match="contracts 5 columns of its left side with 6 rows"):
        multiply_tiles(tiles_of(np.zeros((2, 5), np.uint8), False), codes)
