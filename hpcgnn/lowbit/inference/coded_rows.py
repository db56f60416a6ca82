"""Rows as codes with a step per row, value = code · step: as bytes, as bits, or as packages.

Each form has `step`, (n,) float32, and two methods: `product` multiplies codes of some rows with weights, `packages`
returns the codes as Adaptive-Packages, each row at its own width. Floats, packages and sums become codes here. Example:
rows of in-degree 3 have step 0.5 and 2 bits without a sign; then (0.4, 1.1, 9.0) has codes (1, 2, 3), which stand for
(0.5, 1.0, 1.5).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.lowbit.integer_model import ColumnScale, IntegerMap, RowScale
from hpcgnn.lowbit.package import PackagedRows, PackageFormat, encode
from hpcgnn.lowbit.package_features import combine_packages
from hpcgnn.ops.arena import empty
from hpcgnn.ops.combination import combine
from hpcgnn.ops.integer_rows import CodeTarget, Epilogue, rescale
from hpcgnn.ops.row_codes import RowBits

ONE = np.ones(1, np.float32)
BLOCK_ELEMENTS = 1 << 20     # of int32 that are in memory at a time


@dataclass(frozen=True)
class CodedRows:
    codes: np.ndarray  # (n, dim) int8, or uint8 without a sign
    # (n,) float32; `limit` holds the largest code of each row
    step: np.ndarray
    limit: np.ndarray
    bit_width: int     # width of the widest rows

    @classmethod
    def empty(cls, scale: RowScale, in_degree: np.ndarray, dim: int) -> CodedRows:
        entry = scale.entry(in_degree)
        codes = empty((len(entry), dim), torch.int8 if scale.is_signed else torch.uint8).numpy()
        return cls(codes, scale.step[entry], scale.max_code.astype(np.float32)[entry],
                   int(scale.bit_width.max()))

    def product(self, first: int, stop: int, weights: IntegerMap) -> np.ndarray:
        """Codes of rows first .. stop - 1 times weights.codes.T, (stop - first, out_dim) int32.

        Raises KernelError if a sum over the columns could pass 32 bits.
        """
        return product_of(self.codes[first:stop], self.bit_width, weights)

    def packages(self) -> PackagedRows:
        is_signed = self.codes.dtype == np.int8
        return encode(self.codes, np.frexp(self.limit)[1] + is_signed, PackageFormat(is_signed=is_signed))

    def target(self, first: int, stop: int) -> CodeTarget:
        return CodeTarget(self.codes[first:stop], self.step[first:stop], self.limit[first:stop])


@dataclass(frozen=True)
class BitRows:
    """Rows as bits, each at the width for its in-degree; `in_degree` is (n,) integer, counted in the whole graph."""

    bits: RowBits
    scale: RowScale
    in_degree: np.ndarray

    @classmethod
    def of(cls, coded: CodedRows, scale: RowScale, in_degree: np.ndarray) -> BitRows:
        return cls(RowBits.pack(coded.codes, scale.bit_width[scale.entry(in_degree)]), scale, in_degree)

    @property
    def step(self) -> np.ndarray:
        return self.scale.step[self.scale.entry(self.in_degree)]

    @property
    def form(self) -> str:
        # The widths that the scale allows are the same on all ranks; the widths that occur may differ.
        low, high = self.scale.bit_width.min(), self.scale.bit_width.max()
        return f"codes of {high} bits" if low == high else f"codes of {low} to {high} bits"

    @property
    def num_bytes(self) -> int:
        return self.bits.nbytes

    def coded(self) -> CodedRows:
        limit = self.scale.max_code.astype(np.float32)[self.scale.entry(self.in_degree)]
        return CodedRows(self.bits.codes(), self.step, limit, int(self.scale.bit_width.max()))

    def product(self, first: int, stop: int, weights: IntegerMap) -> np.ndarray:
        return product_of(self.bits.some(first, stop).codes(), int(self.scale.bit_width.max()), weights)

    def packages(self) -> PackagedRows:
        return self.coded().packages()


@dataclass(frozen=True)
class PackedCodes:
    """Rows as Adaptive-Packages, multiplied in place: zeros take neither memory nor products. step is (n,) float32."""

    packed: PackagedRows
    step: np.ndarray

    form = "packed codes"

    @property
    def num_bytes(self) -> int:
        return sum(self.packed.stored_bits.values()) // 8 + self.step.nbytes

    def product(self, first: int, stop: int, weights: IntegerMap) -> np.ndarray:
        return combine_packages(self.packed, weights.codes, first, stop, weight_bits=weights.scale.bit_width)

    def packages(self) -> PackagedRows:
        return self.packed


LayerRows = CodedRows | BitRows | PackedCodes      # what a layer reads


def row_blocks(start: int, stop: int, dim: int) -> Iterator[tuple[int, int]]:
    step = max(1, BLOCK_ELEMENTS // max(1, dim))
    for first in range(start, stop, step):
        yield first, min(first + step, stop)


def code_rows(scale: RowScale, rows: np.ndarray, in_degree: np.ndarray) -> CodedRows:
    """Codes of float rows (n, dim), for in_degree (n,); KernelError for NaN, or a negative value without a sign."""
    coded = CodedRows.empty(scale, in_degree, rows.shape[1])
    rescale(np.ascontiguousarray(rows, np.float32), Epilogue(), coded.target(0, len(rows)))
    return coded


def code_packages(scale: RowScale, packed: PackagedRows, row_scale: np.ndarray, in_degree: np.ndarray) -> CodedRows:
    """Codes of packages, value = package code · row_scale (n,); the codes and errors of `code_rows` on these floats."""
    coded = CodedRows.empty(scale, in_degree, packed.dim)
    for first, stop in row_blocks(0, packed.num_rows, packed.dim):
        # Block by block, so that the floats never exist.
        codes = packed.codes(first, stop).astype(np.int32)
        rescale(codes, Epilogue(row_scale=row_scale[first:stop]), coded.target(first, stop))
    return coded


def column_target(codes: np.ndarray, scale: ColumnScale) -> CodeTarget:
    return CodeTarget(codes, ONE, np.full(1, scale.max_code, np.float32))


def product_of(codes: np.ndarray, code_bits: int, weights: IntegerMap) -> np.ndarray:
    """Return codes @ weights.codes.T, (n, out_dim) int32; code_bits hold every code, with its sign.

    Raises KernelError if widths don't fit, or a sum over the columns could pass 32 bits.
    """
    return combine(torch.from_numpy(codes), torch.from_numpy(weights.codes), code_bits=code_bits,
                   weight_bits=weights.scale.bit_width).numpy()
