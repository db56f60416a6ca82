"""Combination: rows of 1- to 8-bit codes times the weight codes of a linear map, in exact integers.

Rows that are stored as packages are combined by hpcgnn.lowbit.package_features.
"""

from __future__ import annotations

import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.bit_gemm import LARGEST_SUM, check_bit_width
from hpcgnn.ops.dispatch import backend_of

WAYS = ("auto", "dense", "bits", "sparse", "serial")


def combine(codes: torch.Tensor, weight_codes: torch.Tensor, *, code_bits: int = 8, weight_bits: int = 8,
            way: str = "auto") -> torch.Tensor:
    """Return codes @ weight_codes.T, the same integers whatever the way.

    Parameters
    ----------
    codes : (num_rows, dim) uint8, or int8 in two's complement, contiguous
    weight_codes : (num_outputs, dim) int8, contiguous
    code_bits, weight_bits : int, 1 to 8      that hold every code, a sign included
    way : {"auto", "dense", "bits", "sparse", "serial"}
        dense: every product, of bytes. bits: one plane of bits of both sides at a time. sparse: codes that are zero
        cost no product. serial: nor do zero bits of the others. auto takes one of the first three, the one whose
        seconds are expected to be least, from rates that are measured once a process

    Returns
    -------
    (num_rows, num_outputs) int32

    Raises
    ------
    KernelError      types, shapes, widths or the way outside these; sums that could pass 2^31 - 1, from dim and the
                     bits; or, where sums depend on it, a code that needs more bits than were named

    Reference: MEGA, Eq. (3) and section V-C: zeros are skipped. Deviation: "sparse" multiplies values
    whole, two in one instruction, where the paper takes their bits one after the other; that is "serial", slower on a
    processor since each set bit costs an addition of its own: never taken by itself, but measured by `bench`.
    """
    check_combination(codes, weight_codes, code_bits, weight_bits, way)
    return backend_of("combination", codes).combine(codes, weight_codes, code_bits, weight_bits, way)


def largest_product(code_bits: int, weight_bits: int, is_signed: bool) -> int:
    """Return the largest magnitude of a code times a weight."""
    return (2 ** (code_bits - 1) if is_signed else 2**code_bits - 1) * 2 ** (weight_bits - 1)


def check_sums(dim: int, code_bits: int, weight_bits: int, is_signed: bool) -> None:
    """Raises KernelError where a sum of `dim` products could pass 32 bits."""
    largest = dim * largest_product(code_bits, weight_bits, is_signed)
    if largest > LARGEST_SUM:
        raise KernelError(f"sums of {dim} products of {code_bits}-bit codes and {weight_bits}-bit weights can reach "
                          f"{largest}, past the {LARGEST_SUM} of 32 bits; use fewer bits or fewer columns")


def check_weight(weight_codes: torch.Tensor, dim: int) -> None:
    """Raises KernelError unless the weights are a row of `dim` int8 codes for each output."""
    if weight_codes.dtype != torch.int8 or weight_codes.ndim != 2 or weight_codes.shape[1] != dim \
            or not weight_codes.is_contiguous():
        raise KernelError(f"a combination of {dim} columns takes contiguous int8 weights of shape (outputs, {dim}), "
                          f"found {weight_codes.dtype} of shape {tuple(weight_codes.shape)}")


def check_combination(codes: torch.Tensor, weight_codes: torch.Tensor, code_bits: int, weight_bits: int,
                      way: str) -> None:
    """Raises KernelError as `combine`, but for codes that do not fit."""
    if codes.dtype not in (torch.uint8, torch.int8) or codes.ndim != 2 or not codes.is_contiguous():
        raise KernelError(f"a combination takes a contiguous uint8 or int8 matrix of codes, "
                          f"found {codes.dtype} of shape {tuple(codes.shape)}")
    if way not in WAYS:
        raise KernelError(f"the way of a combination is {way!r}; expected one of {', '.join(WAYS)}")
    check_weight(weight_codes, codes.shape[1])
    check_bit_width(code_bits)
    check_bit_width(weight_bits)
    check_sums(codes.shape[1], code_bits, weight_bits, codes.dtype == torch.int8)
