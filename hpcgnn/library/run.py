"""Run: a finished training as a program gets it; and open_run, which opens a run folder's best model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hpcgnn.errors import ConfigError, TrainingError
from hpcgnn.library.graph import Graph
from hpcgnn.library.graph import open as open_graph
from hpcgnn.library.run_files import FinishedRun, RunFiles
from hpcgnn.results.answers import Answers, answer
from hpcgnn.results.float_run import FloatRun, read_names
from hpcgnn.run.launch import check_present, together
from hpcgnn.training.evaluate import Evaluation, evaluate
from hpcgnn.training.run_folder import RunFolder
from hpcgnn.training.session import Session
from hpcgnn.training.tables import Tables

if TYPE_CHECKING:
    from hpcgnn.training.job import Finished


_TURN = threading.RLock()


@contextmanager
def plain_torch(num_ranks: int = 1) -> Iterator[None]:
    """Within the block, compute with gradients, in float32 and on the host; torch's generators are restored after it.

    Generators and defaults belong to the process, so its threads take turns. ConfigError if a thread would have to wait
    on several ranks, whose threads might take turns in different orders.

    The caller may be inside `torch.no_grad`, `torch.inference_mode` or `torch.autocast`, or have another default dtype
    or device, and its own random draws go on: a training seeds torch, so without this a search would draw the same
    after each training.
    """
    if not _TURN.acquire(blocking=num_ranks == 1):
        raise ConfigError("another thread of this process trains or predicts, and on several ranks threads might take "
                          "turns in different orders; call hpcgnn from one thread, or train on one rank")
    dtype = torch.get_default_dtype()
    try:
        # A context of a device passes every operation through Python, so it is entered only if it changes something.
        on_host = nullcontext() if torch.empty(0).device.type == "cpu" else torch.device("cpu")
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
        with (
            torch.random.fork_rng(devices),
            torch.inference_mode(False),
            torch.enable_grad(),
            on_host,
            _outside_autocast(),
        ):
            torch.set_default_dtype(torch.float32)
            yield
    finally:
        torch.set_default_dtype(dtype)
        _TURN.release()


@contextmanager
def _outside_autocast() -> Iterator[None]:
    # Autocast keeps cast weights until its outermost block ends. Inside one block for a whole training, even a disabled
    # one, a model's own blocks would go on with the weights of the first pass, and without gradients.
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        depth = torch.autocast_increment_nesting()
        for _ in range(depth):
            torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        try:
            yield
        finally:
            for _ in range(depth - 1):
                torch.autocast_increment_nesting()


class OpenedRun(RunFiles, FloatRun):
    """The best model of a run folder, as `open_run` returns it, and the run's files."""

    answer = plain_torch()(FloatRun.answer)

    @property
    def _writes(self) -> bool:
        return self.session.comm.rank == 0


def open_run(path: str | Path, graph: Graph | str | Path, model: nn.Module | Callable[[], nn.Module] | None = None,
             other_graph: bool = False) -> OpenedRun:
    """Collective: open the best model of a run folder, on the ranks that hold a graph.

    Parameters
    ----------
    path : path                                           the run folder
    graph : Graph, or path                                from `hpcgnn.open`, or a folder of shards
    model : nn.Module, a function that makes one, None    as it was given to `hpcgnn.fit`; a model chosen by name is
                                                          made from the run's settings
    other_graph : bool                                    predict for a graph that the run was not trained on

    Raises
    ------
    CollectiveError      a checkpoint that is missing, damaged or of another graph or model; the same error on all ranks

    Examples
    --------
    >>> answers = hpcgnn.open_run("runs/mine", "shards/cora-p1").predict()
    >>> answers.prediction, answers.probability, answers.name
    """
    graph = graph if isinstance(graph, Graph) else open_graph(graph)
    graph.check_ranks()
    check_present(graph.comm, "hpcgnn.open_run")
    return OpenedRun.open(graph.comm, Path(path), graph.shards, graph.info, other_graph, model)


@dataclass(frozen=True, repr=False)
class Run(FinishedRun):
    """A finished run: its scores on all ranks, its model with the best weights, and its files.

    Attributes
    ----------
    model : nn.Module           the model with the best weights: `forward(graph, x)` on a LocalGraph. It is the given
                                module, or wraps it, if that is a PyTorch Geometric model
    summary : dict              content of summary.json
    path : Path                 the run folder
    session : Session           this rank's part of the graph, and its exchange
    """

    graph: Graph
    model: nn.Module
    summary: dict[str, Any]
    path: Path
    session: Session

    @classmethod
    def finished(cls, graph: Graph, finished: Finished) -> Run:
        """Collective: the run of a training that has just ended."""
        trained = finished.run
        summary = graph.comm.bcast(finished.summary if graph.comm.rank == 0 else None)
        return cls(graph, trained.learner.take_best(), summary, trained.folder.path.absolute(), trained.session)

    @property
    def _writes(self) -> bool:
        return self.graph.comm.rank == 0

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The record of each epoch, read from the run folder."""
        return RunFolder(self.path).read_metrics()

    @plain_torch()
    def evaluate(self) -> Evaluation:
        """Collective: score the model on the whole graph."""
        session = self.session
        check_present(session.comm, "run.evaluate")
        return evaluate(session.comm, self.model, session.graph, session.objective, session.score)

    @plain_torch()
    def predict(self, gather: bool = True, embeddings: bool = False) -> Answers | None:
        """Collective: predict for every node, in one pass with exact messages and without dropout.

        Parameters
        ----------
        gather : bool          rank 0 gets the predictions for all nodes, in the order of the source, others None;
                               without it, each rank gets the predictions for its own nodes
        embeddings : bool      include the rows that the last layer reads

        Raises
        ------
        CollectiveError        an output is not finite; embeddings of a model if its last layer can't be found

        Examples
        --------
        >>> answers = run.predict()
        >>> dict(zip(answers.name, answers.prediction))      # on rank 0
        """
        comm, session = self.graph.comm, self.session
        check_present(comm, "run.predict")
        part = together(comm, lambda: read_names(self.graph.shards, comm.rank, comm.size, session.info))
        answers = answer(comm, self.model, session.graph, part, session.info, embeddings, session.reading)
        return answers.gather(comm) if gather else answers

    def save(self, path: str | Path) -> None:
        """Collective: rank 0 writes the weights by name, as `torch.save` does, with a PyTorch Geometric model's own
        names.

        Raises
        ------
        CollectiveError      the file can't be written
        """
        check_present(self.graph.comm, "run.save")
        tables = Tables(self.graph.comm, self.model)
        # A distributed model's weights are saved under the plain model's names.
        weights = tables.whole({"model": self.model.state_dict()}, Path(path).parent)["model"]
        together(self.graph.comm, lambda: _save(weights, Path(path)) if self.graph.comm.rank == 0 else None)


def _save(weights: dict[str, torch.Tensor], path: Path) -> None:
    try:
        torch.save({name: tensor.cpu().contiguous() for name, tensor in weights.items()}, path)
    except (OSError, RuntimeError) as error:      # torch's writer raises the latter
        raise TrainingError(f"{path} can't be written: {error}") from error
