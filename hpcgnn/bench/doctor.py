"""This module writes what `hpcgnn doctor` says: processor, instruction sets, and sentences on what slows a training."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch

from hpcgnn.bench.environment import available_cores
from hpcgnn.bench.machine import HUGE_PAGES, processor_name
from hpcgnn.bench.timing import Measurement
from hpcgnn.ops.host.simd import best_level, multiplies_bfloat16, simd_level

TORCH_LEVELS = {"DEFAULT": "portable", "AVX2": "avx2", "AVX512": "avx512"}
LOW_SHARE = 0.5          # of the ceiling, below which a product's rate is worth a word


def machine_lines(num_threads: int) -> list[str]:
    """Tell the processor, and the instruction sets that are in effect."""
    capability = torch.backends.cpu.get_cpu_capability()
    return [f"processor: {processor_name()}, {available_cores()} cores, {num_threads} threads",
            f"instructions: kernels {simd_level()}, torch {TORCH_LEVELS.get(capability, capability.lower())}, "
            f"products of bfloat16 {'yes' if multiplies_bfloat16() else 'no'}"]


def complaints(measured: Iterable[Measurement]) -> list[str]:
    """Return a sentence for each thing that slows a training here, with its remedy; none where all is well."""
    found = []
    if simd_level() != best_level():
        found.append(f"HPCGNN_SIMD holds the kernels at {simd_level()}, and this processor has {best_level()}; "
                     "unset it")
    if not multiplies_bfloat16():
        found.append("there are no instructions for products of bfloat16: rows are widened to float32 first, so "
                     "--precision bf16 saves memory and messages, and no arithmetic")
    if HUGE_PAGES.exists() and "[never]" in HUGE_PAGES.read_text():
        found.append(f"the system gives no huge pages; write madvise into {HUGE_PAGES}")
    if os.getloadavg()[0] > 0.5 * available_cores():
        found.append(f"the load is {os.getloadavg()[0]:.1f}: something else runs here, and rates are those of what it "
                     "leaves")
    found += [f"{row.case} reaches {100 * row.ceiling_share:.0f} % of what the instructions can do"
              for row in measured if row.ceiling_share < LOW_SHARE]
    return found
