"""This module checks an integer model: shapes that follow each other, parts that its kinds need, finite numbers.

Widths and codes are checked where they are made, in `hpcgnn.quantized.integer_model`; files are not known here.
"""

from __future__ import annotations

import numpy as np

from hpcgnn.errors import KernelError
from hpcgnn.ops.bit_gemm import LARGEST_SUM
from hpcgnn.quantized.integer_model import IntegerConvolution, IntegerMap, IntegerModel, RowScale

# Parts that a kind has beside those of all; no other kind has them.
PARTS = {"gcn": (), "sage": ("own",), "gin": ("second_rows", "second", "second_bias"), "gat": ("attention",)}
MAX_HEADS = 4096


def check_model(model: IntegerModel) -> IntegerModel:
    """Check a model and return it.

    Raises
    ------
    KernelError      a part that is missing or too many, shapes that don't follow each other, or a number that is not
                     finite
    """
    if not model.convolutions:
        raise KernelError("an integer model needs at least one convolution, found none")
    in_dim, last = model.num_features, len(model.convolutions) - 1
    for number, convolution in enumerate(model.convolutions):
        in_dim = _check_numbered(number, convolution, in_dim, number == last)
    if in_dim != model.num_classes:
        raise KernelError(f"the last convolution has {in_dim} outputs, expected one a class, {model.num_classes}")
    if model.class_names and len(set(model.class_names)) != model.num_classes:
        raise KernelError(f"its class names are {len(set(model.class_names))} different ones, expected one a class, "
                          f"{model.num_classes}")
    return model


def _check_numbered(number: int, convolution: IntegerConvolution, in_dim: int, is_last: bool) -> int:
    try:
        return _check_convolution(convolution, in_dim, is_last)
    except KernelError as error:
        raise KernelError(f"convolution {number}, of {convolution.kind}: {error}") from error


def _check_convolution(convolution: IntegerConvolution, in_dim: int, is_last: bool) -> int:
    """Count the columns of the output of a convolution that reads `in_dim` columns."""
    for part in sorted({part for parts in PARTS.values() for part in parts}):
        has, needs = getattr(convolution, part) is not None, part in PARTS[convolution.kind]
        if has != needs:
            raise KernelError(f"it has {'a' if has else 'no'} part {part}, expected {'one' if needs else 'none'}")
    mapped_dim = len(convolution.neighbor.codes)
    _check_shape("steps of mapped rows", convolution.mapped.step, (mapped_dim,))
    _check_map("weights of neighbors", convolution.neighbor, (mapped_dim, in_dim), convolution.rows)
    out_dim = _out_dim(convolution, mapped_dim)
    _check_reals("bias", convolution.bias, (out_dim,))
    if convolution.own is not None:
        _check_map("own weights", convolution.own, (out_dim, in_dim), convolution.rows)
    if convolution.second is not None:
        out_dim = len(convolution.second.codes)
        _check_map("second weights", convolution.second, (out_dim, mapped_dim), convolution.second_rows)
        _check_reals("second bias", convolution.second_bias, (out_dim,))
        if convolution.second_rows.is_signed:
            raise KernelError("its second rows have a sign, and come from a ReLU")
    if convolution.attention is not None:
        _check_reals("attention vectors", convolution.attention, (2, mapped_dim))
    _check_norm(convolution, out_dim, is_last)
    if not np.isfinite(convolution.epsilon):
        raise KernelError(f"its epsilon is {convolution.epsilon}, expected a number")
    return out_dim


def _out_dim(convolution: IntegerConvolution, mapped_dim: int) -> int:
    heads = convolution.heads
    if not 1 <= heads <= MAX_HEADS or mapped_dim % heads:
        raise KernelError(f"{heads} heads can't share {mapped_dim} columns evenly")
    if convolution.kind != "gat" and (heads > 1 or convolution.averages_heads):
        raise KernelError(f"it has {heads} heads to join, expected attention where there are any")
    return mapped_dim // heads if convolution.averages_heads else mapped_dim


def _check_norm(convolution: IntegerConvolution, out_dim: int, is_last: bool) -> None:
    norm = convolution.norm
    if norm is None:
        return
    if is_last:
        raise KernelError("it is the last and has a normalization, expected none behind the logits")
    _check_reals("weight of its normalization", norm.weight, (out_dim,))
    _check_reals("bias of its normalization", norm.bias, (out_dim,))
    if not (np.isfinite(norm.eps) and norm.eps > 0):
        raise KernelError(f"epsilon of its normalization is {norm.eps}, expected a number above 0")


def _check_map(name: str, weights: IntegerMap, shape: tuple[int, int], rows: RowScale) -> None:
    _check_shape(name, weights.codes, shape)
    if 0 in shape:
        raise KernelError(f"{name} have shape {shape}, expected at least one row and one column")
    largest = shape[1] * int(rows.max_code.max()) * weights.scale.max_code
    if largest > LARGEST_SUM:
        raise KernelError(f"a sum of {name} can reach {largest}, past the {LARGEST_SUM} of 32 bits; "
                          "use fewer bits or fewer columns")


def _check_shape(name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise KernelError(f"{name} have shape {array.shape}, expected {shape}")


def _check_reals(name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    _check_shape(name, array, shape)
    if array.dtype != np.float32 or not np.isfinite(array).all():
        raise KernelError(f"{name} is {array.dtype}, or holds NaN or infinity; expected finite float32")
