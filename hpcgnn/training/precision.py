"""Precision of a run: how rows are stored and multiplied, and the loss scale that float16 needs.

At every precision, master weights, the loss, sums inside kernels and reductions over ranks are float32.

`auto` finds the faster storage by trying: it times passes of the model over a sample of this rank's rows in each
storage, since instructions, memory and layer widths decide which is faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

from hpcgnn.config import TrainConfig
from hpcgnn.errors import ConfigError
from hpcgnn.exchange.bits import UniformBits
from hpcgnn.exchange.codec import Coding
from hpcgnn.exchange.halo import HaloExchange
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.rows import LocalRows
from hpcgnn.nn.heads import scored
from hpcgnn.partition.partition import Partition
from hpcgnn.run.output import tell

STORAGE: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
GROWTH, STEPS_TO_GROW = 2.0, 200
FIRST_SCALE, LARGEST_SCALE = 2.0 ** 12, 2.0 ** 24


def storage_bits(precision: str) -> int:
    return 8 * STORAGE[precision].itemsize


@dataclass
class LossScale:
    """Factor on the loss that keeps float16 gradients above the smallest number; 1 for other precisions.

    It falls when a gradient overflows, and that step is skipped. After STEPS_TO_GROW good steps it grows again. It is a
    power of two, so scaling rounds nothing. Reference: Micikevicius et al., "Mixed precision training", ICLR 2018,
    section 3.2.
    """

    value: float = 1.0
    good_steps: int = 0
    is_dynamic: bool = False

    @classmethod
    def of(cls, precision: str) -> LossScale:
        return cls(FIRST_SCALE, is_dynamic=True) if precision == "fp16" else cls()

    def update(self, is_finite: bool) -> None:
        """Adapt to whether the last step's gradients, summed over all ranks, were finite."""
        if not self.is_dynamic:
            return
        if not is_finite:
            self.value, self.good_steps = self.value / GROWTH, 0
            return
        self.good_steps += 1
        if self.good_steps == STEPS_TO_GROW:
            self.value, self.good_steps = min(LARGEST_SCALE, self.value * GROWTH), 0


CANDIDATES = ("fp32", "bf16")   # float16 needs a loss scale, so it is used only on request
GAIN = 0.9                      # share of float32's seconds below which 16 bits are worth their rounding
SAMPLE_ROWS = 16384
SECONDS, MOST_ROUNDS = 1.0, 5   # limits of all timed passes, and of passes per precision


def with_fastest_precision(comm: MPI.Comm, config: TrainConfig, part: Partition, device: torch.device,
                           build: Callable[[TrainConfig], nn.Module]) -> TrainConfig:
    """Collective: the configuration with `auto` precision resolved, the same on all ranks; the slowest rank decides.

    float32 if the other settings allow nothing else. `build` makes the model of a configuration on the host.
    """
    if config.precision != "auto":
        return config
    allowed = [precision for precision in CANDIDATES if _allows(config, precision)]
    if len(allowed) == 1:
        _say(comm, f"precision {allowed[0]}: the other settings allow no other")
        return replace(config, precision=allowed[0])
    alone = comm.Split(comm.rank)
    seconds = np.array(list(seconds_of_sample(alone, config, part, device, build, allowed).values()))
    alone.Free()
    comm.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
    chosen = faster_of(dict(zip(allowed, seconds.tolist(), strict=True)))
    _say(comm, f"precision {chosen}: a pass over a sample takes {seconds[1] / seconds[0]:.2f} times as long in bf16 as "
               "in fp32")
    return replace(config, precision=chosen)


def faster_of(seconds: dict[str, float]) -> str:
    """bf16 if it saves at least a tenth of the seconds of fp32."""
    return "bf16" if seconds["bf16"] <= GAIN * seconds["fp32"] else "fp32"


def seconds_of_sample(alone: MPI.Comm, config: TrainConfig, part: Partition, device: torch.device,
                      build: Callable[[TrainConfig], nn.Module], precisions: list[str]) -> dict[str, float]:
    """Least seconds of a forward and backward pass over a sample per precision; `alone` is this rank's communicator."""
    sample = sample_of(part)
    passes = {}
    for precision in precisions:
        tried = replace(config, precision=precision)
        passes[precision] = _training_pass(alone, tried, sample, build(tried).to(device))
    least = dict.fromkeys(precisions, float("inf"))
    for run in passes.values():
        run()
    started = time.perf_counter()
    for _ in range(MOST_ROUNDS):
        for precision, run in passes.items():
            begun = time.perf_counter()
            run()
            least[precision] = min(least[precision], time.perf_counter() - begun)
        if time.perf_counter() - started > SECONDS:
            break
    return least


def sample_of(part: Partition) -> Partition:
    """A graph of the first rows with all their edges; sources are folded into these rows, so it needs no peer."""
    num_rows = min(part.num_inner, SAMPLE_ROWS)
    indptr, none = part.indptr[:num_rows + 1], np.zeros(2, np.int64)
    return replace(
        part, part=0, num_parts=1, num_central=num_rows, inner_id=part.inner_id[:num_rows],
        halo_id=part.halo_id[:0], halo_offset=none, boundary_index=part.boundary_index[:0], boundary_offset=none,
        indptr=indptr, indices=part.indices[:indptr[-1]] % max(num_rows, 1), in_degree=part.in_degree[:num_rows],
        importance=part.importance[:num_rows], features=part.features[:num_rows], labels=part.labels[:num_rows],
        train_mask=part.train_mask[:num_rows], val_mask=part.val_mask[:num_rows], test_mask=part.test_mask[:num_rows],
        edge_type=None if part.edge_type is None else part.edge_type[:indptr[-1]])


def _training_pass(alone: MPI.Comm, config: TrainConfig, sample: Partition, model: nn.Module) -> Callable[[], None]:
    device, bits = next(model.parameters()).device, storage_bits(config.precision)
    exchange = HaloExchange(alone, ExchangePlan.build(sample), UniformBits(bits), coding=Coding(bits))
    features = torch.from_numpy(sample.features.astype(np.float32, copy=False)).to(device)
    rows = LocalRows(sample.indptr, sample.indices, sample.inner_id, sample.in_degree,
                     features.to(STORAGE[config.precision]), edge_type=sample.edge_type)
    graph = LocalGraph(rows, exchange, has_half_sums=config.sums == "half")
    model.train()

    def run() -> None:
        graph.begin_forward(config.seed, 0, is_training=True)
        scored(model(graph, graph.x)).float().sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run


def _allows(config: TrainConfig, precision: str) -> bool:
    """Whether the other settings allow it and the model stays the same: gin sums in float32, averages in 16 bits."""
    try:
        replace(config, precision=precision)
    except ConfigError:
        return False
    return precision == "fp32" or config.model != "gin"


def _say(comm: MPI.Comm, sentence: str) -> None:
    if comm.rank == 0:
        tell(f"hpcgnn: {sentence}")
