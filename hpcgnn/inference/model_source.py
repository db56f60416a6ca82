"""This module opens an integer model for some shards, from a file or from the best checkpoint of a run folder.

Nothing is trained here, and nothing in the run folder is changed.
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
from hpcgnn.inference.batches.cluster_cut import NAMES, ClusterCut
from hpcgnn.inference.graph_check import check_dataset, check_graph, other_graph_line
from hpcgnn.inference.model_file import payload_bytes, read_model, read_trained_cut
from hpcgnn.launch import together
from hpcgnn.nn.quantized.models import QuantizedStack, calibrate
from hpcgnn.quantized.integer_model import IntegerModel
from hpcgnn.shards.reader import check_num_parts
from hpcgnn.shards.schema import GraphInfo, check_fingerprint
from hpcgnn.training.answering import classes_of, classes_of_model, strange_classes
from hpcgnn.training.checkpoint import Checkpoint, check_shapes, read_checkpoint
from hpcgnn.training.evaluate import Evaluation, evaluate
from hpcgnn.training.metrics import RunFolder
from hpcgnn.training.recipe import Recipe
from hpcgnn.training.session import Session, check_task
from hpcgnn.training.tables import with_own_rows

# What a model is built and scored from; how it was trained has no say in its answers.
KEPT = ("model", "layers", "hidden", "heads", "norm", "dropout", "score", "seed", "quantize", "quantize_bits",
        "target_kb", "size_weight", "quantize_gradient", "protect", *NAMES)

ConfigOf = Callable[[dict[str, Any], Path], TrainConfig]


@dataclass(frozen=True)
class TrainedRun:
    """A run folder's model, of the best validation score, and its graph: of the arcs that it was trained on, unless the
    settings that it is opened under say otherwise.

    Attributes
    ----------
    session : Session
    model : ConvolutionStack or QuantizedStack
    remark : str or None             a sentence where it was trained on another graph
    cut : ClusterCut or None         that it was trained in; None is the whole graph
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

        Parameters
        ----------
        config_of : callable(settings, folder) -> TrainConfig      under which the model is made, for another use than
                                                                   integers; its rows are float32 in any case
        recipe : Recipe or None                                    what a program brings, its model for one
        device : {"cpu", "cuda"}                                   where the model answers in floats
        names_classes : bool      classes are those of the training, by their names; the graph may have others, or no
                                  labels

        Raises
        ------
        CollectiveError      no checkpoint, or one that is damaged, of a model that can't become integers, or of another
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
        """Tell whether it was trained as integers, and has widths of its own."""
        return isinstance(self.model, QuantizedStack)

    def evaluate(self) -> Evaluation:
        """Collective: return scores of the model as it was trained."""
        session = self.session
        return evaluate(session.comm, self.model, session.graph, session.objective, session.score)

    def integer_model(self, bits: int | None, row_bits: int | None) -> IntegerModel:
        """Collective: make integers of the model: calibrate a float one on this graph, export one trained as integers.

        Parameters
        ----------
        bits : int, 2 to 8, or None          of weights and mapped rows; None is 8, or what was trained
        row_bits : int, 2 to 8, or None      of rows; None is `bits`

        Raises
        ------
        CollectiveError      widths for a model that has its own; input rows that are not finite
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
    """Return settings under which a run's model answers: float32 rows, all of them, messages as they are stored.

    Raises
    ------
    CheckpointError      the model can't become integers
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
    """Return `integer_config` with all arcs, whatever clusters the run was trained in; errors as there."""
    return replace(integer_config(settings, folder), clusters=0, batch_size=CLUSTERS_A_BATCH, between_clusters=False)


def read_best(folder: Path) -> Checkpoint:
    """Read the checkpoint of a run folder, whose `best_model` holds the weights of the best validation score.

    Raises
    ------
    CheckpointError      there is none, or it is damaged
    """
    checkpoint = RunFolder(folder).checkpoint
    if not checkpoint.exists():
        raise CheckpointError(f"{folder} has no {checkpoint.name}, so there is no trained model; name a run folder of "
                              "hpcgnn train, or a file of hpcgnn quantize")
    return read_checkpoint(checkpoint)


@dataclass(frozen=True)
class OpenedModel:
    """A model that fits the shards.

    Attributes
    ----------
    model : IntegerModel
    num_bytes : int                  of its file, or of its numbers where it has none
    score : str                      that it is judged by
    float_seconds : dict             of a run folder: of a pass of a float model of its shape, by the type of its rows,
                                     "float32" and "bfloat16"; empty for a file
    remarks : list of str            sentences where the model was made on another graph, or trained on other arcs
    """

    model: IntegerModel
    num_bytes: int
    score: str
    float_seconds: dict[str, float]
    remarks: list[str]


def open_model(comm: MPI.Comm, path: Path, shards: Path, info: GraphInfo, bits: int | None, row_bits: int | None,
               other_graph: bool, repeat: int, device: str = "cpu", answered: ClusterCut | None = None) -> OpenedModel:
    """Collective: read a model file, or quantize the model of a run folder and time it in floats.

    Parameters
    ----------
    bits, row_bits : see `TrainedRun.integer_model`
    repeat : int                     passes in floats to time
    device : {"cpu", "cuda"}         where they run
    answered : ClusterCut or None    in which the model is to answer; from the whole graph, None, it is calibrated and
                                     timed there too, whatever clusters it was trained in

    Raises
    ------
    CollectiveError      what is there is no model, or one of another graph; widths for a model that has its own
    """
    together(comm, lambda: check_task(info.name, info.task))
    if Path(path).is_dir():
        config_of = whole_graph_config if answered is None else integer_config
        run = TrainedRun.open(comm, path, shards, info, other_graph, config_of, device=device, names_classes=True)
        model, config, score = run.integer_model(bits, row_bits), run.session.config, run.session.score.name
        remarks = _remarks(f"the model of {path}", run.remark, run.cut, answered)
        seconds = {"float32": _float_seconds(run.session, repeat)}
        classes = classes_of(run.session.info)
        del run      # the rows of one precision are in memory at a time
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
    """Return what users must know of the graph that a model was trained on, and of its arcs."""
    of_arcs = None if cut is None else cut.remark(source, answered)
    return [sentence for sentence in (of_graph, of_arcs) if sentence is not None]


@torch.no_grad()
def _float_seconds(session: Session, repeat: int) -> float:
    """Collective: return seconds of a pass in floats, the median of so many of the slowest rank. The model has the
    shape that the session's settings say, and drawn weights: seconds do not depend on them.
    """
    floats, seconds = replace(session, config=replace(session.config, quantize="none")), []
    model = floats.new_model(session.config.seed).eval()
    for _ in range(repeat):
        session.comm.Barrier()
        started = time.perf_counter()
        session.graph.begin_forward(seed=0, epoch=0, is_training=False)
        model(session.graph, session.graph.x)
        seconds.append(session.comm.allreduce(time.perf_counter() - started, MPI.MAX))
    return statistics.median(seconds)
