"""`PlannedGraph`: the edges and splits that a plan reads, from a source graph or joined from a folder of shards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy.sparse

from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import LOADERS, load_source
from hpcgnn.errors import ConfigError
from hpcgnn.shards.reader import read_graph_info, read_partition


@dataclass(frozen=True)
class PlannedGraph:
    dataset: GraphDataset              # without features and labels if it comes from shards
    num_features: int
    num_classes: int
    owner: np.ndarray | None = None    # (num_nodes,) int32, for shards the part of every node; else None
    own_parts: int = 0                 # for shards their number of parts; else 0
    num_edge_features: int = 0


def open_graph(source: str, options: SourceOptions) -> PlannedGraph:
    """Read a folder of shards, or load a source graph.

    Raises
    ------
    ConfigError                   `source` is neither
    DatasetError, ShardError      it can't be read
    """
    if source.partition(":")[0] in LOADERS:
        dataset = load_source(source, options)
        num_edge_features = 0 if dataset.edge_attr is None else dataset.edge_attr.shape[1]
        return PlannedGraph(dataset, dataset.num_features, dataset.num_classes, num_edge_features=num_edge_features)
    if not Path(source).is_dir():
        raise ConfigError(f"{source} is no folder of shards and no source graph; expected a folder that hpcgnn "
                          f"preprocess --out has made, or KIND:REST with KIND one of {', '.join(LOADERS)}")
    return graph_of_shards(Path(source))


def within_batches(graph: PlannedGraph, num_clusters: int, batch_size: int, keeps_all: bool) -> PlannedGraph:
    """The graph without the edges between clusters or batches; see `hpcgnn.training.batch_graph.within_batches`."""
    from hpcgnn.partition.clusters import arc_groups, batch_clusters

    dataset, shape = graph.dataset, 2 * (graph.dataset.num_nodes,)
    arcs = scipy.sparse.csr_matrix((np.ones(dataset.num_edges, np.int8), dataset.indices, dataset.indptr), shape=shape)
    arcs.sort_indices()
    group = arc_groups(batch_clusters(arcs.indptr.astype(np.int64), arcs.indices, num_clusters, batch_size), batch_size,
                       keeps_all)
    is_kept = group[np.repeat(np.arange(dataset.num_nodes), np.diff(arcs.indptr))] == group[arcs.indices]
    indptr = np.concatenate([[0], np.cumsum(is_kept)])[arcs.indptr]
    return replace(graph, dataset=replace(dataset, indptr=indptr, indices=arcs.indices[is_kept], edge_weight=None,
                                          edge_type=None, edge_attr=None, relation_names=()))


def graph_of_shards(folder: Path) -> PlannedGraph:
    """Join the parts of a folder of shards, one after another; errors as in `read_partition`."""
    info = read_graph_info(folder)
    degree, owner = np.zeros(info.num_nodes, np.int64), np.empty(info.num_nodes, np.int32)
    train_mask = np.zeros(info.num_nodes, bool)
    kept = []
    for number in range(info.num_parts):
        part = read_partition(folder, number, info.num_parts, info, expands_packages=False)
        degree[part.inner_id], owner[part.inner_id] = np.diff(part.indptr), number
        train_mask[part.inner_id] = part.train_mask
        kept.append((part.inner_id, part.indptr, part.node_id[part.indices]))
    indptr = np.concatenate([[0], np.cumsum(degree)])
    indices = np.empty(indptr[-1], np.int32 if info.num_nodes < 2**31 else np.int64)
    for inner_id, own_indptr, sources in kept:
        indices[np.repeat(indptr[inner_id] - own_indptr[:-1], np.diff(own_indptr)) + np.arange(len(sources))] = sources
    nothing = np.zeros(info.num_nodes, bool)
    dataset = GraphDataset(info.name, indptr, indices, np.empty((info.num_nodes, 0), np.float32),
                           np.zeros(info.num_nodes, np.int64), info.num_classes, train_mask, nothing, nothing,
                           relation_names=info.relation_names)
    return PlannedGraph(dataset, info.num_features, info.num_classes, owner, info.num_parts,
                        info.num_edge_features)
