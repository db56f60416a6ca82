"""Quantization schemes, and the maker of each scheme's quantizers. A new scheme is a new maker."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.config import TrainConfig, parse_protection
from hpcgnn.lowbit.training.convolutions import QuantizerMaker
from hpcgnn.lowbit.training.protected import LargestWeightQuantizer, TrackedColumnQuantizer, TrackedRowQuantizer
from hpcgnn.lowbit.training.quantizer import ColumnQuantizer, RowQuantizer, WeightQuantizer

FIRST_BITS = 4       # width for which rows are fitted, before their widths are chosen
LEARNS_WIDTHS = ("degree-aware", "layer-aware")
SHRINKING = (*LEARNS_WIDTHS, "calibrated")    # rows with fewer codes get fewer bits
BY_LAYER = ("layer-aware", "uniform")         # all rows of a layer share step and width


@dataclass(frozen=True)
class QuantizationScheme:
    name: str  # {"degree-aware", "layer-aware", "degree-steps", "uniform", "degree-quant", "calibrated"}
    bits: int                                     # width of weights and mapped rows
    row_bits: int                                 # width of rows; the first width if widths are learned
    target_kb: float = 0.0  # size of all layers' rows, see `QuantizedStack.penalty`; 0 is 2 bits per value
    size_weight: float = 1.0                      # lambda of Eq. (5)
    is_local: bool = False  # steps and widths of rows and mapped rows follow their own error, not the loss
    protection: tuple[float, float] = (0.0, 0.0)  # (low, high), probabilities, of degree-quant

    @classmethod
    def of(cls, config: TrainConfig) -> QuantizationScheme:
        row_bits = FIRST_BITS if config.quantize in LEARNS_WIDTHS else config.quantize_bits
        return cls(config.quantize, config.quantize_bits, row_bits, config.target_kb, config.size_weight,
                   config.quantize_gradient == "local", parse_protection(config.protect))

    @property
    def learns_width(self) -> bool:
        return self.name in LEARNS_WIDTHS


class LearnedMaker:
    def __init__(self, scheme: QuantizationScheme, counts: np.ndarray, comm):
        self._scheme, self._comm = scheme, comm
        self._counts = counts.sum(keepdims=True) if scheme.name in BY_LAYER else counts

    def rows(self, dim: int, is_signed: bool) -> RowQuantizer:
        scheme = self._scheme
        return RowQuantizer(self._comm, dim, self._counts, scheme.row_bits, is_signed, scheme.learns_width,
                            scheme.name in SHRINKING, scheme.is_local)

    def columns(self, dim: int) -> ColumnQuantizer:
        scheme = self._scheme
        return ColumnQuantizer(self._comm, dim, int(self._counts.sum()), scheme.bits, scheme.is_local)

    def weights(self, out_dim: int) -> WeightQuantizer:
        return WeightQuantizer(out_dim, self._scheme.bits)


class TrackedMaker:
    def __init__(self, scheme: QuantizationScheme, counts: np.ndarray, comm):
        self._scheme, self._num_nodes, self._comm = scheme, int(counts.sum()), comm

    def rows(self, dim: int, is_signed: bool) -> TrackedRowQuantizer:
        return TrackedRowQuantizer(self._comm, dim, self._num_nodes, self._scheme.row_bits, is_signed)

    def columns(self, dim: int) -> TrackedColumnQuantizer:
        return TrackedColumnQuantizer(self._comm, dim, self._scheme.bits)

    def weights(self, out_dim: int) -> LargestWeightQuantizer:
        return LargestWeightQuantizer(self._scheme.bits)


def maker_of(scheme: QuantizationScheme, counts: np.ndarray, comm) -> QuantizerMaker:
    """The maker of a scheme's quantizers; counts, (num_entries,) int64, has the whole graph's nodes by in-degree."""
    return (TrackedMaker if scheme.name == "degree-quant" else LearnedMaker)(scheme, counts, comm)
