"""Training methods: each is one row of a table that says which bits its messages have.

A method is never a branch in the training loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpcgnn.config import TrainConfig
from hpcgnn.exchange.bits import BitPlan, UniformBits
from hpcgnn.training.precision import storage_bits


@dataclass(frozen=True)
class Method:
    """One composition of policies."""

    description: str
    bit_plan: Callable[[TrainConfig], BitPlan]


METHODS: dict[str, Method] = {
    "vanilla": Method("rows as they are stored, synchronous",
                      lambda config: UniformBits(storage_bits(config.precision))),
    "uniform": Method("every message at --bits, synchronous", lambda config: UniformBits(config.bits)),
}
