"""Host side of `hpcgnn.ops.code_attention`, over the compiled kernels. Contracts are already checked."""

from __future__ import annotations

import numpy as np

from hpcgnn._ext import code_attention as kernels
from hpcgnn.ops.host.simd import simd_level

# 2^-(i / 2^10) and 2^-(i / 2^20) in fixed point of 30 bits.
COARSE, FINE = (np.rint(np.exp2(30 - np.arange(1024) / resolution)).astype(np.int64) for resolution in (2**10, 2**20))


def score_codes(codes: np.ndarray, vectors: np.ndarray, target: np.ndarray, source: np.ndarray) -> None:
    """Scores by two vectors of whole numbers, float64."""
    simd_level()     # refuses an instruction set that this processor lacks
    kernels.score_codes(codes, vectors, target, source)


def attend_codes(indptr: np.ndarray, indices: np.ndarray, first: int, codes: np.ndarray, target: np.ndarray,
                 source: np.ndarray, out: np.ndarray) -> int:
    """Attend, and return the number of the fault that was met, or 0."""
    simd_level()     # refuses an instruction set that this processor lacks
    return kernels.attend_codes(indptr, indices, first, codes, target, source, COARSE, FINE, out)
