"""Integer models as the layers that run batch by batch: which models can, and their weights and scales in that form."""

from __future__ import annotations

import numpy as np

from hpcgnn.inference.batches.neighbors import BatchNeighborhood
from hpcgnn.inference.batches.packed import PackedBatches
from hpcgnn.inference.neighborhood import REDUCTIONS
from hpcgnn.ops.batched_layers import PADDING, BatchedLayer, BatchedLayers, WeightPairs
from hpcgnn.ops.bit_gemm import padded
from hpcgnn.quantized.integer_model import IntegerConvolution, IntegerModel, RowScale

RUN_BY_BATCH = ("gcn", "gin", "sage")
LEAST_BATCHES = 16      # fewer could leave threads without work


def runs_by_batch(model: IntegerModel, packed: PackedBatches) -> bool:
    """Whether every convolution is GCN's, GIN's or SAGE's, without LayerNorm, and batches are enough to go round."""
    return (all(one.kind in RUN_BY_BATCH and one.norm is None for one in model.convolutions)
            and packed.batches.num_batches >= LEAST_BATCHES and model.num_features > 0)


def layers_of(model: IntegerModel, packed: PackedBatches, neighborhood: BatchNeighborhood) -> BatchedLayers:
    """The model's layers over packed batches; their sums are taken as the neighborhood chooses."""
    layers = [_layer(convolution, packed.in_degree, neighborhood) for convolution in model.convolutions]
    return BatchedLayers(layers, packed.tiles, packed.batches.indices, packed.codes())


def _layer(convolution: IntegerConvolution, in_degree: np.ndarray, neighborhood: BatchNeighborhood) -> BatchedLayer:
    weights, mapped = convolution.neighbor, convolution.mapped
    step, limit = _by_row(convolution.rows, in_degree)
    takes_tiles = neighborhood.takes_tiles(len(weights.codes), mapped.bit_width)
    more = {}
    if convolution.own is not None:
        more = {"own": WeightPairs.of(convolution.own.codes), "own_scale": _padded(convolution.own.scale.step)}
    if convolution.second is not None:
        second_step, second_limit = _by_row(convolution.second_rows, in_degree)
        more = {"second": WeightPairs.of(convolution.second.codes),
                "second_scale": _padded(convolution.second.scale.step),
                "second_bias": _padded(convolution.second_bias), "second_step": second_step,
                "second_limit": second_limit}
    return BatchedLayer(
        map=WeightPairs.of(weights.codes), ratio=_padded(weights.scale.step / mapped.step),
        mapped_step=_padded(mapped.step), bias=_padded(convolution.bias), row_step=step, row_limit=limit,
        row_factor=neighborhood.row_factor(REDUCTIONS[convolution.kind]), mapped_limit=float(mapped.max_code),
        epsilon=convolution.epsilon, mapped_bits=mapped.bit_width, reads_signed=convolution.rows.is_signed,
        takes_tiles=takes_tiles.astype(np.uint8), adds_near=convolution.kind in ("gcn", "gin"),
        scales_mapped=convolution.kind == "gcn", **more)


def _by_row(scale: RowScale, in_degree: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    entry = scale.entry(in_degree)
    return scale.step[entry], scale.max_code.astype(np.float32)[entry]


def _padded(columns: np.ndarray) -> np.ndarray:
    return np.pad(columns.astype(np.float32), (0, padded(len(columns), PADDING) - len(columns)))
