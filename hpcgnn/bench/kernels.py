"""`hpcgnn bench kernels`: the ceilings of a place, then each kernel of a training against ceilings and peers.

Products are SpMM, the mean of in-neighbors' rows, and SDDMM, products of edges' ends; their ceiling is a gather of the
same rows. Peers of products are in `peers/spmm.py`; on a device the peer is cuSPARSE, called by torch.sparse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from hpcgnn.bench.graphs import Topology
from hpcgnn.bench.peers.spmm import mean_peers, sampled_peers, weights_of_arcs
from hpcgnn.bench.place import PRECISION, Contestants, Place, Work, admit, open_topology
from hpcgnn.bench.timing import CEILING, OURS, Measurement, Part, PartedBenchmark
from hpcgnn.ops.aggregation import SparseRows, from_csr, multiply
from hpcgnn.ops.attention import sampled_products
from hpcgnn.ops.counter import DROPOUT, FORWARD, CounterKey
from hpcgnn.ops.dense import map_rows, weight_gradient
from hpcgnn.ops.pointwise import activate, dropout
from hpcgnn.ops.quantization import (
    CODES,
    NO_BAD_ROW,
    Buffer,
    MessageLayout,
    dequantize_rows,
    quantize_rows,
    start_quantizing,
)
from hpcgnn.ops.resident import resident
from hpcgnn.ops.simd import multiplies_bfloat16

WIDTH = 256             # columns of messages, of pointwise work and of weights
BITS = (1, 2, 4, 8)
PROBABILITY = 0.5       # probability of dropout
KEY = CounterKey(0, 0, FORWARD, 0)
PACKING = {"affine": "quantize + pack", "rotated": "rotate + pack"}
UNPACKING = {"affine": "unpack + dequantize", "rotated": "unpack + rotate"}
FUSED = "norm + ReLU + dropout"
OURS_FP32, HALF_ARITHMETIC = "hpcgnn fp32", "half arithmetic"    # contestants if rows are narrower
WITH_VALUES = "with values"                                      # on a device


@dataclass
class KernelBenchmark(PartedBenchmark):
    place: Place
    graphs: tuple[str, ...]    # .npz archives, or drawn:EDGES
    # widths, precisions: columns and storage of the rows in products
    widths: tuple[int, ...]
    precisions: tuple[str, ...]
    peers: tuple[str, ...]
    width: int = WIDTH         # columns of messages and pointwise work

    def parts(self) -> Iterator[Part]:
        yield "ceilings", self.place.ceilings
        # Products with weights are a kernel of ours on the host, and cuBLAS on a device.
        if not self.place.is_device:
            yield "dense", partial(measure_dense, self.place, self.place.num_rows, self.width, self.precisions)
        for code in CODES:
            yield f"{code} messages", partial(measure_messages, self.place, self.width, self.peers, code)
        for precision in self.precisions:
            yield f"pointwise {precision}", partial(measure_pointwise, self.place, self.width, precision, self.peers)
        for source in self.graphs:
            yield source, partial(self._products, source)

    def _products(self, source: str) -> Iterator[Measurement]:
        graph = open_topology(source, self.place)
        return measure_products(self.place, graph, self.widths, self.precisions, self.peers)


def measure_dense(place: Place, num_rows: int, width: int, precisions: tuple[str, ...]) -> Iterator[Measurement]:
    """Multiply rows (num_rows, width) by (width, width), and compute the weight's gradient, in each precision.

    torch is left out, with a remark, if it has no instructions for a precision: it would take minutes.
    """
    amount = 2 * num_rows * width**2 / 1e9
    for precision in precisions:
        dtype = PRECISION[precision]
        rows, gradient = (place.random_rows(num_rows, width, dtype, seed) for seed in (0, 1))
        weight, out = place.random_rows(width, width, dtype, seed=2), place.empty_rows(num_rows, width, dtype)
        ceiling = place.multiplying(precision, num_rows * width**2)
        contestants: dict[str, Contestants] = {
            "rows @ weight": {CEILING: ceiling, OURS: partial(map_rows, rows, weight)},
            "weight gradient": {CEILING: ceiling, OURS: partial(weight_gradient, gradient, rows)}}
        if precision == "fp32" or (precision == "bf16" and multiplies_bfloat16()):
            contestants["rows @ weight"]["torch"] = partial(torch.mm, rows, weight.t(), out=out)
            contestants["weight gradient"]["torch"] = partial(torch.mm, gradient.t(), rows)
        if precision == "fp32":
            contestants["rows @ weight"]["numpy"] = partial(np.matmul, rows.numpy(), weight.t().numpy(),
                                                            out=out.numpy())
        for case, works in contestants.items():
            remarks = [] if "torch" in works else [f"torch has no instructions for products of {precision} here"]
            yield place.measure("dense", f"{case} x{width} {precision}", amount, "GFLOP/s", works, remarks)


def measure_messages(place: Place, width: int, peers: tuple[str, ...], code: str = "affine") -> list[Measurement]:
    """Quantize and pack one message and read it back, at each bit-width.

    Rates count the bytes of the rows and of the message. torch takes part with affine codes only.
    """
    num_rows = place.num_rows
    rows, received = place.random_rows(num_rows, width), place.empty_rows(num_rows, width)
    index, node_id = resident(np.arange(num_rows, dtype=np.int32)), resident(np.arange(num_rows))
    packing, unpacking = [], []
    for bits in BITS:
        layout = MessageLayout.build(np.full(num_rows, bits, np.uint8), width, code)
        message = place.empty_bytes(layout.num_bytes)
        moved, case = (rows.nbytes + layout.num_bytes) / 1e9, f"{num_rows:,} x {width}, {bits} bit"
        pack: Contestants = {CEILING: place.moving(rows.nbytes, layout.num_bytes),
                             OURS: filling(rows, index, node_id, layout, KEY, message)}
        unpack: Contestants = {CEILING: place.moving(layout.num_bytes, rows.nbytes),
                               OURS: partial(dequantize_rows, message, index, node_id, layout, received, key=KEY)}
        if "torch" in peers and code == "affine":
            pack["torch"], unpack["torch"] = partial(TorchMessage, rows, bits), TorchMessage(rows, bits).unpack
        packing.append(place.measure(PACKING[code], case, moved, "GB/s", pack))
        unpacking.append(place.measure(UNPACKING[code], case, moved, "GB/s", unpack))
    return packing + unpacking


def filling(rows: torch.Tensor, index: np.ndarray, node_id: np.ndarray, layout: MessageLayout, key: CounterKey,
            message: Buffer) -> Work:
    if isinstance(message, np.ndarray):
        return partial(quantize_rows, rows, index, node_id, layout, key, message)
    first_bad = torch.full((1,), NO_BAD_ROW, dtype=torch.int32, device=rows.device)
    return partial(start_quantizing, rows, index, node_id, layout, key, message, first_bad)


class TorchMessage:
    """Rows (n, dim) float32 as codes of 1, 2, 4 or 8 bits, packed by shifts, with each row's minimum and step."""

    def __init__(self, rows: torch.Tensor, bits: int):
        self.bits, self.dim = bits, rows.shape[1]
        self.low = rows.amin(1, keepdim=True)
        self.step = (rows.amax(1, keepdim=True) - self.low) / (2**bits - 1)
        scaled = (rows - self.low) / self.step
        codes = torch.floor(scaled + torch.rand_like(scaled)).clamp_(0, 2**bits - 1).to(torch.uint8)
        self.payload = self._pack(codes)

    def _pack(self, codes: torch.Tensor) -> torch.Tensor:
        if self.bits == 8:
            return codes
        per_byte = 8 // self.bits
        groups = F.pad(codes, (0, -self.dim % per_byte)).view(len(codes), -1, per_byte)
        packed = groups[..., 0].clone()
        for position in range(1, per_byte):
            packed |= groups[..., position] << position * self.bits
        return packed

    def unpack(self) -> torch.Tensor:
        codes = self.payload
        if self.bits < 8:
            shifts = torch.arange(0, 8, self.bits, dtype=torch.uint8, device=codes.device)
            codes = codes.unsqueeze(-1) >> shifts & 2**self.bits - 1
            codes = codes.view(len(codes), -1)[:, :self.dim]
        return self.low + self.step * codes.float()


def measure_pointwise(place: Place, width: int, precision: str, peers: tuple[str, ...]) -> Iterator[Measurement]:
    """LayerNorm + ReLU + dropout forward and backward, and dropout alone. Rates count each matrix once."""
    num_rows, dtype, key = place.num_rows, PRECISION[precision], CounterKey(0, 0, DROPOUT, 0)
    node_id = resident(np.arange(num_rows))
    case = f"{num_rows:,} x {width} {precision}, p = {PROBABILITY}"
    rows, gradient = (place.random_rows(num_rows, width, dtype, seed) for seed in (0, 1))
    weight, bias = (make(width, device=place.name, requires_grad=True) for make in (torch.ones, torch.zeros))
    num_bytes = rows.nbytes

    def ours(h: torch.Tensor) -> torch.Tensor:
        return activate(h, PROBABILITY, node_id, key, weight, bias)

    def theirs(h: torch.Tensor) -> torch.Tensor:
        normalized = F.layer_norm(h, (width,), weight.to(dtype), bias.to(dtype))
        return F.dropout(torch.relu(normalized), PROBABILITY)

    functions = {OURS: ours, **({"torch": theirs} if "torch" in peers else {})}
    h = rows.detach().requires_grad_()
    copy = place.moving(num_bytes, num_bytes)
    yield place.measure(FUSED, f"forward, {case}", 2 * num_bytes / 1e9, "GB/s",
                        {CEILING: copy, **{name: partial(apply, h) for name, apply in functions.items()}})
    # Backward reads the gradient and the input, and writes one matrix.
    yield place.measure(FUSED, f"backward, {case}", 3 * num_bytes / 1e9, "GB/s",
                        {CEILING: place.moving(2 * num_bytes, num_bytes),
                         **{name: partial(torch.autograd.grad, apply(h), (h, weight, bias), gradient, retain_graph=True)
                            for name, apply in functions.items()}})
    alone: Contestants = {CEILING: copy, OURS: partial(dropout, rows, PROBABILITY, node_id, key)}
    if "torch" in peers:
        alone["torch"] = partial(F.dropout, rows, PROBABILITY)
    yield place.measure("dropout", case, 2 * num_bytes / 1e9, "GB/s", alone)


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
    """Measure SpMM, our float32 and, on a device, HalfGNN's half arithmetic and edge weights as cuSPARSE reads them.

    `products` are functions of the rows by peer, or None if a peer has none in this precision.
    """
    rows = place.random_rows(graph.num_nodes, width, PRECISION[precision])
    peers, remarks = admit({peer: partial(product, rows) for peer, product in products.items() if product is not None},
                           f"spmm in {precision}")
    remarks += [f"{peer} has no {precision} product" for peer, product in products.items() if product is None]
    contestants: Contestants = {CEILING: place.gathering(rows, graph.indices), OURS: partial(multiply, matrix, rows)}
    if place.is_device:
        # cuSPARSE reads one weight per edge; our mean reads none.
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
