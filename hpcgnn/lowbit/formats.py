"""Sizes of sparse rows of codes in other formats, to compare with Adaptive-Package: dense, bitmap, CSR and COO.

These formats store all rows at the largest width. Example: codes 0 3 0 1 at 2 bits take 8 bits dense; as bitmap 0101
and two values, 4 + 4 bits; as columns 1 and 3 and two values, 4 + 4 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.lowbit.package import PackagedRows

POPCOUNT = np.array([bin(byte).count("1") for byte in range(256)], np.int64)
IDEAL, PACKAGE, DENSE, BITMAP, CSR, COO = "ideal", "adaptive-package", "dense", "bitmap", "csr", "coo"


@dataclass(frozen=True)
class StoredSize:
    """Bits that a format stores: for values, with headers and padding, and for their positions."""

    value_bits: int
    position_bits: int

    @property
    def bits(self) -> int:
        return self.value_bits + self.position_bits

    def __add__(self, other: StoredSize) -> StoredSize:
        return StoredSize(self.value_bits + other.value_bits, self.position_bits + other.position_bits)


def address_bits(count: int) -> int:
    return max(int(count) - 1, 0).bit_length()


def fixed_sizes(num_rows: int, dim: int, num_values: int, bit_width: int) -> dict[str, StoredSize]:
    """Size of rows with `num_values` non-zero codes in each one-width format, without padding to bytes."""
    columns, rows, ends = address_bits(dim), address_bits(num_rows), address_bits(num_values + 1)
    values = num_values * bit_width
    return {DENSE: StoredSize(num_rows * dim * bit_width, 0), BITMAP: StoredSize(values, num_rows * dim),
            CSR: StoredSize(values, (num_rows + 1) * ends + num_values * columns),
            COO: StoredSize(values, num_values * (rows + columns))}


def sizes(packed: PackagedRows) -> dict[str, StoredSize]:
    """Size of the same rows in each format (MEGA, Fig. 4), name -> StoredSize; KernelError for bad packages.

    "ideal" counts only non-zero values at their rows' widths. Packages count every stored bit, index and padding too.
    """
    width, count = packed.bit_width().astype(np.int64), POPCOUNT[packed.bitmap()].sum(axis=1)
    stored = packed.stored_bits
    found = {IDEAL: StoredSize(int((width * count).sum()), 0),
             PACKAGE: StoredSize(stored["packages"], stored["positions"] + stored["index"])}
    return found | fixed_sizes(packed.num_rows, packed.dim, int(count.sum()), int(width.max(initial=1)))
