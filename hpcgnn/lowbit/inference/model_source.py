"""Opens an integer model for some shards, from a model file or from the best checkpoint of a run folder.

A rank's shard is read once (`StoredPart`): its part, and its input rows as floats or packages.

A float checkpoint is calibrated on the graph first. A model that was made on another graph is refused unless the user
passes --other-graph; then a remark says what differs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.config import NODES, QUANTIZED_MODELS, TrainConfig
from hpcgnn.errors import CheckpointError, CollectiveError
from hpcgnn.exchange.plan import check_peers
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.lowbit.inference.coded_rows import CodedRows, code_packages, code_rows
from hpcgnn.lowbit.inference.model_file import payload_bytes, read_model
from hpcgnn.lowbit.integer_model import IntegerModel, RowScale
from hpcgnn.lowbit.package import PackagedRows
from hpcgnn.lowbit.package_shards import floats_of, load_packages
from hpcgnn.lowbit.training.models import calibrate
from hpcgnn.partition.partition import Partition
from hpcgnn.run.launch import together
from hpcgnn.shards.feature_formats import PACKAGE
from hpcgnn.shards.folder import find_shard
from hpcgnn.shards.reader import check_num_parts, load_part, open_part
from hpcgnn.shards.schema import Fingerprint, GraphInfo, check_fingerprint, part_file
from hpcgnn.training.batch_graph import NAMES, ClusterCut
from hpcgnn.training.evaluate import strange_classes
from hpcgnn.training.scores import CLASSES, MULTI_LABEL
from hpcgnn.training.session import Session, check_task
from hpcgnn.training.trained_run import (
    KEPT,
    PERMISSION,
    BestModel,
    TrainedRun,
    answering_config,
    check_dataset,
    other_graph_line,
)

Result = TypeVar("Result")


@dataclass(frozen=True)
class FloatRows:
    """Rows of one rank; `num_bytes` are in memory, before the compression of the shard."""

    rows: np.ndarray

    @property
    def form(self) -> str:
        return str(self.rows.dtype)

    @property
    def num_bytes(self) -> int:
        return self.rows.nbytes

    def coded(self, scale: RowScale, in_degree: np.ndarray) -> CodedRows:
        """Codes of all rows; KernelError for NaN, or negative values where codes have no sign."""
        return code_rows(scale, self.rows, in_degree)


@dataclass(frozen=True)
class PackageRows:
    packed: PackagedRows
    scale: np.ndarray

    form = "packages"

    @property
    def num_bytes(self) -> int:
        return sum(self.packed.stored_bits.values()) // 8 + self.scale.nbytes

    def coded(self, scale: RowScale, in_degree: np.ndarray) -> CodedRows:
        return code_packages(scale, self.packed, self.scale, in_degree)


@dataclass(frozen=True)
class StoredPart:
    part: Partition      # without features
    rows: FloatRows | PackageRows
    path: Path

    @classmethod
    def read(cls, comm: MPI.Comm, shards: Path, info: GraphInfo) -> StoredPart:
        """Collective: read this rank's part; CollectiveError as `read_partition`, or if parts were mixed."""
        stored = together(comm, lambda: _read_part(shards, comm.rank, comm.size, info))
        check_peers(comm, stored.part, info.run_id)
        return stored

    def with_floats(self) -> Partition:
        """The part with features; ShardError if packages are damaged."""
        rows = self.rows
        return replace(self.part, features=rows.rows if isinstance(rows, FloatRows)
                       else floats_of(rows.packed, rows.scale, self.path))

    def shared_with(self, graph: LocalGraph) -> StoredPart:
        """Return this part with the rows of `graph` if they are the same, so that memory holds float32 rows once."""
        x = graph.x
        is_alike = (isinstance(self.rows, FloatRows) and self.rows.rows.dtype == np.float32 and x.dtype == torch.float32
                    and x.device.type == "cpu" and np.array_equal(graph.node_id[:graph.num_inner], self.part.inner_id))
        return replace(self, rows=FloatRows(x.numpy())) if is_alike else self


def _read_part(shards: Path, number: int, num_parts: int, info: GraphInfo) -> StoredPart:
    check_num_parts(info, num_parts)
    path = find_shard(part_file(shards, number))
    with open_part(shards, number, info) as file:
        part = load_part(file, path, number, info, expands_packages=False)
        if info.feature_dtype == PACKAGE:
            rows: FloatRows | PackageRows = PackageRows(*load_packages(file, path, part.num_inner, info.num_features))
        else:
            rows = FloatRows(part.features)
    return StoredPart(replace(part, features=np.empty((part.num_inner, 0), np.float32)), rows, path)


def classes_of_model(model: IntegerModel) -> dict[str, Any]:
    return {"task": MULTI_LABEL if model.is_multi_label else CLASSES, "num_classes": model.num_classes,
            "class_names": list(model.class_names)}


def check_graph(source: str, model: IntegerModel, made_on: Fingerprint, info: GraphInfo, other_graph: bool) -> None:
    """Check that a model (`source` in messages) fits a graph, and was made on it unless `other_graph`.

    Raises CheckpointError for another graph, other features, or, unless `other_graph`, other classes or labels.
    """
    check_dataset(source, model.dataset, info, other_graph)
    for name, found, expected in (("features", model.num_features, info.num_features),
                                  ("classes", model.num_classes, info.num_classes)):
        if found != expected and not (name == "classes" and other_graph):      # classes are compared by name
            raise CheckpointError(f"{source} was made for {found} {name}, {info.name} has {expected}; "
                                  "name the shards of the graph that it was made on")
    if model.is_multi_label != info.is_multi_label and not other_graph:
        labels = {True: "several labels per node", False: "one label per node"}
        raise CheckpointError(f"{source} was made for {labels[model.is_multi_label]}, {info.name} has "
                              f"{labels[info.is_multi_label]}; name the shards of the graph that it was made on")
    if model.num_nodes != info.num_nodes and not other_graph:
        raise CheckpointError(f"{source} was made on {model.num_nodes} nodes, {info.name} has {info.num_nodes}; "
                              f"{PERMISSION}")
    check_fingerprint(source, made_on, info, other_graph)


def integer_model(run: TrainedRun, bits: int | None, row_bits: int | None) -> IntegerModel:
    """Collective: make integers of the model: calibrate a float one on this graph, export one trained as integers.

    Weights and mapped rows get `bits`, 2 to 8 (None: 8, or what was trained), rows `row_bits` (None: `bits`). Raises
    CollectiveError for widths for a model that has its own, or input rows that are not finite.
    """
    info, model = run.session.info, run.model
    if run.is_quantized:
        if bits is not None or row_bits is not None:
            raise CollectiveError(f"this run was trained with --quantize {run.session.config.quantize} and has "
                                  "widths of its own; leave --bits out")
    else:
        bits = 8 if bits is None else bits
        model = calibrate(model, run.session.graph, run.session.comm, bits,
                          bits if row_bits is None else row_bits)
    return replace(model.export(info.name, info.is_multi_label), class_names=info.class_names)


def integer_config(settings: dict[str, Any], folder: Path, device: str, names: Iterable[str] = KEPT) -> TrainConfig:
    """Settings under which a run's model answers; CheckpointError for a model that can't become integers."""
    config, precision = answering_config(settings, folder, names, device=device), settings.get("precision", "fp32")
    for is_unfit, reason in (
            (config.model not in QUANTIZED_MODELS, f"holds a {config.model}, and only {', '.join(QUANTIZED_MODELS)} "
             "become integers; train one of them"),
            (config.task != NODES, "was trained to predict links, and integers predict classes; train it with --task "
             "nodes"),
            (settings.get("residual", False), "was trained with residual sums, which integers do not have; train "
             "without residual"),
            (settings.get("label_inputs", 0.0), "was trained with label_inputs, and integers read features only; train "
             "without them"),
            (settings.get("node_embedding", 0), "was trained with node_embedding, and integers read features only; "
             "train without it"),
            (config.norm == "batch", "was trained with --norm batch, which integers do not have; train with --norm "
             "layer or none"),
            (config.model == "gin" and precision != "fp32", f"holds a gin trained in {precision}, which averages its "
             "neighbors, and integers sum them; train it with --precision fp32")):
        if is_unfit:
            raise CheckpointError(f"{folder} {reason}")
    return config


def whole_graph_config(settings: dict[str, Any], folder: Path, device: str) -> TrainConfig:
    return integer_config(settings, folder, device, [name for name in KEPT if name not in NAMES])


@dataclass(frozen=True)
class OpenedModel:
    model: IntegerModel
    stored: StoredPart      # this rank's shard
    num_bytes: int      # bytes of the model's file; without a file, bytes of the numbers
    score: str          # name of the model's score
    # for a run folder: seconds of a pass of a float model of the same shape, by row type ("float32", "bfloat16")
    float_seconds: dict[str, float]
    remarks: list[str]  # sentences if the model was made on another graph, or trained on other edges


def open_model(comm: MPI.Comm, path: Path, shards: Path, info: GraphInfo, bits: int | None, row_bits: int | None,
               other_graph: bool, repeat: int, device: str = "cpu", answered: ClusterCut | None = None) -> OpenedModel:
    """Collective: read a model file, or quantize the model of a run folder and time `repeat` float passes on `device`.

    `bits` and `row_bits` are as in `integer_model`. `answered` are the clusters in which the model will answer; None
    calibrates and times it on the whole graph, also if it was trained in clusters.

    Raises CollectiveError for no model, one of another graph, or widths for a model that has its own.
    """
    together(comm, lambda: check_task(info.name, info.task))
    if Path(path).is_dir():
        config_of = whole_graph_config if answered is None else integer_config
        best = BestModel.find(comm, path, shards, info, config_of, other_graph, device)
        stored = StoredPart.read(comm, shards, info)
        run = best.open(comm, part=together(comm, stored.with_floats))
        stored = stored.shared_with(run.session.graph)
        model, score = integer_model(run, bits, row_bits), run.session.score.name
        remarks = _remarks(f"the model of {path}", run.remark, run.cut, answered)
        seconds = {"float32": _float_seconds(run.session, repeat)}
        del run      # keep the layers' rows of one precision in memory at a time
        seconds["bfloat16"] = _float_seconds(Session.open(
            comm, shards, best.config, info, answers_with=best.classes, part=together(comm, stored.with_floats),
            precision="bf16"), repeat)
        return OpenedModel(model, stored, payload_bytes(model), score, seconds, remarks)
    model, made_on, cut = together(comm, lambda: read_model(path))
    together(comm, lambda: check_graph(str(path), model, made_on, info, other_graph))
    if bits is not None or row_bits is not None:
        raise CollectiveError(f"{path} is a model file and has widths of its own; leave --bits out, or "
                              "name the run folder")
    score = "micro_f1" if model.is_multi_label else "accuracy"
    remarks = [*_remarks(str(path), other_graph_line(str(path), made_on, info), cut, answered),
               *strange_classes(info, classes_of_model(model))]
    stored = StoredPart.read(comm, shards, info)
    return OpenedModel(model, stored, Path(path).stat().st_size, score, {}, remarks)


def _remarks(source: str, of_graph: str | None, cut: ClusterCut | None, answered: ClusterCut | None) -> list[str]:
    of_arcs = None if cut is None else cut.remark(source, answered)
    return [sentence for sentence in (of_graph, of_arcs) if sentence is not None]


@torch.no_grad()
def _float_seconds(session: Session, repeat: int) -> float:
    """Collective: time passes in floats, with random weights."""
    model, graph = session.float_model(session.config.seed).eval(), session.graph

    def forward() -> None:
        graph.begin_forward(seed=0, epoch=0, is_training=False)
        model(graph, graph.x)

    return timed(session.comm, forward, repeat)[1]


def timed(comm: MPI.Comm, forward: Callable[[], Result], repeat: int) -> tuple[Result, float]:
    """Collective: return the last answer of `repeat` passes, and the median of the slowest rank's seconds."""
    seconds = []
    for _ in range(repeat):
        comm.Barrier()
        started = time.perf_counter()
        answer = forward()
        seconds.append(comm.allreduce(time.perf_counter() - started, MPI.MAX))
    return answer, statistics.median(seconds)
