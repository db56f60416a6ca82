"""preprocess: from a graph in memory to a folder of shards, from Python.

`parse_balance` reads what parts are to have equal amounts of, as `--balance` takes it. `Ranks` is the crew of several
ranks that make shards together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.given import finish_dataset
from hpcgnn.data.objects import given_graph
from hpcgnn.data.options import ProgressTask, SourceOptions, silent
from hpcgnn.data.source import load_source
from hpcgnn.data.tables import Choices
from hpcgnn.errors import ConfigError, DatasetError, HpcgnnError
from hpcgnn.library.balance import parse_balance
from hpcgnn.partition.choices import (
    DEFAULT_PARTITIONER,
    DEFAULT_REORDER,
)
from hpcgnn.partition.owner import own_parts
from hpcgnn.run.launch import MPI, join, together
from hpcgnn.run.output import tell
from hpcgnn.shards.folder import ALONE, Crew, check_folder, nearest_folder
from hpcgnn.shards.making import Making, make_shards
from hpcgnn.shards.schema import GraphInfo

Result = TypeVar("Result")
POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Ranks:
    """All ranks of a communicator, as hpcgnn.shards.folder.Crew describes them."""

    comm: MPI.Comm

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def size(self) -> int:
        return self.comm.size

    def together(self, step: Callable[[], Result]) -> Result:
        """Collective: run a step on each rank; an error of any is raised on all, as launch.together does."""
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
        # Others may work for minutes, and a rank that waits in MPI would take a core from them.
        request = self.comm.Ibarrier()
        while not request.Test():
            time.sleep(POLL_SECONDS)

    def share(self, value: Any) -> Any:
        """Collective: return what rank 0 has."""
        return self.comm.bcast(value)

    def gather(self, value: Any) -> list:
        """Collective: return what all ranks have, by rank."""
        return self.comm.allgather(value)


STRUCTURAL = "structural"


def preprocess(data: Any, parts: int = 1, out: str | Path | None = None, *, features: Any = None, labels: Any = None,
               splits: Any = None, edge_weight: Any = None, node_ids: Any = None, nodes: Any = None,
               source: str | int | None = None, target: str | int | None = None, rows: str = "sources",
               ignore: Any = None, name: str | None = None, task: str = "auto", symmetrize: bool = False, seed: int = 0,
               partitioner: Any = DEFAULT_PARTITIONER, owner: Any = None, balance: str | None = None,
               reorder: str = DEFAULT_REORDER,
               feature_format: str = "float32", feature_bits: int = 8, cluster_rows: int = 0,
               non_finite: str = "error", normalize_features: str = "auto", split: tuple[float, float] = (0.6, 0.2),
               make_labels: int | None = None, root: str | Path | None = None, overwrite: bool = False,
               comm: MPI.Comm | None = None,
               progress: Callable[[str, float | None], ProgressTask] = silent) -> GraphInfo:
    """Collective: clean a graph, cut it into parts and write them as shards, which `hpcgnn.open` opens.

    Under several ranks the first one reads, cleans and cuts the graph, and all write its parts, in a folder that they
    all see. An arc u -> v carries messages from u to v.

    Parameters
    ----------
    data : PyG Data, DGL or NetworkX graph, SciPy sparse matrix, table of edges, (2, E) or (E, 2) array, or str
        Edges of an undirected NetworkX graph hold both ways. A text is a source as the command takes it, such as
        "npz:FILE"
    parts : int                  one for each rank of the training
    out : path                   folder of the shards
    features, labels, splits : array with a row a node, or the name of a column or attribute, or a list of such names
        None takes what goes by a usual name, such as x, y, label, train_mask; features="structural" makes features from
        the graph alone. Splits may also be three masks, three lists of node ids, or the number of one of several
        splits, the columns of masks of shape (num_nodes, num_splits)
    edge_weight : array, or name of a column or attribute of edges; False leaves weights out
        Weights are positive. Those of duplicate edges are added
    node_ids : array with the id of each row of features and labels, or the name of that column
        Texts or integers; predictions come back under them
    nodes : table of nodes       beside a table of edges
    source, target : str or int  columns of a table of edges, by name or place
    rows : {"sources", "destinations"}      whether A[u, v] of a matrix is the arc u -> v or v -> u
    ignore : label or column, or list of them      labels that are unknown, columns that are no features; "none" takes
        each label for a class, also -1
    name : str                   of the dataset
    task : {"auto", "classes", "multi-label", "regression"}     what labels are; auto takes texts and whole numbers for
        classes, and numbers with a fraction for targets of a regression
    symmetrize : bool            add the reverse of every arc that lacks it
    partitioner : name of a partitioner, or array or file with the part of each node; owner is the same as an array or a
        file. A file holds a part a line, in the order of nodes or behind their ids
    comm : MPI communicator      all ranks where it is not given
    progress : callable(description, total) -> object with advance(amount)

    The others are the options of `hpcgnn preprocess` by the same names.

    Returns
    -------
    info : GraphInfo             what the shards hold

    Raises
    ------
    DatasetError                 a graph that is malformed or lacks labels
    ConfigError                  an option that can't be, or no folder to write to
    ShardError                   the folder holds shards and overwrite is off, or can't be written
    CollectiveError              one of these, under several ranks, on all of them

    Examples
    --------
    >>> info = hpcgnn.preprocess(data, parts=4, out="shards/mine-p4")
    >>> info = hpcgnn.preprocess(edges, nodes=nodes, labels="topic", parts=4, out="shards/mine-p4")
    """
    structural = isinstance(features, str) and features == STRUCTURAL
    choices = dict(features=False if structural else features, labels=labels, splits=splits, edge_weight=edge_weight,
                   node_ids=node_ids, nodes=nodes, source=source, target=target, rows=rows, ignore=ignore, name=name)
    options = dict(seed=seed, symmetrize=symmetrize, root=None if root is None else Path(root), non_finite=non_finite,
                   features=STRUCTURAL if structural else "auto", normalize_features=normalize_features,
                   split_fractions=split, made_classes=make_labels, task=task, progress=progress)
    comm = join(comm)
    crew = ALONE if comm.size == 1 else Ranks(comm)
    own = crew.together(lambda: own_parts(partitioner, owner))
    if own is not None:
        partitioner = str(own) if isinstance(own, Path) else "array"
    found = crew.together(lambda: parse_balance(balance, partitioner, own is not None))
    making = dict(parts=parts, partitioner=partitioner, own_parts=own, balance=found.balance,
                  reorder=reorder, seed=seed, feature_format=feature_format, feature_bits=feature_bits,
                  cluster_rows=cluster_rows, overwrite=overwrite, layers=found.layers, measured=found.measured)
    return _preprocess(data, out, choices, options, making, found.text, crew)


def _preprocess(data: Any, out: str | Path | None, choices: dict[str, Any], options: dict[str, Any],
                making: dict[str, Any], balance: str, crew: Crew) -> GraphInfo:
    if crew.rank:
        options = options | {"progress": silent}

    def load() -> GraphDataset | None:
        return None if crew.rank else _checked_load(data, out, choices, options, making)

    dataset = crew.together(load)
    if dataset is not None:
        for topic in ("unused", "dubious"):      # what a program's author would want to know before training
            for text in dataset.cleaning.read.of(topic):
                tell(f"hpcgnn: {topic} in {dataset.name}: {text}")
    source = data if isinstance(data, str) else f"python:{type(data).__module__}.{type(data).__name__}"
    source = crew.share(source)
    settings = {key: str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
                for key, value in (making | options | {"rows": choices["rows"], "out": str(out)}).items()
                if key not in ("progress", "overwrite", "layers", "measured", "own_parts")}
    settings["balance"] = balance
    try:
        return make_shards(dataset, Path(out), Making(**making), source, settings, options["progress"],
                           nearest_folder(Path(out)), crew)
    except MemoryError as reason:
        raise _too_large(source) from reason


def _too_large(source: str) -> DatasetError:
    return DatasetError(f"{source} needs more memory than this machine gives; use a larger machine, or "
                        "partitioner=\"ldg\", which takes less")


def _checked_load(data: Any, out: str | Path | None, choices: dict[str, Any], options: dict[str, Any],
                  making: dict[str, Any]) -> GraphDataset:
    if out is None:
        raise ConfigError("preprocess was given no folder to write to; pass out=FOLDER")
    if not isinstance(making["parts"], int) or making["parts"] < 1:
        raise ConfigError(f"parts is {making['parts']!r}; expected a whole number of at least 1")
    if not isinstance(making["cluster_rows"], int) or making["cluster_rows"] < 0:
        raise ConfigError(f"cluster_rows is {making['cluster_rows']!r}; expected a whole number of at least 0")
    check_folder(Path(out), making["overwrite"])
    try:
        return _load(data, choices, SourceOptions(**options, scratch=nearest_folder(Path(out))))
    except MemoryError as reason:
        raise _too_large(data if isinstance(data, str) else f"a {type(data).__name__}") from reason


def _load(data: Any, choices: dict[str, Any], options: SourceOptions) -> GraphDataset:
    if isinstance(data, str):
        given = [key for key, value in choices.items()
                 if value is not None and value is not False and (key, value) != ("rows", "sources")]
        if given:
            raise ConfigError(f"the source {data!r} says itself where its {given[0]} lie; leave out {given[0]}=")
        return load_source(data, options)
    return finish_dataset(given_graph(data, Choices(**choices)), options)
