"""This module checks what Python passes to a kernel: tensors of the pointee's type, numbers in the type's range.

Nothing here launches or knows a compiler.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.cuda.signatures import Parameter

# Element types of pointers. Unsigned integers wider than a byte are held by torch as signed ones of the same bits.
TENSOR_DTYPES = {
    "float": torch.float32, "double": torch.float64, "__nv_bfloat16": torch.bfloat16, "__half": torch.float16,
    "uint8_t": torch.uint8, "int8_t": torch.int8, "uint16_t": torch.int16, "int16_t": torch.int16,
    "uint32_t": torch.int32, "int32_t": torch.int32, "int": torch.int32, "uint64_t": torch.int64,
    "int64_t": torch.int64,
}
SCALAR_TYPES = {
    "float": np.float32, "double": np.float64, "int": np.int32, "int32_t": np.int32, "int64_t": np.int64,
    "uint8_t": np.uint8, "uint16_t": np.uint16, "uint32_t": np.uint32, "uint64_t": np.uint64,
}
# Of each type the least and the largest number.
_LIMITS = {kind: (np.iinfo(kind).min, np.iinfo(kind).max) if issubclass(kind, np.integer) else
           (-float(np.finfo(kind).max), float(np.finfo(kind).max)) for kind in SCALAR_TYPES.values()}


def argument_of(parameter: Parameter, argument, device_type: str) -> torch.Tensor | np.generic | None:
    """Return the argument as it is launched: the tensor itself, None for a null pointer, a NumPy scalar of the C type.

    Raises
    ------
    KernelError      what was found instead, to follow the parameter's name
    """
    if not parameter.is_pointer:
        return _number(parameter, argument)
    if argument is not None:
        _check_tensor(parameter, argument, device_type)
    return argument


@cache
def checker_of(parameter: Parameter, device_type: str) -> Callable[[Any], torch.Tensor | np.generic | None]:
    """Return `argument_of` for one parameter, which looks first for what nearly every argument is."""
    if parameter.is_pointer:
        dtype = TENSOR_DTYPES.get(parameter.type)

        def tensor(argument):
            is_usual = argument is None or (type(argument) is torch.Tensor and argument.dtype is dtype
                                            and argument.is_contiguous() and argument.device.type == device_type)
            return argument if is_usual else argument_of(parameter, argument, device_type)

        return tensor
    kind = SCALAR_TYPES.get(parameter.type)
    if kind is None or issubclass(kind, np.floating):
        return lambda argument: argument_of(parameter, argument, device_type)
    least, most = _LIMITS[kind]

    def integer(argument):
        is_usual = type(argument) is int and least <= argument <= most
        return kind(argument) if is_usual else argument_of(parameter, argument, device_type)

    return integer


def _check_tensor(parameter: Parameter, argument, device_type: str) -> None:
    if not isinstance(argument, torch.Tensor):
        raise KernelError(f"{type(argument).__name__}, which is no tensor")
    if argument.dtype != TENSOR_DTYPES.get(parameter.type):
        raise KernelError(f"a tensor of {argument.dtype}")
    if not argument.is_contiguous():
        raise KernelError(f"a tensor of strides {argument.stride()}, which is not contiguous")
    if argument.device.type != device_type:
        raise KernelError(f"a tensor on {argument.device}, while kernels run on {device_type}")


def _number(parameter: Parameter, argument) -> np.generic:
    kind = SCALAR_TYPES.get(parameter.type)
    if kind is None or isinstance(argument, torch.Tensor | np.ndarray) or argument is None:
        raise KernelError(type(argument).__name__)
    return _float(kind, argument) if issubclass(kind, np.floating) else _integer(kind, argument)


def _integer(kind: type[np.integer], argument) -> np.integer:
    try:
        number = operator.index(argument)
    except TypeError:
        raise KernelError(f"{argument!r}, which is no integer") from None
    least, most = _LIMITS[kind]
    if not least <= number <= most:
        raise KernelError(f"{number}, out of its range")
    return kind(number)


def _float(kind: type[np.floating], argument) -> np.floating:
    if not isinstance(argument, int | float | np.integer | np.floating):
        raise KernelError(f"{argument!r}, which is no number")
    if math.isfinite(argument) and abs(float(argument)) > _LIMITS[kind][1]:
        raise KernelError(f"{argument!r}, out of its range")
    return kind(argument)
