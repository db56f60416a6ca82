"""Forecast: memory, bytes and seconds of a run, measured on a few epochs; nothing is written."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.config import AUTO, TrainConfig
from hpcgnn.methods.controller import Controller
from hpcgnn.run.launch import giving_back_freed_memory, watch
from hpcgnn.run.output import tell
from hpcgnn.run.process import peak_bytes
from hpcgnn.shards.schema import GraphInfo
from hpcgnn.training.epoch_trace import fault_error
from hpcgnn.training.evaluate import evaluate
from hpcgnn.training.job import Job
from hpcgnn.training.learner import Learner
from hpcgnn.training.memory_limit import MemoryLimit, limited_memory
from hpcgnn.training.optimizer import FlatAdam
from hpcgnn.training.session import NOTHING, Session, read_shared_info
from hpcgnn.training.trainer import train_epoch

MOST_EPOCHS, ENOUGH_SECONDS = 6, 5.0     # limits of the sample; its first epoch is not timed
DRAWN_EPOCHS = 8                         # epochs for the bytes, if rows or widths are drawn anew in each


@dataclass(frozen=True)
class Memory:
    """Bytes that one rank holds."""

    features: int      # input rows of inner and halo nodes
    structure: int      # ids, degrees, edges and matrices
    weights: int      # weights, their best copy, gradients and the optimizer's moments
    activations: int      # what else the forward pass keeps for the backward pass
    halo_rows: int      # the widest halo rows of one exchange, as floats
    messages: int      # the largest messages of one exchange, sent and received
    method_state: int      # what the method keeps between epochs
    process: int      # peak so far: of the process with Python and libraries; on a GPU, of torch's memory


@dataclass(frozen=True)
class Limited:
    """Bytes of tables in a run with --memory: the most of one rank, and an epoch of all ranks."""

    in_memory: int
    on_disk: int
    fixed: int      # that can't leave the memory of a rank
    written: int      # an epoch, of all ranks
    read: int
    # Bytes per second of a machine's disk, and seconds of an epoch at these rates
    write_rate: float
    read_rate: float
    seconds: float


@dataclass(frozen=True)
class Forecast:
    """Predicted costs of a run."""

    memory: tuple[Memory, ...]      # one per rank
    least_bytes: int      # least and most bytes of an epoch's messages, all ranks; equal if known in advance
    most_bytes: int
    sum_bytes: int      # bytes of all ranks that an epoch sums
    evaluation_bytes: int      # bytes of all ranks
    setup_bytes: int
    epoch_seconds: float      # median of the sample
    evaluation_seconds: float
    assign_seconds: float      # seconds of one decision by the method's solver
    # For the whole run with all its seeds.
    num_epochs: int
    num_evaluations: int
    num_assignments: int
    sampled_epochs: int
    limited: Limited | None = None      # with --memory

    @property
    def total_seconds(self) -> float:
        return (self.num_epochs * self.epoch_seconds + self.num_evaluations * self.evaluation_seconds
                + self.num_assignments * self.assign_seconds)


@contextmanager
def kept_storages(known: list[torch.Tensor]) -> Iterator[dict[int, int]]:
    """Yields the bytes of what forward passes keep for their backward passes, by storage, without storages in `known`.
    """
    places, sizes = {tensor.untyped_storage().data_ptr() for tensor in known}, dict[int, int]()

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in places:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield sizes


@dataclass
class Sample:
    """Costs of the sampled epochs; seconds and bytes cover all ranks."""

    epoch_seconds: list[float]
    evaluation_seconds: float
    assign_seconds: float
    activations: int
    sum_bytes: int      # of the last one
    disk_use: dict[str, int]      # of the last one, see `MemoryLimit.take_use`; empty without a limit


def forecast(comm: MPI.Comm, job: Job) -> Forecast:
    """Collective: open a job's graph, train a few epochs in memory, and predict the costs of the whole run.

    The run is counted from its first epoch, even if it would be resumed. CollectiveError if the job can't be done.
    """
    info = read_shared_info(comm, job.shards)
    config = job.agree(comm, info.name, is_trained=False)
    watch(comm, config.timeout)
    with limited_memory(comm, config) as limit:
        if limit is not None:
            limit.check_part(info.statistics[comm.rank])
        return _forecast(comm, job, config, info, limit)


def _forecast(comm: MPI.Comm, job: Job, config: TrainConfig, info: GraphInfo, limit: MemoryLimit | None) -> Forecast:
    with giving_back_freed_memory():
        session = Session.open(comm, job.shards, config, info, job.recipe or NOTHING)
    too_wide = None if limit is None else limit.check(session.row_counts, session.table_bytes)
    if too_wide is not None and comm.rank == 0:
        tell(f"hpcgnn: {too_wide}")
    learner = Learner.start(session, session.config.seed, None)
    controller = session.config.method.controller(session.method_context())
    sample = _train_sample(session, learner, controller, limit)
    least, most = _epoch_bytes(session, controller)
    if config.steps == AUTO:      # the last epochs, with one step, send rows of other widths
        session.exchange.begin_epoch(replace(controller.plan(session.config.seed, len(sample.epoch_seconds) + 1),
                                             num_steps=1, by_row=False))
        train_epoch(session, learner, session.config.seed, len(sample.epoch_seconds) + 1)
        of_whole = _epoch_bytes(session, controller)
        least, most = min(least, of_whole[0]), max(most, of_whole[1])
    evaluation = session.exchange.evaluation.take()
    memory = tuple(comm.allgather(_memory_of(session, learner, sample)))
    session.exchange.forget()
    return Forecast(
        memory, least, most, sample.sum_bytes, comm.allreduce(evaluation.payload_bytes + evaluation.parameter_bytes),
        comm.allreduce(session.exchange.setup.payload_bytes), statistics.median(sample.epoch_seconds),
        sample.evaluation_seconds, sample.assign_seconds, *_counts(session.config), len(sample.epoch_seconds) + 1,
        None if limit is None else _limited(comm, limit, sample))


def _limited(comm: MPI.Comm, limit: MemoryLimit, sample: Sample) -> Limited:
    arena = limit.arena
    most = np.array([arena.most_in_memory, arena.file.most_bytes, arena.others], np.int64)
    comm.Allreduce(MPI.IN_PLACE, most, MPI.MAX)
    write_rate, read_rate = limit.rates()
    written, read = (sample.disk_use[f"disk_bytes_{name}"] for name in ("spilled", "fetched"))
    machines = comm.size / limit.num_mates      # taken to be alike
    return Limited(int(most[0]), int(most[1]), int(most[2]), written, read, write_rate, read_rate,
                   (written / write_rate + read / read_rate) / machines)


def _train_sample(session: Session, learner: Learner, controller: Controller, limit: MemoryLimit | None) -> Sample:
    """Collective: train until enough is measured, and evaluate once."""
    comm, seed, started = session.comm, session.config.seed, time.perf_counter()
    known = [*learner.model.parameters(), *learner.model.buffers(), session.graph.x_all]
    seconds, assigning, num_kept = [], 0.0, 0
    for epoch in range(MOST_EPOCHS):
        plan = controller.plan(seed, epoch)
        session.exchange.begin_epoch(plan)
        noting: AbstractContextManager[dict[int, int]] = kept_storages(known) if epoch == 0 else nullcontext({})
        with noting as kept:
            trace = train_epoch(session, learner, seed, epoch, num_steps=plan.num_steps, by_row=plan.by_row)
        num_kept += sum(kept.values())
        if trace.fault or not math.isfinite(trace.loss):
            session.exchange.forget()
            raise fault_error(comm, trace.fault, trace.loss, epoch + 1, learner.optimizer.last_check.read(),
                              session.graph.x)
        decision = controller.observe(trace.loss, trace.epoch_seconds, session.exchange.traces())
        assigning = max(assigning, decision.assign_seconds)
        seconds.append(trace.epoch_seconds)
        disk_use = {} if limit is None else limit.take_use()
        if comm.bcast(epoch > 0 and time.perf_counter() - started > ENOUGH_SECONDS):
            break
    session.exchange.evaluation.take()
    started = time.perf_counter()
    evaluate(comm, learner.model, session.graph, session.objective, session.score)
    evaluating = comm.allreduce(time.perf_counter() - started, MPI.MAX)
    # The first epoch also builds matrices and layouts.
    return Sample(seconds[1:], evaluating, comm.allreduce(assigning, MPI.MAX),
                  num_kept if limit is None else limit.arena.most_kept, trace.sent_bytes_sums, disk_use)


def _epoch_bytes(session: Session, controller: Controller) -> tuple[int, int]:
    """Collective: the fewest and the most bytes that all ranks send in an epoch."""
    comm, exchange, seed, found = session.comm, session.exchange, session.config.seed, []
    for epoch in range(DRAWN_EPOCHS):
        found.append([comm.allreduce(exchange.bytes_under(bit_plan, epoch))
                      for bit_plan in controller.bounds(seed, epoch)])
        if epoch == 1 and found[0] == found[1]:      # nothing is drawn
            break
    return 0 if exchange.may_skip else min(map(min, found)), max(map(max, found))


def _memory_of(session: Session, learner: Learner, sample: Sample) -> Memory:
    graph, exchange, device = session.graph, session.exchange, session.graph.x_all.device
    num_weights = sum(parameter.numel() for parameter in learner.model.parameters())
    kept = [value for moments in learner.optimizer.state().values() for value in moments.values()
            if isinstance(value, torch.Tensor)]
    # Weights, gradients and best weights; FlatAdam also has one rate and one decay per weight.
    arrays = 5 if isinstance(learner.optimizer, FlatAdam) else 3
    weights = 4 * num_weights * arrays + sum(tensor.nbytes for tensor in kept)
    averaged = learner.average.state()
    if averaged is not None:      # and the weights whose place it takes in an evaluation
        weights += 2 * sum(tensor.nbytes for tensor in averaged.weights.values())
    return Memory(
        features=graph.x_all.nbytes, structure=graph.structure_bytes + session.objective.structure_bytes,
        weights=weights, activations=sample.activations,
        halo_rows=graph.num_halo * exchange.widest_row * graph.x_all.element_size(), messages=exchange.message_bytes,
        method_state=session.state_bytes,
        process=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_bytes())


def _counts(config: TrainConfig) -> tuple[int, int, int]:
    period = getattr(config.method, "period", 0)
    assignments = -(-config.epochs // period) if period else 0
    counts = np.array([config.epochs, -(-config.epochs // config.eval_every), assignments])
    return tuple((config.repeat * counts).tolist())

