"""Combination: rows of 1- to 8-bit codes times the weight codes of a linear map, in exact integers.

The same sums can be computed in several ways. "dense" multiplies all bytes. "bits" multiplies one plane of bits of both
sides at a time, which is fast for few bits. "sparse" skips codes that are zero. Which one is fastest depends on shape,
density and machine, so "auto" measures the rate of each piece of work once per process and compares expected seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from hpcgnn._ext import combination as kernels
from hpcgnn._ext import combination_sparse as sparse_kernels
from hpcgnn.errors import KernelError
from hpcgnn.ops.arena import empty
from hpcgnn.ops.bit_gemm import LARGEST_BIT_WIDTH, LARGEST_SUM, check_bit_width, multiply_bits, pack_codes, padded
from hpcgnn.ops.dispatch import by_device
from hpcgnn.ops.simd import least_seconds, simd_level

WAYS = ("auto", "dense", "bits", "sparse", "serial")


def combine(codes: torch.Tensor, weight_codes: torch.Tensor, *, code_bits: int = 8, weight_bits: int = 8,
            way: str = "auto") -> torch.Tensor:
    """codes @ weight_codes.T, the same integers in every way.

    Parameters
    ----------
    codes : (num_rows, dim) uint8 or int8, contiguous
    weight_codes : (num_outputs, dim) int8, contiguous
    code_bits, weight_bits : int, 1 to 8      enough for every code, sign included
    way : {"auto", "dense", "bits", "sparse", "serial"}
        serial: sparse, and also skips zero bits of nonzero codes

    Returns
    -------
    (num_rows, num_outputs) int32

    Raises
    ------
    KernelError      wrong types, shapes, widths or way; sums that could pass 2^31 - 1, judged by dim and the bits; or
                     a code that needs more bits than were named, where that could change the sums

    Reference: MEGA, Eq. (3) and section V-C: zeros are skipped. Deviation: "sparse" multiplies whole values, two in one
    instruction; the paper takes their bits one after the other, which is "serial". This is slower on a processor,
    because each set bit costs one addition: only `bench` runs it.
    """
    check_combination(codes, weight_codes, code_bits, weight_bits, way)
    return _combine.on(codes.device)(codes, weight_codes, code_bits, weight_bits, way)


def largest_product(code_bits: int, weight_bits: int, is_signed: bool) -> int:
    return (2 ** (code_bits - 1) if is_signed else 2**code_bits - 1) * 2 ** (weight_bits - 1)


def check_sums(dim: int, code_bits: int, weight_bits: int, is_signed: bool) -> None:
    """Raise KernelError if a sum of `dim` products could pass 32 bits."""
    largest = dim * largest_product(code_bits, weight_bits, is_signed)
    if largest > LARGEST_SUM:
        raise KernelError(f"sums of {dim} products of {code_bits}-bit codes and {weight_bits}-bit weights can reach "
                          f"{largest}, past the {LARGEST_SUM} of 32 bits; use fewer bits or fewer columns")


def check_weight(weight_codes: torch.Tensor, dim: int) -> None:
    """Raise KernelError unless weights are contiguous int8 of shape (outputs, dim)."""
    if weight_codes.dtype != torch.int8 or weight_codes.ndim != 2 or weight_codes.shape[1] != dim \
            or not weight_codes.is_contiguous():
        raise KernelError(f"a combination of {dim} columns takes contiguous int8 weights of shape (outputs, {dim}), "
                          f"found {weight_codes.dtype} of shape {tuple(weight_codes.shape)}")


def check_combination(codes: torch.Tensor, weight_codes: torch.Tensor, code_bits: int, weight_bits: int,
                      way: str) -> None:
    """Raise KernelError as `combine`, except for codes that do not fit."""
    if codes.dtype not in (torch.uint8, torch.int8) or codes.ndim != 2 or not codes.is_contiguous():
        raise KernelError(f"a combination takes a contiguous uint8 or int8 matrix of codes, "
                          f"found {codes.dtype} of shape {tuple(codes.shape)}")
    if way not in WAYS:
        raise KernelError(f"the way of a combination is {way!r}; expected one of {', '.join(WAYS)}")
    check_weight(weight_codes, codes.shape[1])
    check_bit_width(code_bits)
    check_bit_width(weight_bits)
    check_sums(codes.shape[1], code_bits, weight_bits, codes.dtype == torch.int8)


# Products timed to rate the machine: rows, columns, outputs of a narrow and a wide map; one in this many codes is not
# 0.
PROBE_ROWS, PROBE_DIM, PROBE_OUTPUTS, PROBE_SPARSITY = 384, 512, (32, 128), 16
REPEAT = 3
SAMPLED = 16
LANES = {"portable": 4, "avx2": 8, "avx512": 16}      # outputs per register, by level


@dataclass(frozen=True)
class Rates:
    """Seconds of each piece of a product on this machine, with all its threads.

    Attributes
    ----------
    panel, table     to lay out one weight for the dense and for the sparse product
    dense, entry     to multiply a code by a weight, for all codes and for nonzero ones
    scan, listed     to read a code, and to list a nonzero one
    bit              to multiply a bit of a code by a bit of a weight
    pack             to put one bit of a code, or weight, into its plane
    """

    panel: float
    table: float
    dense: float
    entry: float
    scan: float
    listed: float
    bit: float
    pack: float


@by_device("combination")
def _combine(codes: torch.Tensor, weight: torch.Tensor, code_bits: int, weight_bits: int, way: str) -> torch.Tensor:
    simd_level()
    if way == "auto":
        way = cheapest_way(codes.shape, len(weight), _density(codes), code_bits, weight_bits)
    # Products of bytes are exact for all codes; the named bits only serve to bound their sums.
    if way == "bits" or codes.shape[1] * largest_product(8, 8, codes.dtype == torch.int8) > LARGEST_SUM:
        _check_codes("codes", codes, code_bits)
        _check_codes("weights", weight, weight_bits)
    if way == "bits":
        return _combine_bits(codes, weight, code_bits, weight_bits)
    return _combine_bytes(codes, weight) if way == "dense" else _combine_entries(codes, weight, way == "serial")


def combine_stream(source: tuple, first: int, last: int, weight: torch.Tensor, weight_bits: int,
                   is_serial: bool) -> tuple[torch.Tensor, int, int]:
    """Rows [first, last) of a package stream @ weight.T in int32, then the number of a fault, or 0, and its row."""
    simd_level()
    if weight_bits < LARGEST_BIT_WIDTH:
        _check_codes("weights", weight, weight_bits)
    out = empty((last - first, len(weight)), torch.int32)
    return out, *sparse_kernels.combine_packages(source, first, last, weight.numpy(), is_serial, out.numpy())


def cheapest_way(shape: tuple[int, int], num_outputs: int, density: float, code_bits: int, weight_bits: int) -> str:
    """The way with the least expected seconds, for codes of `shape` with this share of nonzeros."""
    level = simd_level()
    rates, (num_rows, dim) = measured_rates(level, torch.get_num_threads()), shape
    size, weights = num_rows * dim, num_outputs * dim
    dense_outputs, sparse_outputs = padded(num_outputs, LANES[level]), padded(num_outputs, 2 * LANES[level])
    seconds = {"dense": rates.panel * weights + rates.dense * size * dense_outputs,
               "sparse": rates.table * weights + rates.scan * size
                         + density * size * (rates.listed + rates.entry * sparse_outputs)}
    # Products of planes add unsigned codes, so their sums are larger.
    if dim * (2**code_bits - 1) * (2**weight_bits - 1) <= LARGEST_SUM:
        seconds["bits"] = (rates.bit * code_bits * weight_bits * size * dense_outputs
                           + rates.pack * (code_bits * size + weight_bits * weights))
    return min(seconds, key=seconds.__getitem__)


@cache
def measured_rates(level: str, num_threads: int) -> Rates:
    """Rates at one SIMD level and number of threads, from a few milliseconds of small products."""
    seconds_of = partial(least_seconds, repetitions=REPEAT)
    zeros = torch.zeros(PROBE_ROWS, PROBE_DIM, dtype=torch.uint8)
    few = torch.rand(zeros.shape, generator=torch.Generator().manual_seed(0)) * PROBE_SPARSITY < 1
    codes, num_codes, size = few.view(torch.uint8), int(few.sum()), few.numel()
    narrow, wide = (torch.ones(outputs, PROBE_DIM, dtype=torch.int8) for outputs in PROBE_OUTPUTS)
    # With one row, a product spends nearly all its time on the layout of its weights.
    panel, dense = (seconds_of(partial(_combine_bytes, rows, wide)) for rows in (codes[:1], codes))
    table, table_wide = (seconds_of(partial(_combine_entries, zeros[:1], weight)) for weight in (narrow, wide))
    scan, gathered, gathered_wide = (seconds_of(partial(_combine_entries, *case)) for case in (
        (zeros, narrow), (codes, narrow), (codes, wide)))
    entry = (gathered_wide - table_wide - gathered + table) / (num_codes * (len(wide) - len(narrow)))
    planes, wide_planes = pack_codes(codes, 1, False), pack_codes(wide.view(torch.uint8), 1, False)
    seconds = {
        "panel": panel / wide.numel(), "table": table_wide / wide.numel(),
        "dense": (dense - panel) / (size * len(wide)), "entry": entry, "scan": (scan - table) / size,
        "listed": (gathered - scan) / num_codes - entry * len(narrow),
        "bit": seconds_of(partial(multiply_bits, planes, wide_planes)) / (size * len(wide)),
        "pack": seconds_of(partial(pack_codes, codes, 1, False)) / size}
    # If a disturbed clock gives a negative rate, the piece costs next to nothing.
    return Rates(**{name: max(value, 0.0) for name, value in seconds.items()})


def _combine_bytes(codes: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    out = empty((len(codes), len(weight)), torch.int32)
    kernels.combine(_bytes_of(codes), codes.dtype == torch.int8, weight.numpy(), out.numpy())
    return out


def _combine_entries(codes: torch.Tensor, weight: torch.Tensor, is_by_bit: bool = False) -> torch.Tensor:
    out = empty((len(codes), len(weight)), torch.int32)
    sparse_kernels.combine(_bytes_of(codes), codes.dtype == torch.int8, weight.numpy(), is_by_bit, out.numpy())
    return out


def _combine_bits(codes: torch.Tensor, weight: torch.Tensor, code_bits: int, weight_bits: int) -> torch.Tensor:
    code_offset, weight_offset = 2 ** (code_bits - 1) * (codes.dtype == torch.int8), 2 ** (weight_bits - 1)
    shifted = codes if not code_offset else (codes + code_offset).view(torch.uint8)
    left = pack_codes(shifted, code_bits, False)
    right = pack_codes((weight + weight_offset).view(torch.uint8), weight_bits, False)
    sums: Any = multiply_bits(left, right)      # not packed again, so a tensor
    row_sum, output_sum = shifted.sum(1, dtype=torch.int32), weight.sum(1, dtype=torch.int32)
    return sums.sub_(weight_offset * row_sum[:, None]).sub_(code_offset * output_sum[None])


def _check_codes(name: str, codes: torch.Tensor, bits: int) -> None:
    needed = kernels.survey_codes(_bytes_of(codes), codes.dtype == torch.int8)[1]
    if needed > bits:
        raise KernelError(f"{name} of a combination need {needed} bits, and {bits} were named; name all of them")


def _density(codes: torch.Tensor) -> float:
    rows = codes[::SAMPLED].contiguous() if len(codes) > SAMPLED**2 else codes
    return kernels.survey_codes(_bytes_of(rows), codes.dtype == torch.int8)[0] / max(rows.numel(), 1)


def _bytes_of(codes: torch.Tensor):
    return codes.view(torch.uint8).numpy()
