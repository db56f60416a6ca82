"""Instruction set of the host's kernels, which HPCGNN_SIMD may force; and a clock to compare kernels."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from hpcgnn._ext import simd as kernels
from hpcgnn.errors import KernelError

LEVELS = ("portable", "avx2", "avx512")
# Levels to which oneDNN's variable may limit it, the lowest first, in the order of its documentation.
ONEDNN_LEVELS = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI",
                 "AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX512_CORE_AMX", "AVX512_CORE_AMX_FP16")


def best_level() -> str:
    return LEVELS[kernels.supported_level()]


def processor_level() -> str:
    return LEVELS[kernels.processor_level()]


def simd_level() -> str:
    """Level in use; KernelError if HPCGNN_SIMD names no level, or one that this processor or build does not have."""
    best = kernels.supported_level()
    forced = os.environ.get("HPCGNN_SIMD")
    if forced is None:
        return LEVELS[best]
    usable = [name for level, name in enumerate(LEVELS[:best + 1]) if kernels.is_built(level)]
    if forced not in usable:
        remedy = (f"; to build {forced} too, run `HPCGNN_LEVELS=all source jobs/env.sh`"
                  if forced in LEVELS[:kernels.processor_level() + 1] else "")
        raise KernelError(f"HPCGNN_SIMD is {forced!r}; this processor and build have {', '.join(usable)}{remedy}")
    return forced


def multiplies_bfloat16() -> bool:
    """Whether torch has instructions for products of bfloat16; otherwise such products take up to 100 times as long."""
    return kernels.multiplies_bfloat16() and _onednn_may_use("AVX512_CORE_BF16")


def allows_tiles() -> bool:
    return _onednn_may_use("AVX512_CORE_AMX")


def _onednn_may_use(level: str) -> bool:
    allowed = os.environ.get("ONEDNN_MAX_CPU_ISA", os.environ.get("DNNL_MAX_CPU_ISA", "")).upper()
    return allowed not in ONEDNN_LEVELS[:ONEDNN_LEVELS.index(level)]


def least_seconds(work: Callable[[], object], repetitions: int) -> float:
    work()
    seconds = []
    for _ in range(repetitions):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
