"""SpMM (the mean of in-neighbors' rows) and SDDMM (products of edges' ends) beside a gather of the same rows and peers.

Peers are in `peers/spmm.py`; on a device the peer is cuSPARSE, called by torch.sparse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from hpcgnn.bench.graphs import Topology
from hpcgnn.bench.peers.spmm import mean_peers, sampled_peers, weights_of_arcs
from hpcgnn.bench.place import PRECISION, Contestants, Place, admit
from hpcgnn.bench.timing import CEILING, OURS, Measurement
from hpcgnn.ops.aggregation import SparseRows, from_csr, multiply
from hpcgnn.ops.attention import sampled_products

OURS_FP32, HALF_ARITHMETIC = "hpcgnn fp32", "half arithmetic"    # contestants where rows are narrower
WITH_VALUES = "with values"                                      # on a device


def measure_products(place: Place, graph: Topology, widths: tuple[int, ...], precisions: tuple[str, ...],
                     peers: tuple[str, ...]) -> Iterator[Measurement]:
    """Measure both products at each precision and width. Rates count each edge's row as read once."""
    matrix = from_csr(graph.indptr, graph.indices, graph.num_nodes, row_scale=graph.inverse_degree)
    for precision in precisions:
        means, sampled = (make(graph, precision, peers, place.name) for make in (mean_peers, sampled_peers))
        for width in widths:
            yield measure_mean(place, graph, matrix, width, precision, means)
        for width in widths:
            yield measure_sampled(place, graph, matrix, width, precision, sampled)


def measure_mean(place: Place, graph: Topology, matrix: SparseRows, width: int, precision: str,
                 products: dict) -> Measurement:
    """Measure SpMM; beside it our float32 and, on a device, HalfGNN's half arithmetic and edge weights as cuSPARSE
    reads them.

    Parameters
    ----------
    products : dict name → function of the rows, or None where a peer has none in this precision
    """
    rows = place.random_rows(graph.num_nodes, width, PRECISION[precision])
    peers, remarks = admit({peer: partial(product, rows) for peer, product in products.items() if product is not None},
                           f"spmm in {precision}")
    remarks += [f"{peer} has no {precision} product" for peer, product in products.items() if product is None]
    contestants: Contestants = {CEILING: place.gathering(rows, graph.indices), OURS: partial(multiply, matrix, rows)}
    if place.is_device:
        # cuSPARSE reads a weight of every arc; a mean needs none, which is our choice.
        weighted = replace(matrix, row_scale=None, entry_scale=weights_of_arcs(graph))
        contestants[WITH_VALUES] = partial(multiply, weighted, rows)
    if precision != "fp32":
        contestants[OURS_FP32] = partial(multiply, matrix, rows.float())
        contestants[HALF_ARITHMETIC] = (
            partial(multiply, replace(matrix, has_half_sums=True), rows) if place.is_device else None)
    return place.measure("spmm", _case(graph, width, precision), _gigabytes(graph, rows), "GB/s", contestants | peers,
                         remarks)


def measure_sampled(place: Place, graph: Topology, matrix: SparseRows, width: int, precision: str,
                    products: dict) -> Measurement:
    """Measure SDDMM over the graph's edges with one head; `products` are functions of both ends' rows."""
    left, right = (place.random_rows(graph.num_nodes, width, PRECISION[precision], seed) for seed in (0, 1))
    peers, remarks = admit({peer: partial(product, left, right) for peer, product in products.items()},
                           f"sddmm in {precision}")
    contestants: Contestants = {CEILING: place.gathering(right, graph.indices),
                                OURS: partial(sampled_products, matrix, left, right, 1)}
    if precision != "fp32":
        contestants[OURS_FP32] = partial(sampled_products, matrix, left.float(), right.float(), 1)
    return place.measure("sddmm", _case(graph, width, precision), _gigabytes(graph, right), "GB/s",
                         contestants | peers, remarks)


def _case(graph: Topology, width: int, precision: str) -> str:
    return f"{graph.name} x{width} {precision}"


def _gigabytes(graph: Topology, rows: torch.Tensor) -> float:
    return graph.num_edges * rows.shape[1] * rows.itemsize / 1e9
