"""This module checks what Python passes to a kernel, tensors of the pointee's type and numbers in the type's range, and
packs it as bytes of the kernel's parameters. Nothing here launches or knows a compiler.
"""

from __future__ import annotations

import math
import operator
import struct
import sys
from collections.abc import Sequence

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
BYTE_ORDER = "<" if sys.byteorder == "little" else ">"
_CODES = {"float": "f", "double": "d", "int": "i", "int32_t": "i", "int64_t": "q", "uint8_t": "B", "uint16_t": "H",
          "uint32_t": "I", "uint64_t": "Q"}      # of struct
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


class ArgumentList:
    """The parameters of one kernel: checks what is given for them, and packs it.

    What a position may hold depends on the types of the arguments, so those are looked at once for each tuple of types.
    A tensor's own type, layout and device, and a number's range are looked at every time.

    Parameters
    ----------
    name : str                           of the kernel, for messages
    parameters : tuple of Parameter
    device_type : str                    of every tensor

    Attributes
    ----------
    offset : tuple of int                where the bytes of each parameter begin, aligned as its C type
    pointers : tuple of (place, torch.dtype)
    """

    def __init__(self, name: str, parameters: tuple[Parameter, ...], device_type: str) -> None:
        self.name, self.parameters, self.device_type = name, parameters, device_type
        codes = ["Q" if one.is_pointer else _CODES.get(one.type, "Q") for one in parameters]
        self.offset = tuple(struct.calcsize("@" + "".join(codes[:k]) + "0" + codes[k]) for k in range(len(codes)))
        end = [0, *[place + struct.calcsize(code) for place, code in zip(self.offset, codes, strict=True)]]
        gaps = [f"{place - before}x" for place, before in zip(self.offset, end, strict=False)]
        self.pointers = tuple((place, TENSOR_DTYPES.get(one.type)) for place, one in enumerate(parameters)
                              if one.is_pointer)
        # In struct's native form a float that is out of its range would become infinite.
        self.pack = struct.Struct(BYTE_ORDER + "".join(map(str.__add__, gaps, codes))).pack
        self._known_types: set[tuple[type, ...]] = set()
        self._known_devices: set[torch.device] = set()

    def packed(self, arguments: Sequence) -> tuple[bytes, torch.device | None]:
        """Return the bytes of all parameters, and the device of the tensors, None where there is none.

        Raises
        ------
        KernelError      a wrong number of arguments; one that is not of its parameter's type, out of its range, not
                         contiguous or on another device
        """
        types = tuple(map(type, arguments))
        if types not in self._known_types:
            self.check(arguments)
            self._known_types.add(types)
        values = list(arguments)
        try:
            device = self.point(values, self.pointers, None)
            return self.pack(*values), device
        except (Unusual, struct.error, OverflowError):
            return self._packed_with_care(arguments)

    def point(self, values: list, places: Sequence[tuple[int, torch.dtype]], device: torch.device | None
              ) -> torch.device | None:
        """Put addresses in the place of the tensors at `places`, and return the device of all.

        Raises
        ------
        Unusual      a tensor that `check` refuses
        """
        for place, dtype in places:
            tensor = values[place]
            if tensor is None:
                values[place] = 0
                continue
            if tensor.dtype is not dtype or not tensor.is_contiguous():
                raise Unusual
            if tensor.device != device:
                if device is not None or not self._is_usable(tensor.device):
                    raise Unusual
                device = tensor.device
            values[place] = tensor.data_ptr()
        return device

    def check(self, arguments: Sequence) -> list:
        """Return the arguments as `argument_of` makes them.

        Raises
        ------
        KernelError      as `packed`
        """
        if len(arguments) != len(self.parameters):
            raise KernelError(f"kernel {self.name} takes {len(self.parameters)} arguments, found {len(arguments)}")
        checked = [self._checked(*both) for both in zip(self.parameters, arguments, strict=True)]
        devices = {argument.device for argument in checked if isinstance(argument, torch.Tensor)}
        if len(devices) > 1:
            raise KernelError(f"kernel {self.name} was given tensors on {' and '.join(sorted(map(str, devices)))}")
        return checked

    def _packed_with_care(self, arguments: Sequence) -> tuple[bytes, torch.device | None]:
        """Numbers that struct does not take as they are become NumPy's; anything wrong gets its sentence."""
        values = self.check(arguments)
        device = self.point(values, self.pointers, None)
        return self.pack(*values), device

    def _checked(self, parameter: Parameter, argument):
        try:
            return argument_of(parameter, argument, self.device_type)
        except KernelError as wrong:
            raise KernelError(f"kernel {self.name} needs {parameter}, found {wrong}") from None

    def _is_usable(self, device: torch.device) -> bool:
        if device not in self._known_devices and device.type == self.device_type:
            self._known_devices.add(device)
        return device in self._known_devices


class Unusual(Exception):
    """Something that `ArgumentList.check` has to look at."""


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
