"""`hpcgnn bench bits`: products of bits against products of int8 and float32, and what jumping and reuse of tiles gain.

The cases are those of QGTC's Table 3, Fig. 8 and Fig. 10. Rates count 2 * M * N * K operations whatever the widths, and
packing is measured apart, as an adjacency and weights are packed once. The ceiling of a product is as many products of
bits on registers, that of packing a stream that reads the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import scipy.sparse
import torch

from hpcgnn.bench.ceilings import bit_product_ceiling, read_stream
from hpcgnn.bench.graphs import Topology
from hpcgnn.bench.memory import random_rows
from hpcgnn.bench.timing import CEILING, OURS, Effort, Measurement, measure
from hpcgnn.ops.aggregation import from_csr, multiply
from hpcgnn.partition.metis import metis_parts
from hpcgnn.quantized import BitTensor, BitTiles, aggregate_bits, bit_mm_to_int, to_bit

REUSE_DIM = 1024
REUSE_WIDTHS = (2, 4, 8)
OPERATIONS = "GOP/s"
BITS_A_TILE = 8 * 128
LAYERS = 3      # products in a row with one adjacency
REMARK = f"product: each time is of {LAYERS} products in a row, as a batch's layers make with one adjacency"


@dataclass(frozen=True)
class BitsBenchmark:
    """Runs the measurements of `hpcgnn bench bits`.

    Attributes
    ----------
    sizes, dims : rows and columns of a square adjacency, and columns of the features
    widths : bits of the features
    graph : Topology that METIS cuts into clusters
    num_clusters, batch_size : clusters of the graph, and clusters a batch
    num_batches : batches that are multiplied, at most
    """

    sizes: tuple[int, ...]
    dims: tuple[int, ...]
    widths: tuple[int, ...]
    graph: Topology
    num_clusters: int
    batch_size: int
    num_batches: int
    effort: Effort

    def measure(self) -> Iterator[Measurement]:
        """Measure everything, in the order of the table."""
        for dim in self.dims:
            for size in self.sizes:
                yield from measure_products(size, dim, self.widths, self.effort)
        batches = clustered_batches(self.graph, self.num_clusters, self.batch_size)[:self.num_batches]
        for dim in self.dims:
            yield from measure_batches(self.graph.name, batches, dim, self.widths, self.effort)
        for size in self.sizes:
            yield from measure_reuse(size, self.effort)


def measure_products(size: int, dim: int, widths: tuple[int, ...], effort: Effort) -> Iterator[Measurement]:
    """1-bit (size, size) times b-bit (size, dim), against torch and NumPy on the same matrices; then packing."""
    rng = torch.Generator().manual_seed(0)
    ones = torch.randint(0, 2, (size, size), generator=rng, dtype=torch.int8)
    left, dense = to_bit(ones, 1), ones.float()
    for width in widths:
        codes = torch.randint(0, min(1 << width, 128), (size, dim), generator=rng, dtype=torch.int8)
        right, values = to_bit(codes, width, "row"), codes.float()
        out = torch.empty(size, dim)
        products = {
            CEILING: bit_product_ceiling(size**2 * dim * width),
            OURS: partial(bit_mm_to_int, left, right),
            "torch int8": partial(torch._int_mm, ones, codes),
            "torch fp32": partial(torch.mm, dense, values, out=out),
            "numpy fp32": partial(np.matmul, dense.numpy(), values.numpy(), out=out.numpy())}
        yield measure("product", f"{size} x {size} x {dim}, 1 x {width} bits", 2 * LAYERS * size**2 * dim / 1e9,
                      OPERATIONS, {name: partial(_in_layers, work) for name, work in products.items()}, effort,
                      [REMARK])
    features = random_rows(size, dim)
    yield measure("quantize + pack", f"{size} x {dim}, {widths[-1]} bits", features.nbytes / 1e9, "GB/s",
                  {CEILING: read_stream(features), OURS: partial(to_bit, features, widths[-1], "row")}, effort)


def clustered_batches(graph: Topology, num_clusters: int, batch_size: int) -> list[scipy.sparse.csr_matrix]:
    """Adjacencies of batches of METIS clusters, block-diagonal: arcs between clusters are left out."""
    arcs = scipy.sparse.csr_matrix((np.ones(graph.num_edges, np.int8), graph.indices, graph.indptr),
                                   shape=(graph.num_nodes, graph.num_nodes))
    both = (arcs + arcs.T).tocsr()
    num_clusters = min(num_clusters, graph.num_nodes)
    cluster = np.zeros(graph.num_nodes, np.int32)
    if num_clusters > 1 and graph.num_edges:
        cluster = metis_parts(both.indptr, both.indices, num_clusters, "cut", 0, name=graph.name,
                              advice="ask for fewer clusters")
    order = np.argsort(cluster, kind="stable")
    ends = np.searchsorted(cluster[order], np.arange(0, num_clusters + batch_size, batch_size))
    target = np.repeat(cluster, np.diff(graph.indptr))
    kept = arcs.copy()
    kept.data[target != cluster[graph.indices]] = 0
    kept.eliminate_zeros()
    return [kept[order[start:end]][:, order[start:end]] for start, end in pairwise(ends) if start < end]


def measure_batches(name: str, batches: list[scipy.sparse.csr_matrix], dim: int, widths: tuple[int, ...],
                    effort: Effort) -> Iterator[Measurement]:
    """Aggregation of all batches, one after the other: a list of tiles against all tiles, and the sparse kernel."""
    lists, dense = ([_tiles_of(batch, is_dense) for batch in batches] for is_dense in (False, True))
    sparse = [from_csr(batch.indptr.astype(np.int64), batch.indices.astype(np.int32), batch.shape[1])
              for batch in batches]
    rows = [random_rows(batch.shape[1], dim) for batch in batches]
    places, zeros = sum(tiles.tiles.num_places for tiles in dense), sum(tiles.num_zero_tiles for tiles in dense)
    amount = sum(2 * batch.shape[0] * batch.shape[1] * dim for batch in batches) / 1e9
    case = f"{name}, {len(batches)} batches of {np.mean([len(part) for part in rows]):.0f} nodes x {dim}"
    remark = f"{name}: {100 * zeros / max(places, 1):.1f} % of {places} tiles are zero and jumped"
    for width in widths:
        right = [to_bit(part, width, "row") for part in rows]
        yield measure("batches", f"{case}, {width} bits", amount, OPERATIONS, {
            CEILING: bit_product_ceiling((places - zeros) * BITS_A_TILE * dim * width),
            OURS: partial(_aggregate, lists, right),
            "once a plane": partial(_aggregate, lists, right, reuse=False),
            "jumped in all tiles": partial(_aggregate, dense, right),
            "all tiles": partial(_aggregate, dense, right, jump=False),
            "gather fp32": partial(_gather, sparse, rows)}, effort, [remark])


def measure_reuse(size: int, effort: Effort) -> Iterator[Measurement]:
    """Tiles of ones only: a tile loaded once for all planes, and once a plane."""
    tiles = BitTiles.from_matrix(torch.ones(size, size), dense=True)
    for width in REUSE_WIDTHS:
        features = to_bit(random_rows(size, REUSE_DIM), width, "row")
        contestants: dict[str, Callable] = {
            CEILING: bit_product_ceiling(size**2 * REUSE_DIM * width),
            OURS: partial(aggregate_bits, tiles, features, jump=False),
            "once a plane": partial(aggregate_bits, tiles, features, jump=False, reuse=False)}
        yield measure("reuse", f"{size} x {size} x {REUSE_DIM}, {width} bits", 2 * size**2 * REUSE_DIM / 1e9,
                      OPERATIONS, contestants, effort)


def _in_layers(work: Callable) -> torch.Tensor | np.ndarray:
    for _ in range(LAYERS):
        out = work()
    return out


def _tiles_of(batch: scipy.sparse.csr_matrix, is_dense: bool) -> BitTiles:
    return BitTiles.from_csr(batch.indptr.astype(np.int64), batch.indices.astype(np.int32), batch.shape[1], is_dense)


def _aggregate(tiles: list[BitTiles], features: list[BitTensor], **switches: bool) -> None:
    for one, rows in zip(tiles, features, strict=True):
        aggregate_bits(one, rows, **switches)


def _gather(matrices: list, rows: list[torch.Tensor]) -> None:
    for matrix, part in zip(matrices, rows, strict=True):
        multiply(matrix, part)
