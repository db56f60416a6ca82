"""The networks of the inference benchmark in floats, and `FloatBatches`, which runs them on hpcgnn's kernels.

A network has random weights, or is the float twin of a trained integer model: its weights are the values of the weight
codes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from hpcgnn.graph.reductions import degree_factor
from hpcgnn.lowbit.inference.batches import Batches
from hpcgnn.lowbit.integer_model import (
    ColumnScale,
    IntegerConvolution,
    IntegerMap,
    IntegerModel,
    Normalization,
    RowScale,
)
from hpcgnn.ops.aggregation import SparseRows, from_csr, multiply
from hpcgnn.ops.dense import map_rows
from hpcgnn.ops.pointwise import Activation


class FloatBatches:
    """Runs a stack over batches, all of them in one product, in `storage` (LayerNorm in float32) on a device.

    features : (num_rows, num_features) float32, in the order of the batches
    """

    def __init__(self, stack: list[FloatConvolution], batches: Batches, features: np.ndarray,
                 storage: torch.dtype = torch.float32, device: str = "cpu"):
        self._stack = [layer.stored(storage, device) for layer in stack]
        self.features = torch.from_numpy(features).to(device, storage)
        self._matrix = _matrix_of(stack[0].kind, batches)

    @property
    def row_bytes(self) -> int:
        """Bytes of the features and of the rows that are in memory at once in the widest layer."""
        columns = [(0 if number == 0 else layer.weight.shape[1]) + 2 * len(layer.weight)
                   + (0 if layer.second is None else len(layer.second)) for number, layer in enumerate(self._stack)]
        return self.features.nbytes + len(self.features) * max(columns) * self.features.element_size()

    def forward(self, seen: list[SeenRows] | None = None) -> np.ndarray:
        """Logits (num_rows, num_classes) float32 on the host; each convolution appends its SeenRows to `seen`."""
        return self.compute(seen).float().cpu().numpy()

    def compute(self, seen: list[SeenRows] | None = None) -> torch.Tensor:
        """Logits on the device and in the dtype of the features; does not wait for a device."""
        h = self.features
        for number, layer in enumerate(self._stack):
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
            h = z
            if number + 1 < len(self._stack):
                activation = Activation.of(z, 0.0, None, None, layer.norm_weight, layer.norm_bias, layer.norm_eps)
                h = activation.forward(z, z)[0]
        return h


def _matrix_of(kind: str, batches: Batches) -> SparseRows:
    scaling: dict[str, Any] = {}
    if kind == "sage":
        scaling = {"row_scale": degree_factor(batches.in_degree, "mean")}
    if kind == "gcn":
        factor = degree_factor(batches.in_degree, "gcn")
        scaling = {"num_self": batches.num_rows, "row_scale": factor, "column_scale": factor}
    return from_csr(batches.indptr, batches.indices, batches.num_rows, **scaling)


LEAST_SIGNED_BITS = 2
SUMMED_KINDS = ("gcn", "gin", "sage")
STORED, NORMS = ("weight", "bias", "second", "second_bias", "own"), ("norm_weight", "norm_bias")


@dataclass(frozen=True)
class FloatConvolution:
    kind: str
    # weight, bias: (mapped_dim, in_dim) float32, (mapped_dim,)
    weight: torch.Tensor
    bias: torch.Tensor
    # second, second_bias: (out_dim, mapped_dim) float32 or None
    second: torch.Tensor | None = None
    second_bias: torch.Tensor | None = None
    epsilon: float = 0.0
    own: torch.Tensor | None = None            # (mapped_dim, in_dim) float32 or None
    # norm_weight, norm_bias: (out_dim,) float32 or None, of the LayerNorm after it
    norm_weight: torch.Tensor | None = None
    norm_bias: torch.Tensor | None = None
    norm_eps: float = 1e-5

    @property
    def out_dim(self) -> int:
        return len(self.weight if self.second is None else self.second)

    def stored(self, storage: torch.dtype, device: str, norm_storage: torch.dtype = torch.float32) -> FloatConvolution:
        types = dict.fromkeys(STORED, storage) | dict.fromkeys(NORMS, norm_storage)
        tensors = {name: (getattr(self, name), dtype) for name, dtype in types.items()}
        return replace(self, **{name: None if tensor is None else tensor.to(device, dtype)
                                for name, (tensor, dtype) in tensors.items()})


# Rows that a convolution handles in one pass: its input, the mapped rows, and gin's hidden rows.
SeenRows = tuple[torch.Tensor, ...]


def random_stack(kind: str, dims: list[int], hidden: int, has_norm: bool = True) -> list[FloatConvolution]:
    """Convolutions of these dims with random weights, the same in every call; gin's first maps have `hidden` rows."""
    rng = torch.Generator().manual_seed(0)

    def drawn(out_dim: int, in_dim: int) -> torch.Tensor:
        return torch.randn(out_dim, in_dim, generator=rng) * (2 / in_dim) ** 0.5

    stack = []
    for number, (in_dim, out_dim) in enumerate(pairwise(dims)):
        mapped = hidden if kind == "gin" else out_dim
        second = (drawn(out_dim, mapped), torch.zeros(out_dim)) if kind == "gin" else (None, None)
        own = drawn(mapped, in_dim) if kind == "sage" else None
        is_normed = has_norm and number + 2 < len(dims)
        norm = (torch.ones(out_dim), torch.zeros(out_dim)) if is_normed else (None, None)
        stack.append(FloatConvolution(kind, drawn(mapped, in_dim), torch.zeros(mapped), *second, own=own,
                                      norm_weight=norm[0], norm_bias=norm[1]))
    return stack


def float_stack(model: IntegerModel) -> list[FloatConvolution]:
    """The network that a model of integers approximates. Raises ValueError for kinds other than SUMMED_KINDS."""
    return [_float_convolution(one) for one in model.convolutions]


def integer_model(stack: list[FloatConvolution], bits: int, seen: list[SeenRows], dataset: str) -> IntegerModel:
    """Quantize the stack, with one step for all in-degrees, from the largest values that were seen.

    Signed codes need at least 2 bits.
    """
    convolutions = [_integer_convolution(layer, bits, *rows) for layer, rows in zip(stack, seen, strict=True)]
    num_rows, num_features = seen[0][0].shape
    return IntegerModel(convolutions, dataset, num_rows, num_features, stack[-1].out_dim, False, "calibrated")


def _float_convolution(one: IntegerConvolution) -> FloatConvolution:
    if one.kind not in SUMMED_KINDS:
        raise ValueError(f"a convolution is {one.kind}; expected one of {', '.join(SUMMED_KINDS)}")
    more: dict[str, Any] = {}
    if one.own is not None:
        more["own"] = _values(one.own)
    if one.second is not None:
        more |= {"second": _values(one.second), "second_bias": torch.from_numpy(one.second_bias)}
    if one.norm is not None:
        more |= {"norm_weight": torch.from_numpy(one.norm.weight), "norm_bias": torch.from_numpy(one.norm.bias),
                 "norm_eps": one.norm.eps}
    return FloatConvolution(one.kind, _values(one.neighbor), torch.from_numpy(one.bias), epsilon=one.epsilon, **more)


def _values(weights: IntegerMap) -> torch.Tensor:
    return torch.from_numpy(weights.codes.astype(np.float32) * weights.scale.step[:, None])


def _integer_convolution(layer: FloatConvolution, bits: int, rows: torch.Tensor, mapped: torch.Tensor,
                         hidden: torch.Tensor | None = None) -> IntegerConvolution:
    norm = None if layer.norm_weight is None else Normalization(
        layer.norm_weight.numpy(), layer.norm_bias.numpy(), layer.norm_eps)
    first = {"kind": layer.kind, "rows": _row_scale(rows, bits), "neighbor": _integer_map(layer.weight, bits),
             "mapped": _column_scale(mapped.abs().amax(dim=0), bits), "bias": layer.bias.numpy(), "norm": norm,
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
