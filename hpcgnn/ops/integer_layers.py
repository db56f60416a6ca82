"""All convolutions of an integer model in compiled loops, on batches or on a whole graph.

`BatchedLayers` gives each thread one batch through all layers. `GraphLayers` takes a block of rows through everything
between two sums over neighbors: for each block, sum codes of neighbors, rescale, quantize, map by the next layer's
weights. Rows between these steps stay in the caches. The bits are the same as in `hpcgnn.ops.integer_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn._ext import integer_layers as kernels
from hpcgnn.errors import KernelError
from hpcgnn.ops.arena import empty
from hpcgnn.ops.bit_gemm import LARGEST_SUM, BitLines, padded
from hpcgnn.ops.row_codes import RowBits
from hpcgnn.ops.simd import simd_level
from hpcgnn.ops.tiles import BatchTiles

PADDING = 32                     # columns, as in ext/src/integer_layers.c
LARGEST_PRODUCT = 255 * 127      # largest product of two codes
HAS_NAN, NO_SPACE = 1, 2         # as in ext/src/integer_layers.h


@dataclass(frozen=True)
class DegreeScales:
    """Steps and largest codes of rows by in-degree, (num_degrees,) float32; larger degrees take the last entry."""

    step: np.ndarray
    limit: np.ndarray
    is_signed: bool = False


@dataclass(frozen=True)
class AttentionHeads:
    """Attention of a layer, on devices: `vectors`, (2, outputs of map) float64, score destinations and sources."""

    vectors: np.ndarray
    heads: int
    averages_heads: bool


@dataclass(frozen=True)
class IntegerLayer:
    """One convolution, with or without a second map or a map of the row itself; see ext/src/integer_layers.h.

    map : (num_outputs, in_dim) int8     weight codes of the rows that are summed
    own, second : int8 in this form, or None      map of the row itself; map of the result
    ratio, mapped_step, bias, own_scale : (padded outputs of map,) float32
    rows : DegreeScales                  scales of the codes that it reads
    row_factor : (num_rows,) float32 or None
    mapped_bits : int                    bits of the codes that are summed, sign included
    takes_tiles : (num_batches,) uint8 or None      batches summed by tiles instead of gathering
    adds_near : bool                     the sum includes the row's own mapped codes
    scales_mapped : bool                 mapped rows are also multiplied by row_factor
    second_scale, second_bias : (padded outputs of second,) float32
    second_rows : DegreeScales           scales of the codes that `second` reads
    norm_weight, norm_bias : (padded out_dim,) float32 or None      of the LayerNorm after it; None in a last layer
    attention : AttentionHeads or None   weighs neighbors and the row itself, in place of a sum
    """

    map: np.ndarray
    ratio: np.ndarray
    mapped_step: np.ndarray
    bias: np.ndarray
    rows: DegreeScales
    row_factor: np.ndarray | None
    mapped_limit: float
    epsilon: float
    mapped_bits: int
    takes_tiles: np.ndarray | None
    adds_near: bool
    scales_mapped: bool
    own: np.ndarray | None = None
    own_scale: np.ndarray | None = None
    second: np.ndarray | None = None
    second_scale: np.ndarray | None = None
    second_bias: np.ndarray | None = None
    second_rows: DegreeScales | None = None
    norm_weight: np.ndarray | None = None
    norm_bias: np.ndarray | None = None
    norm_eps: float = 0.0
    attention: AttentionHeads | None = None

    @property
    def in_dim(self) -> int:
        return self.map.shape[1]

    @property
    def out_dim(self) -> int:
        if self.attention is not None and self.attention.averages_heads:
            return len(self.map) // self.attention.heads
        return len(self.map if self.second is None else self.second)


class BatchedLayers:
    """Passes of the same layers over the same batches.

    indices, (num_entries,) int32, belong to tiles.indptr and count within each batch; in_degree, (num_rows,) int32,
    counts in the whole graph; rows are BitLines of num_rows lines; if is_signed, half the range was added to the codes.

    Raises KernelError for no row, feature or layer at all.
    """

    def __init__(self, layers: list[IntegerLayer], tiles: BatchTiles, indices: np.ndarray, in_degree: np.ndarray,
                 rows: BitLines, is_signed: bool):
        _check_layers(layers, (rows.num_lines, rows.length), in_degree, int(tiles.row_begin[-1]))
        if not tiles.row_begin[-1]:
            raise KernelError("layers over batches were given no row")
        for layer in layers:
            if layer.takes_tiles is None or layer.takes_tiles.shape != (tiles.num_batches,):
                raise KernelError(f"a layer over {tiles.num_batches} batches needs one choice of tiles per batch")
        if tiles.largest_batch * 255 > LARGEST_SUM:
            raise KernelError(f"sums over batches of {tiles.largest_batch} rows could pass 32 bits; "
                              "cut smaller batches")
        self._tiles, self._out_dim = tiles, layers[-1].out_dim
        self._hidden_dim = layers[-1].in_dim if len(layers) > 1 else 0
        self._kernel = _prepared(layers, indices, in_degree, rows, is_signed, False)

    @property
    def space_bytes(self) -> int:
        return self._kernel.space_bytes(self._tiles.row_begin) * torch.get_num_threads()

    def forward(self) -> tuple[np.ndarray, np.ndarray]:
        """Logits, and the rows that the last layer reads (none if it reads the input), float32; KernelError for NaN."""
        num_rows = int(self._tiles.row_begin[-1])
        logits, hidden = (empty((num_rows, dim)).numpy() for dim in (self._out_dim, self._hidden_dim))
        tiles = self._tiles
        _refuse(self._kernel.forward(tiles.row_begin, tiles.tile_row_begin, tiles.begin, tiles.column, tiles.words,
                                     tiles.indptr, logits, hidden))
        return logits, hidden


class GraphLayers:
    """Passes of the same layers over one graph, convolution by convolution, some rows at a time.

    indptr : (num_rows + 1,) int64, indices : (num_entries,) int32
        rows to sum; rows from num_rows on belong to other ranks, and the caller writes their `mapped`
    in_degree : (num_rows,) int32      counted in the whole graph
    rows : RowBits of num_rows rows of num_features codes
    keeps_codes : bool                 keep the codes that each convolution reads, for `codes`
    mapped : list of MappedRows        one per convolution; every second one has the same memory

    Raises KernelError for an entry without a row, or no feature or layer at all.
    """

    def __init__(self, layers: list[IntegerLayer], indptr: np.ndarray, indices: np.ndarray, num_others: int,
                 in_degree: np.ndarray, rows: RowBits, keeps_codes: bool = False):
        num_rows = len(indptr) - 1
        _check_layers(layers, (rows.num_rows, rows.length), in_degree, num_rows)
        _check_entries(indptr, indices, num_rows + num_others)
        self._layers, self._indptr, self._num_rows = layers, indptr, num_rows
        self._kernel = _prepared(layers, indices, in_degree, rows, rows.is_signed, True)
        self._codes = None
        if len(layers) > 1 and (keeps_codes or any(one.own is not None for one in layers[1:])):
            stride = max(self._kernel.code_form(number)[1] for number in range(1, len(layers)))
            self._codes = empty((num_rows, stride), torch.uint8).numpy()
        # Mapped codes of two layers exist at once, the layer being summed and the next one, so two tables are enough.
        forms = [self._kernel.mapped_form(number) for number in range(len(layers))]
        sizes = [max((row_bytes for _, row_bytes in forms[start::2]), default=1) for start in (0, 1)]
        self._tables = [empty((1 + (num_rows + num_others) * size,), torch.uint8).numpy() for size in sizes]
        self.mapped = [MappedRows(self._tables[number % 2][:(num_rows + num_others) * row_bytes].reshape(-1, row_bytes),
                                  len(one.map), bits)
                       for number, (one, (bits, row_bytes)) in enumerate(zip(layers, forms, strict=True))]

    @property
    def row_bytes(self) -> int:
        return sum(table.nbytes for table in self._tables) + (0 if self._codes is None else self._codes.nbytes)

    def codes(self, number: int) -> np.ndarray:
        bits, row_bytes = self._kernel.code_form(number)
        return _fields(self._codes[:, :row_bytes], bits)[:, :self._layers[number].in_dim]

    def begin(self) -> None:
        self._forward(-1, 0, self._num_rows, None, None)

    def convolve(self, number: int, first: int, stop: int, logits: np.ndarray, hidden: np.ndarray) -> None:
        """Run a convolution on the rows first .. stop - 1, and map them for the next one. Raises KernelError for NaN.

        The last convolution writes logits (num_rows, out_dim), the one before writes `hidden`, which the last one
        reads; both float32.
        """
        self._forward(number, first, stop, logits, hidden)

    def _forward(self, number: int, first: int, stop: int, logits: np.ndarray | None,
                 hidden: np.ndarray | None) -> None:
        if first < stop:
            _refuse(self._kernel.forward_rows(number, first, stop, self._indptr, *self._tables, self._codes, logits,
                                              hidden))


@dataclass(frozen=True)
class MappedRows:
    """Rows of signed codes as the kernel sums them, 8, 4 or 2 bits per code; see ext/src/packed_fields_body.h."""

    table: np.ndarray
    num_columns: int
    bits: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.table), self.num_columns

    def fills(self, bit_width: int) -> bool:
        return self.bits == bit_width and 8 * self.table.shape[1] == bit_width * self.num_columns

    def __getitem__(self, index: np.ndarray | slice) -> np.ndarray:
        codes = _fields(self.table[index], self.bits)[:, :self.num_columns]
        return (codes if self.bits == 8 else codes - np.uint8(1 << self.bits >> 1)).view(np.int8)

    def put(self, first: int, codes: np.ndarray) -> None:
        rows = self.table[first:first + len(codes)]
        if self.bits == 8:
            rows[:, :self.num_columns] = codes.view(np.uint8)
            return
        num_fields, size = 8 // self.bits, rows.shape[1]
        full = np.zeros((len(codes), num_fields * size), np.uint8)
        full[:, :self.num_columns] = codes.view(np.uint8) + np.uint8(1 << self.bits >> 1)
        rows[...] = 0
        for field in range(num_fields):
            rows |= full[:, field * size:(field + 1) * size] << np.uint8(field * self.bits)


def _fields(rows: np.ndarray, bits: int) -> np.ndarray:
    places = range(0, 8, bits)
    return rows if bits == 8 else np.concatenate([rows >> np.uint8(place) & np.uint8((1 << bits) - 1)
                                                  for place in places], axis=1)


def _refuse(faults: int) -> None:
    if faults & NO_SPACE:
        raise MemoryError("no memory for rows of a thread")
    if faults & HAS_NAN:
        raise KernelError("rows hold NaN before they become codes; expected numbers, look for extreme values in "
                          "the model's scales")


def _check_entries(indptr: np.ndarray, indices: np.ndarray, num_mapped: int) -> None:
    if indptr.dtype != np.int64 or indices.dtype != np.int32 or indptr[0] != 0 or indptr[-1] != len(indices):
        raise KernelError(f"rows of a graph are summed by an int64 indptr from 0 to {len(indices)} and int32 indices, "
                          f"found {indptr.dtype} and {indices.dtype}")
    counts = np.diff(indptr)
    if len(counts) and (counts.min() < 0 or counts.max() * 128 > LARGEST_SUM):
        raise KernelError(f"a row has {counts.min()} to {counts.max()} entries; expected 0 to {LARGEST_SUM // 128}")
    if len(indices) and (indices.min() < 0 or indices.max() >= num_mapped):
        raise KernelError(f"entries name rows {indices.min()} to {indices.max()}; expected 0 to {num_mapped - 1}")


def _check_layers(layers: list[IntegerLayer], shape: tuple[int, int], in_degree: np.ndarray, num_rows: int) -> None:
    if not layers or shape != (num_rows, layers[0].in_dim) or not shape[1]:
        raise KernelError(f"layers over {num_rows} rows were given codes of shape {shape}")
    if in_degree.dtype != np.int32 or in_degree.shape != (num_rows,) or not in_degree.flags.c_contiguous \
            or in_degree.min(initial=0) < 0:
        raise KernelError(f"layers over {num_rows} rows need an in-degree of 0 or more each, int32")
    for number, layer in enumerate(layers):
        _check_layer(layer, num_rows)
        if number and layer.in_dim != layers[number - 1].out_dim:
            raise KernelError(f"layer {number} reads {layer.in_dim} columns, expected as many as the layer before has, "
                              f"{layers[number - 1].out_dim}")


def _check_layer(layer: IntegerLayer, num_rows: int) -> None:
    for weight, in_dim in ((layer.map, layer.in_dim), (layer.own, layer.in_dim), (layer.second, len(layer.map))):
        _check_weight(weight, in_dim)
    if layer.own is not None and len(layer.own) != len(layer.map):
        raise KernelError(f"a map of the row itself has {len(layer.own)} outputs, expected as many as the map of its "
                          f"neighbors, {len(layer.map)}")
    by_row, by_map, by_out = (num_rows,), (padded(len(layer.map), PADDING),), (padded(layer.out_dim, PADDING),)
    expected = [(layer.ratio, by_map), (layer.mapped_step, by_map), (layer.bias, by_map),
                (layer.rows.step, layer.rows.limit.shape), (layer.rows.limit, layer.rows.step.shape)]
    if layer.row_factor is not None:
        expected.append((layer.row_factor, by_row))
    if layer.second is not None:
        expected += [(layer.second_scale, by_out), (layer.second_bias, by_out)]
        if layer.second_rows is None:
            raise KernelError("a second map has no scales of the rows that it reads")
        expected += [(layer.second_rows.step, layer.second_rows.limit.shape), (layer.second_rows.limit,
                                                                              layer.second_rows.step.shape)]
    if layer.own is not None:
        expected.append((layer.own_scale, by_map))
    if layer.norm_weight is not None:
        expected += [(layer.norm_weight, by_out), (layer.norm_bias, by_out)]
    if any(array is None or array.dtype != np.float32 or array.shape != shape or (not array.size and num_rows)
           for array, shape in expected):
        raise KernelError(f"a layer over {num_rows} rows and {len(layer.map)} columns needs float32 scales, one "
                          "per row, in-degree or padded column")
    if layer.scales_mapped and layer.row_factor is None:
        raise KernelError("mapped rows are to be multiplied by the row's factor, and there is none")


def _check_weight(weight: np.ndarray | None, in_dim: int) -> None:
    if weight is None:
        return
    if weight.dtype != np.int8 or weight.ndim != 2 or weight.shape[1] != in_dim or not weight.size \
            or not weight.flags.c_contiguous:
        raise KernelError(f"a layer maps {in_dim} columns with contiguous int8 weights, one row per output, found "
                          f"{weight.dtype} of shape {weight.shape}")
    if in_dim * LARGEST_PRODUCT > LARGEST_SUM:
        raise KernelError(f"sums of {in_dim} products of codes could pass {LARGEST_SUM}; use fewer columns")


def _prepared(layers: list, indices: np.ndarray, in_degree: np.ndarray, rows: BitLines | RowBits, is_signed: bool,
              is_whole: bool) -> kernels.Layers:
    simd_level()
    if isinstance(rows, BitLines):
        words = rows.words.numpy()
        return kernels.Layers(layers, indices, in_degree, words.reshape(-1, words.shape[2]), None, rows.bit_width,
                              is_signed, is_whole)
    return kernels.Layers(layers, indices, in_degree, rows.words, rows.begin, 0, is_signed, is_whole)
