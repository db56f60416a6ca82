"""FloatRun: a run folder's best model, opened to predict in floats."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

from hpcgnn.config import MODEL, OWN, TrainConfig
from hpcgnn.errors import CheckpointError, CollectiveError, ConfigError
from hpcgnn.partition.partition import Partition
from hpcgnn.results.answers import Answers, answer
from hpcgnn.run.launch import together
from hpcgnn.shards.reader import read_partition
from hpcgnn.shards.schema import GraphInfo
from hpcgnn.training.checkpoint import Checkpoint
from hpcgnn.training.evaluate import evaluate
from hpcgnn.training.objective import SPLITS
from hpcgnn.training.recipe import Recipe
from hpcgnn.training.session import Session
from hpcgnn.training.trained_run import KEPT, BestModel, TrainedRun, answering_config

if TYPE_CHECKING:
    from typing_extensions import Self

SCORE_TOLERANCE = 0.01     # by which the score of a run in 16 bits may differ in 32 bits


@dataclass(frozen=True, repr=False)
class FloatRun:
    """A run folder's best model, and the graph that it predicts for in float32 rows.

    After training with --quantize, rows and weights are rounded as in training, in floats.

    Attributes
    ----------
    model : nn.Module            `forward(graph, x)` on a LocalGraph, with the best weights
    part : Partition             this rank's part, without features
    remarks : list of str        sentences for the user
    path : Path                  the run folder
    """

    session: Session
    model: nn.Module
    part: Partition
    remarks: list[str]
    path: Path

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path}: {self.session.config.model}, opened for {self.session.info.name})"

    @classmethod
    def open(cls, comm: MPI.Comm, folder: Path, shards: Path, info: GraphInfo, other_graph: bool = False,
             model: nn.Module | Callable[[], nn.Module] | None = None) -> Self:
        """Collective: read the best weights of a run folder and this rank's shard.

        Parameters
        ----------
        model : nn.Module, a function that makes one, or None      as it was given to `hpcgnn.fit`; None makes it from
                                                                   the run's settings

        Raises
        ------
        CollectiveError      no checkpoint, a damaged one, one without an evaluation, or one of another graph; a model
                             that can't be made; shards that are damaged or cut for another number of ranks
        """
        best = BestModel.find(comm, folder, shards, info, float_config, other_graph)
        settings = best.checkpoint.settings
        together(comm, lambda: check_evaluated(folder, best.checkpoint))
        try:
            trained = best.open(comm, Recipe(model=_copy_of(model) if isinstance(model, nn.Module) else model))
        except CollectiveError as error:
            if model is None and ":" in settings["model"]:
                raise CollectiveError(f"{error}; where {settings['model']} was given to hpcgnn.fit, give it again, to "
                                      "hpcgnn.open_run(.., model=..)") from error
            raise
        run = cls(trained.session, trained.model, trained.session.part, remarks_of(trained, folder, settings),
                  folder)
        if ":" in settings["model"] and trained.remark is None:
            run._check_scores(best, "made from its settings" if model is None else "as it is given")
        return run

    def _check_scores(self, best: BestModel, made: str) -> None:
        """Collective: CollectiveError if a user's own model scores unlike in training."""
        session, settings, recorded = self.session, best.checkpoint.settings, best.checkpoint.progress.best
        if settings["score"] == OWN:
            return
        # Without the loss, which may be the user's own, of other columns than the built-in one reads.
        objective = replace(session.objective, loss=lambda outputs, labels: torch.zeros(()))
        found = evaluate(session.comm, self.model, session.graph, objective, session.score)
        for split in SPLITS:
            before, now = (getattr(one, f"{split}_score") for one in (recorded, found))
            if abs(before - now) > SCORE_TOLERANCE * max(1.0, abs(before)):      # never true for a split without nodes
                raise CollectiveError(
                    f"{best.folder} had a {split} score of {session.score.show(before)}, and {settings['model']}, "
                    f"{made}, has {session.score.show(now)}: the model that was given to hpcgnn.fit was "
                    "another; give it again, to hpcgnn.open_run(.., model=..)")

    def answer(self, embeddings: bool = False) -> Answers:
        """Collective: predictions for this rank's nodes, in one pass without dropout.

        Parameters
        ----------
        embeddings : bool        whether to keep the rows that the last layer reads, too

        Raises
        ------
        CollectiveError          an output is not finite, or the model has no embeddings
        """
        session = self.session
        return answer(session.comm, self.model, session.graph, self.part, session.info, embeddings, session.reading)

    def predict(self, gather: bool = True, embeddings: bool = False) -> Answers | None:
        """Collective: predictions for all nodes.

        Parameters
        ----------
        gather : bool            True: all of them on rank 0, in the order of the source, and None on the other ranks;
                                 False: on each rank the predictions for its own nodes
        embeddings : bool        as in `answer`, which raises the same errors
        """
        answers = self.answer(embeddings)
        return answers.gather(self.session.comm) if gather else answers

    def scores(self, answers: Answers) -> dict[str, float]:
        """Collective: score of each split by its name (train, val, test), from this rank's predictions.

        A split without nodes scores nan.
        """
        session, logits = self.session, torch.from_numpy(answers.logits)
        objective = session.objective.of_model(self.model)
        return dict(zip(SPLITS, objective.scores(session.comm, logits, session.score), strict=True))


def _copy_of(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except (RuntimeError, TypeError) as error:      # it keeps tensors of a pass, or else can't be copied
        raise ConfigError(f"the {type(model).__name__} can't be copied ({error}); give a function that makes it, "
                          "such as lambda: GraphSAGE(..)") from error


def read_names(shards: Path, rank: int, num_ranks: int, info: GraphInfo) -> Partition:
    """This rank's part without its features, for the names of its nodes; raises as `read_partition`."""
    part = read_partition(shards, rank, num_ranks, info, expands_packages=False)
    return replace(part, features=np.empty((part.num_inner, 0), np.float32))


def remarks_of(trained: TrainedRun, folder: Path, settings: dict[str, Any]) -> list[str]:
    """Sentences for the user about predictions in floats."""
    remarks = [] if trained.remark is None else [trained.remark]
    if trained.is_quantized:
        remarks.append(f"{folder} was trained with --quantize {settings['quantize']}, and its predictions are rounded "
                       "as in training; hpcgnn infer computes with its integers")
    if trained.cut is not None:
        remarks.append(f"{folder} was trained in {trained.cut.clusters} clusters, and predicts from the same edges as "
                       f"hpcgnn infer {trained.cut.flags}")
    if settings.get("score") == OWN:
        remarks.append(f"{folder} was trained with its program's own score; scores here are "
                       f"{trained.session.score.name}")
    return remarks


def check_evaluated(folder: Path, checkpoint: Checkpoint) -> None:
    """Raise CheckpointError if a run has had no evaluation."""
    if checkpoint.progress.best is None:
        raise CheckpointError(f"{folder} has no evaluation yet with a score that is a number, so none of its weights "
                              "are its best; go on with --resume")


def float_config(settings: dict[str, Any], folder: Path, device: str = "cpu") -> TrainConfig:
    """Settings for predictions, whatever the method; CheckpointError if this version can't take them.

    The precision of the training is kept, since a gin in 16 bits averages its neighbors.
    """
    of_model = {own.name for own in fields(TrainConfig) if own.metadata.get("group") == MODEL}
    own_score = {"score": "auto"} if settings.get("score") == OWN else {}
    return answering_config(settings, folder, {*KEPT, *of_model, "precision"}, device=device, **own_score)
