"""Encoding of rows as Adaptive-Package, as they come. Nothing is decoded here."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hpcgnn._ext import package as kernels
from hpcgnn.errors import KernelError
from hpcgnn.quantized.package import MAX_BIT_WIDTH, MAX_DIM, MAX_INTERVAL, PackagedRows, PackageFormat
from hpcgnn.quantized.package_positions import SLACK_BYTES, PositionWriter, grown

INTERVAL = 64


@dataclass
class PackageWriter:
    """Encodes rows as they come; memory: the packages, positions and index so far.

    Attributes
    ----------
    dim : int
    format : PackageFormat
    interval : int            rows from one index entry to the next
    """

    dim: int
    format: PackageFormat = field(default_factory=PackageFormat)
    interval: int = INTERVAL

    def __post_init__(self) -> None:
        if not 0 <= self.dim <= MAX_DIM or not 1 <= self.interval <= MAX_INTERVAL:
            raise KernelError(f"packages of {self.dim} columns with an index entry every {self.interval} rows; "
                              f"expected 0 to {MAX_DIM} columns and 1 to {MAX_INTERVAL} rows")
        self._lengths = np.array(self.format.lengths, np.int64)
        self._place = np.zeros(3, np.int64)
        self._num_rows = self._num_bits = 0
        self._stream = np.zeros(0, np.uint8)
        self._index_bit, self._index_values = np.zeros(0, np.int64), np.zeros(0, np.int32)
        self._positions = PositionWriter(self.dim, self.interval)

    def append(self, codes: np.ndarray, bit_width: np.ndarray) -> None:
        """Encode the next rows.

        Parameters
        ----------
        codes : (num_rows, dim) uint8, or int8 where signed
        bit_width : (num_rows,) int, 1 .. 8

        Raises
        ------
        KernelError      shapes or types do not fit, a width is out of range, or a code needs more than its row's width
        """
        codes, width = self._checked(codes, bit_width)
        counts = np.zeros(len(codes), np.int32)
        bad = kernels.count_codes(codes, width, self.format.is_signed, counts)
        if bad >= 0:
            values = codes[bad].view(self.format.dtype).astype(int)
            raise KernelError(f"row {self._num_rows + bad} has the code {values[np.abs(values).argmax()]}, and its "
                              f"{width[bad]} bits end at {self.format.max_code(int(width[bad]))}; use more bits")
        self._num_bits = kernels.measure_stream(self._lengths, self._place, counts, width)
        num_rows = self._num_rows + len(codes)
        self._stream = grown(self._stream, self._num_bits // 8 + SLACK_BYTES)
        self._index_bit = grown(self._index_bit, -(-num_rows // self.interval))
        self._index_values = grown(self._index_values, -(-num_rows // self.interval))
        bitmap = np.empty((len(codes), -(-self.dim // 8)), np.uint8)
        kernels.append_rows(self._lengths, self.format.is_signed, self._place, codes, width, self._num_rows,
                            self.interval, self._stream, bitmap, self._index_bit, self._index_values)
        self._positions.append(bitmap)
        self._num_rows = num_rows

    def finish(self) -> PackagedRows:
        """Return all rows so far."""
        num_entries = -(-self._num_rows // self.interval)
        num_position_bits, positions, index_position = self._positions.finish()
        return PackagedRows(self.format, self._num_rows, self.dim, self._num_bits, num_position_bits,
                            self._stream[:-(-self._num_bits // 8)].copy(), positions, self.interval,
                            self._index_bit[:num_entries].copy(), self._index_values[:num_entries].copy(),
                            index_position)

    def _checked(self, codes: np.ndarray, bit_width: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        width = np.asarray(bit_width)
        if codes.ndim != 2 or codes.shape[1] != self.dim or codes.dtype != self.format.dtype:
            raise KernelError(f"codes are {codes.dtype} of shape {codes.shape}; "
                              f"expected {self.format.dtype} of {self.dim} columns")
        if width.shape != (len(codes),):
            raise KernelError(f"bit_width has shape {width.shape}; expected one entry for each of {len(codes)} rows")
        if width.size and not 1 <= width.min() <= width.max() <= MAX_BIT_WIDTH:
            bad = width.min() if width.min() < 1 else width.max()
            raise KernelError(f"a row has bit-width {bad}; expected 1 to {MAX_BIT_WIDTH}")
        return np.ascontiguousarray(codes).view(np.uint8), np.ascontiguousarray(width, np.uint8)


def encode(codes: np.ndarray, bit_width: np.ndarray, form: PackageFormat | None = None) -> PackagedRows:
    """Encode rows at once; parameters and errors as of PackageWriter.append."""
    writer = PackageWriter(codes.shape[1], form or PackageFormat())
    writer.append(codes, bit_width)
    return writer.finish()
