"""Count the bytes that an aggregation reads from DRAM, by scheme and order of rows: MEGA, Fig. 6, 20b.

    python jobs/measurements/dram.py FILE.npz [--buffer-kb 128] [--shuffle] [--widths 64,256] [--out DIR]

Bytes are simulated, and seconds measured on the real aggregation. Bytes are of the rows read, their copies and the
lists of copies; edges, new rows and sums have the same bytes in every scheme. Results are a table, dram.json and
dram.png, and bench.json where --widths are timed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import scipy.sparse
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from hpcgnn._ext import condense_traffic as kernels
from hpcgnn.accelerators.condense_traffic import BYTES_AN_ID, Buffer, check_lines, pruned_entries, source_lines
from hpcgnn.bench import environment
from hpcgnn.bench.graphs import Topology, read_topology
from hpcgnn.bench.place import Place
from hpcgnn.bench.result import why_no_picture
from hpcgnn.bench.timing import CEILING, OURS, Measurement
from hpcgnn.cli.measurement import Shared, finish, open_place, parse_list, say_results
from hpcgnn.errors import ConfigError
from hpcgnn.ops.aggregation import SparseRows, from_csr, multiply_span
from hpcgnn.partition.choices import REORDERS
from hpcgnn.partition.condense import ClusteredRows, condensed_order, condensed_regions, lay_out, permute_rows
from hpcgnn.partition.order import ROWS_A_CONDENSED_CLUSTER, cluster_rows, order_rows
from hpcgnn.run.output import size_text

CONDENSED, BY_SOURCE = "condense-edge", "metis, by source"
SCHEMES, ORDERS = "schemes", "orders of preprocess"
DIM, BITS = 128, 4                  # values of a row, and bits of a value
PRUNED_SHARE = 0.1                  # share of the edges that gcod removes
LINE_BYTES = 128                    # bytes of one DRAM access
SPARSE_SHARE = 0.25                 # share of the buffer that condense-edge sets aside for copies
SEED = 0                            # seed of METIS, and of shuffled ids
JSON, PICTURE = "dram.json", "dram.png"
PARTS = {"same cluster": "dense_bytes", "other clusters": "sparse_bytes", "copies": "copy_bytes",
         "lists": "list_bytes"}
CAPTION = "bytes read (copies: written) for one aggregation; edges, new rows and sums, equal for all, are not counted"


@dataclass(frozen=True)
class DramTraffic:
    """Bytes of one aggregation.

    dense_bytes, sparse_bytes : int       read for sources of the same cluster, and of other clusters
    copy_bytes : int                      written to condensed regions
    list_bytes : int                      read from the lists that say which row is copied where
    dropped_arcs : int                    edges left out by the scheme; this changes the result
    """

    dense_bytes: int
    sparse_bytes: int
    copy_bytes: int = 0
    list_bytes: int = 0
    dropped_arcs: int = 0

    @property
    def total_bytes(self) -> int:
        return self.dense_bytes + self.sparse_bytes + self.copy_bytes + self.list_bytes


Counts = list[tuple[str, str, DramTraffic]]


def gather_traffic(rows: ClusteredRows, row_bytes: int, buffer: Buffer) -> DramTraffic:
    """Simulate exactly how each row's sources are read in order through the buffer, row after row.

    Rows of `row_bytes` lie one after the other, without padding. Raises ConfigError for an impossible buffer, or more
    lines than 32-bit numbers can count.
    """
    check_lines(rows, row_bytes, buffer)
    dense, sparse = kernels.fetch_lines(
        np.ascontiguousarray(rows.start, np.int64), np.ascontiguousarray(rows.indptr, np.int64),
        np.ascontiguousarray(rows.indices, np.int32), row_bytes, buffer.line_bytes,
        buffer.num_bytes // buffer.line_bytes, buffer.policy == "lru")
    return DramTraffic(dense * buffer.line_bytes, sparse * buffer.line_bytes)


def direct_traffic(rows: ClusteredRows, row_bytes: int, buffer: Buffer) -> DramTraffic:
    """Count the bytes if the buffer holds the current cluster's rows only; sources of other clusters come from DRAM."""
    is_sparse = rows.is_sparse()
    dense = gather_traffic(rows.without(is_sparse), row_bytes, buffer)
    source = rows.indices[is_sparse].astype(np.int64)
    num_lines = ((source + 1) * row_bytes - 1) // buffer.line_bytes - source * row_bytes // buffer.line_bytes + 1
    return replace(dense, sparse_bytes=int(num_lines.sum()) * buffer.line_bytes)


def source_traffic(rows: ClusteredRows, row_bytes: int, buffer: Buffer) -> DramTraffic:
    """Count the bytes if a cluster is aggregated source by source, as with Condense-Edge, but without condensed copies.

    For each cluster, the sources that lie in other clusters are read once, at their own addresses in ascending order,
    so rows next to each other in memory share a line.

    Reference: MEGA, §V-E, which reads copies in this order; here the rows themselves are read in it.
    """
    dense = gather_traffic(rows.without(rows.is_sparse()), row_bytes, buffer)
    _, num_lines = source_lines(condensed_regions(rows), row_bytes, buffer)
    return replace(dense, sparse_bytes=int(num_lines.sum()) * buffer.line_bytes)


def pruned_traffic(rows: ClusteredRows, row_bytes: int, buffer: Buffer, pruned_share: float) -> DramTraffic:
    """Count the bytes if, as in GCoD, edges between clusters are pruned, first between the least connected clusters.

    `pruned_share` is a share of all edges; fewer are pruned if there are fewer edges between clusters.

    Reference: You et al., HPCA 2022 (GCoD), as MEGA uses it for comparison. The order of pruning is our choice.
    """
    is_dropped = pruned_entries(rows, pruned_share)
    traffic = gather_traffic(rows.without(is_dropped), row_bytes, buffer)
    return replace(traffic, dropped_arcs=int(is_dropped.sum()))


def condensed_traffic(rows: ClusteredRows, row_bytes: int, buffer: Buffer) -> DramTraffic:
    """Condense-Edge: sources of the same cluster through the dense share, all other sources from condensed regions.

    A region begins at a line boundary. It is written whenever its part of the Sparse Buffer is full. It is read once,
    from front to back, while its cluster is aggregated source by source. Raises ConfigError also if the dense or the
    sparse share of the buffer holds no line.

    Reference: MEGA, Algorithm 1 (line 16 for the write).
    """
    if buffer.check().sparse_bytes < buffer.line_bytes:
        raise ConfigError(f"a Sparse Buffer of {buffer.sparse_bytes} bytes holds no line of {buffer.line_bytes} bytes; "
                          "choose a larger buffer or a larger share")
    regions = condensed_regions(rows)
    num_copies = np.diff(regions.start)
    dense = gather_traffic(rows.without(rows.is_sparse()), row_bytes, buffer.dense())
    return DramTraffic(dense.dense_bytes, _lines(num_copies * row_bytes, buffer) * buffer.line_bytes,
                       _written_lines(num_copies, row_bytes, buffer) * buffer.line_bytes,
                       BYTES_AN_ID * regions.num_copies)


def _lines(num_bytes: np.ndarray, buffer: Buffer) -> int:
    return int((-(-num_bytes // buffer.line_bytes)).sum())


def _written_lines(num_copies: np.ndarray, row_bytes: int, buffer: Buffer) -> int:
    """Lines written for regions of `num_copies` copies; the last line of a region may be partly empty."""
    share_bytes = buffer.sparse_bytes // max(len(num_copies), 1)
    if share_bytes >= buffer.line_bytes:
        return _lines(num_copies * row_bytes, buffer)
    rows_at_once = max(share_bytes // row_bytes, 1)
    return int((-(-num_copies // rows_at_once)).sum()) * -(-rows_at_once * row_bytes // buffer.line_bytes)


def arcs_of(graph: Topology) -> scipy.sparse.csr_matrix:
    return scipy.sparse.csr_matrix((np.ones(graph.num_edges, np.int8), graph.indices, graph.indptr),
                                   shape=(graph.num_nodes, graph.num_nodes))


def shuffled(graph: Topology, seed: int) -> Topology:
    """Renumber the nodes at random, which removes the source's order; within a row, neighbors ascend."""
    order = np.random.default_rng(seed).permutation(graph.num_nodes)
    moved = arcs_of(Topology(f"{graph.name}, shuffled", *permute_rows(arcs_of(graph), order)))
    moved.sort_indices()
    return Topology(f"{graph.name}, shuffled", moved.indptr.astype(np.int64), moved.indices)


@dataclass(frozen=True)
class DramBenchmark:
    """Bytes of each scheme and order of one graph's aggregation, and their seconds."""

    place: Place
    graph: Topology
    buffer: Buffer
    pruned_share: float                     # share of the edges, see `pruned_traffic`
    widths: tuple[int, ...]                 # columns of the fp32 rows to time; empty: nothing is timed
    row_bytes: int = -(-DIM * BITS // 8)    # bytes of a row that is read
    seed: int = SEED                        # seed of METIS

    @cached_property
    def arcs(self) -> scipy.sparse.csr_matrix:
        return arcs_of(self.graph)

    @cached_property
    def condensed_cluster(self) -> np.ndarray:
        """Cluster of each row in preprocess's condense-edge order; kept, since METIS takes most of the time."""
        return cluster_rows(self.arcs, ROWS_A_CONDENSED_CLUSTER, self.seed, self.graph.name)

    @cached_property
    def orders(self) -> dict[str, np.ndarray]:
        """The rows in each order of preprocess."""
        graph: Any = self.graph      # of a GraphDataset only its edges are read
        nodes = np.arange(graph.num_nodes)
        return {reorder: condensed_order(self.arcs, self.condensed_cluster) if reorder == CONDENSED
                else order_rows(graph, nodes, reorder, self.seed) for reorder in REORDERS}

    def count(self) -> Iterator[tuple[str, str, DramTraffic]]:
        """Yield group, name and bytes of each scheme, then of each order; orders read rows through the whole buffer."""
        for name, traffic in self._schemes():
            yield SCHEMES, name, traffic
        whole = np.array([0, self.graph.num_nodes])
        for reorder, order in self.orders.items():
            rows = ClusteredRows(whole, *permute_rows(self.arcs, order))
            yield ORDERS, reorder, gather_traffic(rows, self.row_bytes, self.buffer)

    def _schemes(self) -> Iterator[tuple[str, DramTraffic]]:
        rows_a_cluster = self.buffer.check().dense().num_bytes // self.row_bytes
        if rows_a_cluster == 0:
            raise ConfigError(f"a buffer of {self.buffer.num_bytes} bytes holds no row of {self.row_bytes} bytes; "
                              "choose a larger buffer")
        start = np.append(np.arange(0, self.graph.num_nodes, rows_a_cluster), self.graph.num_nodes)
        blocks = ClusteredRows(start, self.graph.indptr, self.graph.indices)
        _, clusters = lay_out(self.arcs, cluster_rows(self.arcs, rows_a_cluster, self.seed, self.graph.name))
        yield "naive", gather_traffic(blocks, self.row_bytes, self.buffer)
        yield "metis", gather_traffic(clusters, self.row_bytes, self.buffer)
        yield "metis, no reuse across", direct_traffic(clusters, self.row_bytes, self.buffer)
        yield BY_SOURCE, source_traffic(clusters, self.row_bytes, self.buffer)
        yield "gcod", pruned_traffic(clusters, self.row_bytes, self.buffer, self.pruned_share)
        yield CONDENSED, condensed_traffic(clusters, self.row_bytes, self.buffer)
        yield f"{CONDENSED}, no metis", condensed_traffic(blocks, self.row_bytes, self.buffer)

    def measure(self) -> Iterator[Measurement]:
        """Time the aggregation at each width, in each order and from condensed regions.

        The ceiling gathers the rows of the condense-edge order.
        """
        _, condensed = permute_rows(self.arcs, self.orders[CONDENSED])
        for width in self.widths:
            makers = self.place.random_rows, self.place.empty_rows
            rows, out = (make(self.graph.num_nodes, width) for make in makers)
            contestants: dict[str, Callable] = {CEILING: self.place.gathering(rows, condensed)}
            contestants |= {OURS if reorder == CONDENSED else reorder: self._product(order, rows, out)
                           for reorder, order in self.orders.items()}
            contestants |= self._products_of_copies(rows, out)
            yield self.place.measure("aggregation", f"{self.graph.name} x{width} fp32, rows by {CONDENSED}",
                                     self.graph.num_edges * width * rows.itemsize / 1e9, "GB/s", contestants)

    def _product(self, order: np.ndarray, rows: torch.Tensor, out: torch.Tensor) -> Callable:
        matrix = from_csr(*permute_rows(self.arcs, order), self.graph.num_nodes)
        return partial(multiply_span, matrix, rows, None, out, (0, len(rows)))

    def _products_of_copies(self, rows: torch.Tensor, out: torch.Tensor) -> dict[str, Callable]:
        _, clusters = lay_out(self.arcs, self.condensed_cluster)
        regions = condensed_regions(clusters)
        column = np.where(regions.place < 0, clusters.indices, len(rows) + regions.place).astype(np.int32)
        matrix = SparseRows(clusters.indptr[:-1], clusters.indptr[1:], column, len(rows) + regions.num_copies)
        copied_row = torch.from_numpy(regions.copied_row)
        copies = self.place.empty_rows(regions.num_copies, rows.shape[1])
        read = partial(multiply_span, matrix, rows, copies, out, (0, len(rows)))

        def copy_and_read() -> None:
            torch.index_select(rows, 0, copied_row, out=copies)
            read()

        return {"copied": copy_and_read, "copies free": read}


def show_traffic(title: str, counts: Counts) -> None:
    """Print one row per scheme or order, with its ratio to the first of its group."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", caption=CAPTION, caption_justify="left")
    table.add_column("scheme", no_wrap=True)
    for heading in (*PARTS, "total", "of the first", "edges left out"):
        table.add_column(heading, justify="right")
    first: dict[str, DramTraffic] = {}
    for group, name, traffic in counts:
        if group not in first:
            table.add_section()
            table.add_row(f"[bold]{group}")
        base = first.setdefault(group, traffic).total_bytes
        numbers = [getattr(traffic, part) for part in PARTS.values()] + [traffic.total_bytes]
        table.add_row(name, *(size_text(number) for number in numbers),
                      f"{traffic.total_bytes / base:.3f}" if base else "", f"{traffic.dropped_arcs:,}")
    Console(width=max(Console().width, 110)).print(table)


def write_traffic(folder: Path, settings: dict[str, Any], machine: dict[str, Any], counts: Counts) -> None:
    """Write dram.json, and dram.png where matplotlib is installed. Raises ConfigError where a file can't be written."""
    records = [{"group": group, "scheme": name, **asdict(traffic), "total_bytes": traffic.total_bytes}
               for group, name, traffic in counts]
    try:
        (folder / JSON).write_text(json.dumps({"settings": settings, "machine": machine, "traffic": records}, indent=1)
                                   + "\n")
        if why_no_picture(PICTURE) is None:
            _draw(settings, counts).savefig(folder / PICTURE, dpi=150)
    except OSError as error:
        raise ConfigError(f"{folder} can't take {JSON} and {PICTURE}: {error}") from error


def _draw(settings: dict[str, Any], counts: Counts):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.6 + 0.32 * len(counts)), layout="constrained")
    axes = figure.subplots()
    labels = [f"{group}: {name}" for group, name, _ in counts]
    left = [0.0] * len(counts)
    for part, attribute in PARTS.items():
        widths = [getattr(traffic, attribute) / 1e6 for *_, traffic in counts]
        axes.barh(labels, widths, left=left, label=part)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    axes.set(xlabel="MB read from DRAM, or written as copies", ylim=(len(counts) - 0.5, -0.5))
    axes.legend(frameon=False)
    figure.suptitle(settings["title"])
    return figure


@click.command(help=__doc__.partition("\n")[0])
@click.argument("source", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.npz")
@click.option("--buffer-kb", type=click.FloatRange(min=0, min_open=True), default=128.0, show_default=True,
              help="Size of the buffer in front of DRAM, in KiB.")
@click.option("--shuffle", is_flag=True, help="First number the nodes in random order.")
@click.option("--widths", default="", metavar="LIST",
              help="Also time the aggregation of fp32 rows with these numbers of columns. [default: none]")
@click.option("--repeat", type=click.IntRange(min=1), default=7, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), help="[default: as many as there are cores]")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for dram.json, dram.png and bench.json.")
def main(source: Path, buffer_kb: float, shuffle: bool, widths: str, repeat: int, threads: int | None,
         out: Path | None) -> None:
    columns = parse_list("--widths", widths, int) if widths else ()
    threads = threads or environment.available_cores()
    wanted = environment.with_kept_memory(environment.thread_environment(threads))
    environment.run_in(wanted, (__file__,))
    shared = Shared(repeat, threads, out)
    machine, place = open_place("dram", shared, threads)
    graph = read_topology(source)
    if shuffle:
        graph = shuffled(graph, SEED)
    buffer = Buffer(int(buffer_kb * 1024), LINE_BYTES, sparse_share=SPARSE_SHARE)
    benchmark = DramBenchmark(place, graph, buffer, PRUNED_SHARE, columns)
    counts = []
    with shared.steps as steps:
        steps.begin("cuts clusters")
        for group, name, traffic in benchmark.count():
            counts.append((group, name, traffic))
            steps.end(f"{group}: {name}", size_text(traffic.total_bytes))
            steps.begin("counts the next one")
    title = (f"{graph.name}: {DIM} x {BITS} bit, {buffer.policy} buffer of {buffer_kb:g} KiB, lines of {LINE_BYTES} "
             "bytes")
    show_traffic(title, counts)
    if out is not None:
        settings = {"title": title, "buffer_kb": buffer_kb, "policy": buffer.policy, "pruned": PRUNED_SHARE,
                    "shuffle": shuffle}
        write_traffic(out, settings, machine, counts)
        say_results(out, why_no_picture(PICTURE))
    if columns:
        finish("dram", machine, benchmark, shared)


if __name__ == "__main__":
    main()
