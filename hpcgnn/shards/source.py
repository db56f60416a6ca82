"""`shards:FOLDER[,edges=FILE[,features=FILE]]`: the graph of a folder of shards as a source, with more edges and nodes.

Shards are cut again for another number of ranks without their source, and grow: old nodes keep their ids, labels and
splits, and new nodes come after them, without labels. `owner_in_shards` keeps old nodes in their parts, too.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import scipy.sparse

from hpcgnn.data.arrays import Sliced
from hpcgnn.data.assemble import describe
from hpcgnn.data.cleaning import CleanGraph, build_csr
from hpcgnn.data.columns import Ids, as_ids, texts_of
from hpcgnn.data.dataset import UNKNOWN_INDICATOR, GraphDataset, Origins
from hpcgnn.data.edges import EdgeFile, read_edge_file
from hpcgnn.data.features import normalize_rows
from hpcgnn.data.hold_out import hold_out
from hpcgnn.data.ids import NodeRows, ids_of_ends, places_of
from hpcgnn.data.node_files import NodeFile, read_node_file
from hpcgnn.data.options import ProgressTask, SourceOptions, split_path
from hpcgnn.errors import ConfigError, DatasetError
from hpcgnn.partition.owner import place_new_nodes
from hpcgnn.partition.partition import Partition
from hpcgnn.shards.reader import read_graph_info, read_owner, read_partition
from hpcgnn.shards.schema import GraphInfo

KIND = "shards"
SETTINGS = ("edges", "features")
# Options of a source that say nothing about what the graph is.
NEUTRAL = ("progress", "scratch", "seed", "root", "is_public")
UNCHANGED = {"feature_kind": ("auto", "given"), "normalize_features": ("auto", "none")}
MADE, STANDARDIZED, SCALED = "structural features were made", "columns were standardized", "rows were scaled"


def load_shards(rest: str, options: SourceOptions) -> GraphDataset:
    """Load the graph of shards of any number of parts, with the edges and nodes of the files that `rest` names.

    Edges of a graph that holds both ways are added both ways. Raises DatasetError for an option that changes what the
    shards hold, an edge or features that don't fit; ShardError for shards that can't be read.
    """
    folder, settings = split_path(rest, SETTINGS, "a shards: source")
    _refuse_changes(folder, options)
    info = read_graph_info(Path(folder))
    options.progress("reading shards", None)
    dataset = whole_graph(Path(folder), info)
    if "edges" not in settings:
        if settings:
            raise DatasetError(f"shards:{folder} is given features of new nodes and no edges; add edges=FILE")
        return dataset
    return _grown(dataset, folder, settings, options)


def whole_graph(folder: Path, info: GraphInfo) -> GraphDataset:
    """The graph of all parts of a folder, as `preprocess` had it; ShardError as in `read_partition`."""
    parts = [read_partition(folder, part, info.num_parts, info) for part in range(info.num_parts)]
    row = np.argsort(np.concatenate([part.inner_id for part in parts]))      # per node, its row among all parts'

    def of_nodes(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name) for part in parts])[row]

    degree = np.concatenate([np.diff(part.indptr) for part in parts])
    begin = (np.cumsum(degree) - degree)[row]
    degree = degree[row]
    indptr = np.concatenate([[0], np.cumsum(degree)]).astype(np.int64)
    entry = np.arange(indptr[-1]) + np.repeat(begin - indptr[:-1], degree)

    def of_edges(name: str) -> np.ndarray | None:
        found = [getattr(part, name) for part in parts]
        return None if found[0] is None else np.concatenate(found)[entry]

    indices = np.concatenate([part.node_id[part.indices] for part in parts])[entry]
    return GraphDataset(
        info.name, indptr, indices.astype(np.int32 if info.num_nodes < 1 << 31 else np.int64),
        of_nodes("features").astype(np.float32, copy=False), of_nodes("labels"), info.num_classes,
        of_nodes("train_mask"), of_nodes("val_mask"), of_nodes("test_mask"), info.cleaning, of_edges("edge_weight"),
        None if info.node_names == "none" else of_nodes("inner_name"), info.class_names, _held_out(parts),
        of_edges("edge_type"), of_edges("edge_attr"), info.relation_names, info.node_types, info.type_columns,
        info.relation_columns, info.feature_names)


def owner_in_shards(folder: Path, dataset: GraphDataset, num_parts: int) -> np.ndarray:
    """Part of each node: of an old one as in shards, of a new one where most of its neighbors are, (num_nodes,) int32.

    Nodes are known by their ids in the source. Raises ConfigError for another number of parts, or if no node is known.
    """
    info = read_graph_info(folder)
    if info.num_parts != num_parts:
        raise ConfigError(f"{folder} has {info.num_parts} parts and --parts is {num_parts}; give --parts "
                          f"{info.num_parts}, or another --partitioner")
    part_of = read_owner(folder, info)
    old = _ids_of(None if info.node_names == "none" else _names(folder, info), info.num_nodes)
    now = _ids_of(dataset.node_name, dataset.num_nodes)
    place = places_of(now, old)
    if (place < 0).all():
        raise ConfigError(f"{dataset.name} has no node that {folder} holds, so its parts say nothing; "
                          "choose another --partitioner")
    owner = np.where(place < 0, -1, part_of[np.maximum(place, 0)]).astype(np.int32)
    return place_new_nodes(dataset, owner, num_parts)


def _names(folder: Path, info: GraphInfo) -> np.ndarray:
    names = np.empty(info.num_nodes, np.int64 if info.node_names == "integers" else object)
    for number in range(info.num_parts):
        part = read_partition(folder, number, info.num_parts, info, expands_packages=False)
        names[part.inner_id] = part.inner_name
    return names


def _ids_of(names: np.ndarray | None, num_nodes: int) -> Ids:
    return np.arange(num_nodes) if names is None else as_ids(names, "ids of nodes")


def _refuse_changes(folder: str, options: SourceOptions) -> None:
    usual = SourceOptions()
    changed = next((item.name for item in fields(SourceOptions) if item.name not in NEUTRAL and getattr(
        options, item.name) not in UNCHANGED.get(item.name, (getattr(usual, item.name),))), None)
    if changed is not None:
        name = {"feature_kind": "features"}.get(changed, changed).replace("_", "-")
        raise DatasetError(f"shards:{folder} is a graph that was read before, and --{name} is decided when a source is "
                           "read; leave it out, or preprocess the source itself")


def _held_out(parts: list[Partition]) -> np.ndarray | None:
    held = [part.held_out for part in parts if part.held_out is not None]
    return np.unique(np.concatenate(held), axis=0) if held else None      # a link is stored with both its ends


def _grown(dataset: GraphDataset, folder: str, settings: dict[str, str], options: SourceOptions) -> GraphDataset:
    if dataset.edge_type is not None or dataset.edge_attr is not None or dataset.node_types:
        raise DatasetError(f"shards:{folder} has types of nodes, or edges with relations or features, and files of "
                           "more edges and nodes say nothing of these; preprocess the whole source")
    edges = read_edge_file(Path(settings["edges"]), replace(options, scratch=None), are_rows=False,
                           has_weights=dataset.edge_weight is not None)
    if (edges.weight is None) != (dataset.edge_weight is None):
        raise DatasetError(f"{settings['edges']} has no third column, and the edges of shards:{folder} have weights; "
                           "give each new edge a weight")
    file = read_node_file(Path(settings["features"]), np.float32, options, has_ids=True) if "features" in settings \
        else None
    ends = [np.asarray(end) if isinstance(end, Sliced) else end for end in (edges.source, edges.target)]
    old = _ids_of(dataset.node_name, dataset.num_nodes)
    new = _new_ids(old, ends, file, folder, settings["edges"])
    ids = _joined(old, new)
    rows = NodeRows(ids, dataset.name)
    source, target = (rows.find(end, "an edge") for end in ends)
    graph = _with_edges(dataset, source, target, edges, len(ids), options)
    if dataset.held_out is not None:      # links among the new edges carry no messages, either
        graph, _ = hold_out(graph, dataset.held_out, (0.0, 0.0), 0, dataset.name)
    many = len(new)
    features = dataset.features
    if file is not None:
        features = np.concatenate([features, _rows_of(file, new, dataset, folder)])
    none = np.zeros(many, bool)
    remark = (f"{many:,} nodes and {len(graph.indices) - dataset.num_edges:,} edges were added to {folder}; new nodes "
              "have no labels")
    report = replace(graph.report, remarks=(*dataset.cleaning.remarks, *graph.report.remarks, remark))
    masks: dict[str, Any] = {name: np.concatenate([getattr(dataset, name), none])
                             for name in ("train_mask", "val_mask", "test_mask")}
    grown = replace(dataset, indptr=graph.indptr, indices=graph.indices, features=features,
                    labels=_unlabeled(dataset.labels, many), cleaning=report, edge_weight=graph.edge_weight,
                    node_name=rows.names, **masks).check()
    held, more = f"shards:{folder}", "" if file is None else f" and {file.path.name}"
    origins = Origins(ids=held + more, weights=f"{held} and {settings['edges']}" if edges.weight is not None else "",
                      features=held + more, labels=held, splits=held, skipped=edges.skipped, dubious=edges.dubious)
    return replace(grown, cleaning=replace(report, read=describe(grown, origins, None)))


def _new_ids(old: Ids, ends: list[Ids], file: NodeFile | None, folder: str, edges: str) -> Ids:
    """Ids that the shards lack: those of the features first, in their order."""
    named = ids_of_ends(*ends)
    new = _without(named, old)
    if file is None:
        if len(new):
            raise DatasetError(f"{edges} names {len(new):,} nodes that shards:{folder} lacks, such as "
                               f"{new[:1].tolist()[0]!r}; give their features by features=FILE, an id first in each "
                               "row")
        return new
    known = np.flatnonzero(places_of(file.ids, old) >= 0)
    if len(known):
        raise DatasetError(f"{file.path} has features of node {file.ids[known[0]:known[0] + 1].tolist()[0]!r}, which "
                           f"shards:{folder} holds; expected features of new nodes only")
    NodeRows(file.ids, str(file.path))      # raises an error if the file names an id twice
    lacking = _without(new, file.ids)
    if len(lacking):
        raise DatasetError(f"{file.path} has no features of node {lacking[:1].tolist()[0]!r}, which the new edges name")
    return file.ids


def _without(ids: Ids, others: Ids) -> Ids:
    is_new = places_of(ids, others) < 0
    return ids.filter(pa.array(is_new)) if isinstance(ids, pa.Array) else ids[is_new]


def _joined(old: Ids, new: Ids) -> Ids:
    if isinstance(old, pa.Array) or isinstance(new, pa.Array):
        return pa.concat_arrays([texts_of(old), texts_of(new)])
    return np.concatenate([old, new])


def _with_edges(dataset: GraphDataset, source: np.ndarray, target: np.ndarray, edges: EdgeFile, num_nodes: int,
                options: SourceOptions) -> CleanGraph:
    held = np.repeat(np.arange(dataset.num_nodes), dataset.in_degree())
    weight = None if edges.weight is None else np.concatenate([dataset.edge_weight, edges.weight])
    if weight is not None and dataset.cleaning.is_symmetric and _weighs_both_ways_alike(dataset):
        # The weight of a new edge is added to the edge and to its reverse, even if they are there.
        is_alone = ~np.isin(target * num_nodes + source, source * num_nodes + target) & (source != target)
        weight = np.append(weight, edges.weight[is_alone])
        source, target = np.append(source, target[is_alone]), np.append(target, source[is_alone])
    return build_csr(np.concatenate([dataset.indices, source]), np.concatenate([held, target]), num_nodes,
                     dataset.cleaning.is_symmetric, dataset.name, options.progress, options.scratch, weight)


def _weighs_both_ways_alike(dataset: GraphDataset) -> bool:
    matrix = scipy.sparse.csr_matrix((dataset.edge_weight, dataset.indices, dataset.indptr),
                                     shape=(dataset.num_nodes, dataset.num_nodes))
    return (matrix != matrix.T).nnz == 0


def _rows_of(file: NodeFile, new: Ids, dataset: GraphDataset, folder: str) -> np.ndarray:
    done = " ".join(dataset.cleaning.remarks)
    for words, what in ((MADE, "made from the graph"), (STANDARDIZED, "standardized on its training nodes")):
        if words in done:
            raise DatasetError(f"the features of shards:{folder} were {what}, which can't be repeated for new nodes; "
                               "preprocess the whole source")
    values = np.asarray(cast(np.ndarray, file.values)[:], np.float32)      # features of texts are refused by the reader
    if values.shape != (len(new), dataset.num_features):
        raise DatasetError(f"{file.path} has {values.shape[1]} columns of features, and shards:{folder} has "
                           f"{dataset.num_features}; expected as many")
    if file.columns and len(dataset.feature_names) == dataset.num_features:
        values = values[:, _places_of_columns(file, dataset.feature_names, folder)]
    return np.asarray(normalize_rows(values, ProgressTask())[:], np.float32) if SCALED in done else values


def _places_of_columns(file: NodeFile, names: tuple[str, ...], folder: str) -> list[int]:
    lacking = next((name for name in names if name not in file.columns), None)
    if lacking is not None:
        raise DatasetError(f"{file.path} has no column {lacking!r}, which is a feature of shards:{folder}; its columns "
                           f"are {', '.join(file.columns)}")
    return [file.columns.index(name) for name in names]


def _unlabeled(labels: np.ndarray, many: int) -> np.ndarray:
    unknown = np.nan if labels.dtype.kind == "f" else UNKNOWN_INDICATOR if labels.ndim == 2 else -1
    return np.concatenate([labels, np.full((many, *labels.shape[1:]), unknown, labels.dtype)])
