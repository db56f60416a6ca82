"""Host side of `hpcgnn.ops.code_attention`, over the compiled kernels. Contracts are already checked."""

from __future__ import annotations

import numpy as np

from hpcgnn._ext import code_attention as kernels
from hpcgnn.ops.host.simd import simd_level


def score_codes(codes: np.ndarray, vectors: np.ndarray, target: np.ndarray, source: np.ndarray) -> None:
    """Scores by two vectors of whole numbers, float64."""
    simd_level()     # refuses an instruction set that this processor lacks
    kernels.score_codes(codes, vectors, target, source)


def attend_codes(indptr: np.ndarray, indices: np.ndarray, first: int, codes: np.ndarray, target: np.ndarray,
                 source: np.ndarray, coarse: np.ndarray, fine: np.ndarray, out: np.ndarray) -> int:
    """Attend by weights of two tables, and return the number of the fault that was met, or 0."""
    simd_level()     # refuses an instruction set that this processor lacks
    return kernels.attend_codes(indptr, indices, first, codes, target, source, coarse, fine, out)
