"""Rows as codes with a step each, dense or as packages, and how floats, packages and sums become such codes.

No layer is known here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from hpcgnn.inference.neighborhood import row_blocks
from hpcgnn.ops.arena import empty
from hpcgnn.ops.bit_gemm import PAD8, BitLines, pack_codes, padded, unpack_codes
from hpcgnn.ops.combination import combine
from hpcgnn.ops.integer_rows import CodeTarget, Epilogue, rescale
from hpcgnn.quantized.combination import combine_packages
from hpcgnn.quantized.integer_model import ColumnScale, IntegerMap, RowScale
from hpcgnn.quantized.package import PackagedRows, PackageFormat
from hpcgnn.quantized.package_writer import encode

ONE = np.ones(1, np.float32)


class LayerRows(Protocol):
    """Holds the rows that a layer reads as codes: value = code · step of the row.

    Attributes
    ----------
    step : (n,) float32
    """

    step: np.ndarray

    def product(self, first: int, stop: int, weights: IntegerMap) -> np.ndarray:
        """Return codes of rows first .. stop - 1 times weights.codes.T, (stop - first, out_dim) int32.

        Raises KernelError for so many columns that a sum could pass 32 bits.
        """

    def packages(self) -> PackagedRows:
        """Return the codes as Adaptive-Packages, each row at its own width."""


@dataclass(frozen=True)
class CodedRows:
    """Rows as codes: value = code · step of the row.

    Attributes
    ----------
    codes : (n, dim) int8, or uint8 without a sign
    step, limit : (n,) float32       limit is the largest code
    bit_width : int                  of the widest rows
    """

    codes: np.ndarray
    step: np.ndarray
    limit: np.ndarray
    bit_width: int

    @classmethod
    def empty(cls, scale: RowScale, in_degree: np.ndarray, dim: int) -> CodedRows:
        """Make room for rows of nodes with these in-degrees, (n,)."""
        entry = scale.entry(in_degree)
        codes = empty((len(entry), dim), torch.int8 if scale.is_signed else torch.uint8).numpy()
        return cls(codes, scale.step[entry], scale.max_code.astype(np.float32)[entry],
                   int(scale.bit_width.max()))

    def product(self, first: int, stop: int, weights: IntegerMap) -> np.ndarray:
        """See `LayerRows`."""
        return product_of(self.codes[first:stop], self.bit_width, weights)

    def packages(self) -> PackagedRows:
        """See `LayerRows`."""
        is_signed = self.codes.dtype == np.int8
        return encode(self.codes, np.frexp(self.limit)[1] + is_signed, PackageFormat(is_signed=is_signed))

    def target(self, first: int, stop: int) -> CodeTarget:
        """Return the target for codes of rows first .. stop - 1."""
        return CodeTarget(self.codes[first:stop], self.step[first:stop], self.limit[first:stop])


@dataclass(frozen=True)
class BitRows:
    """Rows as planes of bits, all rows at the width of the widest: b bits a code in memory.

    Attributes
    ----------
    lines : BitLines, a line a row       of codes with `offset` added
    offset : int                         half the range where codes have a sign, or 0
    step, limit : (n,) float32           see `CodedRows`
    """

    lines: BitLines
    offset: int
    step: np.ndarray
    limit: np.ndarray

    @classmethod
    def of(cls, coded: CodedRows) -> BitRows:
        """Pack the same rows."""
        offset = 1 << (coded.bit_width - 1) if coded.codes.dtype == np.int8 else 0
        codes = coded.codes.view(np.uint8)
        shifted = codes + np.uint8(offset) if offset else codes
        return cls(pack_codes(torch.from_numpy(shifted), coded.bit_width, False), offset, coded.step, coded.limit)

    @property
    def num_bytes(self) -> int:
        return self.lines.words.nbytes + self.step.nbytes + self.limit.nbytes

    def coded(self) -> CodedRows:
        """Return the same rows, a byte a code."""
        codes = unpack_codes(self.lines).numpy()
        codes = (codes - np.uint8(self.offset)).view(np.int8) if self.offset else codes
        return CodedRows(codes, self.step, self.limit, self.lines.bit_width)

    def product(self, first: int, stop: int, weights: IntegerMap) -> np.ndarray:
        """See `LayerRows`."""
        begin, words = first // PAD8 * PAD8, self.lines.words
        some = BitLines(words[:, begin:padded(stop, PAD8)].contiguous(), stop - begin, self.lines.length)
        rows = slice(first, stop)
        return replace(self, lines=some, step=self.step[rows], limit=self.limit[rows]).coded().product(
            first - begin, stop - begin, weights)

    def packages(self) -> PackagedRows:
        """See `LayerRows`."""
        return self.coded().packages()


@dataclass(frozen=True)
class PackedCodes:
    """Rows as Adaptive-Packages, that are multiplied in place: zeros take neither memory nor products.

    Attributes
    ----------
    packed : PackagedRows of n rows
    step : (n,) float32
    """

    packed: PackagedRows
    step: np.ndarray

    @classmethod
    def of(cls, coded: CodedRows) -> PackedCodes:
        """Pack the same rows."""
        return cls(coded.packages(), coded.step)

    def product(self, first: int, stop: int, weights: IntegerMap) -> np.ndarray:
        """See `LayerRows`."""
        return package_product(self.packed, first, stop, weights)

    def packages(self) -> PackagedRows:
        """See `LayerRows`."""
        return self.packed


def code_rows(scale: RowScale, rows: np.ndarray, in_degree: np.ndarray) -> CodedRows:
    """Return codes of float rows.

    Parameters
    ----------
    rows : (n, dim) float32
    in_degree : (n,) integer         in the whole graph

    Raises
    ------
    KernelError      a value that is NaN, or a negative one where codes have no sign
    """
    coded = CodedRows.empty(scale, in_degree, rows.shape[1])
    rescale(np.ascontiguousarray(rows, np.float32), Epilogue(), coded.target(0, len(rows)))
    return coded


def code_packages(scale: RowScale, packed: PackagedRows, row_scale: np.ndarray, in_degree: np.ndarray) -> CodedRows:
    """Return codes of packages, equal to those of the floats that they stand for, which are never written.

    Parameters
    ----------
    packed : PackagedRows of n rows
    row_scale : (n,) float32         value = package code · row_scale

    Raises
    ------
    KernelError      as of `code_rows`, or a package is malformed
    """
    coded = CodedRows.empty(scale, in_degree, packed.dim)
    for first, stop in row_blocks(0, packed.num_rows, packed.dim):
        codes = packed.codes(first, stop).astype(np.int32)
        rescale(codes, Epilogue(row_scale=row_scale[first:stop]), coded.target(first, stop))
    return coded


def column_target(codes: np.ndarray, scale: ColumnScale) -> CodeTarget:
    """Return the target for codes of mapped rows that are already divided by the steps of their columns."""
    return CodeTarget(codes, ONE, np.full(1, scale.max_code, np.float32))


def product_of(codes: np.ndarray, code_bits: int, weights: IntegerMap) -> np.ndarray:
    """Return codes @ weights.codes.T, (n, out_dim) int32.

    Parameters
    ----------
    codes : (n, in_dim) int8 or uint8, contiguous
    code_bits : int                  that hold every code, a sign included

    Raises
    ------
    KernelError      widths that don't fit, or so many columns that a sum could pass 32 bits
    """
    return combine(torch.from_numpy(codes), torch.from_numpy(weights.codes), code_bits=code_bits,
                   weight_bits=weights.scale.bit_width).numpy()


def package_product(packed: PackagedRows, first: int, stop: int, weights: IntegerMap) -> np.ndarray:
    """Return rows first .. stop - 1 of packages times weights.codes.T, (stop - first, out_dim) int32.

    Raises
    ------
    KernelError      a package is malformed, or so many columns that a sum could pass 32 bits
    """
    return combine_packages(packed, weights.codes, first, stop, weight_bits=weights.scale.bit_width)
