"""The two engines that HyGCN and SGCN share: SIMD cores that add up, and a systolic array that multiplies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcgnn.accelerators.design import Design
from hpcgnn.accelerators.schedule import Blocks, Requests, block_starts, in_order, requests_of, runs_of
from hpcgnn.accelerators.workload import Product, size_in_bytes
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

    def events(self, design: Design, rows: np.ndarray, depth: np.ndarray | int, num_columns: int, weights: Requests
               ) -> dict[str, int]:
        """Products, and bytes of W, which is read from its buffer once per group of rows in the array."""
        num_weights = int((-(-rows // self.rows) * depth).sum()) * num_columns
        return {"mac": int((rows * depth).sum()) * num_columns, "write:weight": weights.total_bytes,
                "read:weight": size_in_bytes(num_weights, design.bit_width)}


def array_of(design: Design) -> Array:
    """The systolic array of a design: units.mac multipliers in rules.systolic_rows whole rows, else ConfigError."""
    rows, num_multipliers = design.rules["systolic_rows"], design.units["mac"]
    if rows < 1 or num_multipliers % rows:
        raise ConfigError(f"{design.name} has {num_multipliers} MACs in {rows} rows; expected rows of equal length")
    return Array(rows, num_multipliers // rows)


def weight_requests(design: Design, product: Product, weights_at: int, slice_start: np.ndarray, of_slice: np.ndarray,
                    is_first: np.ndarray) -> Requests:
    """Reads of the rows of W for each block's slice of columns of X.

    If the Weight Buffer holds all of W, it stays there from the blocks that are first to read a slice.
    """
    slice_at = size_in_bytes(slice_start * product.combined_dim, design.bit_width)
    weight_bytes = size_in_bytes(product.rows.dim * product.combined_dim, design.bit_width)
    is_needed = is_first | (weight_bytes > design.buffer_bytes("weight"))
    return requests_of("weights", np.arange(len(of_slice)), weights_at + slice_at[of_slice],
                       np.diff(slice_at)[of_slice] * is_needed)


def combination_blocks(design: Design, array: Array, product: Product, weights_at: int,
                       inputs: Callable[[np.ndarray], Requests], results: Callable[[np.ndarray], Requests], buffer: str,
                       work_a_row: int = 1) -> Iterator[Blocks]:
    """Yield blocks of rows that stream through `buffer` and the array, while their results wait in the Output Buffer.

    `inputs` and `results` make the requests of blocks with the rows start[b] to start[b + 1] - 1. Assumed: the results
    of a block fill half the Output Buffer.
    """
    dim, columns = product.rows.dim, product.combined_dim
    num_results = design.buffer_bytes("output") // 2 * 8 // design.rules["sum_bits"]
    start = block_starts(product.rows.num_rows, max(1, num_results // columns))
    whole = np.array([0, dim])
    for first, last in runs_of(start * work_a_row):
        here, block = start[first:last + 1], np.arange(last - first)
        rows, read = np.diff(here), inputs(here)
        weights = weight_requests(design, product, weights_at, whole, block * 0, first + block == 0)
        sum_bytes = int(rows.sum()) * columns * design.rules["sum_bits"] // 8
        streamed = {f"write:{buffer}": read.total_bytes, f"read:{buffer}": read.total_bytes}
        multiplied = {**array.events(design, rows, dim, columns, weights),
                      "read:output": sum_bytes, "write:output": sum_bytes}
        # Energies are added in the order of the events.
        events = streamed | multiplied if buffer == "cache" else multiplied | streamed
        yield Blocks(array.cycles(rows, dim, columns)[:, None], in_order(weights, read), results(here), events)


def num_cores(design: Design) -> int:
    return design.units["simd"] // design.rules["simd_width"]


def simd_cycles(design: Design, num_vectors: np.ndarray, dim: np.ndarray | int) -> np.ndarray:
    """Cycles in which the SIMD cores add `num_vectors` vectors.

    The columns of a vector are spread over the cores; free cores take the next vectors (HyGCN, HPCA 2020,
    vertex-disperse processing mode).
    """
    return -(-(num_vectors * -(-dim // design.rules["simd_width"])) // num_cores(design))


def checked_order(design: Design) -> str:
    """rules.order. Raises ConfigError if it is unknown, or the SIMD cores are not whole."""
    order, width = design.rules["order"], design.rules["simd_width"]
    if order not in ORDERS:
        raise ConfigError(f"{design.name} has the order {order!r}; choose one of {', '.join(ORDERS)}")
    if width < 1 or design.units["simd"] % width:
        raise ConfigError(f"{design.name} has {design.units['simd']} SIMD lanes in cores of {width}; expected whole "
                          "cores")
    return order
