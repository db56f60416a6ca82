"""Fixtures that several rooms' tests share: the instruction sets, and one rank's part of a small dataset."""

from __future__ import annotations

import platform
import signal
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

pytest_plugins = ["mpi_environment", *(["pytest_mpi.plugin"] if find_spec("pytest_mpi") else []), "covering",
                  "fork_server"]

# A shell that starts tests in the background has them ignore Ctrl-C, and all that they start, which tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SIMD_FLAGS = {"portable": set(), "avx2": {"avx2", "fma"},
              "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}}
# Of kernels that sum products of bytes there are more: what they need beside AVX-512, and what is refused to get there.
BYTE_FLAGS = {name: flags for name, flags in SIMD_FLAGS.items()} | {
    "vnni": SIMD_FLAGS["avx512"] | {"avx512_vnni"},
    "amx": SIMD_FLAGS["avx512"] | {"avx512_vnni", "amx_tile", "amx_int8"}}
REFUSED = {"avx512": {"HPCGNN_VNNI": "0"}, "vnni": {"HPCGNN_AMX": "0"}}


def processor_flags() -> set[str]:
    """Instruction sets that Linux reports for this processor; none where it is no x86 or no Linux."""
    cpuinfo = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not cpuinfo.exists():
        return set()
    lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")]
    return set(lines[0].split(":")[1].split()) if lines else set()


def instruction_sets(needed: dict[str, set[str]] = SIMD_FLAGS) -> list:
    """All that kernels are compiled for, as parameters; those that this processor lacks are marked to be skipped."""
    found = processor_flags()
    lacking = {name: ", ".join(sorted(flags - found)) for name, flags in needed.items()}
    return [pytest.param(name, marks=pytest.mark.skip(f"this processor has no {missing}") if missing else ())
            for name, missing in lacking.items()]


@pytest.fixture(params=instruction_sets())
def simd(request, monkeypatch):
    """Runs the test once an instruction set, with the kernels forced to it."""
    monkeypatch.setenv("HPCGNN_SIMD", request.param)
    return request.param


@pytest.fixture(params=instruction_sets(BYTE_FLAGS))
def byte_level(request, monkeypatch):
    """Runs the test once an instruction set for products of bytes, with the kernels forced to it."""
    monkeypatch.setenv("HPCGNN_SIMD", request.param if request.param in SIMD_FLAGS else "avx512")
    for name, value in REFUSED.get(request.param, {}).items():
        monkeypatch.setenv(name, value)
    return request.param


@dataclass
class OpenedPart:
    """One rank's part of a dataset and what training builds from it."""

    part: object
    plan: object
    exchange: object
    graph: object

    @property
    def node_id(self) -> np.ndarray:
        """Global ids of inner rows, then halo rows."""
        return self.graph.node_id


@pytest.fixture
def open_part():
    """Collective: open_part(comm, dataset, owner, bit_plan, algorithm) -> OpenedPart of this rank."""
    import torch

    from hpcgnn.exchange.bits import UniformBits
    from hpcgnn.exchange.halo import HaloExchange
    from hpcgnn.exchange.plan import ExchangePlan
    from hpcgnn.exchange.sender import Wire
    from hpcgnn.graph.local_graph import LocalGraph
    from hpcgnn.graph.rows import LocalRows
    from hpcgnn.partition.build import build_partition

    def open_one(comm, dataset, owner, bit_plan=None, algorithm="ring"):
        part = build_partition(dataset, owner, comm.rank, comm.size)
        plan = ExchangePlan.build(part)
        exchange = HaloExchange(comm, plan, bit_plan or UniformBits(32), Wire(algorithm))
        features = exchange.input_rows(torch.from_numpy(part.features))
        rows = LocalRows(part.indptr, part.indices, part.node_id, part.in_degree, features, part.num_nodes_global,
                         edge_type=part.edge_type)
        return OpenedPart(part, plan, exchange, LocalGraph(rows, exchange))

    return open_one
