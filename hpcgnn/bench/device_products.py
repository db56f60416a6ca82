"""SpMM and SDDMM on the GPU, against gathering the same rows and against cuSPARSE, as torch.sparse calls it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from hpcgnn.bench.ceilings import PRECISION
from hpcgnn.bench.device_ceilings import can_gather, gather_of
from hpcgnn.bench.device_timing import Contestants, Device, admit
from hpcgnn.bench.graphs import Topology
from hpcgnn.bench.products import OURS_FP32
from hpcgnn.bench.timing import CEILING, OURS, Measurement
from hpcgnn.ops.aggregation import SparseRows, from_csr, multiply
from hpcgnn.ops.attention import sampled_products

CUSPARSE, HALF_ARITHMETIC = "cuSPARSE", "half arithmetic"


def measure_products(device: Device, graph: Topology, widths: tuple[int, ...],
                     precisions: tuple[str, ...]) -> Iterator[Measurement]:
    """Means of in-neighbors' rows, then products of arcs' ends. Rates count each arc's row as read, once."""
    matrix = from_csr(graph.indptr, graph.indices, graph.num_nodes, row_scale=graph.inverse_degree)
    for precision in precisions:
        weights = csr_of(device, graph, PRECISION[precision])
        for width in widths:
            yield measure_mean(device, graph, matrix, weights, width, precision)
        for width in widths:
            yield measure_sampled(device, graph, matrix, weights, width, precision)


def csr_of(device: Device, graph: Topology, dtype: torch.dtype) -> torch.Tensor:
    """The mean as torch's sparse matrix, with indices of 32 bits: the faster ones."""
    weight = np.repeat(graph.inverse_degree, np.diff(graph.indptr))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse (CSR tensor support|invariant checks)", UserWarning)
        return torch.sparse_csr_tensor(
            torch.from_numpy(graph.indptr.astype(np.int32)).to(device.place),
            torch.from_numpy(graph.indices).to(device.place),
            torch.from_numpy(weight).to(device.place, dtype), size=(graph.num_nodes, graph.num_nodes))


def measure_mean(device: Device, graph: Topology, matrix: SparseRows, weights: torch.Tensor, width: int,
                 precision: str) -> Measurement:
    """SpMM in a storage type; beside it our float32, and HalfGNN's half arithmetic, of the same rows."""
    rows, case = device.random_rows(graph.num_nodes, width, PRECISION[precision]), _case(graph, width, precision)
    out = torch.empty_like(rows)    # torch.sparse.mm would write zeros first
    peers, remarks = admit({CUSPARSE: partial(torch.addmm, out, weights, rows, beta=0.0, out=out)},
                           f"spmm in {precision}")
    contestants: Contestants = {**_gather(rows, graph), OURS: partial(multiply, matrix, rows)}
    if precision != "fp32":
        contestants[OURS_FP32] = partial(multiply, matrix, rows.float())
        contestants[HALF_ARITHMETIC] = partial(multiply, replace(matrix, has_half_sums=True), rows)
    return device.measure("spmm", case, _gigabytes(graph, rows), "GB/s", contestants | peers, remarks)


def measure_sampled(device: Device, graph: Topology, matrix: SparseRows, weights: torch.Tensor, width: int,
                    precision: str) -> Measurement:
    """SDDMM over the graph's arcs, of one head."""
    left, right = (device.random_rows(graph.num_nodes, width, PRECISION[precision]) for _ in range(2))
    peers, remarks = admit({CUSPARSE: partial(torch.sparse.sampled_addmm, weights, left, right.t(), beta=0.0)},
                           f"sddmm in {precision}")
    contestants: Contestants = {**_gather(right, graph), OURS: partial(sampled_products, matrix, left, right, 1)}
    if precision != "fp32":
        contestants[OURS_FP32] = partial(sampled_products, matrix, left.float(), right.float(), 1)
    return device.measure("sddmm", _case(graph, width, precision), _gigabytes(graph, right), "GB/s",
                          contestants | peers, remarks)


def _case(graph: Topology, width: int, precision: str) -> str:
    return f"{graph.name} x{width} {precision}"


def _gigabytes(graph: Topology, rows: torch.Tensor) -> float:
    return graph.num_edges * rows.shape[1] * rows.itemsize / 1e9


def _gather(rows: torch.Tensor, graph: Topology) -> Contestants:
    return {CEILING: gather_of(rows, graph.indices)} if can_gather(rows) else {}
