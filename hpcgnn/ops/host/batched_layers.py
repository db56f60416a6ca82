"""Host side of `hpcgnn.ops.batched_layers`, over the compiled kernels. Contracts are already checked."""

from __future__ import annotations

import numpy as np

from hpcgnn._ext import batched_layers as kernels
from hpcgnn.ops.host.simd import simd_level


def prepared(layers: list, indices: np.ndarray, codes: np.ndarray) -> kernels.Layers:
    """Return the layers as the kernel reads them."""
    return kernels.Layers(layers, indices, codes.view(np.uint8))


def forward(layers: kernels.Layers, tiles, logits: np.ndarray, hidden: np.ndarray | None) -> int:
    """Fill logits and hidden; the kernel's faults."""
    simd_level()
    return layers.forward(tiles.row_begin, tiles.tile_row_begin, tiles.begin, tiles.column, tiles.words, tiles.indptr,
                          logits, hidden)
