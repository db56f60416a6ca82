"""Run: what a finished training gives to a program."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hpcgnn.launch import together
from hpcgnn.library.graph import Graph
from hpcgnn.results.answers import Answers, answer
from hpcgnn.results.float_run import read_names
from hpcgnn.training.evaluate import Evaluation, evaluate
from hpcgnn.training.metrics import RunFolder
from hpcgnn.training.session import Session
from hpcgnn.training.tables import Tables

if TYPE_CHECKING:
    from hpcgnn.training.job import Finished


@dataclass(frozen=True)
class Run:
    """Hold a finished run: its scores on all ranks, its model with the best weights, and its files.

    Attributes
    ----------
    graph : Graph
    model : nn.Module           with the best weights, as it was trained: `forward(graph, x)` on a LocalGraph. It is the
                                module that was given, or holds it, where it is one of PyTorch Geometric's
    summary : dict              of summary.json
    path : Path                 the run folder
    session : Session           the graph's part of this rank, and its exchange
    """

    graph: Graph
    model: nn.Module
    summary: dict[str, Any]
    path: Path
    session: Session

    @classmethod
    def finished(cls, graph: Graph, finished: Finished) -> Run:
        """Collective: the run that a training has just finished."""
        trained = finished.run
        summary = graph.comm.bcast(finished.summary if graph.comm.rank == 0 else None)
        return cls(graph, trained.learner.take_best(), summary, trained.folder.path, trained.session)

    @property
    def test_score(self) -> float:
        """Return the test score at the epoch of the best validation score, the mean over the seeds."""
        return self.summary["test_score"]

    @property
    def val_score(self) -> float:
        """Return the best validation score, the mean over the seeds."""
        return self.summary["val_score"]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Return what was recorded of each epoch, read from the run folder."""
        return RunFolder(self.path).read_metrics()

    def evaluate(self) -> Evaluation:
        """Collective: score the model on the whole graph."""
        session = self.session
        return evaluate(session.comm, self.model, session.graph, session.objective, session.score)

    def predict(self, gather: bool = True, embeddings: bool = False) -> Answers | None:
        """Collective: answer for every node, by one pass with exact messages and no dropout.

        Parameters
        ----------
        gather : bool          rank 0 gets the answers for all nodes, in the order of the source, and the others None;
                               else each rank gets those of its own nodes
        embeddings : bool      the rows that the last layer reads come with them

        Raises
        ------
        CollectiveError        an answer is not finite; a model whose last layer can't be found, where embeddings are
                               asked for

        Examples
        --------
        >>> answers = run.predict()
        >>> dict(zip(answers.name, answers.prediction))      # on rank 0
        """
        comm, session = self.graph.comm, self.session
        part = together(comm, lambda: read_names(self.graph.shards, comm.rank, comm.size, session.info))
        answers = answer(comm, self.model, session.graph, part, session.info, embeddings, session.reading)
        return answers.gather(comm) if gather else answers

    def save(self, path: str | Path) -> None:
        """Collective: rank 0 writes the weights by name, as `torch.save` does; those of a PyTorch Geometric model have
        its own names.

        Raises
        ------
        CollectiveError      the file can't be written
        """
        tables = Tables(self.graph.comm, self.model)
        # A distributed model's weights are the plain model's.
        weights = tables.whole({"model": self.model.state_dict()}, Path(path).parent)["model"]
        together(self.graph.comm, lambda: _save(weights, Path(path)) if self.graph.comm.rank == 0 else None)


def _save(weights: dict[str, torch.Tensor], path: Path) -> None:
    from hpcgnn.errors import TrainingError

    try:
        torch.save({name: tensor.cpu().contiguous() for name, tensor in weights.items()}, path)
    except (OSError, RuntimeError) as error:      # torch's writer raises the latter
        raise TrainingError(f"{path} can't be written: {error}") from error
