"""A run folder's best model, opened to answer in floats: any model that training knows. Nothing is trained here."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.config import MODEL, TrainConfig, check_keys
from hpcgnn.errors import CheckpointError, ConfigError
from hpcgnn.inference.model_source import KEPT, TrainedRun, read_best
from hpcgnn.launch import together
from hpcgnn.partition.partition import Partition
from hpcgnn.results.answers import Answers, answer
from hpcgnn.shards.reader import read_partition
from hpcgnn.shards.schema import GraphInfo
from hpcgnn.training.objective import SPLITS
from hpcgnn.training.scores import SCORES


@dataclass(frozen=True)
class FloatRun:
    """A run folder's best model and the graph that it answers for, in float32 rows.

    A run that was trained with --quantize answers as it was trained: its rows and weights are rounded, as floats.

    Attributes
    ----------
    trained : TrainedRun
    part : Partition             of this rank, without features
    remarks : list of str        what the user must know
    """

    trained: TrainedRun
    part: Partition
    remarks: list[str]

    @classmethod
    def open(cls, comm: MPI.Comm, folder: Path, shards: Path, info: GraphInfo, other_graph: bool = False) -> FloatRun:
        """Collective: read the best weights of a run folder and this rank's shard.

        Raises
        ------
        CollectiveError      no checkpoint, a damaged one, one without an evaluation, or one of another graph; a model
                             that can't be made; shards that are damaged or cut for another number of ranks
        """
        together(comm, lambda: check_evaluated(folder))
        part = together(comm, lambda: read_partition(shards, comm.rank, comm.size, info, expands_packages=False))
        part = replace(part, features=np.empty((part.num_inner, 0), np.float32))
        trained = TrainedRun.open(comm, folder, shards, info, other_graph, float_config)
        scheme = trained.session.config.quantize
        rounded = (f"{folder} was trained with --quantize {scheme}, and its answers are rounded as in training; hpcgnn "
                   "infer gives those of its integers") if trained.is_quantized else None
        return cls(trained, part, [remark for remark in (trained.remark, rounded) if remark is not None])

    @property
    def score(self) -> str:
        """Return the name of the score that the run is judged by."""
        return self.trained.session.score

    def answer(self, embeddings: bool = False) -> Answers:
        """Collective: return the answers for this rank's nodes; see `hpcgnn.results.answers.answer`."""
        session = self.trained.session
        return answer(session.comm, self.trained.model, session.graph, self.part, session.info, embeddings)

    def scores(self, answers: Answers) -> dict[str, float]:
        """Collective: return the score of each split, nan for a split without nodes."""
        session, logits = self.trained.session, torch.from_numpy(answers.logits)
        objective = session.objective
        return {split: SCORES[self.score](session.comm, logits[objective.rows[split]],
                                          objective.labels[objective.rows[split]]) for split in SPLITS}


def check_evaluated(folder: Path) -> None:
    """Raise CheckpointError where a run folder has no checkpoint, or none with an evaluation."""
    if read_best(folder).progress.best is None:
        raise CheckpointError(f"{folder} was stopped before its first evaluation, so none of its weights are its best; "
                              "go on with --resume")


def float_config(settings: dict[str, Any], folder: Path) -> TrainConfig:
    """Return settings under which a run's model is made and answers: all rows, whatever its method of messages was.

    The precision is that of the training, since a gin in 16 bits averages its neighbors.

    Raises
    ------
    CheckpointError      settings that this version does not take
    """
    try:
        config = TrainConfig.of(**check_keys(settings, str(folder)))
    except ConfigError as error:
        raise CheckpointError(f"{folder} holds a run whose settings this version can't take: {error}") from error
    of_model = {own.name for own in fields(TrainConfig) if own.metadata.get("group") == MODEL}
    kept = {name: getattr(config, name) for name in {*KEPT, *of_model, "precision"}}
    return TrainConfig(**kept, epoch_rows="all")
