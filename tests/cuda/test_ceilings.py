"""The ceilings' kernels do the work that they are said to do: every row is gathered, every product is made."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcgnn.bench.device import BLOCK_THREADS, ENTRIES_A_BLOCK, TILES_A_ROUND, Chip, DevicePlace
from hpcgnn.bench.timing import Effort
from hpcgnn.ops.cuda.module import KERNELS, kernel

PLACE = DevicePlace(Effort(1), "cpu", chip=Chip("Stand-in 9000", (9, 0), 1, 1 << 30, 1 << 20))
LANES = np.arange(32)
GROUP, PART = LANES // 4, LANES % 4


def pattern(word):
    """The operands of ceilings.cu, by lane."""
    return ((8 * LANES + word + 1) * 0x9E3779B1 & 0xFFFFFFFF).astype(np.uint32)


def bits_of(words, halves):
    """(8 * rows of words, bits) of a fragment; `words` lists, by rows of 8, the operands of the line's halves."""
    matrix = np.zeros((8 * len(words), 128 * halves), np.int64)
    for block, operands in enumerate(words):
        for half, operand in enumerate(operands):
            for lane in LANES:
                bits = operand[lane] >> np.arange(32, dtype=np.uint32) & 1
                start = 128 * half + 32 * PART[lane]
                matrix[8 * block + GROUP[lane], start:start + 32] = bits
    return matrix


def sums_of_lanes(product):
    """Sum of the elements that each lane holds of a product of 8 or 16 rows."""
    rows = product.reshape(-1, 8, 4, 2).sum(axis=(0, 3))
    return rows[GROUP, PART]


PRODUCTS = {
    "mma8": bits_of([[pattern(0)]], 1) @ bits_of([[pattern(4)]], 1).T,
    "mma16": bits_of([[pattern(0), pattern(2)], [pattern(1), pattern(3)]], 2)
    @ bits_of([[pattern(4), pattern(5)]], 2).T}


@pytest.mark.covering
@pytest.mark.parametrize("form", PRODUCTS)
@pytest.mark.parametrize("num_blocks, num_rounds", [(1, 1), (2, 3), (1, 0)])
def test_every_round_adds_a_product_of_each_tile(device, form, num_blocks, num_rounds):
    out = torch.full((num_blocks * BLOCK_THREADS,), -1, dtype=torch.int32, device=device)
    kernel("ceilings", f"multiply_bits_{form}")((num_blocks,), (BLOCK_THREADS,), num_rounds, out)
    exact = num_rounds * TILES_A_ROUND * sums_of_lanes(PRODUCTS[form])
    assert np.array_equal(out.cpu().numpy().reshape(-1, 32), np.tile(exact, (len(out) // 32, 1)))


def test_the_launcher_counts_the_tiles_that_the_kernel_has():
    assert f"#define SETS {TILES_A_ROUND}\n" in (KERNELS / "ceilings.cu").read_text()


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [8, 24, 64, 264])
@pytest.mark.parametrize("num_entries", [1, ENTRIES_A_BLOCK, ENTRIES_A_BLOCK + 77])
def test_each_block_reads_every_word_of_its_entries_rows(device, dim, dtype, num_entries):
    rng = np.random.default_rng(dim)
    rows = torch.from_numpy(rng.standard_normal((19, dim), np.float32)).to(dtype)
    indices = rng.integers(0, 19, num_entries).astype(np.int32)
    indices[-1] = 18    # the last row, behind which nothing may be read
    found = PLACE.gathering(rows.to(device), indices)().cpu().numpy().reshape(-1, BLOCK_THREADS)
    words = rows.view(torch.int32).numpy()[indices]
    exact = [np.bitwise_xor.reduce(words[start:start + ENTRIES_A_BLOCK].ravel())
             for start in range(0, num_entries, ENTRIES_A_BLOCK)]
    assert np.array_equal(np.bitwise_xor.reduce(found, axis=1), exact)


def test_a_gather_of_nothing_starts_nothing(device):
    assert len(PLACE.gathering(torch.ones(3, 4, device=device), np.empty(0, np.int32))()) == 0


def test_only_rows_of_whole_vectors_are_gathered():
    def can_gather(dim, dtype):
        return PLACE.gathering(torch.ones(2, dim, dtype=dtype), np.zeros(1, np.int32)) is not None

    assert can_gather(4, torch.float32) and can_gather(8, torch.float16)
    assert not can_gather(41, torch.float32) and not can_gather(4, torch.float16)
