"""hpcgnn.lowbit on a device: tensors and tiles of bits where their sources lie, and the host's bits out of them."""

from __future__ import annotations

import pytest
import torch
from cuda.conftest import HAS_GPU

from hpcgnn.lowbit import BitTiles, aggregate_to_bit, bit_mm_to_float, bit_mm_to_int, to_bit
from hpcgnn.ops.dispatch import device_kernels_on_cpu


def layer_of(adjacency, features, weight):
    """A convolution on bits as in docs/low-bit.md, and products of its parts."""
    tiles = BitTiles.from_matrix(adjacency, row_scale=1 / adjacency.sum(1).clamp(min=1))
    means, num_tiles, num_jumped = aggregate_to_bit(tiles, to_bit(features, 4, packing="row"), 8)
    out = bit_mm_to_float(means, to_bit(weight, 8, packing="row"), relu=True)
    counts = bit_mm_to_int(to_bit(adjacency, 1), to_bit(features.ge(0.5), 1, packing="row"))
    return means.words, out, counts, means.to_val(), tiles.code_sums, torch.tensor([num_tiles, num_jumped])


@pytest.fixture
def on_device(device):
    """on_device(arguments) -> results of `layer_of` by the device's kernels, on the CPU."""
    def run(*arguments):
        if HAS_GPU:
            return [result.cpu() for result in layer_of(*(part.cuda() for part in arguments))]
        with device_kernels_on_cpu():
            return layer_of(*arguments)
    return run


def test_a_layer_on_bits_is_the_hosts(on_device):
    torch.manual_seed(0)
    arguments = torch.rand(70, 70) < 0.05, torch.rand(70, 24), torch.randn(24, 9)
    for found, expected in zip(on_device(*arguments), layer_of(*arguments), strict=True):
        assert torch.equal(found, expected)
