"""TrainedRun: the best model of a run folder, opened on a graph for which it predicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpi4py import MPI
from torch import nn

from hpcgnn.config import TrainConfig, check_keys
from hpcgnn.errors import CheckpointError, ConfigError
from hpcgnn.partition.partition import Partition
from hpcgnn.run.launch import together
from hpcgnn.shards.reader import check_num_parts
from hpcgnn.shards.schema import Fingerprint, GraphInfo, check_fingerprint
from hpcgnn.training.batch_graph import NAMES, ClusterCut
from hpcgnn.training.checkpoint import Checkpoint, check_shapes, read_checkpoint
from hpcgnn.training.evaluate import Evaluation, check_reads, classes_of, evaluate, strange_classes
from hpcgnn.training.recipe import Recipe
from hpcgnn.training.run_folder import RunFolder
from hpcgnn.training.session import NOTHING, Session
from hpcgnn.training.tables import with_own_rows

PERMISSION = "name that graph's shards, or pass --other-graph if it is meant to predict for another one"
# Settings from which a model is built and scored; the settings of the training do not affect predictions.
KEPT = ("model", "layers", "hidden", "heads", "norm", "dropout", "score", "seed", "task", "ask", "candidates",
        "decoder", "quantize", "quantize_bits", "target_kb", "size_weight", "quantize_gradient", "protect", *NAMES)

ConfigOf = Callable[[dict[str, Any], Path, str], TrainConfig]


@dataclass(frozen=True)
class BestModel:
    """A run folder's weights of the best validation score, which fit the shards; no part is read yet."""

    folder: Path
    shards: Path
    info: GraphInfo
    checkpoint: Checkpoint      # `best_model` has the weights
    config: TrainConfig      # for predictions

    @classmethod
    def find(cls, comm: MPI.Comm, folder: Path, shards: Path, info: GraphInfo, config_of: ConfigOf,
             other_graph: bool = False, device: str = "cpu") -> BestModel:
        """Collective: read the checkpoint.

        `config_of` turns the settings of the run, its folder and `device` into the settings for predictions.

        Raises CollectiveError: no checkpoint, or a damaged one, or one of another graph; settings that `config_of`
        refuses; shards that are cut for another number of ranks.
        """
        checkpoint = together(comm, lambda: read_best(folder))
        together(comm, lambda: check_num_parts(info, comm.size))
        source = f"the model of {folder}"
        together(comm, lambda: check_dataset(source, checkpoint.dataset, info, other_graph))
        together(comm, lambda: check_fingerprint(source, checkpoint.fingerprint, info, other_graph))
        return cls(folder, shards, info, checkpoint,
                   together(comm, lambda: config_of(checkpoint.settings, folder, device)))

    def open(self, comm: MPI.Comm, recipe: Recipe = NOTHING, part: Partition | None = None) -> TrainedRun:
        """Collective: the model on this rank's part, in float32 rows; None reads the part.

        Classes are the training's, by name; the graph may have other classes, or no labels. Raises CollectiveError:
        shards that are damaged.
        """
        info, checkpoint = self.info, self.checkpoint
        session = Session.open(comm, self.shards, self.config, info, recipe, self.classes, part, precision="fp32")
        model = session.new_model(self.config.seed)
        together(comm, lambda: check_reads(model, info, self.classes))
        checkpoint = together(comm, lambda: with_own_rows(checkpoint, model))
        check_shapes(replace(checkpoint, model=checkpoint.best_model), model.state_dict())
        model.load_state_dict(checkpoint.best_model)
        remark = other_graph_line(f"the model of {self.folder}", checkpoint.fingerprint, info)
        if remark is not None and checkpoint.answers_with is not None:
            remark = "\n".join((remark, *strange_classes(info, checkpoint.answers_with)))
        return TrainedRun(session, model.eval(), remark, ClusterCut.of(checkpoint.settings))

    @property
    def classes(self) -> dict[str, Any]:
        return self.checkpoint.answers_with or classes_of(self.info)


@dataclass(frozen=True)
class TrainedRun:
    """A run folder's model with the best validation score, and its graph."""

    session: Session
    model: nn.Module      # in evaluation mode
    remark: str | None = None      # a sentence, if the model was trained on another graph
    cut: ClusterCut | None = None      # the cut that the model was trained in; None is the whole graph

    @property
    def is_quantized(self) -> bool:
        """Whether the model was trained as integers, with its own widths."""
        return self.session.config.quantize != "none"

    def evaluate(self) -> Evaluation:
        """Collective: scores of the model as it was trained."""
        session = self.session
        return evaluate(session.comm, self.model, session.graph, session.objective, session.score)


def read_best(folder: Path) -> Checkpoint:
    """Read a run folder's checkpoint; `best_model` has the best validation score. CheckpointError if none is whole."""
    checkpoint = RunFolder(folder).checkpoint
    if not checkpoint.exists():
        raise CheckpointError(f"{folder} has no {checkpoint.name}, so there is no trained model; name a run folder of "
                              "hpcgnn train, or a file of hpcgnn quantize")
    return read_checkpoint(checkpoint)


def answering_config(settings: dict[str, Any], folder: Path, names: Iterable[str], **others: Any) -> TrainConfig:
    """Settings for predictions: all rows, `names` of a run's, and `others`.

    Raises CheckpointError if this version can't take them.
    """
    try:
        check_keys(settings, str(folder))
        kept = {name: settings[name] for name in names if name in settings}
        return TrainConfig(**{**kept, "epoch_rows": "all", **others})
    except ConfigError as error:
        raise CheckpointError(f"{folder} holds a run with settings that this version can't take: {error}") from error


def check_dataset(source: str, dataset: str, info: GraphInfo, other_graph: bool) -> None:
    """Check that a model was trained on a graph of this name; raises CheckpointError unless `other_graph`."""
    if dataset != info.name and not other_graph:
        raise CheckpointError(f"{source} was made on {dataset}, these shards hold {info.name}; {PERMISSION}")


def other_graph_line(source: str, made_on: Fingerprint, info: GraphInfo) -> str | None:
    """A sentence on what differs from the training graph, and that scores may count trained nodes; None if equal."""
    found = made_on.differences(info.fingerprint)
    if not found:
        return None
    return (f"{source} was made on other data than these shards hold, in {', '.join(found)}; scores may count nodes "
            "that it was trained on")
