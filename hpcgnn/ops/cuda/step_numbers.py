"""StepNumbers: what changes from one step of training to the next, in the device's memory.

A captured step is replayed with the arguments of its capture, so its kernels get the addresses of the epoch and of
Adam's factors (see `hpcgnn.training.step_graph`). Everywhere else the numbers themselves are arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.adam import AdamFactors
from hpcgnn.ops.counter import CounterKey


class StepNumbers:
    """The numbers of the current step: its epoch, and Adam's `unbiased` and `rate`, at addresses that stay.

    Attributes
    ----------
    epoch_at : (1,) int32         on the device
    factors_at : (2,) float32     on the device
    """

    def __init__(self, device: torch.device):
        self._words = torch.zeros(3, dtype=torch.int32, device=device)
        self.epoch_at, self.factors_at = self._words[:1], self._words[1:].view(torch.float32)
        self._epoch = -1
        self._factors: AdamFactors | None = None

    def write(self, epoch: int, factors: AdamFactors) -> None:
        """Begin a step; launches of earlier steps have read theirs by then, in the order of the stream."""
        self._epoch, self._factors = epoch, factors
        bits = np.array([factors.unbiased, factors.rate], np.float32).view(np.int32)
        self._words.copy_(torch.tensor([epoch, *bits.tolist()], dtype=torch.int32))

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Within the block, kernels read the step's numbers from the device's memory."""
        global _numbers
        before, _numbers = _numbers, self
        try:
            yield
        finally:
            _numbers = before

    def check(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            raise KernelError(f"a captured step can't use the {what} {found}, only its own, {expected}")


_numbers: StepNumbers | None = None


def draw_arguments(key: CounterKey) -> tuple[int, int, torch.Tensor | None, int]:
    """A kernel's arguments seed, epoch, epoch_of_step and stream."""
    if _numbers is None:
        return key.seed, key.epoch, None, key.stream
    _numbers.check("epoch", key.epoch, _numbers._epoch)
    return key.seed, key.epoch, _numbers.epoch_at, key.stream


def fixed_draw(key: CounterKey) -> tuple[int, int, int]:
    """A kernel's arguments seed, epoch and stream; KernelError while a step is captured, whose epoch would stay."""
    if _numbers is not None:
        raise KernelError("rows are rounded at random by a kernel that can't be captured; use step_graph=off")
    return key.seed, key.epoch, key.stream


def factors_of_step(factors: AdamFactors) -> torch.Tensor | None:
    if _numbers is None:
        return None
    _numbers.check("factors of Adam", factors, _numbers._factors)
    return _numbers.factors_at
