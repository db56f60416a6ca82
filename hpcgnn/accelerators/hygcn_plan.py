"""How HyGCN cuts a product for its buffers and units. No request is made here."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hpcgnn.accelerators.design import Design
from hpcgnn.accelerators.row_requests import size_in_bytes

COLUMNS_A_STEP = 8      # slices begin at whole bytes, whatever the width of a value


class Plan(NamedTuple):
    """Blocks of a phase: an interval of rows, by slices of its columns.

    Attributes
    ----------
    rows_a_block : int
    slice_start : (num_slices + 1,) int64      first column of each slice, and the number of columns
    window_rows : int                          rows of a slice that the input buffer's half holds, at least one
    """

    rows_a_block: int
    slice_start: np.ndarray
    window_rows: int


def plan_of(design: Design, dim: int, result_columns: int, fewest_rows: int) -> Plan:
    """Return how many rows a block has, and how many of their columns are aggregated at once.

    assumed: an interval has as many rows as half the Aggregation Buffer holds sums of, and half the Output Buffer
    results of. Where that is fewer than `fewest_rows` (those of the systolic array, which would idle), columns are
    taken in slices instead, so that half the Output Buffer is full; HyGCN's paper has no rows so long.
    """
    num_sums = design.buffer_bytes("aggregation") // 2 * 8 // design.rules["sum_bits"]
    results = design.buffer_bytes("output") // 2 * 8 // design.rules["sum_bits"]
    rows, slice_dim = max(1, results // result_columns), dim
    if num_sums // dim >= min(fewest_rows, rows):
        rows = min(rows, num_sums // dim)
    else:
        slice_dim = max(1, num_sums // rows // COLUMNS_A_STEP) * COLUMNS_A_STEP
    start = np.append(np.arange(0, dim, slice_dim, dtype=np.int64), dim)
    row_bytes = size_in_bytes(min(slice_dim, dim), design.bit_width)
    return Plan(rows, start, max(1, design.buffer_bytes("input") // 2 // row_bytes))

