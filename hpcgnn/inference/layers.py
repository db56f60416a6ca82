"""Convolutions of an integer model as the layers that `hpcgnn.ops.integer_layers` runs. No row is known here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hpcgnn.ops.bit_gemm import padded
from hpcgnn.ops.integer_layers import PADDING, AttentionHeads, DegreeScales, IntegerLayer
from hpcgnn.quantized.integer_model import IntegerConvolution, IntegerModel, RowScale

SUMMED_KINDS = ("gcn", "gin", "sage")      # whose neighbors are summed, not weighed


def is_summed(model: IntegerModel) -> bool:
    """Tell whether every convolution sums its neighbors, and reads a column at least."""
    return all(one.kind in SUMMED_KINDS for one in model.convolutions) and model.num_features > 0


def layers_of(model: IntegerModel, factors: Iterable[np.ndarray | None],
              takes_tiles: Iterable[np.ndarray | None] | None = None) -> list[IntegerLayer]:
    """Return the model's layers.

    Parameters
    ----------
    factors : (n,) float32 or None      of each convolution's reduction
    takes_tiles : (num_batches,) uint8 of each convolution, or None       see `IntegerLayer`
    """
    choices = [None] * len(model.convolutions) if takes_tiles is None else takes_tiles
    return [_layer(*of_one) for of_one in zip(model.convolutions, factors, choices, strict=True)]


def _layer(convolution: IntegerConvolution, factor: np.ndarray | None,
           takes_tiles: np.ndarray | None) -> IntegerLayer:
    weights, mapped = convolution.neighbor, convolution.mapped
    more: dict[str, Any] = {}
    if convolution.own is not None:
        more |= {"own": convolution.own.codes, "own_scale": _padded(convolution.own.scale.step)}
    if convolution.second is not None:
        more |= {"second": convolution.second.codes, "second_scale": _padded(convolution.second.scale.step),
                 "second_bias": _padded(convolution.second_bias), "second_rows": _by_degree(convolution.second_rows)}
    if convolution.norm is not None:
        more |= {"norm_weight": _padded(convolution.norm.weight), "norm_bias": _padded(convolution.norm.bias),
                 "norm_eps": convolution.norm.eps}
    if convolution.attention is not None:
        vectors = convolution.attention.astype(np.float64) * mapped.step
        more["attention"] = AttentionHeads(vectors, convolution.heads, convolution.averages_heads)
    return IntegerLayer(
        map=weights.codes, ratio=_padded(weights.scale.step / mapped.step), mapped_step=_padded(mapped.step),
        bias=_padded(convolution.bias), rows=_by_degree(convolution.rows), row_factor=factor,
        mapped_limit=float(mapped.max_code), epsilon=convolution.epsilon, mapped_bits=mapped.bit_width,
        takes_tiles=takes_tiles, adds_near=convolution.kind in ("gcn", "gin"),
        scales_mapped=convolution.kind == "gcn", **more)


def _by_degree(scale: RowScale) -> DegreeScales:
    return DegreeScales(scale.step, scale.max_code.astype(np.float32), scale.is_signed)


def _padded(columns: np.ndarray) -> np.ndarray:
    return np.pad(columns.astype(np.float32), (0, padded(len(columns), PADDING) - len(columns)))
