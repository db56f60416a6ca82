"""Input rows as the shards store them, float32 or packages, and how they become a model's first codes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from hpcgnn.lowbit.inference.coded_rows import BitRows, CodedRows, LayerRows, PackedCodes, code_packages, code_rows
from hpcgnn.lowbit.integer_model import RowScale
from hpcgnn.lowbit.package import PackagedRows
from hpcgnn.partition.partition import Partition
from hpcgnn.shards.feature_formats import PACKAGE
from hpcgnn.shards.reader import read_packages
from hpcgnn.shards.schema import GraphInfo


class InputRows(Protocol):
    """Rows of one rank.

    Attributes
    ----------
    form : str                 "float32", "float16", "packages", "codes of 2 to 4 bits" or the like, or "packed codes"
    num_bytes : int            in memory; of what shards hold, there too, before the shard's own compression
    """

    form: str
    num_bytes: int

    def coded(self, scale: RowScale, in_degree: np.ndarray) -> LayerRows:
        """Return codes of all rows; raises KernelError for NaN, and for negative values where codes have no sign."""


@dataclass(frozen=True)
class FloatRows:
    """Rows as floats, (n, dim) float32 or float16."""

    rows: np.ndarray

    @property
    def form(self) -> str:
        return str(self.rows.dtype)

    @property
    def num_bytes(self) -> int:
        return self.rows.nbytes

    def coded(self, scale: RowScale, in_degree: np.ndarray) -> CodedRows:
        """See `InputRows`."""
        return code_rows(scale, self.rows, in_degree)


@dataclass(frozen=True)
class PackageRows:
    """Holds rows as packages; no floats are made of them."""

    packed: PackagedRows
    scale: np.ndarray

    form = "packages"

    @property
    def num_bytes(self) -> int:
        return sum(self.packed.stored_bits.values()) // 8 + self.scale.nbytes

    def coded(self, scale: RowScale, in_degree: np.ndarray) -> CodedRows:
        """See `InputRows`."""
        return code_packages(scale, self.packed, self.scale, in_degree)


@dataclass(frozen=True)
class BitInput:
    """Holds the codes that one model's first convolution reads, as bits; the rows they came from are not kept."""

    bits: BitRows

    @classmethod
    def of(cls, rows: InputRows, scale: RowScale, in_degree: np.ndarray) -> BitInput:
        """Encode the same rows for the convolution that reads at this scale; raises what `InputRows.coded` does."""
        return cls(BitRows.of(rows.coded(scale, in_degree), scale, in_degree))

    @property
    def form(self) -> str:
        """Say how wide the scale lets rows be, which is the same on all ranks."""
        low, high = self.bits.scale.bit_width.min(), self.bits.scale.bit_width.max()
        return f"codes of {high} bits" if low == high else f"codes of {low} to {high} bits"

    @property
    def num_bytes(self) -> int:
        return self.bits.bits.nbytes

    def coded(self, scale: RowScale, in_degree: np.ndarray) -> BitRows:
        """Return the codes, which keep the scale that they were made with; the arguments are not read."""
        return self.bits


@dataclass(frozen=True)
class PackedInput:
    """Holds the codes that one model's first convolution reads, in packages; the rows they came from are not kept."""

    codes: PackedCodes

    form = "packed codes"

    @classmethod
    def of(cls, rows: InputRows, scale: RowScale, in_degree: np.ndarray) -> PackedInput:
        """Encode the same rows for the convolution that reads at this scale; raises what `InputRows.coded` does."""
        return cls(PackedCodes.of(rows.coded(scale, in_degree)))

    @property
    def num_bytes(self) -> int:
        return sum(self.codes.packed.stored_bits.values()) // 8 + self.codes.step.nbytes

    def coded(self, scale: RowScale, in_degree: np.ndarray) -> PackedCodes:
        """Return the codes, which keep the scale that they were made with; the arguments are not read."""
        return self.codes


def open_input(folder: Path, info: GraphInfo, part: Partition) -> InputRows:
    """Return the features of a part in the form that its shard has.

    Raises
    ------
    ShardError                as of `hpcgnn.shards.reader.read_packages`
    """
    if info.feature_dtype == PACKAGE:
        return PackageRows(*read_packages(folder, part.part, info))
    return FloatRows(part.features)
