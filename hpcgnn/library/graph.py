"""Graph: a folder of shards as this rank sees it, opened from Python."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hpcgnn.errors import CollectiveError, ConfigError
from hpcgnn.run.launch import MPI, join, told_by_rank_zero
from hpcgnn.run.notebook import html_table
from hpcgnn.shards.reader import read_graph_info, read_inner_id
from hpcgnn.shards.schema import GraphInfo
from hpcgnn.shards.source import whole_graph
from hpcgnn.training.objective import UNKNOWN_LABEL
from hpcgnn.training.session import read_shared_info

if TYPE_CHECKING:
    from torch_geometric.data import Data


@dataclass(frozen=True)
class Graph:
    """A graph in shards and the ranks that hold it, one part each. A part is read only when it is needed.

    In one process, the whole graph can be read as tensors, whatever its number of parts. Their rows are in the order of
    the source, their edges ascend by source, target and relation, and training does not read them.

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

    @property
    def relation_names(self) -> tuple[str, ...]:
        """Names of the relations of edges by number; empty without relations."""
        return self.info.relation_names

    @property
    def node_types(self) -> tuple[tuple[str, int], ...]:
        """Types of nodes, each with its number of nodes; empty without types."""
        return self.info.node_types

    def metadata(self) -> tuple[list[str], list[tuple[str, str, str]]]:
        """Types of nodes and kinds of edges, as `metadata()` of PyTorch Geometric's HeteroData; a reverse is called
        (B, rev_name, A).

        Raises
        ------
        ConfigError      a graph without types or relations
        """
        if not self.info.edge_kinds:
            raise ConfigError(f"{self.name} has {'no types of nodes' if self.relation_names else 'edges of one kind'}; "
                              "metadata is of graphs with types and several kinds of edges")
        return self.info.metadata

    @property
    def num_edge_features(self) -> int:
        """Number of attributes of an edge."""
        return self.info.num_edge_features

    @cached_property
    def node_index(self) -> np.ndarray:
        """Source numbers of this rank's nodes, (n,) int64, ascending; read at first use. ShardError as in
        `hpcgnn.shards.reader.read_inner_id`.
        """
        num_parts = self.info.num_parts
        parts = range(num_parts) if self.comm.size == 1 else [self.comm.rank]
        return np.sort(np.concatenate([read_inner_id(self.shards, part, num_parts, self.info) for part in parts]))

    @property
    def x(self) -> torch.Tensor:
        """Features of all nodes as the shards hold them, (num_nodes, num_features) float32.

        This and the tensors below raise ConfigError on several ranks, and ShardError for a damaged part.
        """
        return self._whole["x"]

    @property
    def edge_index(self) -> torch.Tensor:
        """Sources and targets of all edges, (2, num_edges) int64."""
        return self._whole["edge_index"]

    @property
    def edge_weight(self) -> torch.Tensor | None:
        """Weights of the edges, (num_edges,) float32; None if they have none."""
        return self._whole.get("edge_weight")

    @property
    def node_type(self) -> torch.Tensor | None:
        """Number of the type of each node, (num_nodes,) int64, see `node_types`; None without types."""
        return self._whole.get("node_type")

    @property
    def edge_type(self) -> torch.Tensor | None:
        """Relations of the edges, (num_edges,) int64, see `relation_names`; None if they have none."""
        return self._whole.get("edge_type")

    @property
    def edge_attr(self) -> torch.Tensor | None:
        """Attributes of the edges, (num_edges, num_edge_features) float32; None if they have none."""
        return self._whole.get("edge_attr")

    @property
    def y(self) -> torch.Tensor:
        """Class ids of all nodes, (num_nodes,) int64, -1 if unknown; several labels or targets per node are
        (num_nodes, num_classes) float32, NaN if unknown.
        """
        return self._whole["y"]

    @property
    def train_mask(self) -> torch.Tensor:
        """Whether each node is for training, (num_nodes,) bool."""
        return self._whole["train_mask"]

    @property
    def val_mask(self) -> torch.Tensor:
        """Whether each node is for validation, (num_nodes,) bool."""
        return self._whole["val_mask"]

    @property
    def test_mask(self) -> torch.Tensor:
        """Whether each node is for the test, (num_nodes,) bool."""
        return self._whole["test_mask"]

    def to_pyg(self) -> Data:
        """The whole graph as a `torch_geometric.data.Data` of the tensors above.

        If the source names its nodes, `node_ids` has the names: (num_nodes,) int64, or a list of str. If edges have
        relations, `relation_names` is a list of str.

        Raises
        ------
        ConfigError      several ranks hold the graph, or PyTorch Geometric is not installed
        ShardError       a part is missing or damaged
        """
        try:
            from torch_geometric.data import Data
        except ImportError as missing:
            raise ConfigError("to_pyg() needs PyTorch Geometric, which is not installed; "
                              "run pip install torch_geometric") from missing
        return Data(**self._whole)

    @cached_property
    def _whole(self) -> dict[str, Any]:
        if self.comm.size > 1:
            raise ConfigError(f"{self.name} is spread over {self.comm.size} ranks; to get the whole graph as tensors, "
                              "open its shards in one process, without mpirun")
        graph = whole_graph(self.shards, self.info)
        target = np.repeat(np.arange(graph.num_nodes), graph.in_degree())
        order = np.argsort(graph.indices, kind="stable")      # by source, then target
        labels = graph.labels.astype(np.int64 if self.info.task == "classes" else np.float32)
        if self.info.task == "multi-label":
            labels[labels == UNKNOWN_LABEL] = np.nan
        found: dict[str, np.ndarray | None] = {
            "x": np.asarray(graph.features), "y": labels,
            "edge_index": np.stack([graph.indices, target])[:, order].astype(np.int64),
            **{name: getattr(graph, name) for name in ("train_mask", "val_mask", "test_mask")},
            "edge_weight": _at(graph.edge_weight, order), "edge_type": _at(graph.edge_type, order, np.int64),
            "edge_attr": _at(graph.edge_attr, order),
            "node_type": self.info.type_of(np.arange(self.num_nodes)) if self.info.node_types else None}
        texts = {"relation_names": list(graph.relation_names)} if graph.relation_names else {}
        if graph.node_name is not None and self.info.node_names == "texts":
            texts["node_ids"] = graph.node_name.tolist()
        else:
            found["node_ids"] = graph.node_name
        return {**{name: torch.from_numpy(values) for name, values in found.items() if values is not None}, **texts}

    def check_ranks(self) -> None:
        """Raise CollectiveError unless each rank has one part, as a training needs it."""
        if self.comm.size != self.info.num_parts:      # `open` lets only one process have several
            raise CollectiveError(
                f"{self.name} was partitioned into {self.info.num_parts} parts but 1 rank was started; use mpirun -n "
                f"{self.info.num_parts}, from a notebook hpcgnn.launch(.., ranks={self.info.num_parts}), or preprocess "
                "it with parts=1")

    @property
    def _held(self) -> str:
        parts = self.info.num_parts
        return f"part {self.comm.rank} of {parts}" if self.comm.size == parts else f"all {parts} parts"

    def __repr__(self) -> str:
        return (f"Graph({self.name}: {self.num_nodes} nodes, {self.num_edges} edges, {self.num_features} features, "
                f"{self.num_classes} classes; {self._held})")

    def _repr_html_(self) -> str:
        info = self.info
        return html_table(f"Graph {self.name}", {
            "nodes": f"{info.num_nodes:,}", "edges": f"{info.num_edges:,}", "features": f"{info.num_features:,}",
            "targets" if info.task == "regression" else "classes": f"{info.num_classes:,}",
            **({"relations": f"{len(info.relation_names):,}"} if info.relation_names else {}),
            **({"edge features": f"{info.num_edge_features:,}"} if info.num_edge_features else {}),
            "training, validation, test": f"{info.num_train:,}, {info.num_val:,}, {info.num_test:,} nodes",
            "held here": f"{self._held}, {self.shards}"})


def _at(values: np.ndarray | None, order: np.ndarray, dtype: type | None = None) -> np.ndarray | None:
    return None if values is None else values[order].astype(dtype or values.dtype, copy=False)


def open(shards: str | Path, comm: MPI.Comm | None = None) -> Graph:
    """Collective: open a folder of shards, as `hpcgnn preprocess` and `hpcgnn.preprocess` make them.

    From now on, an exception that a rank does not catch ends all ranks.

    Parameters
    ----------
    shards : path
    comm : MPI communicator      one rank per part; by default all ranks. One process may also open several parts, to
                                 look at the graph; it can't train them

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
    info = read_shared_info(comm, Path(shards)) if comm.size > 1 else \
        told_by_rank_zero(comm, lambda: read_graph_info(Path(shards)))
    return Graph(comm, Path(shards), info)
