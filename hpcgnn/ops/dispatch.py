"""Choice of the backend that computes an operation on tensors: the host's kernels, or those of the device they live on.

`hpcgnn.ops` states which operations ask here.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch

from hpcgnn.errors import KernelError

_rooms = {"cpu": "host", "cuda": "cuda"}


def backend_of(operation: str, place: torch.Tensor | torch.device) -> ModuleType:
    """Module that implements `operation` (a file name in ops/) for a device, or for the one that a tensor lives on.

    Raises
    ------
    KernelError      a device that has no kernel for the operation
    """
    device = place.device if isinstance(place, torch.Tensor) else place
    name = f"hpcgnn.ops.{_rooms.get(device.type)}.{operation}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not name.startswith(error.name or "?"):
            raise
    raise KernelError(f"{operation} has no kernel for device {device}; move the tensor to the CPU")


@contextmanager
def device_kernels_on_cpu() -> Iterator[None]:
    """Have ops/cuda compute CPU tensors in the block; a backend of `hpcgnn.ops.cuda.module` has to emulate kernels."""
    before, _rooms["cpu"] = _rooms["cpu"], "cuda"
    try:
        yield
    finally:
        _rooms["cpu"] = before
