"""Low-bit compute as a library: matrices of 1- to 8-bit codes, their products, and aggregation by bits.

>>> import torch
>>> from hpcgnn.quantized import BitTiles, aggregate_to_bit, bit_mm_to_float, to_bit
>>> adjacency = (torch.rand(300, 300) < 0.05)
>>> features, weight = torch.rand(300, 64), torch.randn(64, 16)
>>> tiles = BitTiles.from_matrix(adjacency, row_scale=1 / adjacency.sum(1).clamp(min=1))
>>> means, _, num_jumped = aggregate_to_bit(tiles, to_bit(features, 4, packing="row"), 8)
>>> out = bit_mm_to_float(means, to_bit(weight, 8, packing="row"), relu=True)
>>> exact = torch.relu((adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)) @ features @ weight)
>>> bool((out - exact).abs().mean() < 0.05 * exact.max())
True
"""

from hpcgnn.ops.bit_gemm import PAD8, PAD128
from hpcgnn.quantized.bit_tensor import BitTensor, to_bit, to_val
from hpcgnn.quantized.linear_algebra import bit_mm_to_bit, bit_mm_to_float, bit_mm_to_int
from hpcgnn.quantized.tiles import BitTiles, TileProduct, aggregate_bits, aggregate_to_bit, aggregate_to_float

__all__ = [
    "PAD8", "PAD128", "BitTensor", "BitTiles", "TileProduct", "aggregate_bits", "aggregate_to_bit",
    "aggregate_to_float", "bit_mm_to_bit", "bit_mm_to_float", "bit_mm_to_int", "to_bit", "to_val",
]
