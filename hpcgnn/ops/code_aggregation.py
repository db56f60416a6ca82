"""Aggregation of codes: exact sums of neighbors' rows of 8-bit integers. Scales are not known here."""

from __future__ import annotations

import numpy as np

from hpcgnn.errors import KernelError
from hpcgnn.ops.host import code_aggregation as host

# Faults that the kernel finds while it sums, by their number.
FAULTS = {1: "entries must name rows of codes in [0, {num_codes})",
          2: "indptr must rise within the {num_entries} entries",
          3: "a row may have 8421504 entries at most, or its sum could overflow"}


def sum_codes(indptr: np.ndarray, indices: np.ndarray, codes: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """out[v, j] = sum of codes[u, j] over the entries u of row v, on the threads of OpenMP.

    Parameters
    ----------
    indptr : (num_rows + 1,) int64
    indices : (num_entries,) int32, in [0, len(codes))
    codes : (num_codes, dim) int8 or uint8, contiguous
    out : (num_rows, dim) int32, contiguous      overwritten where given

    Returns
    -------
    (num_rows, dim) int32, exact

    Raises
    ------
    KernelError      types or shapes that disagree, an entry without a row, an indptr that does not rise, or a row of so
                     many entries that its sum could overflow
    """
    is_csr = indptr.dtype == np.int64 and indices.dtype == np.int32 and indptr.ndim == indices.ndim == 1
    if not is_csr or not len(indptr):
        raise KernelError(f"sums of codes need an int64 indptr and int32 indices, found {indptr.dtype} of shape "
                          f"{indptr.shape} and {indices.dtype} of shape {indices.shape}")
    if codes.dtype not in (np.int8, np.uint8) or codes.ndim != 2:
        raise KernelError(f"sums of codes need rows of int8 or uint8, found {codes.dtype} of shape {codes.shape}")
    shape = len(indptr) - 1, codes.shape[1]
    if out is None:
        out = np.empty(shape, np.int32)
    elif out.dtype != np.int32 or out.shape != shape:
        raise KernelError(f"sums of codes need an int32 out of shape {shape}, found {out.dtype} of shape {out.shape}")
    for array in (indptr, indices, codes, out):
        if not array.flags.c_contiguous:
            raise KernelError("sums of codes need contiguous arrays")
    fault = host.sum_codes(indptr, indices, codes, out)
    if fault:
        raise KernelError(f"codes can't be summed: "
                          f"{FAULTS[fault].format(num_codes=len(codes), num_entries=len(indices))}")
    return out
