"""`hpcgnn bench kernels`: ceilings first, then each kernel of a training against them and against peers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcgnn.bench.ceilings import measure_ceilings
from hpcgnn.bench.dense import measure_dense
from hpcgnn.bench.graphs import Topology, draw_topology, read_topology
from hpcgnn.bench.messages import measure_messages
from hpcgnn.bench.pointwise import measure_pointwise
from hpcgnn.bench.products import measure_products
from hpcgnn.bench.timing import Effort, Measurement


@dataclass(frozen=True)
class KernelBenchmark:
    """Runs the measurements of `hpcgnn bench kernels`.

    Attributes
    ----------
    graphs : paths of .npz archives
    synthetic_edges : arcs of a graph to draw, 0 for none
    widths : columns of the rows in SpMM
    num_rows, width : rows of the message, of the pointwise work and of the dense products
    num_stream_bytes : length of the streams of the ceilings
    peers : names of PEERS
    """

    graphs: tuple[Path, ...]
    synthetic_edges: float
    widths: tuple[int, ...]
    precisions: tuple[str, ...]
    num_rows: int
    width: int
    num_stream_bytes: int
    peers: tuple[str, ...]
    effort: Effort

    def topologies(self) -> Iterator[Topology]:
        """The graphs, one at a time."""
        yield from map(read_topology, self.graphs)
        if self.synthetic_edges:
            yield draw_topology(self.synthetic_edges)

    def measure(self) -> Iterator[Measurement]:
        """Measure everything, in the order of the table."""
        yield from measure_ceilings(self.num_stream_bytes, self.effort)
        yield from measure_dense(self.num_rows, self.width, self.precisions, self.effort)
        for graph in self.topologies():
            yield from measure_products(graph, self.widths, self.precisions, self.peers, self.effort)
        yield from measure_messages(self.num_rows, self.width, self.peers, self.effort)
        yield from measure_pointwise(self.num_rows, self.width, self.peers, self.effort)
