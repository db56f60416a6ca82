"""Host side of `hpcgnn.ops.integer_layers`, over the compiled kernels. Contracts are already checked."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn._ext import integer_layers as kernels
from hpcgnn.ops.bit_gemm import BitLines
from hpcgnn.ops.host.simd import simd_level
from hpcgnn.ops.row_codes import RowBits


def prepared(layers: list, indices: np.ndarray, in_degree: np.ndarray, rows: BitLines | RowBits, is_signed: bool,
             is_whole: bool) -> kernels.Layers:
    """Return the layers as the kernel reads them, with weights laid out for the level in use."""
    simd_level()
    if isinstance(rows, BitLines):
        words = rows.words.numpy()
        return kernels.Layers(layers, indices, in_degree, words.reshape(-1, words.shape[2]), None, rows.bit_width,
                              is_signed, is_whole)
    return kernels.Layers(layers, indices, in_degree, rows.words, rows.begin, 0, is_signed, is_whole)


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
