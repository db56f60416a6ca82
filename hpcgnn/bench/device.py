"""`hpcgnn bench device`: the GPU's ceilings first, then every kernel against them and against peers, in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hpcgnn.bench.ceilings import PRECISION
from hpcgnn.bench.device_bits import measure_bits, measure_reuse, measure_tiles
from hpcgnn.bench.device_ceilings import measure_ceilings
from hpcgnn.bench.device_graphs import arcs_that_fit, draw_power_law
from hpcgnn.bench.device_messages import measure_messages
from hpcgnn.bench.device_pointwise import measure_pointwise
from hpcgnn.bench.device_products import measure_products
from hpcgnn.bench.device_timing import Device
from hpcgnn.bench.graphs import Topology, read_topology
from hpcgnn.bench.timing import Measurement

BIT_PRODUCTS = "1-bit"     # how the ceilings' cases of them begin


@dataclass
class DeviceBenchmark:
    """Runs the measurements of `hpcgnn bench device`.

    Attributes
    ----------
    graphs : paths of .npz archives
    synthetic_edges : arcs of a graph to draw on the device, 0 for none; fewer where memory has no room
    widths, precisions : columns and storage of the rows in SpMM and SDDMM
    num_rows, width : rows of the message and of the pointwise work
    sizes, dims, bits : rows of a square adjacency, columns and bits of the features
    num_stream_bytes, num_rounds : length of the copy, and products a warp of the ceiling
    failures : list of str, filled by `measure`
    """

    device: Device
    graphs: tuple[Path, ...]
    synthetic_edges: float
    widths: tuple[int, ...]
    precisions: tuple[str, ...]
    num_rows: int
    width: int
    sizes: tuple[int, ...]
    dims: tuple[int, ...]
    bits: tuple[int, ...]
    num_stream_bytes: int = 1 << 30
    num_rounds: int = 4096
    failures: list[str] = field(default_factory=list)
    _bit_peak: float | None = field(default=None, init=False)

    def measure(self) -> Iterator[Measurement]:
        """Measure everything, in the order of the table. A part that fails is noted, and the next one begins."""
        for name, part in self.parts():
            yield from self._attempt(name, part)

    def _attempt(self, name: str, part: Callable[[], Iterable[Measurement]]) -> Iterator[Measurement]:
        try:
            yield from part()
        except Exception as error:
            self.failures.append(f"{name}: {type(error).__name__}: {error}")

    def parts(self) -> Iterator[tuple[str, Callable[[], Iterable[Measurement]]]]:
        """Yield each part's name and the function that measures it."""
        device = self.device
        yield "ceilings", self._ceilings
        yield "messages", partial(measure_messages, device, self.num_rows, self.width)
        for precision in self.precisions:
            yield f"pointwise {precision}", partial(measure_pointwise, device, self.num_rows, self.width,
                                                    PRECISION[precision])
        yield "bits", self._bits
        yield "tiles", partial(measure_tiles, device, self.sizes, self.dims, self.bits)
        yield "reuse", partial(measure_reuse, device, min(self.sizes))
        for path in self.graphs:
            yield str(path), partial(self._products, partial(read_topology, path))
        if self.synthetic_edges:
            yield "synthetic graph", partial(self._products, self._draw)

    def _ceilings(self) -> Iterator[Measurement]:
        rows = measure_ceilings(self.device, self.num_stream_bytes, self.num_rounds)
        self._bit_peak = max((row.rate for row in rows if row.case.startswith(BIT_PRODUCTS)), default=None)
        yield from rows

    def _bits(self) -> Iterator[Measurement]:
        yield from measure_bits(self.device, self.sizes, self.dims, self.bits, self._bit_peak)

    def _products(self, graph_of: Callable[[], Topology]) -> Iterator[Measurement]:
        yield from measure_products(self.device, graph_of(), self.widths, self.precisions)

    def _draw(self) -> Topology:
        return draw_power_law(arcs_that_fit(self.synthetic_edges, self.device.free_bytes()), self.device.place)
