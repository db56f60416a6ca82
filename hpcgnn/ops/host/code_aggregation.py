"""Host side of `hpcgnn.ops.code_aggregation`, over the compiled kernels."""

from __future__ import annotations

import numpy as np

from hpcgnn._ext import code_aggregation as kernels


def sum_codes(indptr: np.ndarray, indices: np.ndarray, codes: np.ndarray, out: np.ndarray) -> int:
    """Sums into out, on the threads of OpenMP; the number of a fault that only the entries show, or 0."""
    return kernels.sum_code_rows(indptr, indices, codes.view(np.uint8), codes.dtype == np.int8, out)
