"""SpMM, the mean of in-neighbors' rows, against the gather ceiling and against peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from hpcgnn.bench.ceilings import PRECISION, gather_ceiling
from hpcgnn.bench.graphs import Topology
from hpcgnn.bench.memory import random_rows
from hpcgnn.bench.peers.spmm import PEER_PRODUCTS
from hpcgnn.bench.timing import CEILING, OURS, Effort, Measurement, measure
from hpcgnn.ops.aggregation import SparseRows, from_csr, multiply

OURS_FP32 = "hpcgnn fp32"    # a contestant of its own where rows are narrower


def measure_products(graph: Topology, widths: tuple[int, ...], precisions: tuple[str, ...], peers: tuple[str, ...],
                     effort: Effort) -> Iterator[Measurement]:
    """One measurement a width and precision. Rates count each arc's row as read, once."""
    matrix = from_csr(graph.indptr, graph.indices, graph.num_nodes, row_scale=graph.inverse_degree)
    for precision in precisions:
        products = {peer: PEER_PRODUCTS[peer](graph, precision) for peer in peers if peer in PEER_PRODUCTS}
        for width in widths:
            yield measure_product(graph, matrix, width, precision, products, effort)


def measure_product(graph: Topology, matrix: SparseRows, width: int, precision: str,
                    products: dict[str, Callable | None], effort: Effort) -> Measurement:
    """`products` are the peers' functions of the rows; None where a peer has none in this precision."""
    rows = random_rows(graph.num_nodes, width, PRECISION[precision])
    contestants: dict[str, Callable] = {
        CEILING: gather_ceiling(rows, graph.indices), OURS: partial(multiply, matrix, rows)}
    if precision != "fp32":
        contestants[OURS_FP32] = partial(multiply, matrix, rows.float())
    contestants |= {peer: partial(product, rows) for peer, product in products.items() if product is not None}
    remarks = [f"{peer} has no {precision} product" for peer, product in products.items() if product is None]
    return measure("spmm", f"{graph.name} x{width} {precision}", graph.num_edges * width * rows.itemsize / 1e9, "GB/s",
                   contestants, effort, remarks)
