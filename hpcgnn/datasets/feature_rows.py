"""FeatureRows: dense features that are read and treated a block of rows at a time. No file format is known here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy.sparse

from hpcgnn.datasets.row_files import RowFile


class Treatment(Protocol):
    """What is done to rows when they are read."""

    def __call__(self, values: np.ndarray, rows: slice | np.ndarray) -> np.ndarray:
        """Return the rows of these numbers treated, (num_rows, num_features) float32; `values` stay as they are."""


@dataclass(frozen=True)
class FiniteRows:
    """NaN and infinite values become zero."""

    def __call__(self, values: np.ndarray, rows: slice | np.ndarray) -> np.ndarray:
        return np.where(np.isfinite(values), values, np.float32(0))


@dataclass(frozen=True)
class DividedRows:
    """Each row is divided by a number of its own, divisor (num_nodes, 1) float64."""

    divisor: np.ndarray

    def __call__(self, values: np.ndarray, rows: slice | np.ndarray) -> np.ndarray:
        return (values / self.divisor[rows]).astype(np.float32)


@dataclass(frozen=True)
class ScaledColumns:
    """Each column is shifted by -mean, then multiplied by scale; both (num_features,) float64."""

    mean: np.ndarray
    scale: np.ndarray

    def __call__(self, values: np.ndarray, rows: slice | np.ndarray) -> np.ndarray:
        shifted = values - self.mean
        shifted *= self.scale
        return shifted.astype(np.float32)


@dataclass(frozen=True)
class FeatureRows:
    """Features as their source has them, and what is done to the rows that are read. Nothing is kept of these.

    Attributes
    ----------
    source : (num_nodes, num_features) number, ndarray, scipy CSR or RowFile; never changed
    treatments : tuple of Treatment, applied in this order
    """

    source: np.ndarray | scipy.sparse.csr_matrix | RowFile
    treatments: tuple[Treatment, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        return self.source.shape

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float32)

    @property
    def ndim(self) -> int:
        return 2

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return some rows, (num_rows, num_features) float32."""
        held = self.source[rows]
        values = np.asarray(held.toarray() if scipy.sparse.issparse(held) else held, np.float32)
        for treatment in self.treatments:
            values = treatment(values, rows)
        return values

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(np.float32 if dtype is None else dtype, copy=False)

    def treated(self, treatment: Treatment) -> FeatureRows:
        """Return the same rows with one treatment more."""
        return FeatureRows(self.source, (*self.treatments, treatment))
