"""`hpcgnn bench epoch --device cuda`: all contestants train in this process, one after the other, on the same graph.

Ours is the run of `hpcgnn train`: a Session on shards, its TrainingRun, a run folder. A peer starts from the same
weights and takes the same steps: full batch, Adam, cross-entropy, dropout on every layer's input. The first epochs have
no dropout, and both must have the same losses there. Then epochs are timed by the wall clock, from one end of an epoch
to the next, and two epochs run under torch's profiler.

A session is opened once per storage of rows (float32 or bfloat16) and serves all models: with one rank nothing in it
depends on the model. tf32 is a phase of the float32 training.
"""

from __future__ import annotations

import gc
import json
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn.bench.epoch import EpochSettings, preprocess, train_ours
from hpcgnn.bench.epoch_phases import PROFILED, TF32, Phase, PhaseClock
from hpcgnn.bench.graphs import draw_training_graph, drawn_size
from hpcgnn.bench.place import PRECISION
from hpcgnn.bench.timing import OURS, Begin, Measurement, Part, PartedBenchmark, say_nothing
from hpcgnn.config import TrainConfig
from hpcgnn.errors import ConfigError, TrainingError
from hpcgnn.nn.models import traits_of
from hpcgnn.run.launch import MPI
from hpcgnn.run.output import size_text, time_text
from hpcgnn.shards.reader import read_graph_info, read_partition
from hpcgnn.shards.schema import Provenance
from hpcgnn.shards.writer import Making, write_shards
from hpcgnn.training.callbacks import Callback
from hpcgnn.training.recipe import Recipe
from hpcgnn.training.run_folder import METRICS, SUMMARY, RunFolder
from hpcgnn.training.session import Session
from hpcgnn.training.trainer import TrainingRun

LAYERS, HEADS = 3, 4
DROPOUT, RATE = 0.5, 0.01
REPLAYED = "step graph"      # hpcgnn with step_graph=on
ALIKE, WARM_UP, LAST = "without dropout", "warm-up", "evaluated"
ALIKE_EPOCHS, WARM_UP_EPOCHS, PROFILED_EPOCHS = 3, 2, 2
# Largest relative difference of a loss: sums are added in another order, and bfloat16 has 8 bits. A wrong gradient, or
# another coefficient of one edge in ten, exceeds it by the third epoch.
TOLERANCE = {"fp32": 2e-3, "bf16": 5e-2}
RANKS_TOLERANCE = 1e-3      # for several ranks: dropout draws the same, sums are in another order


@dataclass
class InProcessEpochs(PartedBenchmark):
    comm: MPI.Comm
    source: str                    # .npz archive, folder of shards of one part, or drawn:EDGES,NODES
    device: str
    models: tuple[str, ...]
    precisions: tuple[str, ...]    # some of "fp32", "tf32", "bf16"
    # has_peer: PyTorch Geometric takes part; compiles: also under torch.compile, after everything else
    has_peer: bool = False
    compiles: bool = False
    epochs: int = 10               # timed epochs of each precision
    hidden: int = 256
    ranks: int = 0                 # 0, or ranks that train on the same device in their own processes, after one rank
    begin: Begin = say_nothing
    _sessions: dict[str, Session] = field(default_factory=dict, init=False)
    _baseline: dict[str, int] = field(default_factory=dict, init=False)
    _found: dict[str, Ours] = field(default_factory=dict, init=False)

    def measure(self) -> Iterator[Measurement]:
        if self.ranks > 1 and Path(self.source).is_dir():
            raise ConfigError(f"{self.source} is a folder of shards, and --ranks {self.ranks} needs the graph in so "
                              "many parts; give the .npz archive, or leave --ranks out")
        if self.comm.size != 1:
            raise ConfigError(f"bench epoch trains all contestants in one process, and was started on {self.comm.size} "
                              "ranks; start it without mpirun, and ask for ranks with --ranks")
        with tempfile.TemporaryDirectory(prefix="hpcgnn-bench-") as folder:
            self._folder = Path(folder)
            try:
                yield from super().measure()
            finally:
                self._sessions.clear()

    def parts(self) -> Iterator[Part]:
        cases = [(storage, model) for storage in dict.fromkeys(map(storage_of, self.precisions))
                 for model in self.models if self.has_peer or self.ranks < 2]
        for storage, model in cases:
            yield f"{model} {storage}", partial(self._measure_eager, model, storage)
        for storage, model in cases if self.has_peer and self.compiles else ():
            yield f"{model} {storage}, compiled peer", partial(self._measure_compiled, model, storage)
        for model in self.models if self.ranks > 1 else ():
            yield f"{model} on {self.ranks} ranks", partial(self._measure_ranks, model)

    @cached_property
    def _shards(self) -> Path:
        return Path(self.source) if Path(self.source).is_dir() else self._cut(1)

    def _cut(self, ranks: int) -> Path:
        # A drawn graph is cut by node numbers, which are unrelated to the edges.
        size, shards = drawn_size(self.source), self._folder / f"p{ranks}"
        if shards.exists():
            return shards
        self.begin(f"makes shards of {ranks} parts")
        if size is None:
            return preprocess(Path(self.source), shards, ranks)
        dataset = draw_training_graph(*size, self.device)
        owner = (np.arange(dataset.num_nodes) * ranks // dataset.num_nodes).astype(np.int32)
        write_shards(dataset, owner, shards, Making(ranks, reorder="none"), Provenance(self.source, "contiguous", 0))
        return shards

    @cached_property
    def _dims(self) -> list[int]:
        info = read_graph_info(self._shards)
        return [info.num_features, *[self.hidden] * (LAYERS - 1), info.num_classes]

    def _session(self, model: str, storage: str) -> Session:
        config = self._config(model, storage)
        if storage not in self._sessions:
            shards = self._shards
            self.begin(f"opens {shards.name} in {storage}")
            self._baseline[storage] = self._allocated()
            self._sessions[storage] = Session.open(self.comm, shards, config)
        session = self._sessions[storage]
        return replace(session, config=config, traits=traits_of(Recipe().build(config, session.info), LAYERS))

    def _config(self, model: str, storage: str) -> TrainConfig:
        epochs = sum(phase.epochs for phase in self._phases(storage))
        return TrainConfig.of(model=model, precision=storage, layers=LAYERS, hidden=self.hidden, heads=HEADS,
                              dropout=DROPOUT, lr=RATE, norm="layer", epochs=epochs, eval_every=epochs,
                              checkpoint_every=0, device=self.device)

    def _phases(self, storage: str, is_peer: bool = False) -> tuple[Phase, ...]:
        timed = [Phase(name, self.epochs, DROPOUT) for name in self.precisions if storage_of(name) == storage]
        alike = [Phase(ALIKE, ALIKE_EPOCHS, 0.0)] if self.has_peer else []
        # tf32 begins with epochs of its own that are not timed: other kernels of cuBLAS are loaded.
        warmed = [one for phase in timed
                  for one in (Phase(f"{WARM_UP} of {phase.name}", WARM_UP_EPOCHS, DROPOUT), phase)]
        # The last epoch is also evaluated and saved, so it is outside the profile.
        profiled = [] if is_peer else [Phase(PROFILED, PROFILED_EPOCHS, DROPOUT), Phase(LAST, 1, DROPOUT)]
        return (*alike, *warmed, *profiled)

    def _measure_eager(self, model: str, storage: str) -> Iterator[Measurement]:
        ours = self._train_ours(model, storage)
        self._found[f"{model} {storage}"] = ours
        peers, refusals = self._train_peers(ours, model, storage, False) if self.has_peer else ({}, [])
        faults = [fault for name, peer in peers.items()
                  for fault in unlike(ours.clock.losses[ALIKE], peer.losses[ALIKE], TOLERANCE[storage], name)]
        if self.device == "cuda":
            try:
                replayed = peers[REPLAYED] = self._train_ours(model, storage, step_graph="on").clock
            except TrainingError as reason:
                refusals.append(f"{REPLAYED} can't train {ours.case}: {reason}")
            else:
                faults += [f"{REPLAYED} does not train the same: losses of phase {phase} differ"
                           for phase, losses in ours.clock.losses.items()
                           if unlike(losses, replayed.losses[phase], TOLERANCE[storage], REPLAYED)]
        # A peer that adds thousands of rows in bfloat16 rounds more than our float32 sums: that is no fault.
        said = [] if storage == "fp32" else [f"{self._case(model, storage)}: {fault}" for fault in faults]
        yield from self._rows(ours, model, storage, peers, [*ours.remarks(), *refusals, *said])
        if faults and not said:
            raise TrainingError("; ".join(faults))

    def _measure_compiled(self, model: str, storage: str) -> Iterator[Measurement]:
        ours = self._found.get(f"{model} {storage}")
        if ours is None:
            raise TrainingError("there is no training of ours to compare with")
        peers, refusals = self._train_peers(ours, model, storage, True)
        yield from self._rows(ours, model, storage, peers, refusals)

    def _rows(self, ours: Ours, model: str, storage: str, peers: dict[str, PhaseClock],
              remarks: list[str]) -> Iterator[Measurement]:
        for precision in (name for name in self.precisions if storage_of(name) == storage):
            case = self._case(model, precision)
            seconds = {OURS: ours.clock.seconds[precision],
                       **{name: peer.seconds[precision] for name, peer in peers.items()}}
            peaks = {OURS: ours.peak_bytes, **{name: peer.peak_bytes for name, peer in peers.items()}}
            details = {"losses": {OURS: ours.clock.losses, **{name: peer.losses for name, peer in peers.items()}},
                       "peak_bytes": peaks,
                       "profile": ours.clock.profile, "epoch_seconds": ours.epoch_seconds[precision]}
            memory = [f"{name} {size_text(peak)}" for name, peak in peaks.items() if peak]
            said = [f"{case}: peak memory of the device: {', '.join(memory)}"] if memory else []
            yield Measurement("epoch", case, 0.0, "s", seconds, [*said, *remarks], details)

    def _case(self, model: str, precision: str) -> str:
        return f"{read_graph_info(self._shards).name} {model} {LAYERS} x {self.hidden} {precision}"

    def _train_ours(self, model: str, storage: str, step_graph: str = "off") -> Ours:
        session = self._session(model, storage)
        session = replace(session, config=replace(session.config, step_graph=step_graph))
        watch = Watch(self._phases(storage), self.device)
        self.begin(f"trains {model} in {storage}: {OURS if step_graph == 'off' else REPLAYED}")
        folder = RunFolder(self._folder / "run")
        folder.create(overwrite=True)
        try:
            TrainingRun(replace(session, recipe=Recipe(callbacks=(watch,))), folder).execute()
        finally:
            if watch.clock is not None:
                watch.clock.stop()
        ours = Ours(self._case(model, storage), watch.clock, watch.weights, self._dims,
                    max(0, watch.clock.peak_bytes - self._baseline[storage]), watch.by_phase())
        self._free()
        return ours

    def _train_peers(self, ours: Ours, model: str, storage: str,
                     compiles: bool) -> tuple[dict[str, PhaseClock], list[str]]:
        # The compiled peer trains by edges only: a compiler fuses edges with products.
        from hpcgnn.bench.peers.pyg_in_process import EDGES, FORMS, PeerTraining

        done, refusals, phases = {}, [], self._phases(storage, is_peer=True)
        if compiles:      # each dropout probability is compiled anew
            phases = tuple(phase for phase in phases if phase.name != ALIKE)
        for form in (EDGES,) if compiles else FORMS[model]:
            training = PeerTraining(model, form, PRECISION[storage], self._dims, HEADS, ours.weights, RATE, compiles)
            self.begin(f"trains {model} in {storage}: {training.name}")
            baseline = self._allocated()
            try:
                clock = training.run(self._peer_graph(),
                                     lambda stack: PhaseClock(phases, self.device, stack.set_dropout))
            except Exception as reason:      # a peer, or a compiler, raises many kinds
                lines = str(reason).strip().splitlines() or [type(reason).__name__]
                refusals.append(f"{training.name} can't train {ours.case}: {lines[0][:200]}")
            else:
                clock.peak_bytes = max(0, clock.peak_bytes - baseline)
                done[training.name] = clock
            if compiles:
                torch._dynamo.reset()
            self._free()
        return done, refusals

    @cached_property
    def _arrays(self) -> dict[str, np.ndarray]:
        info = read_graph_info(self._shards)
        part = read_partition(self._shards, 0, 1, info)
        if part.labels.ndim != 1:
            raise ConfigError(f"{info.name} has several labels per node, or none that are classes; PyTorch Geometric "
                              "takes part with one class per node, so leave --peer out")
        return {"indptr": part.indptr, "indices": part.indices, "labels": part.labels.astype(np.int64),
                "features": part.features.astype(np.float32, copy=False), "train": np.flatnonzero(part.train_mask)}

    def _peer_graph(self) -> Any:
        from hpcgnn.bench.peers.pyg_in_process import PeerGraph

        arrays = {name: torch.from_numpy(array).to(self.device) for name, array in self._arrays.items()}
        targets = torch.repeat_interleave(arrays["indptr"].diff())
        return PeerGraph(torch.stack([arrays["indices"].long(), targets]), arrays["features"], arrays["labels"],
                         arrays["train"])

    def _measure_ranks(self, model: str) -> Iterator[Measurement]:
        settings = EpochSettings(model, LAYERS, self.hidden, self.epochs + WARM_UP_EPOCHS, 0,
                                 self.epochs + WARM_UP_EPOCHS, DROPOUT, RATE)
        self._sessions.clear()
        self._free()
        seconds, losses, transport = {}, {}, {}
        for name, ranks in ((OURS, 1), (f"{OURS} {self.ranks} ranks", self.ranks)):
            shards = self._shards if ranks == 1 else self._cut(ranks)
            self.begin(f"trains {model}: {name}")
            out = self._folder / "ranks"
            threads = max(1, torch.get_num_threads() // ranks)
            seconds[name] = train_ours(settings, shards, "fp32", ranks, threads, out, self.device).epoch_seconds
            losses[name] = [json.loads(line)["loss"] for line in (out / METRICS).read_text().splitlines()]
            transport[name] = json.loads((out / SUMMARY).read_text()).get("transport")
        case = f"{self._case(model, 'fp32')}, {self.ranks} ranks on one device"
        difference = max(abs(one / other - 1) for one, other in zip(*losses.values(), strict=True))
        yield Measurement("ranks", case, 0.0, "s", seconds,
                          [f"{case}: losses differ by {difference:.1e} at most, messages are "
                           f"{transport[f'{OURS} {self.ranks} ranks']}"], {"losses": losses, "transport": transport})
        if not difference <= RANKS_TOLERANCE:
            raise TrainingError(f"losses of {self.ranks} ranks and of one differ by {difference:.1e}, where "
                                f"{RANKS_TOLERANCE:.0e} is allowed")

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated() if self.device == "cuda" else 0

    def _free(self) -> None:
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()


@dataclass(frozen=True)
class Ours:
    case: str
    clock: PhaseClock
    weights: dict[str, torch.Tensor]         # at the start, on the host
    dims: list[int]                          # columns of input, hidden layers and output
    peak_bytes: int
    epoch_seconds: dict[str, list[float]]    # phase -> seconds, from metrics.jsonl

    def remarks(self) -> list[str]:
        record, timed = self.clock.profile, self.epoch_seconds
        if "fault" in record:
            return [f"{self.case}: there is no profile: {record['fault']}"]
        if not record.get("busy_seconds"):
            return []
        first = next(name for name in timed if name not in (ALIKE, PROFILED, LAST) and not name.startswith(WARM_UP))
        epoch = statistics.median(self.clock.seconds[first])
        longest = ", ".join(f"{name.partition('(')[0]} {time_text(seconds)}" for name, _, seconds
                            in record["kernels"][:3])
        return [f"{self.case}: the device is busy for {time_text(record['busy_seconds'])}, "
                f"{100 * record['busy_seconds'] / epoch:.0f} % of an epoch, with {record['num_starts']:.0f} kernels "
                f"and copies; longest: {longest}"]


class Watch(Callback):
    """Lets a clock follow a run, and keeps the weights at its start."""

    changes_nothing = True      # but dropout, after which a step is captured anew

    def __init__(self, phases: tuple[Phase, ...], device: str):
        self._phases, self._device = phases, device
        self.clock: PhaseClock | None = None
        self.weights: dict[str, torch.Tensor] = {}
        self._recorded: list[float] = []

    def on_start(self, run: Any) -> None:
        self.weights = {name: tensor.detach().cpu().clone() for name, tensor in run.model.state_dict().items()}
        self.clock = PhaseClock(self._phases, self._device, partial(set_dropout, run.model))
        self.clock.start()

    def on_epoch_end(self, run: Any, record: dict[str, Any]) -> None:
        self._recorded.append(record["epoch_seconds"])
        before = self.clock.phase
        self.clock.tick(record["loss"])
        after, step_graph = self.clock.phase, run.learner.step_graph
        if step_graph is not None and after and (after.dropout, after.is_tf32) != (before.dropout, before.is_tf32):
            step_graph.forget()

    def by_phase(self) -> dict[str, list[float]]:
        places = iter(self._recorded)
        return {phase.name: [next(places) for _ in range(phase.epochs)] for phase in self._phases}


def set_dropout(model: torch.nn.Module, probability: float) -> None:
    for module in model.modules():
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = probability


def storage_of(precision: str) -> str:
    """Storage of the rows; tf32 is float32 that tensor cores multiply."""
    return "fp32" if precision == TF32 else precision


def unlike(ours: list[float], theirs: list[float], tolerance: float, name: str) -> list[str]:
    """One sentence if losses without dropout differ from ours by more than the relative tolerance, else none."""
    difference = max(abs(one / other - 1) for one, other in zip(theirs, ours, strict=True))
    if difference <= tolerance:
        return []
    return [f"{name} does not train the same: losses without dropout are {format_losses(theirs)}, and ours "
            f"{format_losses(ours)}, {difference:.1e} apart where {tolerance:.0e} is allowed"]


def format_losses(losses: list[float]) -> str:
    return ", ".join(f"{loss:.6g}" for loss in losses)
