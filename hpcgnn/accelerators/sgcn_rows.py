"""Rows of features as SGCN keeps them in DRAM: by slices of columns, dense or in BEICSR. What is computed is not known
here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.accelerators.compressed_rows import starts_of
from hpcgnn.accelerators.design import Design
from hpcgnn.accelerators.feature_columns import nonzeros_before
from hpcgnn.accelerators.row_requests import requests_of, size_in_bytes
from hpcgnn.accelerators.schedule import AddressSpace, Requests
from hpcgnn.accelerators.workload import FeatureCounts

LINE_BYTES = 64     # assumed: of SGCN's cache; slots begin at lines


@dataclass(frozen=True)
class SlicedRows:
    """A matrix in DRAM: slice s of row v lies at address[s] + v * stride[s].

    Attributes
    ----------
    columns : (num_slices,) int64            of each slice
    address, stride : (num_slices,) int64
    num_rows, bit_width : int
    counts : FeatureCounts or None           None where all values are stored. Else each slice is in BEICSR: a bitmap
                                             and the values that are not zero, in place, in a slot that has room for
                                             all of them (SGCN, Yoo et al., HPCA 2023)
    """

    columns: np.ndarray
    address: np.ndarray
    stride: np.ndarray
    num_rows: int
    bit_width: int
    counts: FeatureCounts | None = None

    @property
    def num_slices(self) -> int:
        return len(self.columns)

    def cut(self, first: int, last: int) -> SlicedRows:
        """Return slices first to last - 1 of dense rows."""
        return SlicedRows(self.columns[first:last], self.address[first:last], self.stride[first:last], self.num_rows,
                          self.bit_width)

    def num_values(self, index: int, first: int, last: int) -> np.ndarray:
        """Return the values that are stored of a slice of rows first to last - 1, (last - first,) int64."""
        if self.counts is None:
            return np.full(last - first, self.columns[index], np.int64)
        bounds = starts_of(self.columns)[index:index + 2]
        return np.diff(nonzeros_before(self.counts.nonzeros[first:last], self.counts, bounds), axis=1)[:, 0]

    def num_bytes(self, index: int, num_values: np.ndarray) -> np.ndarray:
        """Return what slices with so many values take, with their bitmaps."""
        bitmap = 0 if self.counts is None else size_in_bytes(int(self.columns[index]), 1)
        return bitmap + size_in_bytes(num_values, self.bit_width)

    def requests(self, kind: str, index: int, block: np.ndarray, row: np.ndarray, num_bytes: np.ndarray) -> Requests:
        """Return requests for a slice of rows."""
        return requests_of(kind, block, self.address[index] + row * self.stride[index], num_bytes)

    def run_requests(self, kind: str, index: int, start: np.ndarray) -> Requests:
        """Return requests for a slice of consecutive rows; block b has the rows start[b] to start[b + 1] - 1."""
        block = np.repeat(np.arange(len(start) - 1), np.diff(start))
        values = self.num_values(index, int(start[0]), int(start[-1]))
        return self.requests(kind, index, block, np.arange(start[0], start[-1]), self.num_bytes(index, values))


def slices_of(dim: int, slice_columns: int) -> np.ndarray:
    """Return the columns of each slice, (num_slices,) int64: all but the last have slice_columns."""
    return np.diff(np.append(np.arange(0, dim, slice_columns, dtype=np.int64), dim))


def dense_rows(space: AddressSpace, design: Design, num_rows: int, columns: np.ndarray) -> SlicedRows:
    """Return new dense rows, slice after slice."""
    stride = np.asarray(size_in_bytes(columns, design.bit_width), np.int64)
    start = starts_of(num_rows * stride)
    return SlicedRows(columns, space.reserve(start[-1]) + start[:-1], stride, num_rows, design.bit_width)


def compressed_rows(space: AddressSpace, design: Design, counts: FeatureCounts) -> SlicedRows:
    """Return new rows in BEICSR, row after row."""
    columns = slices_of(counts.dim, design.rules["slice_columns"])
    slot = size_in_bytes(columns, 1) + size_in_bytes(columns, design.bit_width)
    start = starts_of(-(-slot // LINE_BYTES) * LINE_BYTES)
    address = space.reserve(counts.num_rows * start[-1]) + start[:-1]
    return SlicedRows(columns, address, np.full(len(columns), start[-1]), counts.num_rows, design.bit_width, counts)
