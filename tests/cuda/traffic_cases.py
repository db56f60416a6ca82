"""Cases of each kernel whose accesses are counted under the emulation, and the table of what they would cost.

`python tests/cuda/traffic_cases.py` prints the table.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from cuda import toolkit
from cuda.aggregation_cases import multiply, rows_of
from cuda.emulation import EmulatedBackend
from integer_models import some_model
from training_setup import easy_graph

from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.lowbit.inference.batches import cut_batches
from hpcgnn.lowbit.inference.code_exchange import CodeExchange
from hpcgnn.lowbit.inference.coded_rows import code_rows
from hpcgnn.lowbit.inference.device_pass import CopiedBatches, DevicePass
from hpcgnn.lowbit.inference.host_pass import pack_features
from hpcgnn.ops.aggregation import SparseRows, from_csr
from hpcgnn.ops.bit_gemm import pack_codes
from hpcgnn.ops.counter import FORWARD, CounterKey
from hpcgnn.ops.cuda import aggregation, attention, bit_gemm, pointwise, quantization
from hpcgnn.ops.cuda.module import use_backend
from hpcgnn.ops.dispatch import device_kernels_on_cpu
from hpcgnn.ops.pointwise import Activation
from hpcgnn.ops.quantization import MessageLayout
from hpcgnn.ops.tiles import tiles_of_csr
from hpcgnn.partition.build import build_partition

NUM_ROWS, MEAN_LENGTH = 250, 12
KEY, ROTATION = CounterKey(0, 1, FORWARD, 2), CounterKey(0, 1, FORWARD, 2)
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Cost:
    """What one kernel's launches of a case would cost on a device.

    Attributes
    ----------
    source : path of its .cu file
    launches : int
    threads, shared_bytes : int      of a block, the most of all launches; of dynamic shared memory
    sectors : float        of 32 bytes, a request of a warp to global memory
    asked : float          bytes of these sectors by the bytes that requests ask for: what the first-level cache serves
    moved : float          bytes of all sectors that the launch touches, by the bytes of them that it touches: the least
                           that memory moves, by the least that it could
    turns : float          at the banks of shared memory, by those without conflicts; 1 where there is no request
    """

    source: Path
    launches: int
    threads: int
    shared_bytes: int
    sectors: float
    asked: float
    moved: float
    turns: float


def _matrix() -> SparseRows:
    rng = np.random.default_rng(0)
    length = rng.poisson(MEAN_LENGTH, NUM_ROWS)
    length[7] = 700
    indptr = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    return from_csr(indptr, rng.integers(0, NUM_ROWS, int(indptr[-1])).astype(np.int32), NUM_ROWS)


def _spmm(dim: int, dtype: torch.dtype) -> None:
    multiply(_matrix(), rows_of(NUM_ROWS, dim, dtype))


def _softmax(num_heads: int, dtype: torch.dtype) -> None:
    """Forward and backward, with what entries have in `dtype`."""
    matrix, scores = _matrix(), (rows_of(NUM_ROWS, num_heads), rows_of(NUM_ROWS, num_heads, seed=2), 0.2)
    alpha = attention.edge_softmax(matrix, *scores, dtype)
    attention.edge_softmax_backward(matrix, *scores, alpha, torch.ones_like(alpha))


def _weighted(dtype: torch.dtype) -> None:
    """A sum of rows of halves, 8 heads of 8 columns, with weights in `dtype` that are laid in its order first."""
    matrix, rows = _matrix(), rows_of(NUM_ROWS, 64, torch.float16)
    weights, index = torch.ones(len(matrix.indices), 8, dtype=dtype), np.arange(len(matrix.indices))
    aggregation.multiply_weighted(matrix, rows, attention.take_entries(weights, index), None, torch.empty_like(rows))


def _sampled(dim: int, dtype: torch.dtype) -> None:
    attention.sampled_products(_matrix(), rows_of(NUM_ROWS, dim, dtype), rows_of(NUM_ROWS, dim, dtype, seed=2), 4)


def _message(dim: int, bits: int, code: str = "affine") -> None:
    index, node_id = np.arange(NUM_ROWS, dtype=np.int32), np.arange(NUM_ROWS)
    layout = MessageLayout.build(np.full(NUM_ROWS, bits, np.uint8), dim, code)
    message = torch.zeros(layout.num_bytes, dtype=torch.uint8)
    quantization.quantize_rows(rows_of(NUM_ROWS, dim), index, node_id, layout, KEY, message, False)
    quantization.dequantize_rows(message, index, node_id, layout, torch.zeros(NUM_ROWS, dim), False, ROTATION)


def _activation(dim: int, dtype: torch.dtype) -> None:
    rows, weight, bias = rows_of(NUM_ROWS, dim, dtype), torch.ones(dim), torch.zeros(dim)
    how = Activation(weight, bias, 1e-5, np.arange(NUM_ROWS), KEY, 1 << 31, NUM_ROWS)
    _, moments = pointwise.activate(rows, how)
    pointwise.activate_backward(rows, rows, how, moments, torch.empty_like(rows))


def _bit_product(length: int) -> None:
    codes = np.random.default_rng(0).integers(0, 16, (256, length), dtype=np.uint8)
    left = pack_codes(torch.from_numpy(codes), 4, False)
    bit_gemm.multiply_bits(left, pack_codes(torch.from_numpy(codes[:64].T.copy()), 4, True), None, None)


def _tiles() -> None:
    matrix = _matrix()
    some = tiles_of_csr(np.concatenate([matrix.begin[:1], matrix.end]), matrix.indices, NUM_ROWS, False, CPU)
    codes = np.random.default_rng(0).integers(0, 16, (NUM_ROWS, 64), dtype=np.uint8)
    bit_gemm.multiply_tiles(some, pack_codes(torch.from_numpy(codes), 4, True), True, True, None, None)


def _pass(kind: str, is_in_batches: bool) -> Callable[[], None]:
    """Prepare an integer model's pass of 4 bits, of which everything but the pass is left out."""
    dataset = easy_graph(spec="synthetic:nodes=300,mean_degree=10,classes=4,features=256,signal=2")
    model = some_model(kind, num_features=256, hidden=64, num_layers=3, has_norm=True, mapped_bits=4, bits=4)
    if is_in_batches:
        batches = cut_batches(dataset.indptr, dataset.indices, 16, 4)
        packed = pack_features(model, batches, dataset.features[batches.node_id].astype(np.float32),
                               dataset.in_degree()[batches.node_id])
        return CopiedBatches(model, packed, CPU).forward
    part = build_partition(dataset, np.zeros(dataset.num_nodes, np.int32), 0, 1)
    coded = code_rows(model.convolutions[0].rows, part.features.astype(np.float32), part.in_degree)
    return DevicePass.over_graph(model, part, CodeExchange(MPI.COMM_SELF, ExchangePlan.build(part)), coded, CPU).forward


# Of each a function that prepares a case, and returns what is counted.
CASES: dict[str, Callable[[], Callable[[], object]]] = {
    "spmm fp32, 64": lambda: lambda: _spmm(64, torch.float32),
    "spmm fp16, 64": lambda: lambda: _spmm(64, torch.float16),
    "spmm fp16, 41": lambda: lambda: _spmm(41, torch.float16),
    "spmm fp16, 42": lambda: lambda: _spmm(42, torch.float16),
    "edge softmax, 4 heads": lambda: lambda: _softmax(4, torch.float32),
    "edge softmax fp16, 8 heads": lambda: lambda: _softmax(8, torch.float16),
    "attention's sum fp16, 8 x 8": lambda: lambda: _weighted(torch.float16),
    "sddmm fp16, 4 x 16": lambda: lambda: _sampled(64, torch.float16),
    "message of 4 bits, 64": lambda: lambda: _message(64, 4),
    "message of 2 bits, rotated, 64": lambda: lambda: _message(64, 2, "rotated"),
    "norm, ReLU, dropout fp32, 64": lambda: lambda: _activation(64, torch.float32),
    "maximum fp32, 64": lambda: lambda: aggregation.maximum(_matrix(), rows_of(NUM_ROWS, 64)),
    "product of bits, 256 x 512 x 64": lambda: lambda: _bit_product(512),
    "product of bits, 256 x 2048 x 64": lambda: lambda: _bit_product(2048),     # steps are divided among warps
    "tiles of bits, 64": lambda: _tiles,
    **{f"{kind}, whole graph": lambda kind=kind: _pass(kind, False) for kind in ("gcn", "gin", "sage", "gat")},
    **{f"{kind}, batches": lambda kind=kind: _pass(kind, True) for kind in ("gcn", "gin", "sage")},
}


@cache
def costs_of(case: str) -> dict[str, Cost]:
    """Run a case under the emulation: the cost of each kernel by its name."""
    backend = EmulatedBackend(counts=True)
    with use_backend(backend), device_kernels_on_cpu():
        run = CASES[case]()
        backend.launches.clear()
        backend.traffic.clear()
        run()
    names = dict.fromkeys(launch.name for launch, _ in backend.traffic)
    return {name: _cost([one for one in backend.traffic if one[0].name == name]) for name in names}


def _cost(traffic: list) -> Cost:
    def total(*path: str) -> int:
        found = 0
        for _, one in traffic:
            for name in path:
                one = getattr(one, name)
            found += one
        return found

    requests, sectors, num_bytes = (sum(total(side, name) for side in ("load", "store"))
                                    for name in ("requests", "sectors", "bytes"))
    launches = [launch for launch, _ in traffic]
    return Cost(launches[0].source, len(launches), max(math.prod(one.block) for one in launches),
                max(one.shared_bytes for one in launches), sectors / max(requests, 1), 32 * sectors / max(num_bytes, 1),
                32 * total("touched_sectors") / max(total("touched_bytes"), 1),
                total("shared", "turns") / total("shared", "least_turns") if total("shared", "least_turns") else 1.0)


def main() -> None:
    """Print the table; registers, spilled bytes and occupancy where NVIDIA's compilers are installed."""
    print("| case | kernel | launches | sectors a request | of bytes asked for | of bytes touched | bank turns | "
          "registers, spilled bytes, occupancy on sm_80 | on sm_90 |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case in CASES:
        for name, cost in costs_of(case).items():
            print(f"| {case} | {name} | {cost.launches} | {cost.sectors:.2f} | {cost.asked:.2f} | {cost.moved:.2f} | "
                  f"{cost.turns:.2f} | {_needs(name, cost, 80)} | {_needs(name, cost, 90)} |")


def _needs(name: str, cost: Cost, architecture: int) -> str:
    if toolkit.parts() is None:
        return "-"
    needs = toolkit.needs_of(cost.source, architecture)[name]
    occupancy = needs.occupancy(architecture, cost.threads, cost.shared_bytes)
    return f"{needs.registers}, {needs.spilled}, {100 * occupancy:.0f} %"


if __name__ == "__main__":
    main()
