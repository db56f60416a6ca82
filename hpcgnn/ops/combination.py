"""Combination: rows of 1- to 8-bit codes times the weight codes of a linear map, in exact integers.

Rows that are stored as packages are combined by hpcgnn.lowbit.package_features.

Host side of `hpcgnn.ops.combination`, over the compiled kernels. Contracts are already checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

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
    return _combine.on(codes.device)(codes, weight_codes, code_bits, weight_bits, way)


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


# What is timed to know the machine: rows, columns, outputs of a narrow and a wide map; one in so many codes is not 0.
PROBE_ROWS, PROBE_DIM, PROBE_OUTPUTS, PROBE_SPARSITY = 384, 512, (32, 128), 16
REPEAT = 3
SAMPLED = 16
LANES = {"portable": 4, "avx2": 8, "avx512": 16}      # outputs of a register, by level


@dataclass(frozen=True)
class Rates:
    """Seconds of each piece of a product on this machine, from all its threads.

    Attributes
    ----------
    panel, table : a weight laid out for the dense and for the sparse product
    dense, entry : a code times a weight, of all codes and of those that are not zero
    scan, listed : a code that is looked at, and one that is not zero and listed
    bit : a bit of a code times a bit of a weight
    pack : one bit of one code, or weight, into its plane
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
    """Return codes @ weight.T in int32."""
    simd_level()
    if way == "auto":
        way = cheapest_way(codes.shape, len(weight), _density(codes), code_bits, weight_bits)
    # Products of bytes are exact whatever was named: they need it only to be sure of their sums.
    if way == "bits" or codes.shape[1] * largest_product(8, 8, codes.dtype == torch.int8) > LARGEST_SUM:
        _check_codes("codes", codes, code_bits)
        _check_codes("weights", weight, weight_bits)
    if way == "bits":
        return _combine_bits(codes, weight, code_bits, weight_bits)
    return _combine_bytes(codes, weight) if way == "dense" else _combine_entries(codes, weight, way == "serial")


def combine_stream(source: tuple, first: int, last: int, weight: torch.Tensor, weight_bits: int,
                   is_serial: bool) -> tuple[torch.Tensor, int, int]:
    """Rows [first, last) of a package stream @ weight.T in int32, then the fault that was found, or 0, and its row."""
    simd_level()
    if weight_bits < LARGEST_BIT_WIDTH:
        _check_codes("weights", weight, weight_bits)
    out = empty((last - first, len(weight)), torch.int32)
    return out, *sparse_kernels.combine_packages(source, first, last, weight.numpy(), is_serial, out.numpy())


def cheapest_way(shape: tuple[int, int], num_outputs: int, density: float, code_bits: int, weight_bits: int) -> str:
    """Return the way of the least expected seconds, for codes of `shape` of which a share is not zero."""
    level = simd_level()
    rates, (num_rows, dim) = measured_rates(level, torch.get_num_threads()), shape
    size, weights = num_rows * dim, num_outputs * dim
    dense_outputs, sparse_outputs = padded(num_outputs, LANES[level]), padded(num_outputs, 2 * LANES[level])
    seconds = {"dense": rates.panel * weights + rates.dense * size * dense_outputs,
               "sparse": rates.table * weights + rates.scan * size
                         + density * size * (rates.listed + rates.entry * sparse_outputs)}
    if dim * (2**code_bits - 1) * (2**weight_bits - 1) <= LARGEST_SUM:
        seconds["bits"] = (rates.bit * code_bits * weight_bits * size * dense_outputs
                           + rates.pack * (code_bits * size + weight_bits * weights))
    return min(seconds, key=seconds.__getitem__)


@cache
def measured_rates(level: str, num_threads: int) -> Rates:
    """Return rates of one SIMD level and number of threads, from a few milliseconds of small products."""
    seconds_of = partial(least_seconds, repetitions=REPEAT)
    zeros = torch.zeros(PROBE_ROWS, PROBE_DIM, dtype=torch.uint8)
    few = torch.rand(zeros.shape, generator=torch.Generator().manual_seed(0)) * PROBE_SPARSITY < 1
    codes, num_codes, size = few.view(torch.uint8), int(few.sum()), few.numel()
    narrow, wide = (torch.ones(outputs, PROBE_DIM, dtype=torch.int8) for outputs in PROBE_OUTPUTS)
    # Of one row, a product is little else than the layout of its weights.
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
    # What a disturbed clock turns below zero costs next to nothing.
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
    """Multiply planes, which hold no signs: with a = code + p and b = weight + q, code weight = ab - q a - p weight."""
    code_offset, weight_offset = 2 ** (code_bits - 1) * (codes.dtype == torch.int8), 2 ** (weight_bits - 1)
    shifted = codes if not code_offset else (codes + code_offset).view(torch.uint8)
    left = pack_codes(shifted, code_bits, False)
    right = pack_codes((weight + weight_offset).view(torch.uint8), weight_bits, False)
    sums = multiply_bits(left, right)
    row_sum, output_sum = shifted.sum(1, dtype=torch.int32), weight.sum(1, dtype=torch.int32)
    return sums.sub_(weight_offset * row_sum[:, None]).sub_(code_offset * output_sum[None])


def _check_codes(name: str, codes: torch.Tensor, bits: int) -> None:
    """Raises KernelError where a code needs more bits."""
    needed = kernels.survey_codes(_bytes_of(codes), codes.dtype == torch.int8)[1]
    if needed > bits:
        raise KernelError(f"{name} of a combination need {needed} bits, and {bits} were named; name all of them")


def _density(codes: torch.Tensor) -> float:
    """Share of codes that are not zero, in every SAMPLED-th row, or in all of a few."""
    rows = codes[::SAMPLED].contiguous() if len(codes) > SAMPLED**2 else codes
    return kernels.survey_codes(_bytes_of(rows), codes.dtype == torch.int8)[0] / max(rows.numel(), 1)


def _bytes_of(codes: torch.Tensor):
    return codes.view(torch.uint8).numpy()
