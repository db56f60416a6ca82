"""ResidentArray: an immutable array of a plan or a graph, with its copies on devices.

A copy is made once and lives as long as its array.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch

from hpcgnn.errors import KernelError

# torch has few functions for wide unsigned integers; kernels read their bits through signed ones.
SAME_BITS = {np.dtype(np.uint16): np.int16, np.dtype(np.uint32): np.int32, np.dtype(np.uint64): np.int64,
             np.dtype(bool): np.uint8}


class ResidentArray(np.ndarray):
    """An array that is never written again, and its copies by device. A slice is another array, without copies."""

    copies: dict[torch.device, torch.Tensor] | None = None


def resident(array: np.ndarray | torch.Tensor) -> ResidentArray | torch.Tensor:
    """The array as a ResidentArray on the same memory; a tensor is returned unchanged."""
    return array if isinstance(array, ResidentArray | torch.Tensor) else array.view(ResidentArray)


def make_resident(owner: object, *names: str) -> None:
    for name in names:
        array = getattr(owner, name)
        if array is not None:
            object.__setattr__(owner, name, resident(array))


def on_device(array: np.ndarray | torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The array on the device of `like`: a ResidentArray's kept copy, else a new copy; on the CPU the same memory.

    A tensor is returned unchanged. Wide unsigned integers arrive as signed ones with the same bits. Raises KernelError
    for an array that is not contiguous.
    """
    if isinstance(array, torch.Tensor):
        return array
    device, copies = like.device, getattr(array, "copies", None)
    if copies is not None and device in copies:
        return copies[device]
    copy = _copy(array, device)
    if isinstance(array, ResidentArray) and device.type != "cpu":
        array.copies = {**(copies or {}), device: copy}
    return copy


def _copy(array: np.ndarray, device: torch.device) -> torch.Tensor:
    if not array.flags.c_contiguous:
        raise KernelError(f"only contiguous arrays are copied to a device, found strides {array.strides}")
    with warnings.catch_warnings():
        # Read-only arrays are allowed: kernels take them by pointers to const.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        return torch.from_numpy(array.view(SAME_BITS.get(array.dtype, array.dtype))).to(device)
