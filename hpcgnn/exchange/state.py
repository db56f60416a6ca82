"""State: data that exchanges keep between epochs, as a nested dict of arrays and numbers for a checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.arena import empty
from hpcgnn.ops.quantization import Buffer

State = dict[str, Any]      # name -> np.ndarray, int, float, bool, str or State


class Stateful(ABC):
    """An object that lives longer than an epoch and goes into a checkpoint."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        pass

    @abstractmethod
    def state(self) -> State:
        """Return everything that `restore` needs; arrays may be views, valid until the next epoch."""

    @abstractmethod
    def restore(self, state: State, device: torch.device) -> None:
        """Continue from this rank's `state`, with rows on `device`; KernelError or KeyError if it does not fit."""

    def settle(self) -> None:    # noqa: B027, nothing to do for most
        """Collective: wait for messages on their way, without reading them."""


def device_of(buffer: Buffer) -> torch.device:
    return buffer.device if isinstance(buffer, torch.Tensor) else torch.device("cpu")


def on_host(values: Buffer) -> np.ndarray:
    return values.cpu().numpy() if isinstance(values, torch.Tensor) else values


def fill(buffer: Buffer, values: np.ndarray) -> None:
    """Copy an array into a buffer of the same length; KernelError if the lengths differ."""
    if len(values) != len(buffer):
        raise KernelError(f"a message of {len(values)} bytes was kept where its layout has {len(buffer)}")
    if isinstance(buffer, torch.Tensor):
        buffer.copy_(torch.from_numpy(values))
    else:
        buffer[:] = values


def table_of(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """Copy (num_rows, dim) float32 values to a new table on `device`."""
    table = empty(values.shape, torch.float32, device)
    table.copy_(torch.from_numpy(values))
    return table


def joined(arrays: Sequence[np.ndarray]) -> State:
    """Join arrays of one type and any lengths to two arrays; `split` is the inverse."""
    values = np.concatenate(arrays) if arrays else np.empty(0, np.uint8)
    return {"length": np.array([len(array) for array in arrays], np.int64), "values": values}


def split(state: State) -> list[np.ndarray]:
    ends = np.cumsum(state["length"])
    return [state["values"][end - length:end] for end, length in zip(ends, state["length"], strict=True)]
