"""Host side of `hpcgnn.ops.integer_layers`, over the compiled kernels. Contracts are already checked."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn._ext import integer_layers as kernels
from hpcgnn.ops.host.simd import simd_level


def prepared(layers: list, indices: np.ndarray, planes: np.ndarray, offset: int, is_whole: bool) -> kernels.Layers:
    """Return the layers as the kernel reads them, with weights laid out for the level in use."""
    simd_level()
    return kernels.Layers(layers, indices, planes, offset, is_whole)


def forward(layers: kernels.Layers, tiles, logits: np.ndarray, hidden: np.ndarray | None) -> int:
    """Fill logits and hidden; the kernel's faults."""
    return layers.forward(tiles.row_begin, tiles.tile_row_begin, tiles.begin, tiles.column, tiles.words, tiles.indptr,
                          logits, hidden)


def space_bytes(layers: kernels.Layers, tiles) -> int:
    """Count the bytes that all threads work in."""
    return layers.space_bytes(tiles.row_begin) * torch.get_num_threads()


def forward_rows(layers: kernels.Layers, number: int, first: int, stop: int, indptr: np.ndarray,
                 tables: list[np.ndarray], codes: np.ndarray | None, logits: np.ndarray | None,
                 hidden: np.ndarray | None) -> int:
    """Run a convolution, or none where `number` is -1, and the next one's map on some rows; the kernel's faults."""
    return layers.forward_rows(number, first, stop, indptr, *tables, codes, logits, hidden)
