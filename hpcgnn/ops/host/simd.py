"""Which instruction set the host kernels run on: the processor's best, or the one that HPCGNN_SIMD forces."""

from __future__ import annotations

import os

from hpcgnn._ext.simd import supported_level
from hpcgnn.errors import KernelError

LEVELS = ("portable", "avx2", "avx512")


def simd_level() -> str:
    """Name of the level in use.

    Raises
    ------
    KernelError      HPCGNN_SIMD names no level, or one that this processor or build does not have
    """
    best = supported_level()
    forced = os.environ.get("HPCGNN_SIMD")
    if forced is None:
        return LEVELS[best]
    if forced not in LEVELS[:best + 1]:
        raise KernelError(f"HPCGNN_SIMD is {forced!r}; this processor and build have {', '.join(LEVELS[:best + 1])}")
    return forced
