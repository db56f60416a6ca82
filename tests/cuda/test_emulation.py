"""The emulation against what CUDA and PTX define, by NumPy and torch: kernels that it runs can be believed."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from hpcgnn.ops.cuda.module import kernel

SOURCE = Path(__file__).parent / "primitives.cu"
NARROW = {torch.bfloat16: "bf16", torch.float16: "f16"}


def launch(name, *arguments, grid=(1,), block=(64,), shared_bytes=0):
    kernel(SOURCE, name)(grid, block, *arguments, shared_bytes=shared_bytes)


def numbers(*shape, low=0, high=100, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(low, high, shape, dtype=np.int32))


def test_every_thread_knows_its_place(device):
    out = torch.full((2 * 3 * 2 * 4 * 2 * 3, 6), -1, dtype=torch.int32, device=device)
    launch("write_indices", out, grid=(2, 3, 2), block=(4, 2, 3))
    z, y, x = np.indices((2, 3, 2))
    tz, ty, tx = np.indices((3, 2, 4))
    expected = [*(np.tile(t.ravel(), 12) for t in (tx, ty, tz)), *(np.repeat(b.ravel(), 24) for b in (x, y, z))]
    np.testing.assert_array_equal(out.cpu().numpy(), np.stack(expected, 1))


def test_a_barrier_orders_a_block(device):
    values = numbers(3, 200).to(device)
    out = torch.zeros_like(values)
    launch("reverse", values, out, grid=(3,), block=(200,), shared_bytes=800)
    assert torch.equal(out, values.flip(1))


def test_a_warp_orders_its_shared_memory(device):
    values = numbers(32, 32).to(device)
    out = torch.zeros_like(values)
    launch("transpose", values, out, block=(32,))
    assert torch.equal(out, values.T)


@pytest.mark.parametrize("width", [32, 8, 2])
@pytest.mark.parametrize("by", [0, 1, 3])
def test_shuffles_read_the_lanes_that_cuda_names(device, by, width):
    values = numbers(64).to(device)
    out = torch.zeros(4, 64, dtype=torch.int32, device=device)
    launch("shuffle", values, out, by, width)
    lane = np.arange(64)
    first = lane // width * width
    xor = np.where((lane ^ by) // width <= lane // width, lane ^ by, lane)
    expected = [first + by % width, np.where(lane - by >= first, lane - by, lane),
                np.where(lane + by < first + width, lane + by, lane), xor]
    np.testing.assert_array_equal(out.cpu().numpy(), values.cpu().numpy()[np.stack(expected)])


def test_votes_count_the_lanes_of_the_mask(device):
    values = numbers(96, high=8).to(device)
    out = torch.zeros(4, 96, dtype=torch.int32, device=device)
    launch("vote", values, out, block=(96,))
    seen = values.cpu().numpy().reshape(3, 2, 16)
    weight = 1 << np.arange(32, dtype=np.int64).reshape(2, 16)
    ballot = [((seen >> bit & 1) * weight).sum(-1) for bit in range(3)]
    upper = ballot[0][:, 1] ^ ballot[1][:, 1] << 1 ^ ballot[2][:, 1] << 2
    halves = (np.stack([ballot[0][:, 0], upper], 1) & 0xffffffff).astype(np.uint32)
    expected = [np.repeat(halves, 16).view(np.int32), np.repeat((seen == 5).any((1, 2)), 32),
                np.repeat((seen < 7).all((1, 2)), 32), np.full(96, (seen == 5).sum())]
    np.testing.assert_array_equal(out.cpu().numpy(), np.stack(expected))


def test_atomics_count_over_all_blocks(device):
    values = numbers(1000).to(device)
    counts = torch.zeros(5, dtype=torch.int32, device=device)
    launch("count_and_flag", values, counts, 1000, grid=(8,), block=(128,))
    expected = [*np.bincount(values.cpu().numpy() % 4), values.max().item()]
    assert counts.tolist() == expected


def test_products_of_bits_equal_the_definition(device):
    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 2**32, (rows, 8), dtype=np.uint32) for rows in (16, 8))
    bits = [np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").astype(np.int64) for words in (a, b)]
    small, large = numbers(8, 8).to(device), torch.zeros(16, 8, dtype=torch.int32, device=device)
    before = small.cpu().numpy().copy()
    launch("multiply_bits", *(torch.from_numpy(words.view(np.int32)).to(device) for words in (a, b)), small, large,
           block=(32,))
    np.testing.assert_array_equal(small.cpu().numpy(), before + bits[0][:8, :128] @ bits[1][:, :128].T)
    np.testing.assert_array_equal(large.cpu().numpy(), bits[0] @ bits[1].T)


@pytest.mark.parametrize("dtype", NARROW)
def test_every_narrow_float_widens_exactly(device, dtype):
    every = torch.arange(-2**15, 2**15, dtype=torch.int16).view(dtype).to(device)
    out = torch.zeros(2**16, device=device)
    launch(f"widen_{NARROW[dtype]}", every, out, 2**16, grid=(256,), block=(256,))
    np.testing.assert_array_equal(out.cpu().numpy(), every.cpu().float().numpy())


def floats_of_every_kind(num, seed):
    """Random bits, and values between two narrow neighbors: ties, and one unit beside them."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**32, num, dtype=np.uint32)
    bits[num // 2:] = bits[num // 2:] & 0xffff8000 | rng.choice([0x8000, 0x1000, 0x7fff, 0x8001, 0], num - num // 2)
    values = np.concatenate([bits.view(np.float32), rng.normal(size=num).astype(np.float32),
                             np.array([65504, 65519.9, 65520, 2**-24, 2**-25, -2**-25, 0, -0.0], np.float32)])
    return torch.from_numpy(values)


@pytest.mark.parametrize("dtype", NARROW)
def test_floats_round_to_nearest_even_as_torch_rounds(device, dtype):
    values = floats_of_every_kind(2000, seed=1)
    out = torch.zeros(len(values), dtype=dtype, device=device)
    launch(f"round_{NARROW[dtype]}", values.to(device), out, len(values), grid=(len(values) // 256 + 1,), block=(256,))
    expected = values.to(dtype)
    is_number = ~values.isnan()
    assert out.cpu().isnan().equal(~is_number)
    assert out.cpu()[is_number].view(torch.int16).equal(expected[is_number].view(torch.int16))


def narrow_numbers(dtype, seed):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=500) * 2.0 ** rng.integers(-6, 6, 500)).to(dtype)


@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_arithmetic_rounds_the_exact_result_once(device, dtype):
    a, b = (narrow_numbers(dtype, seed) for seed in (5, 6))
    out = torch.zeros(2, 500, dtype=dtype, device=device)
    launch(f"combine_{NARROW[dtype]}", a.to(device), b.to(device), out, 500, grid=(2,), block=(256,))
    exact = [(Fraction(x), Fraction(y)) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    expected = [[nearest(x + y, dtype) for x, y in exact], [nearest(x * y, dtype) for x, y in exact]]
    assert out.cpu().double().tolist() == expected


def test_a_fused_product_is_rounded_once(device):
    factors = [narrow_numbers(torch.float16, seed) for seed in (7, 8, 9)]
    out = torch.zeros(500, dtype=torch.float16, device=device)
    launch("fuse", *(x.to(device) for x in factors), out, 500, grid=(2,), block=(256,))
    exact = [Fraction(x) * Fraction(y) + Fraction(z) for x, y, z in zip(*(f.tolist() for f in factors), strict=True)]
    assert out.cpu().double().tolist() == [nearest(value, torch.float16) for value in exact]


def nearest(exact, dtype):
    """The value of `dtype` nearest to a fraction, ties to even, for results inside its normal range."""
    significant = 11 if dtype == torch.float16 else 8
    if exact == 0:
        return 0.0
    exponent = max(int(np.floor(np.log2(float(abs(exact))))), -14 if dtype == torch.float16 else -126)
    unit = Fraction(2) ** (exponent - significant + 1)
    return float(round(exact / unit) * unit)
