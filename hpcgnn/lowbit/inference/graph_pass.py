"""GraphPass: the fast host pass of an integer model that sums its neighbors, with the bits of `forward`.

A block of rows goes through all that lies between two exchanges (sum, scale, norm, ReLU, next map) while it is in the
cache. Central blocks run while halo codes travel; the rest follows when they have arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from hpcgnn.graph.reductions import degree_factor
from hpcgnn.lowbit.inference.code_exchange import CodeExchange
from hpcgnn.lowbit.inference.coded_rows import BitRows, CodedRows, LayerRows
from hpcgnn.lowbit.inference.neighborhood import REDUCTIONS
from hpcgnn.lowbit.integer_model import IntegerConvolution, IntegerModel, RowScale
from hpcgnn.ops.arena import empty
from hpcgnn.ops.bit_gemm import padded
from hpcgnn.ops.integer_layers import PADDING, AttentionHeads, DegreeScales, GraphLayers, IntegerLayer
from hpcgnn.ops.spans import blocks
from hpcgnn.partition.partition import Partition

SUMMED_KINDS = ("gcn", "gin", "sage")      # neighbors are summed without weights


class GraphPass:
    """Passes over inner nodes' rows of a model that `is_summed`; `keeps_codes` keeps the codes that `observe` gets."""

    def __init__(self, model: IntegerModel, part: Partition, exchange: CodeExchange, rows: BitRows,
                 keeps_codes: bool = False):
        self._model, self._part, self._exchange, self._rows = model, part, exchange, rows
        self._in_degree = part.in_degree[:part.num_inner]
        factors = [degree_factor(self._in_degree, REDUCTIONS[one.kind]) for one in model.convolutions]
        self._layers = GraphLayers(layers_of(model, factors), part.indptr, part.indices, exchange.num_halo,
                                   self._in_degree, rows.bits, keeps_codes)

    @property
    def row_bytes(self) -> int:
        return self._layers.row_bytes

    def forward(self, observe: Callable[[LayerRows], None] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Collective: return what `hpcgnn.lowbit.inference.forward.forward_codes` returns; KernelError for NaN."""
        num_rows, last = self._part.num_inner, self._model.convolutions[-1]
        hidden_dim = last.neighbor.codes.shape[1] if len(self._model.convolutions) > 1 else 0
        logits = empty((num_rows, len(last.bias if last.second is None else last.second_bias))).numpy()
        hidden = empty((num_rows, hidden_dim)).numpy()
        self._layers.begin()
        for number in range(len(self._model.convolutions)):
            if observe is not None:
                observe(self._codes(number))
            self._convolve(number, logits, hidden)
        return logits, hidden

    def _convolve(self, number: int, logits: np.ndarray, hidden: np.ndarray) -> None:
        part, mapped = self._part, self._layers.mapped[number]
        arrival = self._exchange.start(mapped, self._model.convolutions[number].mapped.bit_width)
        done = 0
        for first, stop in blocks(0, part.num_central):
            if arrival.poll():      # then compute all other rows in one call
                break
            self._layers.convolve(number, first, stop, logits, hidden)
            done = stop
        arrival.finish_into(mapped, part.num_inner)
        self._layers.convolve(number, done, part.num_inner, logits, hidden)

    def _codes(self, number: int) -> LayerRows:
        if number == 0:
            return self._rows
        coded = CodedRows.empty(self._model.convolutions[number].rows, self._in_degree,
                                self._layers.codes(number).shape[1])
        coded.codes.view(np.uint8)[...] = self._layers.codes(number)
        return coded


def is_summed(model: IntegerModel) -> bool:
    return all(one.kind in SUMMED_KINDS for one in model.convolutions) and model.num_features > 0


def layers_of(model: IntegerModel, factors: Iterable[np.ndarray | None],
              takes_tiles: Iterable[np.ndarray | None] | None = None) -> list[IntegerLayer]:
    """The model's convolutions as layers of `hpcgnn.ops.integer_layers`.

    Per convolution, `factors` has the (n,) float32 factors of its reduction, or None; takes_tiles is as in
    `IntegerLayer`, or None.
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
