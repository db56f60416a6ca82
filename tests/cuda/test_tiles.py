"""Products of tiles on the device against int64, with every switch and form, and with the host's ends of a product."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from cuda.test_bit_gemm import FORMS, random_codes, rescaling

from hpcgnn.ops import bit_gemm as contract
from hpcgnn.ops import tiles as host
from hpcgnn.ops.bit_gemm import CodeRange
from hpcgnn.ops.cuda import bit_gemm as cuda_tiles
from hpcgnn.ops.cuda.bit_gemm import tile_blocks

SWITCHES = [(False, True, True), (False, True, False), (True, True, True), (True, True, False), (True, False, True),
            (True, False, False)]    # dense, jump, reuse


def random_matrix(shape, density=0.03, seed=0):
    return (np.random.default_rng(seed).random(shape) < density).astype(np.uint8)


def scattered_matrix(shape, seed):
    """Rows 16 to 31 are empty, rows 32 to 39 have an entry in every tile, others few."""
    matrix = random_matrix(shape, 0.0005, seed)
    matrix[16:32], matrix[32:40, ::64] = 0, 1
    return matrix


def tiles_of(matrix, is_dense, device):
    pattern = scipy.sparse.csr_matrix(matrix)
    return host.tiles_of_csr(pattern.indptr.astype(np.int64), pattern.indices.astype(np.int32), matrix.shape[1],
                                   is_dense, device)


def right_of(codes, bit_width, device):
    lines = contract.pack_codes(torch.from_numpy(codes), bit_width, True)
    return contract.BitLines(lines.words.to(device), lines.num_lines, lines.length)


@pytest.mark.covering
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(0, 5, 3), (4, 0, 3), (4, 5, 0)])
@pytest.mark.parametrize("is_dense", [False, True])
def test_empty_sides_give_empty_products_or_zeros(device, form, shape, is_dense):
    m, k, n = shape
    for jump in (True, False):
        sums, num_multiplied = cuda_tiles.multiply_tiles(
            tiles_of(np.zeros((m, k), np.uint8), is_dense, device), right_of(np.zeros((k, n), np.uint8), 2, device),
            jump or not is_dense, True, None, None, form)
        assert sums.shape == (m, n) and not sums.any()
        assert num_multiplied == (not jump and is_dense and m * k * n > 0)


@pytest.mark.covering
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_dense, jump, reuse", SWITCHES)
@pytest.mark.parametrize("shape", [(1, 1, 3), (9, 129, 23), (70, 513, 43), (5, 300, 130), (20, 260, 5)])
@pytest.mark.parametrize("bit_width", [1, 3, 8])
def test_sums_values_and_planes_of_codes_are_the_hosts(device, form, is_dense, jump, reuse, shape, bit_width):
    m, k, n = shape
    matrix, codes = scattered_matrix((m, k), n), random_codes((k, n), bit_width)
    gain, bias = (torch.from_numpy(np.random.default_rng(seed).normal(size=n).astype(np.float32)) for seed in (5, 6))
    ends = [rescaling(m, n, where, gain=gain.to(where), bias=bias.to(where), has_relu=True)
            for where in (device, "cpu")]
    for end, target in ((False, None), (True, None), (True, CodeRange(5, -20.0, 3.0, 0.5))):
        for filled in (matrix, np.full_like(matrix, shape == (20, 260, 5))):      # zeros jump every tile, ones none
            found, num_found = cuda_tiles.multiply_tiles(
                tiles_of(filled, is_dense, device), right_of(codes, bit_width, device), jump, reuse,
                ends[0] if end else None, target, form)
            expected, num_expected = host._multiply_tiles.host(
                tiles_of(filled, is_dense, "cpu"), right_of(codes, bit_width, "cpu"), jump, reuse,
                ends[1] if end else None, target)
            found, expected = (side if target is None else side.words for side in (found, expected))
            assert torch.equal(found.cpu(), expected) and num_found == num_expected


@pytest.mark.parametrize("num_columns, name", [(128, "multiply_mma8"), (129, "multiply_mma16")])
def test_rows_of_one_tile_take_the_small_form_by_themselves(emulated, num_columns, name):
    matrix, codes = np.ones((9, num_columns), np.uint8), random_codes((num_columns, 3), 2)
    sums, _ = cuda_tiles.multiply_tiles(tiles_of(matrix, False, "cpu"), right_of(codes, 2, "cpu"), True, True, None,
                                          None)
    assert np.array_equal(sums, matrix.astype(np.int64) @ codes)
    assert emulated.launches[-1][0] == name


@pytest.mark.covering
@pytest.mark.parametrize("shape", [(1, 1), (300, 300), (9, 129), (0, 3), (3, 0)])
@pytest.mark.parametrize("is_dense", [False, True])
def test_entries_of_rows_are_counted(device, shape, is_dense):
    matrix = random_matrix(shape)
    counts = cuda_tiles.count_entries(tiles_of(matrix, is_dense, device))
    assert counts.dtype == torch.int64 and np.array_equal(counts.cpu(), matrix.sum(1, dtype=np.int64))


def test_an_entry_that_is_there_twice_counts_once(device):
    tiles = host.tiles_of_csr(np.array([0, 3], np.int64), np.array([4, 4, 130], np.int32), 200, False, device)
    assert tiles.num_tiles == 2 and cuda_tiles.count_entries(tiles).item() == 2


@pytest.mark.parametrize("num_tile_rows, num_groups", [(0, 3), (3, 0), (1, 1), (1, 4), (3, 3), (8, 2)])
def test_every_row_of_tiles_and_group_of_columns_has_one_warp(num_tile_rows, num_groups):
    num_warps = 4 * tile_blocks(num_tile_rows, num_groups)
    assert num_tile_rows * num_groups <= num_warps < num_tile_rows * num_groups + 4
