"""BitTensor: what goes in comes out, Eq. (2) to the letter, and no copy where none is needed."""

from __future__ import annotations

import doctest
from pathlib import Path

import numpy as np
import pytest
import torch
from reference_bits import floor_codes

import hpcgnn.lowbit
from hpcgnn.errors import KernelError
from hpcgnn.lowbit import PAD128, BitTensor, to_bit, to_val


def values_of(shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


@pytest.mark.parametrize("bit_width", range(1, 9))
@pytest.mark.parametrize("packing", ["column", "row"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_codes_come_back_as_they_were(bit_width, packing, dtype):
    codes = torch.from_numpy(np.random.default_rng(bit_width).integers(0, 2**bit_width, (19, 150))).to(dtype)
    packed = to_bit(codes, bit_width, packing)
    assert packed.shape == (19, 150) and packed.bit_width == bit_width and packed.words.dtype == torch.int32
    assert torch.equal(to_val(packed, bit_width), codes.to(torch.int32))


def test_booleans_are_one_bit_codes():
    adjacency = values_of((30, 40)) > 1
    assert torch.equal(to_bit(adjacency, 1).to_val(), adjacency.to(torch.int32))


@pytest.mark.parametrize("bit_width", range(1, 9))
@pytest.mark.parametrize("packing", ["column", "row"])
def test_floor_gives_the_codes_of_equation_2_and_values_within_half_a_step(simd, bit_width, packing):
    """A value within float32 rounding of a bin's edge may fall to either side of it."""
    values = values_of((40, 90))
    low, high = values.min().item(), values.max().item()
    packed = to_bit(values, bit_width, packing)
    place = (values.double() - low) / ((high - low) / 2**bit_width)
    is_clear = ((place - place.round()).abs() > 1e-4).numpy()
    expected = floor_codes(values.numpy(), bit_width, low, high)
    assert is_clear.mean() > 0.9
    assert np.array_equal(packed.to_codes().numpy()[is_clear], expected[is_clear])
    error = (packed.to_val() - values).abs().max().item()
    assert error <= packed.step.item() * 0.5001


@pytest.mark.parametrize("bit_width", range(1, 9))
def test_nearest_keeps_zeros_exactly_and_values_within_half_a_step(bit_width):
    values = torch.relu(values_of((50, 60)))
    packed = to_bit(values, bit_width, rounding="nearest", low=0.0)
    assert (packed.to_val()[values == 0] == 0).all()
    assert (packed.to_val() - values).abs().max() <= packed.step * 0.5001


@pytest.mark.parametrize("packing, axis", [("column", 1), ("row", 0)])
@pytest.mark.parametrize("rounding", ["floor", "nearest"])
def test_a_range_a_line_fits_every_line(packing, axis, rounding):
    values = values_of((40, 50)) * torch.logspace(-3, 3, 40 if axis else 50).view((-1, 1) if axis else (1, -1))
    packed = to_bit(values, 6, packing, rounding=rounding, is_per_line=True)
    span = values.amax(axis, keepdim=True) - values.amin(axis, keepdim=True)
    assert ((packed.to_val() - values).abs() <= span / 63 * 0.5001).all()


def test_values_outside_a_given_range_are_clamped_to_its_ends():
    packed = to_bit(torch.tensor([[-9.0, 0.0, 9.0]]), 2, low=-1.0, high=1.0, rounding="nearest")
    assert packed.to_codes().tolist() == [[0, 2, 3]]
    assert packed.to_val()[0, 0].item() == -1.0 and packed.to_val()[0, 2].item() == pytest.approx(1.0)


@pytest.mark.parametrize("rounding", ["floor", "nearest"])
@pytest.mark.parametrize("value", [0.0, -3.5, 1e-30, 1e30])
def test_a_constant_matrix_comes_back(rounding, value):
    values = torch.full((9, 9), value)
    assert torch.allclose(to_bit(values, 3, rounding=rounding).to_val(), values, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
@pytest.mark.parametrize("packing", ["column", "row"])
@pytest.mark.parametrize("is_per_line", [False, True])
def test_empty_matrices_stay_empty(shape, packing, is_per_line):
    assert to_bit(torch.empty(shape), 4, packing, is_per_line=is_per_line).to_val().shape == shape


def test_a_transposed_matrix_is_packed_from_its_own_memory_to_the_same_words():
    weight = values_of((16, 300))
    for packing in ("column", "row"):
        turned, copied = to_bit(weight.t(), 4, packing), to_bit(weight.t().contiguous(), 4, packing)
        assert torch.equal(turned.words, copied.words) and turned.shape == (300, 16)


def test_words_are_taken_and_given_without_a_copy():
    made = to_bit(torch.ones(5, 200, dtype=torch.uint8), 1, line_padding=PAD128)
    assert made.words.shape == (1, 128, 8)
    again = BitTensor.from_words(made.words, (5, 200), "column")
    assert again.words.data_ptr() == made.words.data_ptr() == made.words.numpy().ctypes.data
    made.words[0, 0, 0] = 0
    assert again.to_val()[0, :33].tolist() == [0] * 32 + [1]


@pytest.mark.parametrize("bit", [31, 2])
def test_ones_in_the_padding_are_refused(bit):
    words = torch.zeros(2, 8, 8, dtype=torch.int32)
    words[1, 3, 6] = np.int32(1 << bit) if bit < 31 else np.int32(-2**31)
    assert BitTensor.from_words(words, (5, 224), "column").shape == (5, 224)
    with pytest.raises(KernelError, match="lines of 194 codes have ones past their end"):
        BitTensor.from_words(words, (5, 194), "column")
    with pytest.raises(KernelError, match="ones past their end"):
        BitTensor.from_words(words, (194, 5), "row")


@pytest.mark.parametrize("make, complaint", [
    (lambda: to_bit(torch.tensor([[4]]), 2), "codes of 2 bits lie in 0 to 3, found 4; quantize the matrix first"),
    (lambda: to_bit(torch.tensor([[-1]]), 2), "found -1"),
    (lambda: to_bit(torch.tensor([[1]]), 9), "a bit-width is 9; expected 1 to 8"),
    (lambda: to_bit(torch.tensor([[1.0]]), 0), "a bit-width is 0; expected 1 to 8"),
    (lambda: to_bit(torch.tensor([[1.0, torch.nan]]), 2), "holds NaN or infinity"),
    (lambda: to_bit(torch.tensor([[1.0, torch.inf]]), 2), "holds NaN or infinity"),
    (lambda: to_bit(torch.tensor([[1.0, torch.nan]]), 2, low=0.0, high=1.0), "holds NaN or infinity"),
    (lambda: to_bit(torch.tensor([[1.0]]), 2, low=2.0), "runs from 2 to 1; expected finite ends in that order"),
    (lambda: to_bit(torch.tensor([[1.0]]), 2, high=float("inf")), "runs from 1 to inf; expected finite ends"),
    (lambda: to_bit(torch.tensor([[1.0]]), 2, low=float("nan")), "expected finite ends"),
    (lambda: to_bit(torch.tensor([[1.0]]), 2, rounding="up"), "rounding is 'up'; expected one of floor, nearest"),
    (lambda: to_bit(torch.ones(3, 3), 2, "left"), "packing is 'left'; expected one of column, row"),
    (lambda: to_bit(torch.ones(3), 2), r"a BitTensor is a matrix, found shape \(3,\)"),
    (lambda: to_bit(torch.ones(3, 3), 2).to_val(3), "of 2 bits can't be read with 3 bits"),
])
def test_what_is_no_matrix_of_codes_is_refused(make, complaint):
    with pytest.raises(KernelError, match=complaint):
        make()


def test_the_ten_lines_of_the_documentation_run():
    torch.manual_seed(0)
    assert doctest.testmod(hpcgnn.lowbit).failed == 0 < len(doctest.DocTestFinder().find(hpcgnn.lowbit))


def test_the_page_on_bits_shows_the_lines_that_run():
    page = Path(__file__).resolve().parents[2] / "docs" / "low-bit.md"
    of_bits = page.read_text().partition("## Bits as tensors\n")[2]
    shown = of_bits.partition("```python\n")[2].partition("```")[0].splitlines()
    ran = [example.source.rstrip("\n") for example in doctest.DocTestFinder().find(hpcgnn.lowbit)[0].examples]
    assert len(shown) > 5 and set(shown) <= set(ran)


def test_every_public_name_is_there_and_no_other():
    assert all(getattr(hpcgnn.lowbit, name) is not None for name in hpcgnn.lowbit.__all__)
    with pytest.raises(AttributeError, match="no attribute 'to_bits'"):
        _ = hpcgnn.lowbit.to_bits
