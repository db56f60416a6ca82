"""Host side of `hpcgnn.ops.combination`, over the compiled kernels. Contracts are already checked."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch

from hpcgnn._ext import combination as kernels
from hpcgnn._ext import combination_sparse as sparse_kernels
from hpcgnn.errors import KernelError
from hpcgnn.ops.arena import empty
from hpcgnn.ops.bit_gemm import LARGEST_SUM, multiply, pack_codes
from hpcgnn.ops.host.simd import simd_level

PROBE_ROWS, PROBE_DIM, PROBE_OUTPUTS = 384, 512, 64   # of what is timed to know the machine
REPEAT = 3


@dataclass(frozen=True)
class Rates:
    """Seconds of each piece of a product on this machine, from all its threads.

    Attributes
    ----------
    dense, entry : a code times a weight, of all codes and of those that are not zero
    scan : a code that is looked at
    bit : a bit of a code times a bit of a weight
    pack : one bit of one code, or weight, into its plane
    panel, table : a weight laid out for the dense and for the sparse product
    """

    dense: float
    entry: float
    scan: float
    bit: float
    pack: float
    panel: float
    table: float


def combine(codes: torch.Tensor, weight: torch.Tensor, code_bits: int, weight_bits: int, way: str) -> torch.Tensor:
    """codes @ weight.T in int32."""
    simd_level()
    num_codes = _check_codes("codes", codes, code_bits)
    _check_codes("weights", weight, weight_bits)
    if way == "auto":
        way = cheapest_way(codes.shape, len(weight), num_codes, code_bits, weight_bits)
    if way == "bits":
        return _combine_bits(codes, weight, code_bits, weight_bits)
    return _combine_bytes(codes, weight) if way == "dense" else _combine_entries(codes, weight, way == "serial")


def combine_stream(source: tuple, first: int, last: int, weight: torch.Tensor, weight_bits: int,
                   is_serial: bool) -> tuple[torch.Tensor, int, int]:
    """Rows [first, last) of a package stream @ weight.T in int32, then the fault that was found, or 0, and its row."""
    simd_level()
    _check_codes("weights", weight, weight_bits)
    out = empty((last - first, len(weight)), torch.int32)
    return out, *sparse_kernels.combine_packages(source, first, last, weight.numpy(), is_serial, out.numpy())


def cheapest_way(shape: tuple[int, int], num_outputs: int, num_codes: int, code_bits: int, weight_bits: int) -> str:
    """The way of the least expected seconds, for codes of `shape` of which num_codes are not zero."""
    rates, (num_rows, dim) = measured_rates(simd_level(), torch.get_num_threads()), shape
    size, weights = num_rows * dim, num_outputs * dim
    seconds = {"dense": rates.dense * size * num_outputs + rates.panel * weights,
               "sparse": rates.entry * num_codes * num_outputs + rates.scan * size + rates.table * weights}
    if dim * (2**code_bits - 1) * (2**weight_bits - 1) <= LARGEST_SUM:
        seconds["bits"] = (rates.bit * code_bits * weight_bits * size * num_outputs
                           + rates.pack * (code_bits * size + weight_bits * weights))
    return min(seconds, key=seconds.__getitem__)


@cache
def measured_rates(level: str, num_threads: int) -> Rates:
    """Rates of one SIMD level and number of threads, from a few milliseconds of small products."""
    codes, zeros = (make(PROBE_ROWS, PROBE_DIM, dtype=torch.uint8) for make in (torch.ones, torch.zeros))
    weight = torch.ones(PROBE_OUTPUTS, PROBE_DIM, dtype=torch.int8)
    size, products, weights = codes.numel(), codes.numel() * PROBE_OUTPUTS, weight.numel()
    # Of one row, a product is little else than the layout of its weights.
    panel, dense = (_seconds(partial(_combine_bytes, rows, weight)) for rows in (codes[:1], codes))
    table, scan, entry = (_seconds(partial(_combine_entries, rows, weight)) for rows in (zeros[:1], zeros, codes))
    planes = pack_codes(codes, 1, False)
    return Rates(max(dense - panel, 0) / products, max(entry - scan, 0) / products, max(scan - table, 0) / size,
                 _seconds(partial(multiply, planes, pack_codes(weight.view(torch.uint8), 1, False))) / products,
                 _seconds(partial(pack_codes, codes, 1, False)) / size, panel / weights, table / weights)


def _seconds(work: Callable[[], object]) -> float:
    """The least of some repetitions: what the work takes when nothing disturbs it."""
    work()
    spent = []
    for _ in range(REPEAT):
        started = time.perf_counter()
        work()
        spent.append(time.perf_counter() - started)
    return min(spent)


def _combine_bytes(codes: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    out = empty((len(codes), len(weight)), torch.int32)
    kernels.combine(_bytes_of(codes), codes.dtype == torch.int8, weight.numpy(), out.numpy())
    return out


def _combine_entries(codes: torch.Tensor, weight: torch.Tensor, is_by_bit: bool = False) -> torch.Tensor:
    out = empty((len(codes), len(weight)), torch.int32)
    sparse_kernels.combine(_bytes_of(codes), codes.dtype == torch.int8, weight.numpy(), is_by_bit, out.numpy())
    return out


def _combine_bits(codes: torch.Tensor, weight: torch.Tensor, code_bits: int, weight_bits: int) -> torch.Tensor:
    """Planes hold no signs: with a = code + p and b = weight + q, code weight = ab - q a - p weight."""
    code_offset, weight_offset = 2 ** (code_bits - 1) * (codes.dtype == torch.int8), 2 ** (weight_bits - 1)
    shifted = codes if not code_offset else (codes + code_offset).view(torch.uint8)
    left = pack_codes(shifted, code_bits, False)
    right = pack_codes((weight + weight_offset).view(torch.uint8), weight_bits, False)
    sums = multiply(left, right)
    row_sum, output_sum = shifted.sum(1, dtype=torch.int32), weight.sum(1, dtype=torch.int32)
    return sums.sub_(weight_offset * row_sum[:, None]).sub_(code_offset * output_sum[None])


def _check_codes(name: str, codes: torch.Tensor, bits: int) -> int:
    """How many of them are not zero; raises KernelError where one needs more bits."""
    num_codes, needed = kernels.survey_codes(_bytes_of(codes), codes.dtype == torch.int8)
    if needed > bits:
        raise KernelError(f"{name} of a combination need {needed} bits, and {bits} were named; name all of them")
    return num_codes


def _bytes_of(codes: torch.Tensor):
    return codes.view(torch.uint8).numpy()
