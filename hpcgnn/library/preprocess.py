"""preprocess: from a graph in memory to a folder of shards, from Python.

`Ranks` is the crew of several ranks that make shards together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.options import Progress, ProgressTask, silent
from hpcgnn.errors import HpcgnnError
from hpcgnn.library.options import Options, PreprocessOptions, preprocess_graph
from hpcgnn.run.launch import MPI, join, together
from hpcgnn.run.notebook import CellLine
from hpcgnn.run.output import is_notebook, tell
from hpcgnn.shards.folder import ALONE, Crew
from hpcgnn.shards.schema import GraphInfo

if TYPE_CHECKING:
    from typing_extensions import Unpack

Result = TypeVar("Result")
POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Ranks(Crew):
    """All ranks of a communicator."""

    comm: MPI.Comm

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def size(self) -> int:
        return self.comm.size

    def together(self, step: Callable[[], Result]) -> Result:
        def waiting() -> Result:
            try:
                result = step()
            except HpcgnnError:
                self._wait()
                raise
            self._wait()
            return result

        return together(self.comm, waiting)

    def _wait(self) -> None:
        # Other ranks may work for minutes, and a rank that waits in MPI would occupy one of their cores.
        request = self.comm.Ibarrier()
        while not request.Test():
            time.sleep(POLL_SECONDS)

    def share(self, value: Any) -> Any:
        return self.comm.bcast(value)

    def gather(self, value: Any) -> list:
        return self.comm.allgather(value)


class CellTask(ProgressTask):
    """A step that is shown below a notebook's cell."""

    def __init__(self, line: CellLine, description: str, total: float | None) -> None:
        self._line, self._description, self._total, self._done = line, description, total, 0.0
        line.show(description, 0.0, is_urgent=True)

    def advance(self, amount: float) -> None:
        self._done += amount
        if self._total:
            share = min(1.0, self._done / self._total)
            self._line.show(self._description, share, is_urgent=share == 1)


def preprocess(data: Any, parts: int = 1, out: str | Path | None = None, *, comm: MPI.Comm | None = None,
               progress: Progress = silent, **options: Unpack[Options]) -> GraphInfo:
    """Collective: clean a graph, cut it into parts and write them as shards, which `hpcgnn.open` opens.

    Under several ranks, rank 0 reads, cleans and cuts the graph, and all ranks write its parts, in a folder that they
    all see. An edge u -> v carries messages from u to v.

    Parameters
    ----------
    data : PyG Data or HeteroData, DGL or NetworkX graph, SciPy sparse matrix, table of edges, (2, E) or (E, 2) array,
        a dict of tables by types of nodes and kinds of edges (docs/typed.md), or str
        Edges of an undirected NetworkX graph hold both ways. A text is a source of the command, such as
        "npz:FILE"
    parts : int                  one for each rank of the training
    out : path                   folder of the shards
    features, labels, splits : array with one row per node, or the name of a column or attribute, or a list of names
        None takes data with a usual name, such as x, y, label, train_mask, and False leaves it out;
        features="structural" makes features from the graph alone. Splits may also be three masks, three lists of node
        ids, or the number of one of several splits, the columns of masks of shape (num_nodes, num_splits)
    edge_weight : array, or name of a column or attribute of edges; False leaves weights out
        Weights are positive. Weights of duplicate edges are added
    relation : array, or name of a column or attribute of edges; False leaves relations out
        One per edge, a whole number from 0 or a text. Edges of two relations between the same nodes are two edges
    edge_attr : array with a row per edge, or name of a column or attribute of edges, or list of names; False leaves
        attributes out
        Edges of one relation between the same nodes are duplicates if their attributes are equal, else parallel edges
    edge_time : array, or name of a column or attribute of edges      numbers, dates or times: hold_out takes the last
        links instead of random ones
    node_ids : array with the id of each row of features and labels, or the name of that column
        Texts or integers; predictions come back under them
    nodes : table of nodes       with a table of edges; one row per node
    source, target : str or int  columns of a table of edges, by name or place
    rows : {"sources", "destinations"}      whether A[u, v] of a matrix is the edge u -> v or v -> u
    ignore : label or column, or list of them      labels that mean "unknown", columns that are not features; with
        "none" each label is a class, also -1
    name : str                   name of the dataset
    task : {"auto", "classes", "multi-label", "regression"}     what labels are; auto takes texts and whole numbers for
        classes, and numbers with a fraction for targets of a regression
    symmetrize : bool            add the reverse of every edge that lacks it; if edges have relations, and not all hold
        both ways, every edge gets a reverse of a relation of its own, called "NAME reverse"
    seed : int                   seed of the partitioner, of random splits, and of a synthetic graph that names none
    partitioner : name of a partitioner, or array or file with the part of each node; owner is the same as an array or a
        file. A file has one line per node: its part, in the order of nodes, or id,part
    balance : str                quantity that all parts share equally: "nodes", "edges", "both", "training:LAYERS" or
        "run:FOLDER"; by default both, or nodes if the partitioner takes no weights
    reorder : {"nested", "none", "metis", "degree", "rcm", "condense-edge"}      order of rows inside a part
    cluster_rows : int           nodes of a cluster for training in steps; 0 stores no clusters; by default 106, or 0 if
        the partitioner is ldg, random or contiguous
    feature_format : {"float32", "float16", "package"}      how features are stored
    feature_bits : int           1 to 8, the widest row of features that are stored as packages
    non_finite : {"error", "zero"}       what to do with NaN and infinite features
    normalize_features : {"auto", "none", "row", "standard"}      scale rows to unit sum, or standardize columns on
        training nodes; auto is what is usual for a public dataset, and none for other data
    split : (float, float)       shares of the labeled nodes for training and validation if the source has no split;
        the rest is test
    hold_out : (float, float)    shares of the links to take out of the graph for validation and for test, drawn at
        random, or the last by edge_time, for a model that predicts links; where every edge holds both ways, both go
    hold_out_relation : str      take only links of this relation, such as "user__rates__item"
    val_links, test_links : (2, n) or (n, 2) array of ids, or a file with two columns
        held-out links that are given; if edges have relations, (n, 3) or three columns: source, relation, target
    make_labels : int            classes made from in-degrees, for a graph without labels
    root : path                  folder of the datasets of OGB and PyTorch Geometric
    overwrite : bool             replace the shards that the folder holds
    comm : MPI communicator      by default all ranks
    progress : callable(description, total) -> object with advance(amount); by default nothing is shown, and in a
        notebook the running step

    Returns
    -------
    info : GraphInfo             what the shards hold

    Raises
    ------
    DatasetError                 a graph that is malformed or lacks labels
    ConfigError                  an impossible option, or no folder to write to
    ShardError                   the folder holds shards and overwrite is off, or can't be written
    CollectiveError              one of these errors under several ranks; raised on all of them
    TypeError                    an option that does not exist

    Examples
    --------
    >>> info = hpcgnn.preprocess(data, parts=4, out="shards/mine-p4")
    >>> info = hpcgnn.preprocess(edges, nodes=nodes, labels="topic", parts=4, out="shards/mine-p4")
    """
    unknown = next((name for name in options if name not in Options.__annotations__), None)
    if unknown is not None:
        near = get_close_matches(unknown, Options.__annotations__, 1)
        raise TypeError(f"preprocess() got an unexpected keyword argument {unknown!r}"
                        + (f"; did you mean {near[0]!r}?" if near else ""))
    comm = join(comm)
    crew = ALONE if comm.size == 1 else Ranks(comm)
    line = CellLine() if progress is silent and is_notebook() else None
    progress = partial(CellTask, line) if line else progress
    chosen = crew.together(lambda: PreprocessOptions(parts=parts, progress=progress, **options).with_measured_run())
    info = preprocess_graph(data, out, chosen, crew, _tell, "partitioner=\"ldg\"")
    if line:
        line.show(f"written to {out}", 1.0, is_urgent=True)
    return info


def _tell(source: str, dataset: GraphDataset) -> None:
    for topic in ("unused", "dubious"):      # what a program's author should see before training
        for text in dataset.cleaning.read.of(topic):
            tell(f"hpcgnn: {topic} in {dataset.name}: {text}")
