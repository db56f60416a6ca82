"""Quantization of feature rows to the codes, scales and widths of a package stream.

How codes are stored is not known here.

Combination of rows that are stored as packages: read in place, value by value, and never expanded to a matrix.

What codes and sums stand for is not known here.
"""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.errors import ConfigError
from hpcgnn.lowbit.package import MAX_BIT_WIDTH, PackagedRows, PackageFormat
from hpcgnn.ops.bit_gemm import check_bit_width
from hpcgnn.ops.combination import check_sums, check_weight
from hpcgnn.ops.dispatch import backend_of


def check_feature_bits(bits: int, is_signed: bool) -> None:
    """Raise ConfigError unless `bits` can hold features, which have negative values where is_signed."""
    fewest = 2 if is_signed else 1
    if not fewest <= bits <= MAX_BIT_WIDTH:
        reason = "negative features need one bit for the sign; " if is_signed and bits == 1 else ""
        raise ConfigError(f"--feature-bits is {bits}; {reason}expected {fewest} to {MAX_BIT_WIDTH}")


def quantize_features(rows: np.ndarray, bits: int, form: PackageFormat) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Round each row to multiples of a scale of its own.

    A row whose values are whole multiples of its smallest magnitude, and not too large ones, is kept exactly: that
    magnitude is its scale, and its width the least that holds its codes. So 0/1 features take 1 bit and lose nothing,
    nor do they once normalized by row. Of any other row, the largest magnitude gets the largest code of `bits` bits.

    Parameters
    ----------
    rows : (num_rows, dim) float32, finite, not negative unless form is signed
    bits : int                     1 .. 8, the widest row; 2 .. 8 where form is signed

    Returns
    -------
    codes : (num_rows, dim) uint8, or int8 where signed
    scale : (num_rows,) float32    value ~ code * scale; 0 for a row of zeros
    bit_width : (num_rows,) uint8

    Reference: MEGA, Eq. 2: sign(x) min(floor(|x| / scale + 0.5), 2**(bits - 1) - 1). Deviation:
    without negative values there is no sign bit, and the largest code is 2**bits - 1; the scale is a row's own, and not
    learned.
    """
    magnitude, largest_code = np.abs(rows), form.max_code(bits)
    largest = magnitude.max(axis=1, initial=0)
    smallest = np.min(magnitude, axis=1, initial=np.inf, where=magnitude > 0)
    is_exact = _are_multiples(magnitude, smallest, largest_code)
    scale = np.where(is_exact, smallest, _scale_of(largest, largest_code)).astype(np.float32)
    divisor = np.where(scale > 0, scale, 1)[:, None]
    codes = np.minimum(np.floor(magnitude / divisor + np.float32(0.5)), largest_code)
    needed = np.frexp(codes.max(axis=1, initial=1))[1] + form.is_signed
    return np.copysign(codes, rows).astype(form.dtype), scale, np.where(is_exact, needed, bits).astype(np.uint8)


def _are_multiples(magnitude: np.ndarray, smallest: np.ndarray, largest_code: int) -> np.ndarray:
    """Return which rows are code * smallest in float32, (num_rows,) bool; a row of zeros is not, and needs no scale."""
    unit = np.where(np.isfinite(smallest), smallest, 1)[:, None]
    with np.errstate(over="ignore"):
        multiple = np.rint(magnitude / unit)
        is_same = (multiple * unit == magnitude).all(axis=1)
    return is_same & (multiple.max(axis=1, initial=0) <= largest_code) & np.isfinite(smallest)


def _scale_of(largest: np.ndarray, largest_code: int) -> np.ndarray:
    """Return scales that neither vanish where the row does not nor make the largest code overflow."""
    scale = largest / np.float32(largest_code)
    with np.errstate(over="ignore"):
        scale = np.where(np.isfinite(scale * np.float32(largest_code)), scale, np.nextafter(scale, np.float32(0)))
    return np.where(scale > 0, scale, largest)


def combine_packages(packages: PackagedRows, weight_codes: np.ndarray, first: int = 0, last: int | None = None, *,
                     weight_bits: int = 8, is_serial: bool = False) -> np.ndarray:
    """Return rows [first, last) of the codes times weight_codes.T; codes that are zero cost no product.

    Parameters
    ----------
    packages : PackagedRows of dim columns
    weight_codes : (num_outputs, dim) int8
    weight_bits : int, 1 to 8       that hold every weight, a sign included
    is_serial : bool                take codes one bit at a time instead of whole; for comparison

    Returns
    -------
    (last - first, num_outputs) int32

    Raises
    ------
    KernelError      the packages of these rows are malformed; weights of another type, shape or width; or sums that
                     could pass 2^31 - 1, from dim and the bits

    Reference: MEGA, section V-C: decoder, weights indexed by the bitmap, row product.
    """
    weight = torch.from_numpy(np.ascontiguousarray(weight_codes))
    check_weight(weight, packages.dim)
    check_bit_width(weight_bits)
    check_sums(packages.dim, MAX_BIT_WIDTH, weight_bits, packages.format.is_signed)
    first, last = packages.range_of(first, last)
    kernels = backend_of("combination", weight)
    out, fault, row = kernels.combine_stream(packages.source, first, last, weight, weight_bits, is_serial)
    packages.refuse(fault, row)
    return out.numpy()
