"""How HyGCN cuts a product for its buffers and units, and how many cycles its units take. No request is made here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hpcgnn.accelerators.design import Design
from hpcgnn.accelerators.row_requests import size_in_bytes
from hpcgnn.errors import ConfigError

ORDERS = ("aggregation-first", "combination-first")
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


@dataclass(frozen=True)
class Array:
    """A systolic array of `rows` x `columns` multipliers that accumulate in place: it takes so many rows of X and
    columns of W at once, one column of X a cycle.
    """

    rows: int
    columns: int

    def cycles(self, num_rows: np.ndarray | int, depth: np.ndarray | int, num_columns: int) -> np.ndarray | int:
        """Return the cycles of (num_rows, depth) times (depth, num_columns): tiles follow each other without a gap,
        and the last one's sums leave the far corner later by the array's sides.
        """
        num_tiles = -(-num_rows // self.rows) * -(-num_columns // self.columns)
        return num_tiles * depth + (self.rows + self.columns - 2)


def array_of(design: Design) -> Array:
    """Return a design's systolic array: units.mac multipliers in rules.systolic_rows rows.

    Raises
    ------
    ConfigError      they don't fill whole rows
    """
    rows, num_multipliers = design.rules["systolic_rows"], design.units["mac"]
    if rows < 1 or num_multipliers % rows:
        raise ConfigError(f"{design.name} has {num_multipliers} MACs in {rows} rows; expected rows of equal length")
    return Array(rows, num_multipliers // rows)


def simd_cycles(design: Design, num_vectors: np.ndarray, dim: np.ndarray | int) -> np.ndarray:
    """Return the cycles in which the SIMD cores add so many vectors: the columns of a vector are dispersed over the
    cores, and cores that are left take the next vectors (HyGCN, HPCA 2020, vertex-disperse processing mode).
    """
    num_cores = design.units["simd"] // design.rules["simd_width"]
    return -(-(num_vectors * -(-dim // design.rules["simd_width"])) // num_cores)


def checked_order(design: Design) -> str:
    """Return rules.order.

    Raises
    ------
    ConfigError      it is no order that is known, or the SIMD cores are not whole
    """
    order, width = design.rules["order"], design.rules["simd_width"]
    if order not in ORDERS:
        raise ConfigError(f"{design.name} has the order {order!r}; choose one of {', '.join(ORDERS)}")
    if width < 1 or design.units["simd"] % width:
        raise ConfigError(f"{design.name} has {design.units['simd']} SIMD lanes in cores of {width}; expected whole "
                          "cores")
    return order


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

