"""Integer models on the host, one operation at a time: sums of neighbors' codes, attention over them, and rescaling.

Sums are exact integers, so results do not depend on the order of neighbors or on other rows. `rescale` turns sums back
into codes: values = sums · scales + bias, then a code is sign(x) min(floor(|x| / step + 0.5), limit).
`hpcgnn.ops.integer_layers` computes the same bits for all layers at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn._ext import code_aggregation as sum_kernels
from hpcgnn._ext import code_attention as attention_kernels
from hpcgnn._ext import integer_rows as kernels
from hpcgnn.errors import KernelError
from hpcgnn.ops.simd import simd_level

HAS_NAN, IS_NEGATIVE, NO_SCRATCH = 1, 2, 4     # as in ext/src/integer_rows.h


@dataclass(frozen=True)
class OwnPart:
    sums: np.ndarray            # (n, dim) int32
    row_scale: np.ndarray       # (n,) float32
    column_scale: np.ndarray    # (dim,) float32


@dataclass(frozen=True)
class LayerNorm:
    weight: np.ndarray
    bias: np.ndarray
    eps: float


@dataclass(frozen=True)
class Epilogue:
    """max(0, LayerNorm(source · row_scale · column_scale + own + bias)); parts that are None or False are left out.

    row_scale : (n,) float32 or None
    column_scale, bias : (dim,) float32 or None
    near : (n, dim) int8 or None       int32 sources are then float(sums + near) + epsilon float(near)
    """

    row_scale: np.ndarray | None = None
    column_scale: np.ndarray | None = None
    bias: np.ndarray | None = None
    near: np.ndarray | None = None
    epsilon: float = 0.0
    own: OwnPart | None = None
    norm: LayerNorm | None = None
    rectifies: bool = False


@dataclass(frozen=True)
class CodeTarget:
    """Where (n, dim) int8 or uint8 codes are written; step and limit are (n,) float32, or (1,) for all rows."""

    codes: np.ndarray
    step: np.ndarray
    limit: np.ndarray


def rescale(source: np.ndarray, epilogue: Epilogue, target: CodeTarget | None = None,
            values: np.ndarray | None = None) -> None:
    """Write codes of rescaled rows, their values, (n, dim) float32, or both; source is (n, dim) int32 or float32.

    Raises KernelError for NaN, or for a negative value if codes have no sign.
    """
    _check("source", source, (np.float32, np.int32), source.shape)
    shape = source.shape
    _check_epilogue(epilogue, shape)
    if target is not None:
        _check("codes", target.codes, (np.int8, np.uint8), shape)
        for name in ("step", "limit"):
            _check(name, getattr(target, name), (np.float32,), (1,) if len(target.step) == 1 else shape[:1])
    if values is not None:
        _check("values", values, (np.float32,), shape)
    simd_level()     # raises an error for an instruction set that this processor lacks
    is_real = source.dtype == np.float32
    own, norm = epilogue.own, epilogue.norm
    refuse(kernels.rescale_rows(
        source if is_real else None, None if is_real else source, epilogue.row_scale, epilogue.column_scale,
        epilogue.near, epilogue.epsilon, *((own.sums, own.row_scale, own.column_scale) if own else (None,) * 3),
        epilogue.bias, *((norm.weight, norm.bias, norm.eps) if norm else (None, None, 0.0)), epilogue.rectifies,
        *((None, None, None, False) if target is None else
          (target.codes.view(np.uint8), target.step, target.limit, target.codes.dtype == np.int8)), values))


def refuse(faults: int) -> None:
    if faults & NO_SCRATCH:
        raise MemoryError("no memory for a row of values")
    if faults & HAS_NAN:
        raise KernelError("rows hold NaN before they become codes; expected numbers, look for extreme values in the "
                          "features or in the model's scales")
    if faults & IS_NEGATIVE:
        raise KernelError("rows hold negative values, and their codes have no sign; quantize the model again on "
                          "these features")


def _check_epilogue(epilogue: Epilogue, shape: tuple[int, ...]) -> None:
    by_row, by_column = shape[:1], shape[1:]
    own = epilogue.own or OwnPart(None, None, None)
    norm = epilogue.norm or LayerNorm(None, None, 0.0)
    expected = [("row_scale", epilogue.row_scale, np.float32, by_row),
                ("column_scale", epilogue.column_scale, np.float32, by_column),
                ("bias", epilogue.bias, np.float32, by_column), ("near", epilogue.near, np.int8, shape),
                ("own sums", own.sums, np.int32, shape), ("own row_scale", own.row_scale, np.float32, by_row),
                ("own column_scale", own.column_scale, np.float32, by_column),
                ("norm weight", norm.weight, np.float32, by_column), ("norm bias", norm.bias, np.float32, by_column)]
    for name, array, dtype, needed in expected:
        if array is not None:
            _check(name, array, (dtype,), needed)


def _check(name: str, array: np.ndarray, dtypes: tuple, shape: tuple[int, ...]) -> None:
    if array.dtype not in [np.dtype(one) for one in dtypes] or array.shape != shape or not array.flags.c_contiguous:
        raise KernelError(f"{name} of integer rows is {array.dtype} of shape {array.shape}; expected contiguous "
                          f"{' or '.join(np.dtype(one).name for one in dtypes)} of shape {shape}")


# Faults that the kernel finds while it sums, by number.
SUM_FAULTS = {1: "entries must name rows of codes in [0, {num_codes})",
          2: "indptr must rise within the {num_entries} entries",
          3: "a row may have 8421504 entries at most, or its sum could overflow"}


def sum_codes(indptr: np.ndarray, indices: np.ndarray, codes: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """out[v, j] = sum of codes[u, j] over the entries u of row v, exact, on the threads of OpenMP.

    indptr is (num_rows + 1,) int64, indices (num_entries,) int32, codes (num_codes, dim) int8 or uint8; out is
    (num_rows, dim) int32, overwritten if given. Raises KernelError for an entry without a row, an indptr that does not
    rise, or a row with so many entries that its sum could overflow.
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
    fault = sum_kernels.sum_code_rows(indptr, indices, codes.view(np.uint8), codes.dtype == np.int8, out)
    if fault:
        raise KernelError(f"codes can't be summed: "
                          f"{SUM_FAULTS[fault].format(num_codes=len(codes), num_entries=len(indices))}")
    return out


SCORE_BITS = 36               # bits of fixed point, as in ext/src/code_attention.h
LARGEST_SUM = 2**52           # float64 holds every integer up to twice this magnitude
LARGEST_CODE = 128
# Factors of weights: 2^-(i / 2^10) and 2^-(i / 2^20) in fixed point of 30 bits.
WEIGHT_TABLES = tuple(np.rint(np.exp2(30 - np.arange(1024) / resolution)).astype(np.int64)
                      for resolution in (2**10, 2**20))
ATTENTION_FAULTS = {1: "entries must name rows of codes", 2: "indptr must rise within the entries"}


@dataclass(frozen=True)
class Scores:
    target: np.ndarray    # (n, num_heads) int64, in units of 2**-36; rows as destinations
    source: np.ndarray    # the same shape; rows as sources


def score_codes(codes: np.ndarray, vectors: np.ndarray, num_heads: int) -> Scores:
    """<codes of a head, vector of a head>, exact after vectors are rounded to multiples of 2**-36.

    codes is (n, dim) int8, and heads share the columns evenly. vectors is (2, dim) float64 in units of a code: row 0
    scores destinations, row 1 sources. Raises KernelError for vectors so large that a score could pass 65,536.
    """
    if codes.ndim != 2 or codes.dtype != np.int8 or vectors.shape != (2, codes.shape[1]) or num_heads < 1 \
            or codes.shape[1] % num_heads:
        raise KernelError(f"attention of {num_heads} heads needs two vectors of {codes.shape[-1]} columns that they "
                          f"share evenly, found shape {vectors.shape}")
    fixed = fixed_vectors(vectors, num_heads)
    scores = Scores(*np.zeros((2, len(codes), num_heads), np.int64))
    simd_level()     # raises an error for an instruction set that this processor lacks
    attention_kernels.score_codes(codes, fixed, scores.target, scores.source)
    return scores


def fixed_vectors(vectors: np.ndarray, num_heads: int) -> np.ndarray:
    """Vectors in units of 2**-36, (2, dim) float64 of whole numbers; errors as `score_codes`."""
    fixed = np.rint(vectors.astype(np.float64) * 2**SCORE_BITS)
    largest = np.abs(fixed.reshape(2, num_heads, -1)).sum(axis=2).max(initial=0)
    # float64 holds every sum below 2**53 exactly, in any order of addition.
    if not largest * LARGEST_CODE < LARGEST_SUM:
        raise KernelError(f"attention vectors reach {np.abs(vectors).max():g} per code, and scores could pass "
                          f"{LARGEST_SUM / 2**SCORE_BITS:g}; expected smaller vectors or steps")
    return fixed


def attend_codes(indptr: np.ndarray, indices: np.ndarray, codes: np.ndarray, scores: Scores,
                 first: int = 0) -> np.ndarray:
    """out[v] = sum of alpha[v, u] codes[u] over the entries u of row v and the row itself, head by head.

    alpha[v, u] is the softmax over u of LeakyReLU(target[v] + source[u]), with slope 0.2. Weights are integers of 23
    bits; a weight is off by at most 2**-18 of itself plus 2**-24 of the row's largest weight. Sums are exact, with
    one division.

    indptr : (num_rows + 1,) int64, indices : (num_entries,) int32, in [0, len(codes))
    codes : (n, dim) int8
    first : int                      row v is row first + v of codes and of scores

    Returns (num_rows, dim) float32. Raises KernelError for an entry without a row, or an indptr that does not rise.

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
        raise KernelError(f"attention of rows {first} to {first + len(indptr) - 2} needs codes of all these rows, "
                          f"found {len(codes)} rows of codes")
    out = np.empty((len(indptr) - 1, codes.shape[1]), np.float32)
    simd_level()
    fault = attention_kernels.attend_codes(indptr, indices, first, codes, scores.target, scores.source, *WEIGHT_TABLES,
                                           out)
    if fault == max(ATTENTION_FAULTS) + 1:
        raise MemoryError("no memory for the sums of a row")
    if fault:
        raise KernelError(f"codes can't be attended: {ATTENTION_FAULTS[fault]}")
    return out
