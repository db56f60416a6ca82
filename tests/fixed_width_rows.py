"""Rows of codes in formats of one width, stored as `hpcgnn.lowbit.formats.fixed_sizes` counts them, and read back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpcgnn.lowbit.formats import BITMAP, COO, CSR, DENSE, address_bits
from hpcgnn.lowbit.package import PackageFormat


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
