"""`DevicePlace` times work on a GPU (its `Chip`) by its events, and measures the GPU's limits in the same run.

The limits are copies, gathered rows, and 1-bit products on registers (kernels/ceilings.cu).
"""

from __future__ import annotations

import importlib.util
import math
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from hpcgnn.bench.graphs import Topology, arcs_that_fit, draw_power_law
from hpcgnn.bench.machine import version_of
from hpcgnn.bench.place import Place, Work
from hpcgnn.bench.timing import OURS, Measurement
from hpcgnn.errors import ConfigError
from hpcgnn.ops.cuda.bit_gemm import AND_CAPABILITY
from hpcgnn.ops.cuda.module import kernel
from hpcgnn.ops.cuda.segments import sub_warp
from hpcgnn.ops.resident import on_device

FLUSH_BYTES = 1 << 30       # written before each repetition
BUSY_SECONDS = 2e-3         # least time of all writing before a repetition; Python queues a launch in a tenth of that
L2_MULTIPLE = 4
BLOCK_THREADS, WARP = 256, 32
VECTOR_BYTES = 16
ENTRIES_A_BLOCK = 1024                              # as in a block of the aggregation
TILES_A_ROUND = 8                                   # tiles of a warp, SETS of ceilings.cu
OPERATIONS_A_TILE = {"mma8": 2 * 8 * 8 * 128, "mma16": 2 * 16 * 8 * 256}
BLOCKS_A_PROCESSOR = 8
GATHERED_ROW_BYTES = 256
CUPY_PROJECTS = ("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy")    # one package, one name per CUDA release


@dataclass(frozen=True)
class Chip:
    name: str
    capability: tuple[int, int]    # (int, int), compute capability
    num_processors: int            # streaming multiprocessors
    memory_bytes: int
    l2_bytes: int

    @classmethod
    def current(cls) -> Chip:
        found = torch.cuda.get_device_properties(torch.cuda.current_device())
        return cls(found.name, (found.major, found.minor), found.multi_processor_count, found.total_memory,
                   getattr(found, "L2_cache_size", 0))

    def describe(self) -> dict[str, Any]:
        return {"chip": {**asdict(self), "driver": driver_version()},
                "cuda": {"torch": torch.version.cuda, "cupy": cupy_version()}}


@dataclass(frozen=True)
class DevicePlace(Place):
    """torch's current device.

    Before each repetition, memory larger than the L2 cache is written for as long as Python queues the work. The cache
    then holds nothing that the work reads, and the seconds are the device's, without the launch.
    """

    name: str = "cuda"
    stream_bytes: int = 1 << 30
    num_rows: int = 400_000
    num_rounds: int = 4096    # products per warp when the ceiling of 1-bit products is measured
    chip: Chip = field(default_factory=Chip.current)

    wide_float = torch.float16
    is_device = True

    def seconds_of(self, work: Work, is_hot: bool = False) -> float:
        for _ in range(self._num_flushes):
            self._flushed.zero_()
        if is_hot:
            work()
        return seconds_between_events(work)

    def first_seconds_of(self, work: Work) -> float:
        # The first call compiles kernels, so its seconds don't tell how long a later call takes.
        work()
        return 0.0

    @cached_property
    def _flushed(self) -> torch.Tensor:
        num_bytes = max(FLUSH_BYTES, L2_MULTIPLE * self.chip.l2_bytes)
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.name)

    @cached_property
    def _num_flushes(self) -> int:
        self._flushed.zero_()
        return max(1, math.ceil(BUSY_SECONDS / seconds_between_events(self._flushed.zero_)))

    def moving(self, num_read: int, num_written: int) -> Work:
        # Copying half of the bytes writes the other half.
        source, target = (self.empty_bytes((num_read + num_written) // 2).zero_() for _ in range(2))
        return partial(target.copy_, source)

    def gathering(self, rows: torch.Tensor, indices: np.ndarray) -> Work | None:
        # XORs the words of the rows in registers; each thread leaves one word.
        num_row_bytes = rows.shape[1] * rows.itemsize
        if num_row_bytes % VECTOR_BYTES:
            return None
        row_vectors, num_blocks = num_row_bytes // VECTOR_BYTES, -(-len(indices) // ENTRIES_A_BLOCK)
        out = torch.empty(num_blocks * BLOCK_THREADS, dtype=torch.int32, device=rows.device)
        arguments = (rows.view(torch.int32), on_device(indices, rows), len(indices), ENTRIES_A_BLOCK, row_vectors,
                     sub_warp(row_vectors), out)

        def gather() -> torch.Tensor:
            kernel("ceilings", "gather_rows")((num_blocks,), (BLOCK_THREADS,), *arguments)
            return out

        return gather

    def multiplying_bits(self, num_products: int) -> float | None:
        peak = max((row.rate for row in self.bit_ceilings()), default=None)
        return None if peak is None else 2 * num_products / 1e12 / peak

    def ceilings(self) -> Iterator[Measurement]:
        length = self.stream_bytes
        yield self.measure("ceiling", "copy", 2 * length / 1e9, "GB/s", {OURS: self.moving(length, length)})
        rows = self.empty_rows(length // GATHERED_ROW_BYTES, GATHERED_ROW_BYTES // 4).zero_()
        indices = np.random.default_rng(0).integers(0, len(rows), len(rows), dtype=np.int32)
        yield self.measure("ceiling", f"gather of rows of {GATHERED_ROW_BYTES} bytes", rows.nbytes / 1e9, "GB/s",
                           {OURS: self.gathering(rows, indices)})

    def bit_ceilings(self) -> list[Measurement]:
        """Both shapes of 1-bit products with operands in registers, measured once.

        Empty if tensor cores have no 1-bit AND.
        """
        return self._bit_ceilings

    @cached_property
    def _bit_ceilings(self) -> list[Measurement]:
        if self.chip.capability < AND_CAPABILITY:
            return []
        num_blocks = BLOCKS_A_PROCESSOR * self.chip.num_processors
        num_tiles = num_blocks * BLOCK_THREADS // WARP * TILES_A_ROUND * self.num_rounds
        return [self.measure("ceiling", f"1-bit {form} in registers", num_tiles * operations / 1e12, "TOP/s",
                             {OURS: partial(self._multiply_in_registers, form, num_blocks)})
                for form, operations in OPERATIONS_A_TILE.items()]

    def _multiply_in_registers(self, form: str, num_blocks: int) -> torch.Tensor:
        out = torch.empty(num_blocks * BLOCK_THREADS, dtype=torch.int32, device=self.name)
        kernel("ceilings", f"multiply_bits_{form}")((num_blocks,), (BLOCK_THREADS,), self.num_rounds, out)
        return out

    def random_rows(self, num_rows: int, dim: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
        """Draw on the device; two calls differ, whatever the seed."""
        return torch.randn(num_rows, dim, dtype=dtype, device=self.name)

    def empty_rows(self, num_rows: int, dim: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(num_rows, dim, dtype=dtype, device=self.name)

    def empty_bytes(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.name)

    def draw(self, num_edges: int) -> Topology:
        return draw_power_law(arcs_that_fit(num_edges, self._free_bytes()), self.name)

    def _free_bytes(self) -> int:
        if self.name == "cpu":      # where kernels are emulated
            return self.chip.memory_bytes
        torch.cuda.empty_cache()    # memory that torch keeps after tensors are freed
        return torch.cuda.mem_get_info()[0]

    def describe(self) -> dict[str, Any]:
        return self.chip.describe()


def seconds_between_events(work: Work) -> float:
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    started.record()
    work()
    ended.record()
    ended.synchronize()
    return started.elapsed_time(ended) / 1e3


def check_device() -> None:
    """Raise ConfigError, with what is missing, where kernels can't run on a device."""
    if not torch.cuda.is_available():
        raise ConfigError(f"--device cuda needs a GPU with CUDA, and torch {torch.__version__} finds none; "
                          "run it on a machine that has one, or leave --device out")
    if importlib.util.find_spec("cupy") is None:
        raise ConfigError("--device cuda needs cupy, which compiles the kernels; run pip install 'hpcgnn[cuda13]'")


def driver_version() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    found = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True,
                           text=True)
    return found.stdout.splitlines()[0].strip() if found.returncode == 0 and found.stdout.strip() else None


def cupy_version() -> str | None:
    return next(filter(None, map(version_of, CUPY_PROJECTS)), None)
