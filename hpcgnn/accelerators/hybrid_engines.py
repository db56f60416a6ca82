"""The two engines that HyGCN and SGCN have alike: SIMD cores that add up, and a systolic array that multiplies.

What they are given is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.accelerators.design import Design
from hpcgnn.errors import ConfigError

ORDERS = ("aggregation-first", "combination-first")


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
