"""All convolutions of an integer model on batches, a thread a batch: what lies between them never leaves its caches.

Models are not known here: a layer is its integers and its scales. The same bits come from `hpcgnn.ops.integer_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.errors import KernelError
from hpcgnn.ops.arena import empty
from hpcgnn.ops.batch_tiles import BatchTiles
from hpcgnn.ops.bit_gemm import LARGEST_SUM, padded
from hpcgnn.ops.host import batched_layers as host

PADDING, PANEL_OUTPUTS = 32, 16  # columns, of ext/src/batched_layers.c
LARGEST_PRODUCT = 255 * 127      # of two codes
HAS_NAN, NO_SPACE = 1, 2         # of ext/src/batched_layers.h


@dataclass(frozen=True)
class WeightPairs:
    """Weight codes in the order in which products read them.

    Attributes
    ----------
    in_dim, out_dim : int
    pairs : (padded out_dim / 16, ceil(in_dim / 2), 16, 2) int16
        panels of 16 outputs; weights of two inputs a pair, zeros where there is none
    """

    in_dim: int
    out_dim: int
    pairs: np.ndarray

    @classmethod
    def of(cls, codes: np.ndarray) -> WeightPairs:
        """Order weight codes (out_dim, in_dim) int8 for products."""
        out_dim, in_dim = codes.shape
        if in_dim * LARGEST_PRODUCT > LARGEST_SUM:
            raise KernelError(f"sums of {in_dim} products of codes could pass {LARGEST_SUM}; use fewer columns")
        full = np.zeros((padded(out_dim, PADDING), padded(in_dim, 2)), np.int16)
        full[:out_dim, :in_dim] = codes
        panels = full.reshape(-1, PANEL_OUTPUTS, full.shape[1] // 2, 2)
        return cls(in_dim, out_dim, np.ascontiguousarray(panels.transpose(0, 2, 1, 3)))

    @property
    def padded_out_dim(self) -> int:
        return len(self.pairs) * PANEL_OUTPUTS


@dataclass(frozen=True)
class BatchedLayer:
    """One convolution, with or without a second map, or one of the row itself; see ext/src/batched_layers.h.

    Attributes
    ----------
    map, second : WeightPairs            second is None where there is none, as are its scales
    ratio, mapped_step, bias : (padded map.out_dim,) float32
    row_step, row_limit : (num_rows,) float32      of the codes that it reads
    row_factor : (num_rows,) float32 or None
    mapped_limit, epsilon : float
    mapped_bits : int                    of the codes that are summed, a sign included
    reads_signed : bool
    takes_tiles : (num_batches,) uint8   batches that tiles sum, not gathering
    adds_near : bool                     the row's own mapped codes are in its sum
    scales_mapped : bool                 mapped rows are multiplied by row_factor too
    second_scale, second_bias : (padded second.out_dim,) float32
    second_step, second_limit : (num_rows,) float32
    own : WeightPairs or None, own_scale : (padded map.out_dim,) float32
    """

    map: WeightPairs
    ratio: np.ndarray
    mapped_step: np.ndarray
    bias: np.ndarray
    row_step: np.ndarray
    row_limit: np.ndarray
    row_factor: np.ndarray | None
    mapped_limit: float
    epsilon: float
    mapped_bits: int
    reads_signed: bool
    takes_tiles: np.ndarray
    adds_near: bool
    scales_mapped: bool
    second: WeightPairs | None = None
    second_scale: np.ndarray | None = None
    second_bias: np.ndarray | None = None
    second_step: np.ndarray | None = None
    second_limit: np.ndarray | None = None
    own: WeightPairs | None = None
    own_scale: np.ndarray | None = None

    @property
    def out_dim(self) -> int:
        return (self.second or self.map).out_dim


class BatchedLayers:
    """Passes of the same layers over the same batches.

    Parameters
    ----------
    layers : list of BatchedLayer
    tiles : BatchTiles
    indices : (num_entries,) int32       of tiles.indptr, each in its batch
    codes : (num_rows, num_features) int8 or uint8, contiguous, as layers[0].reads_signed says

    Raises
    ------
    KernelError      shapes that disagree, or no row, feature or layer at all
    """

    def __init__(self, layers: list[BatchedLayer], tiles: BatchTiles, indices: np.ndarray, codes: np.ndarray):
        num_rows = int(tiles.row_begin[-1])
        if not layers or not num_rows or codes.shape != (num_rows, layers[0].map.in_dim) or not codes.size:
            raise KernelError(f"layers over batches of {num_rows} rows were given codes of shape {codes.shape}")
        for number, layer in enumerate(layers):
            _check_layer(layer, num_rows, tiles.num_batches)
            if number and layer.map.in_dim != layers[number - 1].out_dim:
                raise KernelError(f"layer {number} reads {layer.map.in_dim} columns, expected those of the layer "
                                  f"before, {layers[number - 1].out_dim}")
        if tiles.largest_batch * 255 > LARGEST_SUM:
            raise KernelError(f"sums over batches of {tiles.largest_batch} rows could pass 32 bits; "
                              "cut smaller batches")
        self._tiles, self._out_dim = tiles, layers[-1].out_dim
        self._hidden_dim = layers[-1].map.in_dim if len(layers) > 1 else 0
        self._kernel = host.prepared(layers, indices, codes)

    def forward(self) -> tuple[np.ndarray, np.ndarray]:
        """Return logits (num_rows, out_dim) and what the last layer reads (num_rows, its columns or 0), float32.

        Raises
        ------
        KernelError      a value that is NaN
        """
        num_rows = int(self._tiles.row_begin[-1])
        logits, hidden = (empty((num_rows, dim)).numpy() for dim in (self._out_dim, self._hidden_dim))
        faults = host.forward(self._kernel, self._tiles, logits, hidden if self._hidden_dim else None)
        if faults & NO_SPACE:
            raise MemoryError("no memory for the rows of a batch")
        if faults & HAS_NAN:
            raise KernelError("rows hold NaN before they become codes; expected numbers, look for extreme values in "
                              "the model's scales")
        return logits, hidden


def _check_layer(layer: BatchedLayer, num_rows: int, num_batches: int) -> None:
    by_map = (layer.map.padded_out_dim,)
    expected = [(layer.ratio, by_map), (layer.mapped_step, by_map), (layer.bias, by_map), (layer.row_step, (num_rows,)),
                (layer.row_limit, (num_rows,))]
    if layer.row_factor is not None:
        expected.append((layer.row_factor, (num_rows,)))
    if layer.second is not None:
        by_second = (layer.second.padded_out_dim,)
        expected += [(layer.second_scale, by_second), (layer.second_bias, by_second), (layer.second_step, (num_rows,)),
                     (layer.second_limit, (num_rows,))]
    if layer.own is not None:
        expected.append((layer.own_scale, by_map))
    if any(array is None or array.dtype != np.float32 or array.shape != shape for array, shape in expected):
        raise KernelError(f"a layer over batches of {num_rows} rows and {layer.map.out_dim} columns needs float32 "
                          "scales, one a row or one a padded column")
    if layer.takes_tiles.shape != (num_batches,):
        raise KernelError(f"a layer over {num_batches} batches has {len(layer.takes_tiles)} choices, expected one each")
    if layer.second is not None and layer.second.in_dim != layer.map.out_dim:
        raise KernelError(f"a second map reads {layer.second.in_dim} columns, expected those of the first, "
                          f"{layer.map.out_dim}")
    if layer.own is not None and (layer.own.in_dim, layer.own.out_dim) != (layer.map.in_dim, layer.map.out_dim):
        raise KernelError(f"a map of the row itself has {layer.own.out_dim} x {layer.own.in_dim} weights, expected as "
                          f"many as that of its neighbors, {layer.map.out_dim} x {layer.map.in_dim}")
    if layer.scales_mapped and layer.row_factor is None:
        raise KernelError("mapped rows are to be multiplied by the row's factor, and there is none")
