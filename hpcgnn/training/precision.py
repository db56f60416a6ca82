"""Precision of a run: how rows are stored and multiplied, and the loss scale that float16 needs.

Master weights, the loss, sums inside kernels and reductions over ranks are float32 at every precision.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

STORAGE: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
GROWTH, STEPS_TO_GROW = 2.0, 200
FIRST_SCALE, LARGEST_SCALE = 2.0 ** 12, 2.0 ** 24


def storage_bits(precision: str) -> int:
    """Bits of a stored value."""
    return 8 * STORAGE[precision].itemsize


@dataclass
class LossScale:
    """Factor on the loss that keeps float16 gradients above the least number; 1 where the range needs no help.

    It falls when a gradient overflows, and that step is left out; it grows again after STEPS_TO_GROW good steps.

    Attributes
    ----------
    value : float               a power of two, so that scaling rounds nothing
    good_steps : int            since it last changed
    is_dynamic : bool

    Reference: Micikevicius et al., "Mixed precision training", ICLR 2018, section 3.2.
    """

    value: float = 1.0
    good_steps: int = 0
    is_dynamic: bool = False

    @classmethod
    def of(cls, precision: str) -> LossScale:
        """Return a fresh scale."""
        return cls(FIRST_SCALE, is_dynamic=True) if precision == "fp16" else cls()

    def update(self, is_finite: bool) -> None:
        """Learn whether the last step's gradients, summed over all ranks, were finite."""
        if not self.is_dynamic:
            return
        if not is_finite:
            self.value, self.good_steps = self.value / GROWTH, 0
            return
        self.good_steps += 1
        if self.good_steps == STEPS_TO_GROW:
            self.value, self.good_steps = min(LARGEST_SCALE, self.value * GROWTH), 0
