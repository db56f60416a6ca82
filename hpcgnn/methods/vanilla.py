"""Vanilla: rows travel unquantized and fresh; other methods are compared with it."""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.methods.method import StoredRows


@dataclass(frozen=True)
class Vanilla(StoredRows):
    """Send rows in their storage type, and wait for them."""

    name = "vanilla"
    may_leave_out = True

    def fixed_bits(self, storage_bits: int) -> int:
        return storage_bits
