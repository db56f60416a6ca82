"""Networks of the inference benchmark in floats, and as integers: drawn ones, and the float twin of a trained model.

Nothing is run here: hpcgnn.bench.float_batches does, and peers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from hpcgnn.quantized.integer_model import (
    ColumnScale,
    IntegerConvolution,
    IntegerMap,
    IntegerModel,
    Normalization,
    RowScale,
)

LEAST_SIGNED_BITS = 2
SUMMED_KINDS = ("gcn", "gin", "sage")
STORED, NORMS = ("weight", "bias", "second", "second_bias", "own"), ("norm_weight", "norm_bias")


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
    norm_weight, norm_bias : (out_dim,) float32 or None      of the LayerNorm behind it
    norm_eps : float
    """

    kind: str
    weight: torch.Tensor
    bias: torch.Tensor
    second: torch.Tensor | None = None
    second_bias: torch.Tensor | None = None
    epsilon: float = 0.0
    own: torch.Tensor | None = None
    norm_weight: torch.Tensor | None = None
    norm_bias: torch.Tensor | None = None
    norm_eps: float = 1e-5

    @property
    def out_dim(self) -> int:
        return len(self.weight if self.second is None else self.second)

    def stored(self, storage: torch.dtype, device: str, norm_storage: torch.dtype = torch.float32) -> FloatConvolution:
        """Return the convolution with its numbers on a device, as rows are stored there; a LayerNorm as it asks."""
        types = dict.fromkeys(STORED, storage) | dict.fromkeys(NORMS, norm_storage)
        tensors = {name: (getattr(self, name), dtype) for name, dtype in types.items()}
        return replace(self, **{name: None if tensor is None else tensor.to(device, dtype)
                                for name, (tensor, dtype) in tensors.items()})


# What a convolution sees of its rows in one pass: these, the mapped ones, and gin's hidden ones.
SeenRows = tuple[torch.Tensor, ...]


def random_stack(kind: str, dims: list[int], hidden: int, has_norm: bool = True) -> list[FloatConvolution]:
    """Draw convolutions between these widths, the same ones each time; gin's first maps go to `hidden` columns."""
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
    """Return the network that a model of integers approximates: its weights as the numbers that their codes stand for.

    Raises
    ------
    ValueError      a convolution of another kind than SUMMED_KINDS
    """
    return [_float_convolution(one) for one in model.convolutions]


def integer_model(stack: list[FloatConvolution], bits: int, seen: list[SeenRows], dataset: str) -> IntegerModel:
    """Make the stack one of codes, with one step for all in-degrees, from the largest values that were seen.

    Signed codes of less than 2 bits do not exist; they take 2.
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
