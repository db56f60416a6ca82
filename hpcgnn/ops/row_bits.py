"""RowBits: rows of codes in memory as bits, each row at its own width. What codes stand for is not known here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.bit_gemm import LARGEST_BIT_WIDTH, PAD8, BitLines, pack_codes, padded, unpack_codes, words_of


@dataclass(frozen=True)
class RowBits:
    """Rows as planes of bits: bit k % 32 of word k / 32 of plane p of a row is bit p of its code number k.

    Attributes
    ----------
    words : (num_planes, words a plane) int32      planes of all rows, one row behind the other
    begin : (num_rows + 1,) int32                  row i has the planes begin[i] .. begin[i + 1] - 1, its width
    length : int                                   codes of a row
    is_signed : bool                               codes of a row of b bits have 2**(b - 1) added to them
    """

    words: np.ndarray
    begin: np.ndarray
    length: int
    is_signed: bool

    @classmethod
    def pack(cls, codes: np.ndarray, bit_width: np.ndarray) -> RowBits:
        """Pack rows.

        Parameters
        ----------
        codes : (num_rows, length) uint8, or int8 with a sign, contiguous
        bit_width : (num_rows,) integer, 1 to 8      that hold every code of the row, a sign included

        Raises
        ------
        KernelError      a width outside these or not one a row, or a code that needs more bits
        """
        is_signed = codes.dtype == np.int8
        if bit_width.shape != codes.shape[:1] or (len(bit_width) and not (
                bit_width.min() >= 1 and bit_width.max() <= LARGEST_BIT_WIDTH)):
            raise KernelError(f"{len(codes)} rows of bits need a width of 1 to {LARGEST_BIT_WIDTH} each")
        begin = np.zeros(len(codes) + 1, np.int32)
        np.cumsum(bit_width, out=begin[1:])
        made = cls(np.zeros((int(begin[-1]), words_of(codes.shape[1])), np.int32), begin, codes.shape[1], is_signed)
        for width, rows in made._rows_by_width():
            some = codes[rows].astype(np.int16) + (1 << width >> 1 if is_signed else 0)
            if some.size and not (some.min() >= 0 and some.max() < 1 << width):
                raise KernelError(f"rows of {width} bits have codes that need more")
            lines = pack_codes(torch.from_numpy(some.astype(np.uint8)), width, False)
            made.words[made._planes_of(rows, width)] = lines.words[:, :len(rows)].numpy()
        return made

    @property
    def num_rows(self) -> int:
        return len(self.begin) - 1

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.begin.nbytes

    @property
    def bit_width(self) -> np.ndarray:
        """Return the width of each row, (num_rows,) int32."""
        return np.diff(self.begin)

    def some(self, first: int, stop: int) -> RowBits:
        """Return the rows first .. stop - 1, without a copy of their bits."""
        begin = self.begin[first:stop + 1]
        return RowBits(self.words[begin[0]:begin[-1]], begin - begin[0], self.length, self.is_signed)

    def codes(self) -> np.ndarray:
        """Return (num_rows, length) uint8, or int8 with a sign."""
        codes = np.empty((self.num_rows, self.length), np.uint8)
        for width, rows in self._rows_by_width():
            words = np.zeros((width, padded(len(rows), PAD8), self.words.shape[1]), np.int32)
            words[:, :len(rows)] = self.words[self._planes_of(rows, width)]
            shifted = unpack_codes(BitLines(torch.from_numpy(words), len(rows), self.length)).numpy()
            codes[rows] = shifted - np.uint8(1 << width >> 1) if self.is_signed else shifted
        return codes.view(np.int8) if self.is_signed else codes

    def _rows_by_width(self) -> list[tuple[int, np.ndarray]]:
        widths = self.bit_width
        return [(int(width), np.flatnonzero(widths == width)) for width in np.unique(widths)]

    def _planes_of(self, rows: np.ndarray, width: int) -> np.ndarray:
        return self.begin[rows] + np.arange(width)[:, None]
