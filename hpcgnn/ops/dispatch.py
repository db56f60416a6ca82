"""Choice of the backend that computes an operation: the host kernels, or the device's for arrays that live there.

An operation in `hpcgnn.ops` states and checks its contract, then calls the module that `backend_of` returns.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch

from hpcgnn.errors import KernelError

_rooms = {"cpu": "host", "cuda": "cuda"}


def backend_of(operation: str, tensor: torch.Tensor) -> ModuleType:
    """Module that implements `operation` (a file name in ops/) for the device that `tensor` lives on.

    Raises
    ------
    KernelError      a device that has no kernel for the operation
    """
    name = f"hpcgnn.ops.{_rooms.get(tensor.device.type)}.{operation}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not name.startswith(error.name or "?"):
            raise
    raise KernelError(f"{operation} has no kernel for device {tensor.device}; move the tensor to the CPU")


@contextmanager
def device_kernels_on_cpu() -> Iterator[None]:
    """Have ops/cuda compute CPU tensors in the block; a backend of `hpcgnn.ops.cuda.module` has to emulate kernels."""
    before, _rooms["cpu"] = _rooms["cpu"], "cuda"
    try:
        yield
    finally:
        _rooms["cpu"] = before
