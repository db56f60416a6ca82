"""The two engines that HyGCN and SGCN share: SIMD cores that add up, and a systolic array that multiplies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcgnn.accelerators.design import Design
from hpcgnn.errors import ConfigError

ORDERS = ("aggregation-first", "combination-first")


@dataclass(frozen=True)
class Array:
    """A systolic array that takes `rows` rows of X and `columns` columns of W at a time, one column of X per cycle."""

    rows: int
    columns: int

    def cycles(self, num_rows: np.ndarray | int, depth: np.ndarray | int, num_columns: int) -> Any:
        """Cycles of (num_rows, depth) times (depth, num_columns).

        Tiles follow each other without a gap; the sums of the last tile need as many cycles more as it takes to cross
        the array.
        """
        num_tiles = -(-num_rows // self.rows) * -(-num_columns // self.columns)
        return num_tiles * depth + (self.rows + self.columns - 2)


def array_of(design: Design) -> Array:
    """The systolic array of a design: units.mac multipliers in rules.systolic_rows whole rows, else ConfigError."""
    rows, num_multipliers = design.rules["systolic_rows"], design.units["mac"]
    if rows < 1 or num_multipliers % rows:
        raise ConfigError(f"{design.name} has {num_multipliers} MACs in {rows} rows; expected rows of equal length")
    return Array(rows, num_multipliers // rows)


def simd_cycles(design: Design, num_vectors: np.ndarray, dim: np.ndarray | int) -> np.ndarray:
    """Cycles in which the SIMD cores add `num_vectors` vectors.

    The columns of a vector are spread over the cores; free cores take the next vectors (HyGCN, HPCA 2020,
    vertex-disperse processing mode).
    """
    num_cores = design.units["simd"] // design.rules["simd_width"]
    return -(-(num_vectors * -(-dim // design.rules["simd_width"])) // num_cores)


def checked_order(design: Design) -> str:
    """rules.order. Raises ConfigError if it is unknown, or the SIMD cores are not whole."""
    order, width = design.rules["order"], design.rules["simd_width"]
    if order not in ORDERS:
        raise ConfigError(f"{design.name} has the order {order!r}; choose one of {', '.join(ORDERS)}")
    if width < 1 or design.units["simd"] % width:
        raise ConfigError(f"{design.name} has {design.units['simd']} SIMD lanes in cores of {width}; expected whole "
                          "cores")
    return order
