"""FloatBatches runs the benchmark's networks in floats on hpcgnn's kernels; `integer_model` has them as integers.

Nothing is timed here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from hpcgnn.graph.normalization import degree_factor
from hpcgnn.inference.batches.cut import Batches
from hpcgnn.ops.aggregation import SparseRows, from_csr, multiply
from hpcgnn.ops.dense import map_rows
from hpcgnn.quantized.integer_model import ColumnScale, IntegerConvolution, IntegerMap, IntegerModel, RowScale

LEAST_SIGNED_BITS = 2


@dataclass(frozen=True)
class FloatConvolution:
    """Holds a convolution of the stack; gin has a second map, sage one of the row itself.

    Attributes
    ----------
    kind : {"gcn", "gin", "sage"}
    weight : (mapped_dim, in_dim) float32, bias : (mapped_dim,)
    own : (mapped_dim, in_dim) float32 or None
    second : (out_dim, mapped_dim) float32 or None, second_bias
    epsilon : float
    """

    kind: str
    weight: torch.Tensor
    bias: torch.Tensor
    second: torch.Tensor | None = None
    second_bias: torch.Tensor | None = None
    epsilon: float = 0.0
    own: torch.Tensor | None = None


def random_stack(kind: str, dims: list[int], hidden: int) -> list[FloatConvolution]:
    """Draw convolutions between these widths, the same ones each time; gin's first maps go to `hidden` columns."""
    rng = torch.Generator().manual_seed(0)

    def drawn(out_dim: int, in_dim: int) -> torch.Tensor:
        return torch.randn(out_dim, in_dim, generator=rng) * (2 / in_dim) ** 0.5

    stack = []
    for in_dim, out_dim in pairwise(dims):
        mapped = hidden if kind == "gin" else out_dim
        second = (drawn(out_dim, mapped), torch.zeros(out_dim)) if kind == "gin" else (None, None)
        own = drawn(mapped, in_dim) if kind == "sage" else None
        stack.append(FloatConvolution(kind, drawn(mapped, in_dim), torch.zeros(mapped), *second, own=own))
    return stack


class FloatBatches:
    """Runs a stack over batches, all of them in one product.

    Parameters
    ----------
    features : (num_rows, num_features) float32, in the order of the batches
    storage : float32 or bfloat16, of rows and weights
    """

    def __init__(self, stack: list[FloatConvolution], batches: Batches, features: np.ndarray,
                 storage: torch.dtype = torch.float32):
        self.stack = [_stored(layer, storage) for layer in stack]
        self.features = torch.from_numpy(features).to(storage)
        self._matrix = _matrix_of(stack[0].kind, batches)

    def forward(self, seen: list[tuple[torch.Tensor, ...]] | None = None) -> np.ndarray:
        """Return logits (num_rows, num_classes); `seen` gets each convolution's rows, mapped and gin's hidden rows."""
        h = self.features
        for number, layer in enumerate(self.stack):
            mapped = map_rows(h, layer.weight)
            z = multiply(self._matrix, mapped).add_(layer.bias)
            if layer.own is not None:
                map_rows(h, layer.own, z)
            if layer.second is not None:
                z.add_(mapped, alpha=1 + layer.epsilon)
                hidden = F.relu_(z)
                z = map_rows(hidden, layer.second).add_(layer.second_bias)
            if seen is not None:
                factor = self._matrix.column_scale
                scaled = mapped if factor is None else mapped * torch.from_numpy(factor)[:, None]
                seen.append((h, scaled) if layer.second is None else (h, scaled, hidden))
            h = z if number + 1 == len(self.stack) else F.relu_(z)
        return h.float().numpy()


def _stored(layer: FloatConvolution, storage: torch.dtype) -> FloatConvolution:
    tensors = {name: getattr(layer, name) for name in ("weight", "bias", "second", "second_bias", "own")}
    return replace(layer, **{name: None if tensor is None else tensor.to(storage) for name, tensor in tensors.items()})


def integer_model(stack: list[FloatConvolution], bits: int, floats: FloatBatches, dataset: str) -> IntegerModel:
    """Make the stack one of codes, with one step for all in-degrees, from the largest values on these batches.

    Signed codes of less than 2 bits do not exist; they take 2.
    """
    seen: list[tuple[torch.Tensor, ...]] = []
    floats.forward(seen)
    convolutions = [_integer_convolution(layer, bits, *rows) for layer, rows in zip(stack, seen, strict=True)]
    last = stack[-1].weight if stack[-1].second is None else stack[-1].second
    return IntegerModel(convolutions, dataset, len(floats.features), floats.features.shape[1], len(last), False,
                        "calibrated")


def _integer_convolution(layer: FloatConvolution, bits: int, rows: torch.Tensor, mapped: torch.Tensor,
                         hidden: torch.Tensor | None = None) -> IntegerConvolution:
    first = {"kind": layer.kind, "rows": _row_scale(rows, bits), "neighbor": _integer_map(layer.weight, bits),
             "mapped": _column_scale(mapped.abs().amax(dim=0), bits), "bias": layer.bias.numpy(),
             "own": None if layer.own is None else _integer_map(layer.own, bits)}
    if hidden is None:
        return IntegerConvolution(**first)
    return IntegerConvolution(**first, epsilon=layer.epsilon, second_rows=_row_scale(hidden, bits),
                              second=_integer_map(layer.second, bits), second_bias=layer.second_bias.numpy())


def _row_scale(rows: torch.Tensor, bits: int) -> RowScale:
    is_signed = bool((rows < 0).any())
    bits = max(bits, LEAST_SIGNED_BITS) if is_signed else bits
    step = float(rows.abs().max()) / ((1 << bits - is_signed) - 1)
    return RowScale(np.full(1, step or 1, np.float32), np.full(1, bits, np.uint8), is_signed)


def _column_scale(largest: torch.Tensor, bits: int) -> ColumnScale:
    bits = max(bits, LEAST_SIGNED_BITS)
    step = largest / (2 ** (bits - 1) - 1)
    return ColumnScale(torch.where(step > 0, step, torch.ones(())).float().numpy(), bits)


def _integer_map(weight: torch.Tensor, bits: int) -> IntegerMap:
    scale = _column_scale(weight.abs().amax(dim=1), bits)
    codes = (weight / torch.from_numpy(scale.step)[:, None]).round().clamp(-scale.max_code, scale.max_code)
    return IntegerMap(codes.to(torch.int8).numpy(), scale)


def _matrix_of(kind: str, batches: Batches) -> SparseRows:
    scaling: dict[str, Any] = {}
    if kind == "sage":
        scaling = {"row_scale": degree_factor(batches.in_degree, "mean")}
    if kind == "gcn":
        factor = degree_factor(batches.in_degree, "gcn")
        scaling = {"num_self": batches.num_rows, "row_scale": factor, "column_scale": factor}
    return from_csr(batches.indptr, batches.indices, batches.num_rows, **scaling)
