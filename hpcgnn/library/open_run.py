"""open_run: a run folder's best model from Python, for the answers that `hpcgnn predict` writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import nn

from hpcgnn.launch import check_present
from hpcgnn.library.graph import Graph
from hpcgnn.library.graph import open as open_graph
from hpcgnn.results.float_run import FloatRun


def open_run(path: str | Path, graph: Graph | str | Path, model: nn.Module | Callable[[], nn.Module] | None = None,
             other_graph: bool = False) -> FloatRun:
    """Collective: open the best model of a run folder, on the ranks that hold a graph.

    Parameters
    ----------
    path : path                                           of a run folder
    graph : Graph, or path                                of `hpcgnn.open`, or the folder of shards that it takes
    model : nn.Module, a function that makes one, None    as it was given to `hpcgnn.fit`; a model that was chosen by
                                                          its name is made from the run's settings
    other_graph : bool                                    answer for a graph that the run was not trained on

    Raises
    ------
    CollectiveError      no checkpoint, a damaged one, or one of another graph or model; the same on all ranks

    Examples
    --------
    >>> answers = hpcgnn.open_run("runs/mine", "shards/cora-p1").predict()
    >>> answers.prediction, answers.probability, answers.name
    """
    graph = graph if isinstance(graph, Graph) else open_graph(graph)
    check_present(graph.comm, "hpcgnn.open_run")
    return FloatRun.open(graph.comm, Path(path), graph.shards, graph.info, other_graph, model)
