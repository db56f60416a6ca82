"""Low-bit compute as a library: matrices of 1- to 8-bit codes, their products, and aggregation by bits.

>>> import torch
>>> from hpcgnn.lowbit import BitTiles, aggregate_to_bit, bit_mm_to_float, to_bit
>>> adjacency = torch.rand(300, 300) < 0.05
>>> features, weight = torch.rand(300, 64), torch.randn(64, 16)
>>> degree = adjacency.sum(1).clamp(min=1)
>>> tiles = BitTiles.from_matrix(adjacency, row_scale=1 / degree)
>>> means, _, num_jumped = aggregate_to_bit(tiles, to_bit(features, 4, packing="row"), 8)
>>> out = bit_mm_to_float(means, to_bit(weight, 8, packing="row"), relu=True)
>>> exact = torch.relu((adjacency / degree[:, None]) @ features @ weight)
>>> bool((out - exact).abs().mean() < 0.05 * exact.max())
True

Names are imported at first use, since the package's storage formats work without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcgnn.lowbit.bit_tensor import BitTensor, to_bit, to_val
    from hpcgnn.lowbit.linear_algebra import bit_mm_to_bit, bit_mm_to_float, bit_mm_to_int
    from hpcgnn.lowbit.tiles import BitTiles, TileProduct, aggregate_bits, aggregate_to_bit, aggregate_to_float
    from hpcgnn.ops.bit_gemm import PAD8, PAD128


_HOMES = {
    "hpcgnn.ops.bit_gemm": ("PAD8", "PAD128"),
    "hpcgnn.lowbit.bit_tensor": ("BitTensor", "to_bit", "to_val"),
    "hpcgnn.lowbit.linear_algebra": ("bit_mm_to_bit", "bit_mm_to_float", "bit_mm_to_int"),
    "hpcgnn.lowbit.tiles": ("BitTiles", "TileProduct", "aggregate_bits", "aggregate_to_bit", "aggregate_to_float"),
}

__all__ = [
    "PAD8", "PAD128", "BitTensor", "BitTiles", "TileProduct", "aggregate_bits", "aggregate_to_bit",
    "aggregate_to_float", "bit_mm_to_bit", "bit_mm_to_float", "bit_mm_to_int", "to_bit", "to_val",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
