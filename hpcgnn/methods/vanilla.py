"""Vanilla: the training that all others are measured against."""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.methods.method import StoredRows


@dataclass(frozen=True)
class Vanilla(StoredRows):
    """Send rows as they are stored, and wait for them."""

    name = "vanilla"
    takes_steps = True

    def fixed_bits(self, storage_bits: int) -> int:
        """Return the width of the storage type."""
        return storage_bits
