"""Input rows in the form of their shard (floats or packages), and as the codes that a model's first convolution reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from hpcgnn.lowbit.inference.coded_rows import BitRows, CodedRows, LayerRows, PackedCodes, code_packages, code_rows
from hpcgnn.lowbit.integer_model import RowScale
from hpcgnn.lowbit.package import PackagedRows
from hpcgnn.lowbit.package_shards import read_packages
from hpcgnn.partition.partition import Partition
from hpcgnn.shards.feature_formats import PACKAGE
from hpcgnn.shards.schema import GraphInfo


class InputRows(Protocol):
    """Rows of one rank."""

    form: str         # such as "float32", "packages", "codes of 2 to 4 bits" or "packed codes"
    num_bytes: int    # in memory, before a shard's own compression

    def coded(self, scale: RowScale, in_degree: np.ndarray) -> LayerRows:
        """Return codes of all rows; KernelError for NaN, or negative values where codes have no sign."""


@dataclass(frozen=True)
class FloatRows:
    rows: np.ndarray

    @property
    def form(self) -> str:
        return str(self.rows.dtype)

    @property
    def num_bytes(self) -> int:
        return self.rows.nbytes

    def coded(self, scale: RowScale, in_degree: np.ndarray) -> CodedRows:
        return code_rows(scale, self.rows, in_degree)


@dataclass(frozen=True)
class PackageRows:
    packed: PackagedRows
    scale: np.ndarray

    form = "packages"

    @property
    def num_bytes(self) -> int:
        return sum(self.packed.stored_bits.values()) // 8 + self.scale.nbytes

    def coded(self, scale: RowScale, in_degree: np.ndarray) -> CodedRows:
        return code_packages(scale, self.packed, self.scale, in_degree)


@dataclass(frozen=True)
class BitInput:
    bits: BitRows

    @classmethod
    def of(cls, rows: InputRows, scale: RowScale, in_degree: np.ndarray) -> BitInput:
        return cls(BitRows.of(rows.coded(scale, in_degree), scale, in_degree))

    @property
    def form(self) -> str:
        # Widths that the scale allows, so that all ranks say the same.
        low, high = self.bits.scale.bit_width.min(), self.bits.scale.bit_width.max()
        return f"codes of {high} bits" if low == high else f"codes of {low} to {high} bits"

    @property
    def num_bytes(self) -> int:
        return self.bits.bits.nbytes

    def coded(self, scale: RowScale, in_degree: np.ndarray) -> BitRows:
        return self.bits


@dataclass(frozen=True)
class PackedInput:
    codes: PackedCodes

    form = "packed codes"

    @classmethod
    def of(cls, rows: InputRows, scale: RowScale, in_degree: np.ndarray) -> PackedInput:
        return cls(PackedCodes.of(rows.coded(scale, in_degree)))

    @property
    def num_bytes(self) -> int:
        return sum(self.codes.packed.stored_bits.values()) // 8 + self.codes.step.nbytes

    def coded(self, scale: RowScale, in_degree: np.ndarray) -> PackedCodes:
        return self.codes


def open_input(folder: Path, info: GraphInfo, part: Partition) -> InputRows:
    """Return the features of a part in the form of its shard; errors as of `read_packages`."""
    if info.feature_dtype == PACKAGE:
        return PackageRows(*read_packages(folder, part.part, info))
    return FloatRows(part.features)
