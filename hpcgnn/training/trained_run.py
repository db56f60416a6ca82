"""TrainedRun: the best model of a run folder, opened on a graph that it is to answer for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpi4py import MPI
from torch import nn

from hpcgnn.config import TrainConfig
from hpcgnn.errors import CheckpointError
from hpcgnn.run.launch import together
from hpcgnn.shards.fingerprint import Fingerprint
from hpcgnn.shards.reader import check_num_parts
from hpcgnn.shards.schema import GraphInfo, check_fingerprint
from hpcgnn.training.batch_graph import NAMES, ClusterCut
from hpcgnn.training.checkpoint import Checkpoint, check_shapes, read_checkpoint
from hpcgnn.training.evaluate import Evaluation, classes_of, evaluate, strange_classes
from hpcgnn.training.recipe import Recipe
from hpcgnn.training.run_folder import RunFolder
from hpcgnn.training.session import Session
from hpcgnn.training.tables import with_own_rows

PERMISSION = "name that graph's shards, or pass --other-graph if it is meant to answer for another one"
# What a model is built and scored from; how it was trained has no say in its answers.
KEPT = ("model", "layers", "hidden", "heads", "norm", "dropout", "score", "seed", "quantize", "quantize_bits",
        "target_kb", "size_weight", "quantize_gradient", "protect", *NAMES)

ConfigOf = Callable[[dict[str, Any], Path], TrainConfig]


@dataclass(frozen=True)
class TrainedRun:
    """A run folder's model with the best validation score, and its graph."""

    session: Session
    model: nn.Module      # in evaluation mode
    remark: str | None = None      # a sentence, if it was trained on another graph
    cut: ClusterCut | None = None      # that it was trained in; None is the whole graph

    @classmethod
    def open(cls, comm: MPI.Comm, folder: Path, shards: Path, info: GraphInfo, config_of: ConfigOf,
             other_graph: bool = False, recipe: Recipe | None = None, device: str = "cpu",
             names_classes: bool = False) -> TrainedRun:
        """Collective: read the checkpoint and this rank's shard.

        `config_of` turns the settings of the run, and its folder, into the settings to answer with, with float32 rows.
        With `names_classes` classes are those of the training, by name; the graph may have others, or no labels.

        Raises CollectiveError: no checkpoint, or a damaged one, or one of another graph; settings that `config_of`
        refuses; shards that are damaged or cut for another number of ranks.
        """
        checkpoint = together(comm, lambda: read_best(folder))
        together(comm, lambda: check_num_parts(info, comm.size))
        source = f"the model of {folder}"
        together(comm, lambda: check_dataset(source, checkpoint.dataset, info, other_graph))
        together(comm, lambda: check_fingerprint(source, checkpoint.fingerprint, info, other_graph))
        config = together(comm, lambda: config_of(checkpoint.settings, folder))
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
