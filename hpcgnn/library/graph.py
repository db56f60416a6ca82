"""Graph: a folder of shards as this rank sees it, opened from Python."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from hpcgnn.run.launch import MPI, join
from hpcgnn.shards.reader import read_inner_id
from hpcgnn.shards.schema import GraphInfo
from hpcgnn.training.session import read_shared_info


@dataclass(frozen=True)
class Graph:
    """A graph in shards and the ranks that hold it, one part each. A part is read only when it is needed.

    Attributes
    ----------
    comm : MPI communicator
    shards : Path
    info : GraphInfo          facts of the whole graph
    """

    comm: MPI.Comm
    shards: Path
    info: GraphInfo

    @property
    def name(self) -> str:
        """Name of the dataset."""
        return self.info.name

    @property
    def num_nodes(self) -> int:
        """Number of nodes of the whole graph."""
        return self.info.num_nodes

    @property
    def num_edges(self) -> int:
        """Number of directed edges of the whole graph."""
        return self.info.num_edges

    @property
    def num_features(self) -> int:
        """Number of columns of features."""
        return self.info.num_features

    @property
    def num_classes(self) -> int:
        """Columns of a model's outputs: classes, or targets of a regression."""
        return self.info.num_classes

    @cached_property
    def node_index(self) -> np.ndarray:
        """Source numbers of this rank's nodes, (n,) int64, ascending; read at first use. ShardError as in
        `hpcgnn.shards.reader.read_inner_id`.
        """
        return np.sort(read_inner_id(self.shards, self.comm.rank, self.comm.size, self.info))

    def __repr__(self) -> str:
        return (f"Graph({self.name}: {self.num_nodes} nodes, {self.num_edges} edges, {self.num_features} features, "
                f"{self.num_classes} classes; part {self.comm.rank} of {self.comm.size})")


def open(shards: str | Path, comm: MPI.Comm | None = None) -> Graph:
    """Collective: open a folder of shards, as `hpcgnn preprocess` and `hpcgnn.preprocess` make them.

    From now on, an exception that a rank does not catch ends all ranks.

    Parameters
    ----------
    shards : path
    comm : MPI communicator      one rank per part; by default all ranks

    Raises
    ------
    CollectiveError      shards are missing, or for another number of ranks; the same error on all ranks

    Examples
    --------
    >>> graph = hpcgnn.open("shards/cora-p1")
    >>> graph.num_features
    1433
    """
    comm = join(comm)
    info = read_shared_info(comm, Path(shards))
    return Graph(comm, Path(shards), info)
