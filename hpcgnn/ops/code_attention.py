"""Attention over neighbors' codes in exact integers: scores, softmax and weighted sums. Scales are the caller's.

Its bits depend on neither the order of neighbors nor the rows that stand beside one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.errors import KernelError
from hpcgnn.ops.host import code_attention as host

SCORE_BITS = 36               # of fixed point, as in ext/src/code_attention.h
LARGEST_SUM = 2**52           # float64 holds every integer of that magnitude and of twice it
LARGEST_CODE = 128
# 2^-(i / 2^10) and 2^-(i / 2^20) in fixed point of 30 bits, of which weights are made.
WEIGHT_TABLES = tuple(np.rint(np.exp2(30 - np.arange(1024) / resolution)).astype(np.int64)
                      for resolution in (2**10, 2**20))
FAULTS = {1: "entries must name rows of codes", 2: "indptr must rise within the entries"}


@dataclass(frozen=True)
class Scores:
    """Scores of rows as destinations and as sources, (n, num_heads) int64, in units of 2**-36."""

    target: np.ndarray
    source: np.ndarray


def score_codes(codes: np.ndarray, vectors: np.ndarray, num_heads: int) -> Scores:
    """Return <codes of a head, vector of a head>, the vectors rounded to multiples of 2**-36 and all else exact.

    Parameters
    ----------
    codes : (n, dim) int8                heads share the columns evenly
    vectors : (2, dim) float64           row 0 scores destinations, row 1 sources; in units of a code

    Raises
    ------
    KernelError      shapes that disagree; vectors by which a score could pass 65,536
    """
    if codes.ndim != 2 or codes.dtype != np.int8 or vectors.shape != (2, codes.shape[1]) or num_heads < 1 \
            or codes.shape[1] % num_heads:
        raise KernelError(f"attention of {num_heads} heads needs two vectors of {codes.shape[-1]} columns that they "
                          f"share evenly, found shape {vectors.shape}")
    fixed = fixed_vectors(vectors, num_heads)
    scores = Scores(*np.zeros((2, len(codes), num_heads), np.int64))
    host.score_codes(codes, fixed, scores.target, scores.source)
    return scores


def fixed_vectors(vectors: np.ndarray, num_heads: int) -> np.ndarray:
    """Return (2, dim) float64 of whole numbers, in units of 2**-36.

    Raises
    ------
    KernelError      vectors by which a score could pass 65,536
    """
    fixed = np.rint(vectors.astype(np.float64) * 2**SCORE_BITS)
    largest = np.abs(fixed.reshape(2, num_heads, -1)).sum(axis=2).max(initial=0)
    # Below 2**53 float64 holds every sum, in whatever order it is added.
    if not largest * LARGEST_CODE < LARGEST_SUM:
        raise KernelError(f"attention vectors reach {np.abs(vectors).max():g} a code, and scores could pass "
                          f"{LARGEST_SUM / 2**SCORE_BITS:g}; expected smaller vectors or steps")
    return fixed


def attend_codes(indptr: np.ndarray, indices: np.ndarray, codes: np.ndarray, scores: Scores,
                 first: int = 0) -> np.ndarray:
    """out[v] = sum of alpha[v, u] codes[u] over the entries u of row v and the row itself, head by head.

    alpha[v, u] is the softmax over u of LeakyReLU(target[v] + source[u]), with slope 0.2. Its weights are integers of
    23 bits: each is within 2**-18 of itself and 2**-24 of the row's largest. Sums are exact, with one division.

    Parameters
    ----------
    indptr : (num_rows + 1,) int64, indices : (num_entries,) int32, in [0, len(codes))
    codes : (n, dim) int8
    scores : Scores of all rows of codes
    first : int                      row v is row first + v of codes

    Returns
    -------
    (num_rows, dim) float32

    Raises
    ------
    KernelError      types or shapes that disagree, an entry without a row, or an indptr that does not rise

    Reference: Velickovic et al., ICLR 2018, Eq. (1)-(4).
    """
    expected = {"indptr": (indptr, np.int64, 1), "indices": (indices, np.int32, 1), "codes": (codes, np.int8, 2),
                "target": (scores.target, np.int64, 2), "source": (scores.source, np.int64, 2)}
    for name, (array, dtype, ndim) in expected.items():
        if array.dtype != dtype or array.ndim != ndim or not array.flags.c_contiguous:
            raise KernelError(f"{name} of attention is {array.dtype} of shape {array.shape}; expected contiguous "
                              f"{np.dtype(dtype)} of {ndim} dimensions")
    num_heads = scores.target.shape[1]
    if not scores.target.shape == scores.source.shape == (len(codes), num_heads) or codes.shape[1] % num_heads:
        raise KernelError(f"attention of {len(codes)} rows of {codes.shape[1]} columns was given scores of shapes "
                          f"{scores.target.shape} and {scores.source.shape}")
    if not 0 <= first <= len(codes) - (len(indptr) - 1):
        raise KernelError(f"attention of rows {first} to {first + len(indptr) - 2} needs as many rows of codes, "
                          f"found {len(codes)}")
    out = np.empty((len(indptr) - 1, codes.shape[1]), np.float32)
    fault = host.attend_codes(indptr, indices, first, codes, scores.target, scores.source, *WEIGHT_TABLES, out)
    if fault == max(FAULTS) + 1:
        raise MemoryError("no memory for the sums of a row")
    if fault:
        raise KernelError(f"codes can't be attended: {FAULTS[fault]}")
    return out
