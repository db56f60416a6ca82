"""Rows as codes with a step each, dense or as packages, and how floats, packages and sums become such codes.

No layer is known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from hpcgnn.lowbit.inference.neighborhood import row_blocks
from hpcgnn.lowbit.integer_model import ColumnScale, IntegerMap, RowScale
from hpcgnn.lowbit.package import PackagedRows, PackageFormat, encode
from hpcgnn.lowbit.package_features import combine_packages
from hpcgnn.ops.arena import empty
from hpcgnn.ops.combination import combine
from hpcgnn.ops.integer_rows import CodeTarget, Epilogue, rescale
from hpcgnn.ops.row_codes import RowBits

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
    """Rows as bits, each row at the width of its in-degree.

    Attributes
    ----------
    bits : RowBits of n rows
    scale : RowScale
    in_degree : (n,) integer         in the whole graph
    """

    bits: RowBits
    scale: RowScale
    in_degree: np.ndarray

    @classmethod
    def of(cls, coded: CodedRows, scale: RowScale, in_degree: np.ndarray) -> BitRows:
        """Pack the same rows."""
        return cls(RowBits.pack(coded.codes, scale.bit_width[scale.entry(in_degree)]), scale, in_degree)

    @property
    def step(self) -> np.ndarray:
        """See `LayerRows`."""
        return self.scale.step[self.scale.entry(self.in_degree)]

    def coded(self) -> CodedRows:
        """Return the same rows, a byte a code."""
        limit = self.scale.max_code.astype(np.float32)[self.scale.entry(self.in_degree)]
        return CodedRows(self.bits.codes(), self.step, limit, int(self.scale.bit_width.max()))

    def product(self, first: int, stop: int, weights: IntegerMap) -> np.ndarray:
        """See `LayerRows`."""
        return product_of(self.bits.some(first, stop).codes(), int(self.scale.bit_width.max()), weights)

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
