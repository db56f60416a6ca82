"""Host side of `hpcgnn.ops.integer_rows`, over the compiled kernels. Contracts are already checked."""

from __future__ import annotations

import numpy as np

from hpcgnn._ext import integer_rows as kernels
from hpcgnn.ops.host.simd import simd_level


def rescale(source: np.ndarray, epilogue, target, values: np.ndarray | None) -> int:
    """Rescale, and return the bits of the faults that were met."""
    simd_level()     # refuses an instruction set that this processor lacks
    is_real = source.dtype == np.float32
    own, norm = epilogue.own, epilogue.norm
    return kernels.rescale_rows(
        source if is_real else None, None if is_real else source, epilogue.row_scale, epilogue.column_scale,
        epilogue.near, epilogue.epsilon, *((own.sums, own.row_scale, own.column_scale) if own else (None,) * 3),
        epilogue.bias, *((norm.weight, norm.bias, norm.eps) if norm else (None, None, 0.0)), epilogue.rectifies,
        *_parts_of(target), values)


def _parts_of(target) -> tuple:
    if target is None:
        return None, None, None, False
    return target.codes.view(np.uint8), target.step, target.limit, target.codes.dtype == np.int8
