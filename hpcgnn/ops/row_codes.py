"""Rows as codes of few bits in memory: RowBits for integer models, RowStore and its activation for the backward pass.

RowBits stores each row at its own width, as planes: a row of 3-bit codes is three lines of bits, one line per bit.
RowStore rounds rows to codes in the forward pass and decodes them, block by block, in the backward pass. pack_signs
keeps one bit per element: whether it was not 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.arena import empty
from hpcgnn.ops.bit_gemm import LARGEST_BIT_WIDTH, PAD8, BitLines, pack_codes, padded, unpack_codes, words_of
from hpcgnn.ops.counter import DRAW_LEVELS, CounterKey
from hpcgnn.ops.pointwise import Activation
from hpcgnn.ops.quantization import Buffer, MessageLayout, dequantize_rows, quantize_rows
from hpcgnn.widths import PACKED_WIDTHS


@dataclass(frozen=True)
class RowBits:
    """Rows as planes of bits: bit k % 32 of word k / 32 of a row's plane p is bit p of its code k.

    words : (num_planes, words per plane) int32      planes of all rows, row after row
    begin : (num_rows + 1,) int32                    row i has the planes begin[i] .. begin[i + 1] - 1
    length : int                                     codes per row
    is_signed : bool                                 2**(b - 1) was added to the codes of a row of b bits
    """

    words: np.ndarray
    begin: np.ndarray
    length: int
    is_signed: bool

    @classmethod
    def pack(cls, codes: np.ndarray, bit_width: np.ndarray) -> RowBits:
        """Pack (num_rows, length) contiguous uint8 or int8 codes, each row at its `bit_width` of 1 to 8.

        Raises KernelError for another width or number of widths, or a code that needs more bits, sign included.
        """
        is_signed = codes.dtype == np.int8
        if bit_width.shape != codes.shape[:1] or (len(bit_width) and not (
                bit_width.min() >= 1 and bit_width.max() <= LARGEST_BIT_WIDTH)):
            raise KernelError(f"{len(codes)} rows of bits need one width from 1 to {LARGEST_BIT_WIDTH} per row")
        begin = np.zeros(len(codes) + 1, np.int32)
        np.cumsum(bit_width, out=begin[1:])
        made = cls(np.zeros((int(begin[-1]), words_of(codes.shape[1])), np.int32), begin, codes.shape[1], is_signed)
        # Pack all rows of one width at a time; signed codes are shifted so that none is negative.
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
        return np.diff(self.begin)

    def some(self, first: int, stop: int) -> RowBits:
        begin = self.begin[first:stop + 1]
        return RowBits(self.words[begin[0]:begin[-1]], begin - begin[0], self.length, self.is_signed)

    def codes(self) -> np.ndarray:
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


ROWS_A_BLOCK = 1 << 14      # rows that share a layout; the layout's 21 bytes per row are held for one block only


@dataclass(frozen=True)
class RowStore:
    """Stochastic codes of (len(node_id), dim) rows: they decode to the rows without bias.

    bit_width : {1, 2, 4, 8}        KernelError for another width
    key : CounterKey                purpose STORE, with the layer
    node_id : (num_rows,) int64     global ids, which key the rounding
    dim : int
    dtype : torch.dtype             type of the rows and of the decoded rows

    Reference: Liu et al., EXACT, ICLR 2022: activations as stochastic codes. Deviation: without its random projection.
    """

    bit_width: int
    key: CounterKey
    node_id: np.ndarray
    dim: int
    dtype: torch.dtype

    def __post_init__(self):
        if self.bit_width not in PACKED_WIDTHS:
            raise KernelError(f"kept rows have a bit-width of {PACKED_WIDTHS}, found {self.bit_width}")

    def encode(self, rows: torch.Tensor) -> torch.Tensor:
        """Codes of the rows, (num_bytes,) uint8 on their device; KernelError for NaN, infinity or above 1.6e38."""
        rows = rows.contiguous()
        codes = empty((sum(layout.num_bytes for *_, layout in self._parts()),), torch.uint8, rows.device)
        for span, index, layout, message in self._cut(codes):
            quantize_rows(rows[span], index, self.node_id[span], layout, self.key, message)
        return codes

    def decode(self, codes: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield blocks of rows as (span, rows), with errors below one step; each block overwrites the one before."""
        room = empty((min(len(self.node_id), ROWS_A_BLOCK), self.dim), self.dtype, codes.device)
        for span, index, layout, message in self._cut(codes):
            rows = room[:layout.num_rows]
            dequantize_rows(message, index, self.node_id[span], layout, rows)
            yield span, rows

    def of_activation(self, activation: Activation) -> StoredActivation:
        return StoredActivation(activation, self)

    def _parts(self) -> Iterator[tuple[slice, np.ndarray, MessageLayout]]:
        for start in range(0, len(self.node_id), ROWS_A_BLOCK):
            stop = min(start + ROWS_A_BLOCK, len(self.node_id))
            yield slice(start, stop), *_laid_out(stop - start, self.dim, self.bit_width)

    def _cut(self, codes: torch.Tensor) -> Iterator[tuple[slice, np.ndarray, MessageLayout, Buffer]]:
        stop = 0
        for span, index, layout in self._parts():
            start, stop = stop, stop + layout.num_bytes
            message = codes[start:stop]
            yield span, index, layout, message.numpy() if codes.device.type == "cpu" else message


@dataclass(frozen=True)
class StoredActivation:
    """An `Activation` that stores codes of the rows, one bit per element, and two numbers per row.

    The bit says whether the element passed, which a code near 0 can't tell. Backward masks the gradient by these bits,
    then goes back through the normalization only.
    """

    activation: Activation
    store: RowStore
    overwrites: ClassVar[bool] = True

    @property
    def weight(self) -> torch.Tensor | None:
        return self.activation.weight

    @property
    def bias(self) -> torch.Tensor | None:
        return self.activation.bias

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, tuple]:
        # Without a normalization the bits of passed elements are enough.
        codes = None if self.weight is None else self.store.encode(rows)
        out, (_, moments) = self.activation.forward(rows, rows)
        return out, (codes, pack_signs(out), moments)

    def backward(self, gradient: torch.Tensor, kept: tuple,
                 out: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        (codes, signs, moments), threshold = kept, self.activation.threshold
        scale = DRAW_LEVELS / (DRAW_LEVELS - threshold)
        if self.weight is None or self.bias is None:
            for start in range(0, len(gradient), ROWS_A_BLOCK):
                span = slice(start, start + ROWS_A_BLOCK)
                out[span] = mask_by_signs(gradient[span], signs[span]).mul_(scale)
            return None, None
        passing_all = replace(self.activation, bias=torch.full_like(self.bias, math.inf), threshold=0,
                              num_back=ROWS_A_BLOCK)
        sums = torch.zeros_like(self.weight), torch.zeros_like(self.bias)
        for span, rows in self.store.decode(codes):
            masked = mask_by_signs(gradient[span], signs[span]).mul_(scale)
            of_norm = passing_all.backward(masked, (rows, moments[span]), out[span])
            for total, part in zip(sums, of_norm, strict=True):
                total += part
        return sums


@lru_cache(maxsize=16)
def _laid_out(num_rows: int, dim: int, bit_width: int) -> tuple[np.ndarray, MessageLayout]:
    return np.arange(num_rows, dtype=np.int32), MessageLayout.build(np.full(num_rows, bit_width, np.uint8), dim)


def pack_signs(rows: torch.Tensor) -> torch.Tensor:
    """One bit per element of (n, dim), set if it is not 0: (n, ceil(dim / 8)) uint8, highest bit first."""
    signs = empty((len(rows), -(-rows.shape[1] // 8)), torch.uint8, rows.device)
    for start in range(0, len(rows), ROWS_A_BLOCK):
        is_set = rows[start:start + ROWS_A_BLOCK] != 0
        if rows.device.type == "cpu":
            packed = torch.from_numpy(np.packbits(is_set.numpy(), axis=1))
        else:
            padded = torch.nn.functional.pad(is_set, (0, -rows.shape[1] % 8)).view(len(is_set), -1, 8)
            packed = (padded.to(torch.uint8) << _shifts(rows.device)).sum(2, dtype=torch.uint8)
        signs[start:start + ROWS_A_BLOCK] = packed
    return signs


def mask_by_signs(rows: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
    """(n, dim) rows, 0 where `pack_signs` found 0."""
    if rows.device.type == "cpu":
        return rows * torch.from_numpy(np.unpackbits(signs.numpy(), axis=1, count=rows.shape[1]))
    bits = signs[:, :, None] >> _shifts(rows.device) & 1
    return rows * bits.view(len(rows), -1)[:, :rows.shape[1]]


def _shifts(device: torch.device) -> torch.Tensor:
    return torch.arange(7, -1, -1, dtype=torch.uint8, device=device)
