"""Feature rows quantized for packages, and linear maps of rows that stay packed.

A map reads packages value by value and never expands rows to a matrix, so zeros cost neither memory nor products.
"""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.errors import ConfigError
from hpcgnn.lowbit.package import MAX_BIT_WIDTH, PackagedRows, PackageFormat
from hpcgnn.ops.bit_gemm import check_bit_width
from hpcgnn.ops.combination import check_sums, check_weight, combine_stream


def check_feature_bits(bits: int, is_signed: bool) -> None:
    """Raise ConfigError unless features can be stored in packages of at most `bits` bits."""
    fewest = 2 if is_signed else 1
    if not fewest <= bits <= MAX_BIT_WIDTH:
        reason = "negative features need one bit for the sign; " if is_signed and bits == 1 else ""
        raise ConfigError(f"--feature-bits is {bits}; {reason}expected {fewest} to {MAX_BIT_WIDTH}")


def quantize_features(rows: np.ndarray, bits: int, form: PackageFormat) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Round each row to multiples of its own scale.

    A row of whole multiples of its smallest magnitude, with small enough factors, is kept exactly: that magnitude is
    its scale, and its width is the smallest that holds its codes. So 0/1 features take 1 bit and lose nothing, even if
    normalized by row. In any other row, the largest magnitude gets the largest code of `bits` bits.

    Parameters
    ----------
    rows : (num_rows, dim) float32, finite, not negative unless form is signed
    bits : int                     1 .. 8, the widest row; 2 .. 8 if form is signed

    Returns
    -------
    codes : (num_rows, dim) uint8, or int8 if signed
    scale : (num_rows,) float32    value ~ code * scale; 0 for a row of zeros
    bit_width : (num_rows,) uint8

    Reference: MEGA, Eq. 2: sign(x) min(floor(|x| / scale + 0.5), 2**(bits - 1) - 1). Deviation: without negative values
    there is no sign bit, and the largest code is 2**bits - 1; the scale is per row, and not learned.
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
    unit = np.where(np.isfinite(smallest), smallest, 1)[:, None]
    with np.errstate(over="ignore"):
        multiple = np.rint(magnitude / unit)
        is_same = (multiple * unit == magnitude).all(axis=1)
    return is_same & (multiple.max(axis=1, initial=0) <= largest_code) & np.isfinite(smallest)


def _scale_of(largest: np.ndarray, largest_code: int) -> np.ndarray:
    # The scale must not be zero unless the row is, and the largest code must not overflow.
    scale = largest / np.float32(largest_code)
    with np.errstate(over="ignore"):
        scale = np.where(np.isfinite(scale * np.float32(largest_code)), scale, np.nextafter(scale, np.float32(0)))
    return np.where(scale > 0, scale, largest)


def combine_packages(packages: PackagedRows, weight_codes: np.ndarray, first: int = 0, last: int | None = None, *,
                     weight_bits: int = 8, is_serial: bool = False) -> np.ndarray:
    """Return rows [first, last) of the codes times weight_codes.T, (last - first, num_outputs) int32.

    Parameters
    ----------
    weight_codes : (num_outputs, dim) int8
    weight_bits : int, 1 to 8       bits that hold every weight, with its sign
    is_serial : bool                take codes one bit at a time instead of whole; for comparison

    Raises KernelError for malformed packages, weights of another type, shape or width, or sums that could pass 2^31 -
    1.

    Reference: MEGA, section V-C: decoder, weights indexed by the bitmap, row product.
    """
    weight = torch.from_numpy(np.ascontiguousarray(weight_codes))
    check_weight(weight, packages.dim)
    check_bit_width(weight_bits)
    check_sums(packages.dim, MAX_BIT_WIDTH, weight_bits, packages.format.is_signed)
    first, last = packages.range_of(first, last)
    out, fault, row = combine_stream(packages.source, first, last, weight, weight_bits, is_serial)
    packages.refuse(fault, row)
    return out.numpy()
