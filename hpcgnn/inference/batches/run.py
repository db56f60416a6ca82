"""BatchedRun: an integer model on packed batches, as layers that run batch by batch where they can.

How batches are cut, packed and summed is not known here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcgnn.inference.batches.costs import AggregationCosts
from hpcgnn.inference.batches.cut import Batches
from hpcgnn.inference.batches.neighbors import AggregationCounts, BatchNeighborhood
from hpcgnn.inference.batches.packed import PackedBatches
from hpcgnn.inference.coded_rows import CodedRows, code_rows
from hpcgnn.inference.forward import forward_codes
from hpcgnn.inference.neighborhood import REDUCTIONS
from hpcgnn.ops.batched_layers import PADDING, BatchedLayer, BatchedLayers
from hpcgnn.ops.bit_gemm import padded
from hpcgnn.quantized.integer_model import IntegerConvolution, IntegerModel, RowScale

RUN_BY_BATCH = ("gcn", "gin", "sage")
LEAST_BATCHES = 16      # fewer could leave threads without work


class BatchedRun:
    """Passes of one model over the same batches.

    Parameters
    ----------
    model : IntegerModel
    packed : PackedBatches               codes of the model's first convolution
    aggregation : {"auto", "tiles", "gather"}
    costs : AggregationCosts or None     that auto chooses by; None is this machine's
    """

    def __init__(self, model: IntegerModel, packed: PackedBatches, aggregation: str = "auto",
                 costs: AggregationCosts | None = None):
        self._model, self._packed, self._in_degree = model, packed, packed.in_degree
        self._neighborhood = BatchNeighborhood(packed, aggregation, costs)
        self._layers = layers_of(model, packed, self._neighborhood) if runs_by_batch(model, packed) else None
        if self._layers is None:
            codes = packed.codes()
            self._coded = CodedRows.empty(model.convolutions[0].rows, packed.in_degree, codes.shape[1])
            self._coded.codes[...] = codes

    @property
    def counts(self) -> AggregationCounts:
        """Return the counts of all passes so far."""
        return self._neighborhood.counts

    @property
    def row_bytes(self) -> int:
        """Count the bytes of the features' codes and of the rows that lie between convolutions on all threads."""
        if self._layers is not None:
            return self._packed.features.words.nbytes + self._layers.space_bytes
        dims = [len(one.neighbor.codes) + one.neighbor.codes.shape[1] for one in self._model.convolutions]
        return self._coded.codes.nbytes + len(self._in_degree) * max(dims)

    def forward(self) -> tuple[np.ndarray, np.ndarray]:
        """Logits (num_rows, num_classes) and embeddings (num_rows, hidden), float32, in the order of the batches.

        Raises
        ------
        KernelError      a value that is NaN
        """
        if self._layers is None:
            return forward_codes(self._model, self._coded, self._in_degree, self._neighborhood)
        for convolution in self._model.convolutions:
            self._neighborhood.count(len(convolution.neighbor.codes), convolution.mapped.bit_width)
        return self._layers.forward()


def pack_features(model: IntegerModel, batches: Batches, features: np.ndarray, in_degree: np.ndarray) -> PackedBatches:
    """Batches with the codes of their rows' features, (num_rows, num_features) float32, in the order of the batches."""
    scale = model.convolutions[0].rows
    coded = code_rows(scale, features, in_degree)
    return PackedBatches.pack(batches, coded.codes, in_degree, int(scale.bit_width.max()))


def runs_by_batch(model: IntegerModel, packed: PackedBatches) -> bool:
    """Tell whether every convolution is GCN's, GIN's or SAGE's, and batches are many enough."""
    return (all(one.kind in RUN_BY_BATCH for one in model.convolutions)
            and packed.batches.num_batches >= LEAST_BATCHES and model.num_features > 0)


def layers_of(model: IntegerModel, packed: PackedBatches, neighborhood: BatchNeighborhood) -> BatchedLayers:
    """Return the model's layers over packed batches; their sums are taken as the neighborhood chooses."""
    layers = [_layer(convolution, packed.in_degree, neighborhood) for convolution in model.convolutions]
    return BatchedLayers(layers, packed.tiles, packed.batches.indices, packed.features.lines, packed.offset)


def _layer(convolution: IntegerConvolution, in_degree: np.ndarray, neighborhood: BatchNeighborhood) -> BatchedLayer:
    weights, mapped = convolution.neighbor, convolution.mapped
    step, limit = _by_row(convolution.rows, in_degree)
    takes_tiles = neighborhood.takes_tiles(len(weights.codes), mapped.bit_width)
    more: dict[str, Any] = {}
    if convolution.own is not None:
        more |= {"own": convolution.own.codes, "own_scale": _padded(convolution.own.scale.step)}
    if convolution.second is not None:
        second_step, second_limit = _by_row(convolution.second_rows, in_degree)
        more |= {"second": convolution.second.codes, "second_scale": _padded(convolution.second.scale.step),
                 "second_bias": _padded(convolution.second_bias), "second_step": second_step,
                 "second_limit": second_limit}
    if convolution.norm is not None:
        more |= {"norm_weight": _padded(convolution.norm.weight), "norm_bias": _padded(convolution.norm.bias),
                 "norm_eps": convolution.norm.eps}
    return BatchedLayer(
        map=weights.codes, ratio=_padded(weights.scale.step / mapped.step),
        mapped_step=_padded(mapped.step), bias=_padded(convolution.bias), row_step=step, row_limit=limit,
        row_factor=neighborhood.row_factor(REDUCTIONS[convolution.kind]), mapped_limit=float(mapped.max_code),
        epsilon=convolution.epsilon, mapped_bits=mapped.bit_width,
        takes_tiles=takes_tiles.astype(np.uint8), adds_near=convolution.kind in ("gcn", "gin"),
        scales_mapped=convolution.kind == "gcn", **more)


def _by_row(scale: RowScale, in_degree: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    entry = scale.entry(in_degree)
    return scale.step[entry], scale.max_code.astype(np.float32)[entry]


def _padded(columns: np.ndarray) -> np.ndarray:
    return np.pad(columns.astype(np.float32), (0, padded(len(columns), PADDING) - len(columns)))
