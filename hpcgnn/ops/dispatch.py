"""Chooses the function that computes an operation: the host's, or the function of the same name in ops/cuda.

    @by_device("dense")
    def _map_rows(rows, weight, out):      # the host's function; a device has map_rows of ops/cuda/dense.py
        ...

    _map_rows(rows, weight, out)           # chooses by the first tensor
    _map_rows.on(device)(rows, weight, out)

Files of ops/cuda are imported when a device first needs one of their functions.

Rows are stored in one of STORAGES, and all operations sum in float32. The host's kernels take `as_bytes(rows)`, the
memory of a contiguous (n, dim) matrix as an (n, bytes of a row) buffer of uint8.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from hpcgnn._ext.storage import RowBytes
from hpcgnn.errors import KernelError

as_bytes = RowBytes
STORAGES = (torch.float32, torch.bfloat16, torch.float16)
STORAGE_NUMBER = {storage: number for number, storage in enumerate(STORAGES)}      # of ext/src/storage.h
_operations: list[Operation] = []
_device_types = {"cuda"}      # device types for which ops/cuda computes


class Operation(dict):
    """One operation by device: the host's function, and the file with the device's; see `by_device`."""

    def __init__(self, host: Callable, file: str):
        self.host, self._file, self._name = host, file, host.__name__.lstrip("_")
        self._asker = host.__module__.rpartition(".")[2]      # named in errors
        self.on: Callable[[torch.device], Callable] = self.__getitem__      # a step asks some 50 times
        _operations.append(self)

    def __call__(self, rows: torch.Tensor, *arguments, **named) -> Any:
        return self[rows.device](rows, *arguments, **named)

    def __missing__(self, device: torch.device) -> Callable:
        is_host = device.type == "cpu" and "cpu" not in _device_types
        found = self.host if is_host else getattr(device_kernels(self._file, device, self._asker), self._name)
        self[device] = found
        return found


def by_device(file: str) -> Callable[[Callable], Operation]:
    """Decorate the host's function of an operation; the device's is in ops/cuda/`file`.py."""
    return lambda host: Operation(host, file)


def device_kernels(file: str, device: torch.device, asker: str = "") -> ModuleType:
    """Module ops/cuda/`file`.py, for tensors on `device`.

    Raises KernelError if ops/cuda has no such file, or does not support the device.
    """
    if device.type in _device_types:
        name = f"hpcgnn.ops.cuda.{file}"
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            # If the file itself needs a missing library, that is another error.
            if not name.startswith(error.name or "?"):
                raise
    raise KernelError(f"{asker or file} has no kernel for device {device}; move the tensor to the CPU")


@contextmanager
def device_kernels_on_cpu() -> Iterator[None]:
    """Compute CPU tensors by ops/cuda in the block; `hpcgnn.ops.cuda.module` needs a backend that emulates kernels."""
    before = _device_types
    _switch(before | {"cpu"})
    try:
        yield
    finally:
        _switch(before)


def _switch(device_types: set[str]) -> None:
    global _device_types
    _device_types = device_types
    for operation in _operations:
        operation.clear()


def check_rows(rows: torch.Tensor, num_rows: int, operation: str, *dtypes: torch.dtype) -> None:
    """Raise KernelError unless `rows` is a contiguous (num_rows, dim) matrix of a storage type, or of `dtypes`."""
    allowed = dtypes or STORAGES
    if rows.dtype not in allowed or rows.ndim != 2 or rows.shape[0] != num_rows or not rows.is_contiguous():
        names = " or ".join(str(allowed_type).removeprefix("torch.") for allowed_type in allowed)
        raise KernelError(f"{operation} needs contiguous {names} of {num_rows} rows, "
                          f"found {rows.dtype} of shape {tuple(rows.shape)}")
