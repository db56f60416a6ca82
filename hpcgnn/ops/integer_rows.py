"""Exact integer sums to values, or to the codes that the next product reads: scales, bias, LayerNorm, ReLU, rounding.

What the codes mean is the caller's; every step of a row is float32 in one fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.errors import KernelError
from hpcgnn.ops.host import integer_rows as host

HAS_NAN, IS_NEGATIVE, NO_SCRATCH = 1, 2, 4     # of ext/src/integer_rows.h


@dataclass(frozen=True)
class OwnPart:
    """A second product that is added: sums (n, dim) int32, row_scale (n,) and column_scale (dim,) float32."""

    sums: np.ndarray
    row_scale: np.ndarray
    column_scale: np.ndarray


@dataclass(frozen=True)
class LayerNorm:
    """weight and bias (dim,) float32, and epsilon."""

    weight: np.ndarray
    bias: np.ndarray
    eps: float


@dataclass(frozen=True)
class Epilogue:
    """max(0, LayerNorm(source · row_scale · column_scale + own + bias)); what is None or False is left out.

    Attributes
    ----------
    row_scale : (n,) float32 or None
    column_scale, bias : (dim,) float32 or None
    near : (n, dim) int8 or None       int32 sources are then float(sums + near) + epsilon float(near)
    epsilon : float
    own : OwnPart or None
    norm : LayerNorm or None
    rectifies : bool
    """

    row_scale: np.ndarray | None = None
    column_scale: np.ndarray | None = None
    bias: np.ndarray | None = None
    near: np.ndarray | None = None
    epsilon: float = 0.0
    own: OwnPart | None = None
    norm: LayerNorm | None = None
    rectifies: bool = False


@dataclass(frozen=True)
class CodeTarget:
    """Says where codes are written and how they round: code = sign(x) min(floor(|x| / step + 0.5), limit).

    Attributes
    ----------
    codes : (n, dim) int8 where signed, else uint8, written
    step, limit : (n,) or (1,) float32       by row, or one for all
    """

    codes: np.ndarray
    step: np.ndarray
    limit: np.ndarray


def rescale(source: np.ndarray, epilogue: Epilogue, target: CodeTarget | None = None,
            values: np.ndarray | None = None) -> None:
    """Write the codes of rescaled rows, their values, or both.

    Parameters
    ----------
    source : (n, dim) int32 or float32
    values : (n, dim) float32, written

    Raises
    ------
    KernelError      types or shapes that disagree; a value that is NaN; a negative value for codes without a sign
    """
    _check("source", source, (np.float32, np.int32), source.shape)
    shape = source.shape
    _check_epilogue(epilogue, shape)
    if target is not None:
        _check("codes", target.codes, (np.int8, np.uint8), shape)
        for name in ("step", "limit"):
            _check(name, getattr(target, name), (np.float32,), (1,) if len(target.step) == 1 else shape[:1])
    if values is not None:
        _check("values", values, (np.float32,), shape)
    refuse(host.rescale(source, epilogue, target, values))


def refuse(faults: int) -> None:
    """Raise the error that a kernel's faults stand for, if there are some."""
    if faults & NO_SCRATCH:
        raise MemoryError("no memory for a row of values")
    if faults & HAS_NAN:
        raise KernelError("rows hold NaN before they become codes; expected numbers, look for extreme values in the "
                          "features or in the model's scales")
    if faults & IS_NEGATIVE:
        raise KernelError("rows hold negative values, and their codes have no sign; quantize the model again on "
                          "these features")


def _check_epilogue(epilogue: Epilogue, shape: tuple[int, ...]) -> None:
    by_row, by_column = shape[:1], shape[1:]
    own = epilogue.own or OwnPart(None, None, None)
    norm = epilogue.norm or LayerNorm(None, None, 0.0)
    expected = [("row_scale", epilogue.row_scale, np.float32, by_row),
                ("column_scale", epilogue.column_scale, np.float32, by_column),
                ("bias", epilogue.bias, np.float32, by_column), ("near", epilogue.near, np.int8, shape),
                ("own sums", own.sums, np.int32, shape), ("own row_scale", own.row_scale, np.float32, by_row),
                ("own column_scale", own.column_scale, np.float32, by_column),
                ("norm weight", norm.weight, np.float32, by_column), ("norm bias", norm.bias, np.float32, by_column)]
    for name, array, dtype, needed in expected:
        if array is not None:
            _check(name, array, (dtype,), needed)


def _check(name: str, array: np.ndarray, dtypes: tuple, shape: tuple[int, ...]) -> None:
    if array.dtype not in [np.dtype(one) for one in dtypes] or array.shape != shape or not array.flags.c_contiguous:
        raise KernelError(f"{name} of integer rows is {array.dtype} of shape {array.shape}; expected contiguous "
                          f"{' or '.join(np.dtype(one).name for one in dtypes)} of shape {shape}")
