"""Opens an integer model for some shards, from a model file or from the best checkpoint of a run folder.

A float checkpoint is calibrated on the graph first. A model that was made on another graph is refused unless the user
passes --other-graph; then a remark says what differs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from mpi4py import MPI
from torch import nn

from hpcgnn.config import CLUSTERS_A_BATCH, QUANTIZED_MODELS, TrainConfig, check_keys
from hpcgnn.errors import CheckpointError, CollectiveError, ConfigError
from hpcgnn.lowbit.inference.batches.cut import NAMES, ClusterCut
from hpcgnn.lowbit.inference.model_file import payload_bytes, read_model, read_trained_cut
from hpcgnn.lowbit.integer_model import IntegerModel
from hpcgnn.lowbit.training.models import QuantizedStack, calibrate
from hpcgnn.run.launch import together
from hpcgnn.shards.fingerprint import Fingerprint
from hpcgnn.shards.reader import check_num_parts
from hpcgnn.shards.schema import GraphInfo, check_fingerprint
from hpcgnn.training.checkpoint import Checkpoint, check_shapes, read_checkpoint
from hpcgnn.training.evaluate import Evaluation, classes_of, classes_of_model, evaluate, strange_classes
from hpcgnn.training.recipe import Recipe
from hpcgnn.training.run_folder import RunFolder
from hpcgnn.training.session import Session, check_task
from hpcgnn.training.tables import with_own_rows

PERMISSION = "name that graph's shards, or pass --other-graph if it is meant to answer for another one"


def check_graph(source: str, model: IntegerModel, made_on: Fingerprint, info: GraphInfo, other_graph: bool) -> None:
    """Check that a model (`source` in messages) fits a graph, and was made on it unless `other_graph`.

    Raises CheckpointError for another graph, other features, or, unless `other_graph`, other classes or kind of labels.
    """
    check_dataset(source, model.dataset, info, other_graph)
    for name, found, expected in (("features", model.num_features, info.num_features),
                                  ("classes", model.num_classes, info.num_classes)):
        if found != expected and not (name == "classes" and other_graph):      # classes are compared by name
            raise CheckpointError(f"{source} was made for {found} {name}, {info.name} has {expected}; "
                                  "name the shards of the graph that it was made on")
    if model.is_multi_label != info.is_multi_label and not other_graph:
        labels = {True: "several labels a node", False: "one label a node"}
        raise CheckpointError(f"{source} was made for {labels[model.is_multi_label]}, {info.name} has "
                              f"{labels[info.is_multi_label]}; name the shards of the graph that it was made on")
    if model.num_nodes != info.num_nodes and not other_graph:
        raise CheckpointError(f"{source} was made on {model.num_nodes} nodes, {info.name} has {info.num_nodes}; "
                              f"{PERMISSION}")
    check_fingerprint(source, made_on, info, other_graph)


def check_dataset(source: str, dataset: str, info: GraphInfo, other_graph: bool) -> None:
    if dataset != info.name and not other_graph:
        raise CheckpointError(f"{source} was made on {dataset}, these shards hold {info.name}; {PERMISSION}")


def other_graph_line(source: str, made_on: Fingerprint, info: GraphInfo) -> str | None:
    """Return a warning for --other-graph that says what differs; None if nothing does."""
    found = made_on.differences(info.fingerprint)
    if not found:
        return None
    return (f"{source} was made on other data than these shards hold, in {', '.join(found)}; scores may count nodes "
            "that it was trained on")


# Settings that build and score a model; others say how it was trained.
KEPT = ("model", "layers", "hidden", "heads", "norm", "dropout", "score", "seed", "quantize", "quantize_bits",
        "target_kb", "size_weight", "quantize_gradient", "protect", *NAMES)

ConfigOf = Callable[[dict[str, Any], Path], TrainConfig]


@dataclass(frozen=True)
class TrainedRun:
    """The model of a run folder with the best validation score, and its graph.

    The graph keeps the edges that the model was trained on, unless `config_of` says otherwise.

    remark : str or None             a sentence if it was trained on another graph
    cut : ClusterCut or None         clusters it was trained in; None is the whole graph
    """

    session: Session
    model: nn.Module
    remark: str | None = None
    cut: ClusterCut | None = None

    @classmethod
    def open(cls, comm: MPI.Comm, folder: Path, shards: Path, info: GraphInfo, other_graph: bool = False,
             config_of: ConfigOf | None = None, recipe: Recipe | None = None, device: str = "cpu",
             names_classes: bool = False) -> TrainedRun:
        """Collective: read the checkpoint and this rank's shard.

        `config_of` maps the run's settings and folder to those of the model, for uses other than integers; rows are
        float32 in any case. `recipe` is what a program brings, such as its model. With `names_classes`, the training's
        classes are matched by name; the graph may have others, or no labels.

        Raises
        ------
        CollectiveError      no checkpoint, or a damaged one, of a model that can't become integers, or of another
                             graph; shards that are damaged or cut for another number of ranks
        """
        checkpoint = together(comm, lambda: read_best(folder))
        together(comm, lambda: check_num_parts(info, comm.size))
        source = f"the model of {folder}"
        together(comm, lambda: check_dataset(source, checkpoint.dataset, info, other_graph))
        together(comm, lambda: check_fingerprint(source, checkpoint.fingerprint, info, other_graph))
        config = together(comm, lambda: (config_of or integer_config)(checkpoint.settings, folder))
        config_here = replace(config, precision="fp32", device=device)
        session = Session.open(comm, shards, config_here, info, recipe or Recipe(),
                               (checkpoint.answers_with or classes_of(info)) if names_classes else None)
        model = replace(session, config=config).new_model(config.seed)
        checkpoint = together(comm, lambda: with_own_rows(checkpoint, model))
        check_shapes(replace(checkpoint, model=checkpoint.best_model), model.state_dict())
        model.load_state_dict(checkpoint.best_model)
        remark = other_graph_line(source, checkpoint.fingerprint, info)
        if remark is not None and names_classes and checkpoint.answers_with is not None:
            remark = "\n".join((remark, *strange_classes(info, checkpoint.answers_with)))
        return cls(session, model.eval(), remark, ClusterCut.of(checkpoint.settings))

    @property
    def is_quantized(self) -> bool:
        """Whether it was trained as integers, and has widths of its own."""
        return isinstance(self.model, QuantizedStack)

    def evaluate(self) -> Evaluation:
        """Collective: return scores of the model as it was trained."""
        session = self.session
        return evaluate(session.comm, self.model, session.graph, session.objective, session.score)

    def integer_model(self, bits: int | None, row_bits: int | None) -> IntegerModel:
        """Collective: calibrate a float model on this graph, or export one trained as integers.

        `bits`, of weights and mapped rows, are 2 to 8; None is 8, or the trained width. `row_bits` None is `bits`.

        Raises CollectiveError for widths of a model that has its own, and for non-finite input rows.
        """
        info, model = self.session.info, self.model
        if self.is_quantized:
            if bits is not None or row_bits is not None:
                raise CollectiveError(f"this run was trained with --quantize {self.session.config.quantize} and has "
                                      "widths of its own; leave --bits and --row-bits out")
        else:
            bits = 8 if bits is None else bits
            model = calibrate(model, self.session.graph, self.session.comm, bits,
                              bits if row_bits is None else row_bits)
        return replace(model.export(info.name, info.is_multi_label), class_names=info.class_names)


def integer_config(settings: dict[str, Any], folder: Path) -> TrainConfig:
    """Return settings under which a run's model answers: float32 rows, all rows, plain messages.

    Raises CheckpointError for a model that can't become integers.
    """
    try:
        config = TrainConfig.of(**check_keys(settings, str(folder)))
        answering = TrainConfig(**{name: getattr(config, name) for name in KEPT}, epoch_rows="all")
    except ConfigError as error:
        raise CheckpointError(f"{folder} holds a run whose settings this version can't take: {error}") from error
    if config.model not in QUANTIZED_MODELS:
        raise CheckpointError(f"{folder} holds a {config.model}, and only {', '.join(QUANTIZED_MODELS)} become "
                              "integers; train one of them")
    if config.model == "gin" and config.precision != "fp32":
        raise CheckpointError(f"{folder} holds a gin trained in {config.precision}, which averages its neighbors, and "
                              "integers sum them; train it with --precision fp32")
    return answering


def whole_graph_config(settings: dict[str, Any], folder: Path) -> TrainConfig:
    """Return `integer_config` with all edges, also for a run trained in clusters."""
    return replace(integer_config(settings, folder), clusters=0, batch_size=CLUSTERS_A_BATCH, between_clusters=False)


def read_best(folder: Path) -> Checkpoint:
    """Read the checkpoint of a run folder; `best_model` has the weights of the best validation score.

    Raises CheckpointError if it is missing or damaged.
    """
    checkpoint = RunFolder(folder).checkpoint
    if not checkpoint.exists():
        raise CheckpointError(f"{folder} has no {checkpoint.name}, so there is no trained model; name a run folder of "
                              "hpcgnn train, or a file of hpcgnn quantize")
    return read_checkpoint(checkpoint)


@dataclass(frozen=True)
class OpenedModel:
    model: IntegerModel
    num_bytes: int      # of its file, or of its numbers without one
    score: str          # name of its score
    # for a run folder: seconds of a pass of a float model of the same shape, by row type ("float32", "bfloat16")
    float_seconds: dict[str, float]
    remarks: list[str]  # sentences if it was made on another graph, or trained on other edges


def open_model(comm: MPI.Comm, path: Path, shards: Path, info: GraphInfo, bits: int | None, row_bits: int | None,
               other_graph: bool, repeat: int, device: str = "cpu", answered: ClusterCut | None = None) -> OpenedModel:
    """Collective: read a model file, or quantize the model of a run folder and time `repeat` float passes on `device`.

    `answered` are the clusters in which the model will answer; None calibrates and times it on the whole graph, also if
    it was trained in clusters. `bits` and `row_bits` are as in `TrainedRun.integer_model`.

    Raises
    ------
    CollectiveError      no model, or one of another graph; widths for a model that has its own
    """
    together(comm, lambda: check_task(info.name, info.task))
    if Path(path).is_dir():
        config_of = whole_graph_config if answered is None else integer_config
        run = TrainedRun.open(comm, path, shards, info, other_graph, config_of, device=device, names_classes=True)
        model, config, score = run.integer_model(bits, row_bits), run.session.config, run.session.score.name
        remarks = _remarks(f"the model of {path}", run.remark, run.cut, answered)
        seconds = {"float32": _float_seconds(run.session, repeat)}
        classes = classes_of(run.session.info)
        del run      # keep the rows of one precision in memory at a time
        config = replace(config, precision="bf16", quantize="none")
        seconds["bfloat16"] = _float_seconds(Session.open(comm, shards, config, info, Recipe(), classes), repeat)
        return OpenedModel(model, payload_bytes(model), score, seconds, remarks)
    (model, made_on), cut = together(comm, lambda: (read_model(path), read_trained_cut(path)))
    together(comm, lambda: check_graph(str(path), model, made_on, info, other_graph))
    if bits is not None or row_bits is not None:
        raise CollectiveError(f"{path} is a model file and has widths of its own; leave --bits and --row-bits out, or "
                              "name the run folder")
    score = "micro_f1" if model.is_multi_label else "accuracy"
    remarks = [*_remarks(str(path), other_graph_line(str(path), made_on, info), cut, answered),
               *strange_classes(info, classes_of_model(model))]
    return OpenedModel(model, Path(path).stat().st_size, score, {}, remarks)


def _remarks(source: str, of_graph: str | None, cut: ClusterCut | None, answered: ClusterCut | None) -> list[str]:
    of_arcs = None if cut is None else cut.remark(source, answered)
    return [sentence for sentence in (of_graph, of_arcs) if sentence is not None]


@torch.no_grad()
def _float_seconds(session: Session, repeat: int) -> float:
    """Collective: return the median over passes of the slowest rank's seconds in floats, with random weights."""
    floats, seconds = replace(session, config=replace(session.config, quantize="none")), []
    model = floats.new_model(session.config.seed).eval()
    for _ in range(repeat):
        session.comm.Barrier()
        started = time.perf_counter()
        session.graph.begin_forward(seed=0, epoch=0, is_training=False)
        model(session.graph, session.graph.x)
        seconds.append(session.comm.allreduce(time.perf_counter() - started, MPI.MAX))
    return statistics.median(seconds)
