"""IntegerModel: a trained network as integer weights and the scales around them: training makes it, inference reads it.

A convolution computes, for rows h, codes X, in-neighbors N(v) and coefficients r, c of its reduction:

    X[i]  = rows.codes(h[i])                      width and step by the in-degree of i
    B[i]  = mapped.codes(X[i] neighbor.codes.T · rows.step[i] · c[i] · neighbor.step)
    S[v]  = sum of B[u] over u in N(v), exact integers
    gcn   z = (S[v] + B[v]) · r[v] · mapped.step + bias         c = r = (in-degree + 1)^-1/2
    sage  z = S[v] · r[v] · mapped.step + own part + bias       c = 1, r = 1 / in-degree, own part X own.codes.T scaled
    gin   z = (S[v] + (1 + epsilon) B[v]) · mapped.step + bias  c = r = 1, then ReLU, `second_rows`, `second`
    gat   z = softmax over N(v) and v of the scores of B, times B · mapped.step, + bias

Each but the last is followed by LayerNorm, if it has one, and ReLU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.errors import KernelError

KINDS = ("gcn", "sage", "gin", "gat")
MAX_BIT_WIDTH = 8


@dataclass(frozen=True)
class RowScale:
    """How rows become codes, by in-degree: code = sign(x) min(floor(|x| / step + 0.5), max_code).

    Reference: MEGA, Eq. (2). Deviation: rows without negative values have no sign bit, and 2**b - 1 codes above zero.
    """

    step: np.ndarray  # (num_degrees,) float32, above 0, for in-degree 0, 1, ..; larger in-degrees take the last entry
    bit_width: np.ndarray  # (num_degrees,) uint8, 1 to 8, with the sign
    is_signed: bool        # rows have negative values; then widths are 2 to 8

    def __post_init__(self) -> None:
        if self.step.shape != self.bit_width.shape or self.step.ndim != 1 or not len(self.step):
            raise KernelError(f"a row scale has one step and one width per in-degree, found shapes {self.step.shape} "
                              f"and {self.bit_width.shape}")
        _check_steps(self.step)
        least = 1 + self.is_signed
        if self.bit_width.min() < least or self.bit_width.max() > MAX_BIT_WIDTH:
            raise KernelError(f"widths of {'signed ' if self.is_signed else ''}rows lie in {least} to {MAX_BIT_WIDTH}, "
                              f"found {self.bit_width.min()} to {self.bit_width.max()}")

    @property
    def max_code(self) -> np.ndarray:
        return (np.int32(1) << (self.bit_width.astype(np.int32) - self.is_signed)) - 1

    def entry(self, in_degree: np.ndarray) -> np.ndarray:
        return np.minimum(in_degree, len(self.step) - 1)


@dataclass(frozen=True)
class ColumnScale:
    """Signed codes of b = 2 to 8 bits for mapped rows: -(2**(b-1) - 1) .. 2**(b-1) - 1; step is (dim,) float32."""

    step: np.ndarray
    bit_width: int

    def __post_init__(self) -> None:
        if self.step.ndim != 1:
            raise KernelError(f"a column scale has one step per column, found shape {self.step.shape}")
        _check_steps(self.step)
        if not 2 <= self.bit_width <= MAX_BIT_WIDTH:
            raise KernelError(f"signed codes have 2 to {MAX_BIT_WIDTH} bits, found {self.bit_width}")

    @property
    def max_code(self) -> int:
        return 2 ** (self.bit_width - 1) - 1


@dataclass(frozen=True)
class IntegerMap:
    codes: np.ndarray     # (out_dim, in_dim) int8
    scale: ColumnScale    # per output

    def __post_init__(self) -> None:
        if self.codes.dtype != np.int8 or self.codes.ndim != 2 or len(self.codes) != len(self.scale.step):
            raise KernelError(f"an integer map of {len(self.scale.step)} outputs needs int8 codes, one row per output, "
                              f"found {self.codes.dtype} of shape {self.codes.shape}")
        largest = int(np.abs(self.codes.astype(np.int16)).max(initial=0))
        if largest > self.scale.max_code:
            raise KernelError(f"weights of {self.scale.bit_width} bits lie within {self.scale.max_code}, "
                              f"found {largest}")

    @property
    def num_bits(self) -> int:
        return self.codes.size * self.scale.bit_width


@dataclass(frozen=True)
class Normalization:
    weight: np.ndarray    # (dim,) float32
    bias: np.ndarray      # (dim,) float32
    eps: float


@dataclass(frozen=True)
class IntegerConvolution:
    kind: str                            # {"gcn", "sage", "gin", "gat"}
    rows: RowScale                       # scale of the input
    neighbor: IntegerMap                 # applied to rows that are aggregated; gin's first map
    mapped: ColumnScale                  # scale of the codes that are sent and summed
    bias: np.ndarray                     # (out_dim,) float32; of gin's first map
    own: IntegerMap | None = None        # sage
    # gin only; the last three belong to its second map
    epsilon: float = 0.0
    second_rows: RowScale | None = None
    second: IntegerMap | None = None
    second_bias: np.ndarray | None = None
    attention: np.ndarray | None = None  # (2, dim) float32, gat: row 0 scores destinations, row 1 sources
    heads: int = 1
    averages_heads: bool = False         # gat: mean of the heads instead of concatenation
    norm: Normalization | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise KernelError(f"an integer convolution is one of {', '.join(KINDS)}, found {self.kind!r}")

    @property
    def maps(self) -> list[IntegerMap]:
        return [one for one in (self.neighbor, self.own, self.second) if one is not None]


@dataclass(frozen=True)
class IntegerModel:
    """A network of integer convolutions, and the graph on which its scales were learned."""

    convolutions: list[IntegerConvolution]
    dataset: str
    num_nodes: int
    num_features: int
    num_classes: int
    is_multi_label: bool
    scheme: str                           # value of `train --quantize` that found the scales, or "calibrated"
    class_names: tuple[str, ...] = ()     # by column; empty if classes have numbers

    @property
    def weight_bits(self) -> int:
        return sum(one.num_bits for convolution in self.convolutions for one in convolution.maps)


def _check_steps(step: np.ndarray) -> None:
    if step.dtype != np.float32 or not (np.isfinite(step) & (step > 0)).all():
        raise KernelError("steps of codes are finite float32 above 0")
