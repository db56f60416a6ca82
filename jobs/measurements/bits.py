"""Measure products of bits against torch's int8 and floats, and what skipping empty tiles and reusing tiles gain.

    python jobs/measurements/bits.py [GRAPH...] [--clusters 1500] [--device cuda] [--out DIR]

Each GRAPH, an .npz archive or drawn:EDGES, is cut into clusters, and batches of clusters are multiplied too.
The cases are QGTC's Table 3, Fig. 8 and Fig. 10. Rates count 2 * M * N * K operations for all widths, as the paper
does. Packing is measured apart, since adjacency and weights are packed once. The ceiling of a product is the same
number of products of bits on registers; the ceiling of packing is a stream that reads the rows. Operands of products
are in the caches, as they are for the next layer of a batch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np
import scipy.sparse
import torch

from hpcgnn.bench import environment
from hpcgnn.bench.graphs import Topology
from hpcgnn.bench.place import Place, admit, open_topology
from hpcgnn.bench.timing import CEILING, OURS, Measurement, Part, PartedBenchmark
from hpcgnn.cli.measurement import Shared, check_graphs, finish, open_place
from hpcgnn.command_line import run
from hpcgnn.lowbit import to_bit
from hpcgnn.ops import bit_gemm, tiles
from hpcgnn.ops.aggregation import SparseRows, from_csr, multiply
from hpcgnn.ops.bit_gemm import BitLines
from hpcgnn.ops.tiles import TILE_COLUMNS, TILE_ROWS, TileList
from hpcgnn.partition.metis import metis_parts
from hpcgnn.run.output import prepare_streams

SIZES, DIMS, WIDTHS = (2048, 4096, 8192), (32, 64), (1, 2, 3, 4)     # Table 3: sides of the adjacency, columns, bits
REUSE_DIM, REUSE_WIDTHS = 1024, (2, 4, 8)
BATCH_SIZE, MAX_BATCHES = 16, 8             # clusters per batch, and batches that are multiplied
BATCH_DENSITY = 0.1                         # share of edges inside the clusters of a drawn batch
UNIT = "TOP/s"
INT8 = "torch int8"
ONCE_A_PLANE, ALL_TILES, JUMPED, GATHER = "once per plane", "all tiles", "jumped in all tiles", "gather fp32"
# TOP/s on an RTX 3090 by (rows, dim): CUTLASS's 4 x 4 bits, then QGTC's 1 x 1 to 1 x 4 bits.
# Reference: QGTC, Table 3.
PUBLISHED = {(2048, 32): (10.36, 32.65, 19.99, 14.40, 11.30), (4096, 32): (12.28, 81.41, 46.23, 32.27, 24.75),
             (8192, 32): (12.67, 94.58, 50.82, 35.22, 26.31), (2048, 64): (21.40, 63.94, 39.41, 29.83, 22.15),
             (4096, 64): (24.66, 89.18, 51.21, 35.17, 25.38), (8192, 64): (24.70, 104.66, 55.16, 40.77, 31.07)}


@dataclass
class BitsBenchmark(PartedBenchmark):
    """Measures products of drawn operands, and batches of clusters of drawn and given graphs."""

    place: Place
    graphs: tuple[str, ...]             # .npz archives or drawn:EDGES, which METIS cuts into clusters
    num_clusters: int
    # sizes, dims: rows of a square adjacency, and columns of the features
    sizes: tuple[int, ...] = SIZES
    dims: tuple[int, ...] = DIMS
    widths: tuple[int, ...] = WIDTHS    # bits of the features

    def parts(self) -> Iterator[Part]:
        yield "ceilings", self.place.bit_ceilings
        for dim in self.dims:
            for size in self.sizes:
                yield f"products of {size} x {dim}", partial(measure_products, self.place, size, dim, self.widths)
        for size in self.sizes:
            yield f"batch of {size}", partial(self._batches, f"drawn-{size}", partial(drawn_batch, size))
        yield "reuse", partial(measure_reuse, self.place, min(self.sizes))
        for source in self.graphs:
            yield source, partial(self._clusters, source)

    def _batches(self, name: str, batch: partial) -> Iterator[Measurement]:
        yield from measure_batches(self.place, name, [batch()], self.dims, self.widths)

    def _clusters(self, source: str) -> Iterator[Measurement]:
        graph = open_topology(source, self.place)
        batches = clustered_batches(graph, self.num_clusters, BATCH_SIZE)[:MAX_BATCHES]
        yield from measure_batches(self.place, graph.name, batches, self.dims, self.widths)


def measure_products(place: Place, size: int, dim: int, widths: tuple[int, ...]) -> Iterator[Measurement]:
    """Multiply 1-bit (size, size) by b-bit (size, dim), and the same codes by torch; then pack."""
    rng = torch.Generator().manual_seed(0)
    ones = torch.randint(0, 2, (size, size), generator=rng, dtype=torch.int8).to(place.name)
    left, dense = bit_gemm.pack_codes(ones.view(torch.uint8), 1, False), ones.to(place.wide_float)
    for width in widths:
        codes = torch.randint(0, min(1 << width, 128), (size, dim), generator=rng, dtype=torch.int8).to(place.name)
        right = bit_gemm.pack_codes(codes.view(torch.uint8), width, True)
        # cuBLAS multiplies int8 on tensor cores if the right operand is stored by columns.
        columns = codes.t().contiguous().t() if place.is_device else codes
        peers, remarks = admit({INT8: partial(torch._int_mm, ones, columns),
                                float_peer(place): partial(torch.mm, dense, codes.to(place.wide_float))},
                               f"{size} x {size} x {dim}")
        row = place.measure("product", f"{size} x {size} x {dim}, 1 x {width} bits", 2 * size**2 * dim / 1e12, UNIT,
                            {CEILING: place.multiplying_bits(size**2 * dim * width),
                             OURS: partial(bit_gemm.multiply_bits, left, right), **peers}, remarks, is_hot=True)
        add_published(row, size, dim, width)
        yield row
    features = place.random_rows(size, dim)
    yield place.measure("quantize + pack", f"{size} x {dim}, {widths[-1]} bits", features.nbytes / 1e9, "GB/s",
                        {CEILING: place.moving(features.nbytes, 0),
                         OURS: partial(to_bit, features, widths[-1], "row")})


def float_peer(place: Place) -> str:
    return f"torch fp{8 * place.wide_float.itemsize}"


def add_published(row: Measurement, size: int, dim: int, width: int) -> None:
    """Add the paper's figures as a remark, without ratios: the figures are from another machine."""
    figures = PUBLISHED.get((size, dim))
    if figures is None or width >= len(figures):
        return
    row.details["published_tflops"] = {"QGTC": figures[width], "CUTLASS int4": figures[0], "chip": "RTX 3090"}
    ours = ", ".join(f"{figure:g}" for figure in figures[1:])
    row.remarks.append(f"published, RTX 3090, {size} x {size} x {dim}: QGTC {ours} TOP/s at 1 to {len(figures) - 1} "
                       f"bits, CUTLASS int4 {figures[0]:g}")


def drawn_batch(size: int) -> scipy.sparse.csr_matrix:
    """Draw the adjacency of clusters of equal size, without edges between them."""
    rng, cluster = np.random.default_rng(0), np.arange(size) * BATCH_SIZE // size
    columns = [np.flatnonzero((cluster == own) & (rng.random(size) < BATCH_DENSITY)) for own in cluster]
    indptr = np.concatenate([[0], np.cumsum([len(found) for found in columns])])
    indices = np.concatenate(columns)
    return scipy.sparse.csr_matrix((np.ones(len(indices), np.int8), indices, indptr), shape=(size, size))


def clustered_batches(graph: Topology, num_clusters: int, batch_size: int) -> list[scipy.sparse.csr_matrix]:
    """Adjacencies of batches of METIS clusters, block-diagonal; edges between clusters are left out."""
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


def measure_batches(place: Place, name: str, batches: list[scipy.sparse.csr_matrix], dims: tuple[int, ...],
                    widths: tuple[int, ...]) -> Iterator[Measurement]:
    """Aggregate all batches one after the other: by a list of tiles, by all tiles, and by the sparse kernel."""
    listed, dense = ([_tiles_of(batch, is_dense, place) for batch in batches] for is_dense in (False, True))
    sparse = [from_csr(batch.indptr.astype(np.int64), batch.indices.astype(np.int32), batch.shape[1])
              for batch in batches]
    sizes = [batch.shape[0] for batch in batches]
    places, stored = (sum(getattr(one, count) for one in listed) for count in ("num_places", "num_tiles"))
    remark = f"{name}: {100 * (1 - stored / max(places, 1)):.1f} % of {places} tiles are zero and jumped"
    for dim in dims:
        rows = [place.random_rows(size, dim) for size in sizes]
        case = f"{name}, {len(batches)} batches of {np.mean(sizes):.0f} nodes x {dim}"
        amount = sum(2 * size**2 * dim for size in sizes)
        for width in widths:
            right = [random_lines(place, size, dim, width) for size in sizes]
            yield place.measure("batches", f"{case}, {width} bits", amount / 1e12, UNIT, {
                CEILING: place.multiplying_bits(stored * TILE_ROWS * TILE_COLUMNS * dim * width),
                OURS: partial(_aggregate, listed, right),
                ONCE_A_PLANE: partial(_aggregate, listed, right, reuse=False),
                JUMPED: partial(_aggregate, dense, right),
                ALL_TILES: partial(_aggregate, dense, right, jump=False),
                GATHER: partial(_gather, sparse, rows)}, [remark], is_hot=True)


def measure_reuse(place: Place, size: int, dim: int = REUSE_DIM) -> Iterator[Measurement]:
    """Multiply tiles of ones, each loaded once for all planes, or once per plane (QGTC, Fig. 10)."""
    full = np.tile(np.arange(size, dtype=np.int32), size)
    ones = [tiles.tiles_of_csr(np.arange(size + 1) * size, full, size, True, place.name)]
    for width in REUSE_WIDTHS:
        right = [random_lines(place, size, dim, width)]
        yield place.measure("reuse", f"{size} x {size} x {dim}, {width} bits", 2 * size**2 * dim / 1e12, UNIT, {
            CEILING: place.multiplying_bits(size**2 * dim * width),
            OURS: partial(_aggregate, ones, right, jump=False),
            ONCE_A_PLANE: partial(_aggregate, ones, right, jump=False, reuse=False)}, is_hot=True)


def random_lines(place: Place, size: int, dim: int, width: int) -> BitLines:
    """Random codes (size, dim), packed by column."""
    rng = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 1 << width, (size, dim), generator=rng, dtype=torch.uint8).to(place.name)
    return bit_gemm.pack_codes(codes, width, True)


def _tiles_of(batch: scipy.sparse.csr_matrix, is_dense: bool, place: Place) -> TileList:
    return tiles.tiles_of_csr(batch.indptr.astype(np.int64), batch.indices.astype(np.int32), batch.shape[1], is_dense,
                              place.name)


def _aggregate(matrices: list[TileList], features: list[BitLines], **switches: Any) -> list[torch.Tensor]:
    return [tiles.multiply_tiles(one, lines, **switches)[0] for one, lines in zip(matrices, features, strict=True)]


def _gather(matrices: list[SparseRows], rows: list[torch.Tensor]) -> list[torch.Tensor]:
    return [multiply(matrix, part) for matrix, part in zip(matrices, rows, strict=True)]


@click.command(help=__doc__.partition("\n")[0], context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("graphs", metavar="[GRAPH]...", nargs=-1)
@click.option("--clusters", type=click.IntRange(min=1), default=1500, show_default=True,
              help="METIS clusters into which each graph is cut.")
@click.option("--repeat", type=click.IntRange(min=1), help="Repetitions of each contestant. [default: 7; 20 on a GPU]")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for bench.json, table.txt and bench.png.")
@click.option("--device", type=click.Choice(("cpu", "cuda")), default="cpu", show_default=True)
def command(graphs: tuple[str, ...], clusters: int, repeat: int | None, threads: int, out: Path | None,
            device: str) -> None:
    wanted = environment.with_kept_memory(environment.thread_environment(threads))
    environment.run_in(wanted, (__file__,))
    shared = Shared(repeat, threads, out, device)
    machine, place = open_place("bits", shared, threads)
    check_graphs(graphs)
    benchmark = BitsBenchmark(place, graphs, clusters)
    finish("bits", machine, benchmark, shared, benchmark.failures)


if __name__ == "__main__":
    prepare_streams()
    sys.exit(run(sys.argv[1:], command, Path(__file__).name))
