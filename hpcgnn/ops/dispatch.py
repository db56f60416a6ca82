"""Choice of the backend that computes an operation: the host kernels, or the device's for arrays that live there.

An operation in `hpcgnn.ops` states and checks its contract, then calls the module that `backend_of` returns.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

from hpcgnn.errors import KernelError


def backend_of(operation: str, tensor: torch.Tensor) -> ModuleType:
    """Module that implements `operation` (a file name in ops/) for the device that `tensor` lives on."""
    if tensor.device.type != "cpu":
        raise KernelError(f"{operation} has no kernel for device {tensor.device}; move the tensor to the CPU")
    return importlib.import_module(f"hpcgnn.ops.host.{operation}")
