"""State: what an exchange keeps from epoch to epoch, as arrays that a checkpoint can hold.

A state is a dict of arrays, numbers and further states by name. How it is stored is not known here.
"""

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
    """Keep a part of what outlives an epoch. Python makes no object of a class that lacks an abstract method."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Memory kept."""

    @abstractmethod
    def state(self) -> State:
        """Return all that `restore` needs; arrays may be views, valid until the next epoch."""

    @abstractmethod
    def restore(self, state: State, device: torch.device) -> None:
        """Go on from what `state` returned on this rank, beside the rows on `device`.

        Raises
        ------
        KernelError, KeyError      a state that no `state` returned
        """

    def settle(self) -> None:    # noqa: B027, nothing to do for most
        """Collective: return when nothing is on its way; the next epoch still reads what came."""


def device_of(buffer: Buffer) -> torch.device:
    """Return the device that a buffer lies on."""
    return buffer.device if isinstance(buffer, torch.Tensor) else torch.device("cpu")


def on_host(values: Buffer) -> np.ndarray:
    """Return the same values as an array of the host."""
    return values.cpu().numpy() if isinstance(values, torch.Tensor) else values


def fill(buffer: Buffer, values: np.ndarray) -> None:
    """Copy an array of as many values into a buffer.

    Raises
    ------
    KernelError      there are more or fewer
    """
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
    """Join arrays of one type, any number and lengths, to two arrays; `split` is the inverse."""
    values = np.concatenate(arrays) if arrays else np.empty(0, np.uint8)
    return {"length": np.array([len(array) for array in arrays], np.int64), "values": values}


def split(state: State) -> list[np.ndarray]:
    """Return the arrays that were `joined`."""
    ends = np.cumsum(state["length"])
    return [state["values"][end - length:end] for end, length in zip(ends, state["length"], strict=True)]
