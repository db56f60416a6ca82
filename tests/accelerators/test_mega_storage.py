"""Rows take the bits in MEGA's model that the real encoder gives them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mega_setup import random_rows, small_design
from reference_mega import packages_by_loop

from hpcgnn.accelerators.mega.layout import Rules, package_bits, stored_rows
from hpcgnn.accelerators.workload import FeatureCounts
from hpcgnn.errors import ConfigError
from hpcgnn.lowbit.package import PackageFormat, encode

LENGTHS = st.lists(st.integers(8, 70), min_size=3, max_size=3).map(sorted)


@settings(max_examples=60, deadline=None)
@given(num_rows=st.integers(0, 30), dim=st.integers(1, 60), lengths=st.one_of(st.just([64, 128, 192]), LENGTHS),
       density=st.sampled_from([0.02, 0.3, 1.0]), num_widths=st.integers(1, 8), seed=st.integers(0, 99))
def test_packages_take_the_bits_of_the_real_encoder(num_rows, dim, lengths, density, num_widths, seed):
    rng = np.random.default_rng(seed)
    width = rng.integers(1, num_widths + 1, num_rows)
    codes = (rng.integers(1, 1 << width[:, None], (num_rows, dim)) * (rng.random((num_rows, dim)) < density))
    codes = codes.astype(np.uint8)
    packed = encode(codes, width, PackageFormat(tuple(lengths)))
    count = (codes != 0).sum(axis=1)
    bits = package_bits(count, width, lengths)
    assert bits.sum() == packed.num_bits
    assert bits.tolist() == packages_by_loop(count.tolist(), width.tolist(), lengths)


@pytest.mark.parametrize("width, num_values", [(2, 96), (2, 192), (3, 64), (8, 24), (2, 95), (2, 97), (8, 16)])
def test_rows_that_fill_packages_to_the_last_bit_take_no_more(width, num_values):
    count, widths = [num_values, 1, num_values], [width, width + 1 - (width == 8) * 2, width]
    codes = np.zeros((3, 200), np.uint8)
    for row, number in enumerate(count):
        codes[row, :number] = 1
    packed = encode(codes, np.array(widths), PackageFormat())
    bits = package_bits(np.array(count), np.array(widths), [64, 128, 192])
    assert bits.sum() == packed.num_bits
    assert bits.tolist() == packages_by_loop(count, widths, [64, 128, 192])


@pytest.mark.parametrize("storage", ["package", "bitmap"])
def test_rows_lie_one_after_the_other(storage):
    rows = random_rows(50, 37)
    stored = stored_rows(rows, Rules(small_design(storage=storage)))
    count = rows.row_nonzeros()
    widest = rows.bit_width[count > 0].max()
    bits = package_bits(count, rows.bit_width.astype(int), [64, 128, 192])
    if storage == "bitmap":
        bits = count * int(widest)
        assert (stored.width == widest).all()
    else:
        assert (stored.width == rows.bit_width).all()
    assert stored.value_end.tolist() == [-(-bits[:row].sum() // 8) for row in range(51)]
    assert stored.position_end.tolist() == [-(-row * 37 // 8) for row in range(51)]
    assert stored.num_bytes == -(-bits.sum() // 8) - (-50 * 37 // 8)


@pytest.mark.parametrize("storage", ["package", "bitmap"])
@pytest.mark.parametrize("width", [0, 9, 32])
def test_values_of_more_bits_than_packages_know_are_refused(storage, width):
    rows = FeatureCounts(np.array([[1, 0, 0, 0]], np.int32), np.array([width], np.uint8), 4)
    with pytest.raises(ConfigError, match="MEGA stores 1 to 8"):
        stored_rows(rows, Rules(small_design(storage=storage)))


def test_a_row_without_values_needs_no_width():
    rows = FeatureCounts(np.zeros((2, 4), np.int32), np.zeros(2, np.uint8), 4)
    assert stored_rows(rows, Rules(small_design())).value_end.tolist() == [0, 0, 0]
