"""A product of HyGCN with its addresses in DRAM, and the requests of blocks of intervals and slices.

How long they take, and what is computed, is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.accelerators.design import Design
from hpcgnn.accelerators.hygcn_plan import Plan
from hpcgnn.accelerators.hygcn_windows import Windows, windows_of
from hpcgnn.accelerators.row_requests import own_dim, requests_of, size_in_bytes
from hpcgnn.accelerators.schedule import NO_REQUESTS, Requests
from hpcgnn.accelerators.workload import Product, Workload


@dataclass(frozen=True)
class Layer:
    """A product with its addresses in DRAM.

    Attributes
    ----------
    input_at, weights_at, edges_at, result_at : int      X, W, arcs, and what the product gives
    combined_at, own_at : int                            of A(XW): the columns of XW that are aggregated, and the others
    """

    design: Design
    workload: Workload
    product: Product
    input_at: int
    weights_at: int
    edges_at: int
    result_at: int
    combined_at: int = 0
    own_at: int = 0

    def num_bytes(self, num_values: np.ndarray | int) -> np.ndarray | int:
        """Return the bytes of so many values."""
        return size_in_bytes(num_values, self.design.bit_width)

    @property
    def is_resident(self) -> bool:
        """Whether the Weight Buffer holds all of W."""
        size = self.num_bytes(self.product.rows.dim * self.product.combined_dim)
        return size <= self.design.buffer_bytes("weight")


def edge_requests(layer: Layer, start: np.ndarray, interval: np.ndarray, block: np.ndarray, rows: np.ndarray,
                  arcs: np.ndarray) -> Requests:
    """Return the arcs of each block's interval, with the offsets of its rows."""
    begin = start[:-1] + layer.workload.indptr[start[:-1]]
    id_bytes = layer.design.rules["id_bytes"]
    return requests_of("edges", block, layer.edges_at + id_bytes * begin[interval], id_bytes * (rows + arcs))


def source_requests(layer: Layer, plan: Plan, is_combined: bool, start: np.ndarray) -> Requests:
    """Return the rows that windows load; with one slice a window's rows are one request."""
    indptr = layer.workload.indptr
    degree = indptr[start[0] + 1:start[-1] + 1] - indptr[start[0]:start[-1]]
    interval = np.repeat(np.arange(start[-1] - start[0]) // plan.rows_a_block, degree)
    windows = windows_of(interval, layer.workload.indices[indptr[start[0]]:indptr[start[-1]]],
                         layer.workload.num_nodes, plan.window_rows)
    at, kind = (layer.combined_at, "combined rows") if is_combined else (layer.input_at, "input rows")
    dim = layer.product.aggregated_dim if is_combined else layer.product.rows.dim
    return _slices_of(layer, plan, windows, at, dim, kind)


def own_requests(layer: Layer, plan: Plan, is_combined: bool, start: np.ndarray) -> Requests:
    """Return an interval's own rows, where a product adds them: slices of X, or columns of XW beside the others."""
    if not own_dim(layer.product):
        return NO_REQUESTS
    rows, num_slices = np.diff(start), len(plan.slice_start) - 1
    if not is_combined:
        return _slices_of(layer, plan, Windows(np.arange(len(rows)), start[:-1], rows), layer.input_at,
                          layer.product.rows.dim, "input rows")
    row_bytes = layer.num_bytes(own_dim(layer.product))
    return requests_of("combined rows", np.arange(1, len(rows) + 1) * num_slices - 1,
                       layer.own_at + start[:-1] * row_bytes, rows * row_bytes)


def _slices_of(layer: Layer, plan: Plan, windows: Windows, at: int, dim: int, kind: str) -> Requests:
    """Return the requests for windows of each slice of a matrix of `dim` columns at an address."""
    num_slices, row_bytes = len(plan.slice_start) - 1, layer.num_bytes(dim)
    if num_slices == 1:
        return requests_of(kind, windows.interval, at + windows.first_row * row_bytes, windows.num_rows * row_bytes)
    before = np.cumsum(windows.num_rows) - windows.num_rows
    row = np.arange(windows.num_rows.sum()) + np.repeat(windows.first_row - before, windows.num_rows)
    interval = np.repeat(windows.interval, windows.num_rows)
    slice_at = layer.num_bytes(plan.slice_start)
    block = (interval[:, None] * num_slices + np.arange(num_slices)).ravel()
    order = np.argsort(block, kind="stable")
    address = (at + row[:, None] * row_bytes + slice_at[:-1]).ravel()
    return requests_of(kind, block[order], address[order], np.tile(np.diff(slice_at), len(row))[order])


def weight_requests(layer: Layer, interval: np.ndarray, slice_start: np.ndarray, block: np.ndarray) -> Requests:
    """Return the rows of W that each block's slice is multiplied with; for the first interval only where W stays."""
    slice_at = layer.num_bytes(slice_start * layer.product.combined_dim)
    index = np.arange(len(block)) % (len(slice_start) - 1)
    needed = (interval == 0) if layer.is_resident else np.ones(len(block), bool)
    return requests_of("weights", block, layer.weights_at + slice_at[index], np.diff(slice_at)[index] * needed)
