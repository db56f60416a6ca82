"""Sizes of sparse rows of codes in other formats, to compare with Adaptive-Package: dense, bitmap, CSR and COO.

These formats store all rows at the largest width. Example: codes 0 3 0 1 at 2 bits take 8 bits dense; as bitmap 0101
and two values, 4 + 4 bits; as columns 1 and 3 and two values, 4 + 4 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpcgnn.lowbit.package import PackagedRows, PackageFormat

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


@dataclass(frozen=True)
class FixedWidthRows:
    """Rows of codes in a format of one width."""

    name: str
    shape: tuple[int, int]
    form: PackageFormat
    bit_width: int
    num_values: int
    # Bytes of packed codes: all of them if dense, otherwise the non-zero ones; signed codes as sign and magnitude.
    values: np.ndarray
    # Bytes of packed numbers, by name: (), (bitmap,), (row ends, columns), (rows, columns).
    positions: tuple[np.ndarray, ...]

    def codes(self) -> np.ndarray:
        values = _from_fields(unpack(self.values, self.bit_width, self.num_values), self.bit_width, self.form)
        codes = np.zeros(self.shape, self.form.dtype)
        codes[_READERS[self.name](self)] = values
        return codes


def pack(numbers: np.ndarray, width: int) -> np.ndarray:
    bits = (numbers.astype(np.int64).reshape(-1, 1) >> np.arange(width)) & 1
    return np.packbits(bits.astype(np.uint8), bitorder="little")


def unpack(packed: np.ndarray, width: int, count: int) -> np.ndarray:
    bits = np.unpackbits(packed, count=count * width, bitorder="little").reshape(count, width)
    return bits.astype(np.int64) @ (1 << np.arange(width, dtype=np.int64))


def address_bits(count: int) -> int:
    return max(int(count) - 1, 0).bit_length()


def encode_fixed(name: str, codes: np.ndarray, bit_width: int, form: PackageFormat) -> FixedWidthRows:
    """Store codes (num_rows, dim), uint8 or signed int8, in the format `name`, all rows at one width."""
    row, column = np.nonzero(codes)
    values = codes.reshape(-1) if name == DENSE else codes[row, column]
    ends = np.searchsorted(row, np.arange(len(codes) + 1))
    rows, columns = address_bits(codes.shape[0]), address_bits(codes.shape[1])
    numbers = {DENSE: (), BITMAP: ((codes != 0, 1),), CSR: ((ends, address_bits(len(row) + 1)), (column, columns)),
               COO: ((row, rows), (column, columns))}[name]
    return FixedWidthRows(name, codes.shape, form, bit_width, values.size,
                          pack(_to_fields(values, bit_width, form), bit_width),
                          tuple(pack(part, width) for part, width in numbers))


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


def _to_fields(codes: np.ndarray, width: int, form: PackageFormat) -> np.ndarray:
    codes = codes.astype(np.int64)
    return np.abs(codes) | (codes < 0).astype(np.int64) << (width - 1) if form.is_signed else codes


def _from_fields(fields: np.ndarray, width: int, form: PackageFormat) -> np.ndarray:
    if not form.is_signed:
        return fields.astype(form.dtype)
    magnitude, is_negative = fields & ((1 << (width - 1)) - 1), fields >> (width - 1)
    return np.where(is_negative, -magnitude, magnitude).astype(form.dtype)


def _read_dense(rows: FixedWidthRows) -> tuple[np.ndarray, ...]:
    return np.unravel_index(np.arange(rows.num_values), rows.shape) if rows.num_values else (np.zeros(0, int),) * 2


def _read_bitmap(rows: FixedWidthRows) -> tuple[np.ndarray, ...]:
    bits = np.unpackbits(rows.positions[0], count=rows.shape[0] * rows.shape[1], bitorder="little")
    return np.nonzero(bits.reshape(rows.shape))


def _read_csr(rows: FixedWidthRows) -> tuple[np.ndarray, ...]:
    ends = unpack(rows.positions[0], address_bits(rows.num_values + 1), rows.shape[0] + 1)
    return (np.repeat(np.arange(rows.shape[0]), np.diff(ends)),
            unpack(rows.positions[1], address_bits(rows.shape[1]), rows.num_values))


def _read_coo(rows: FixedWidthRows) -> tuple[np.ndarray, ...]:
    return tuple(unpack(part, address_bits(size), rows.num_values)
                 for part, size in zip(rows.positions, rows.shape, strict=True))


# Functions that return the (row, column) of each stored value, by format.
_READERS: dict[str, Callable[[FixedWidthRows], tuple[np.ndarray, ...]]] = {
    DENSE: _read_dense, BITMAP: _read_bitmap, CSR: _read_csr, COO: _read_coo}
