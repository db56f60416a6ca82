"""Checks that graph.h5 and a part make sense: counts that add up, offsets, ranges, ids, labels, masks and values.

A seal shows that a file is whole; these checks are for files that a faulty program has sealed. Each check yields faults
as the rest of a sentence that starts with the file's name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import fields
from itertools import chain

import numpy as np

from hpcgnn.data.dataset import MAX_CLASSES, MAX_FEATURES, UNKNOWN_INDICATOR, CleaningReport, is_plain_name
from hpcgnn.partition.partition import IMPORTANCE_BINS, Partition, PartitionStatistics
from hpcgnn.shards import schema
from hpcgnn.shards.feature_formats import FEATURE_FORMATS, PACKAGE
from hpcgnn.shards.schema import DIGEST, NODE_NAMES, TASKS, GraphInfo, Layout

RUN_ID = re.compile(r"[0-9a-f]{32}")
MAX_NODES = 1 << 40
MAX_CLUSTERS = (1 << 31) - 1
QUANTILES = 101


def graph_layout(num_nodes: int, num_parts: int, num_quantiles: int) -> Layout:
    """Type and shape of each array of graph.h5."""
    columns: Layout = {item.name: (np.int64, (num_parts,)) for item in fields(PartitionStatistics)}
    columns |= {"imbalance": (np.float64, (num_parts,)), "sent_to": (np.int64, (num_parts, num_parts)),
                "boundary_importance": (np.int64, (num_parts, IMPORTANCE_BINS)),
                "sent_importance": (np.int64, (num_parts, IMPORTANCE_BINS))}
    return {"owner": (np.int32, (num_nodes,)), "boundary_degree": (np.int64, (num_quantiles,)),
            **{f"statistics/{name}": what for name, what in columns.items()}}


def find_graph_fault(info: GraphInfo) -> str | None:
    """The first fault of graph.h5, as the rest of a sentence that starts with the file; None if it has none."""
    return next(chain.from_iterable(faults(info) for faults in (
        _faults_of_names, _faults_of_counts, _faults_of_labels, _faults_of_types, _faults_of_clusters, _faults_of_links,
        _faults_of_statistics, _faults_of_reports)), None)


def _faults_of_names(info: GraphInfo) -> Iterator[str]:
    for name in ("run_id", "hpcgnn_version", "name", "feature_dtype"):
        if not isinstance(getattr(info, name), str):
            yield f"has {name} of type {type(getattr(info, name)).__name__}, expected a text"
    if not RUN_ID.fullmatch(info.run_id):
        yield f"has run_id {info.run_id[:40]!r}, expected 32 hexadecimal digits"
    if not info.hpcgnn_version.isprintable():
        yield f"has hpcgnn_version {info.hpcgnn_version[:40]!r}, expected a printable text"
    if not is_plain_name(info.name):
        yield f"names its graph {info.name[:60]!r}, expected a short name that is no path"
    if info.feature_dtype not in FEATURE_FORMATS:
        yield f"has feature_dtype {info.feature_dtype[:40]!r}, expected one of {', '.join(FEATURE_FORMATS)}"
    if not info.fingerprint.is_valid:
        yield "has a fingerprint that is not of hexadecimal digits"


def _faults_of_counts(info: GraphInfo) -> Iterator[str]:
    if type(info.is_multi_label) is not bool:
        yield f"has is_multi_label of type {type(info.is_multi_label).__name__}, expected a bool"
    limits = {"num_nodes": (1, MAX_NODES), "num_edges": (0, 1 << 62), "num_features": (0, MAX_FEATURES),
              "num_classes": (1, MAX_CLASSES), "num_parts": (1, MAX_NODES), "num_train": (0, info.num_nodes),
              "num_val": (0, info.num_nodes), "num_test": (0, info.num_nodes),
              "num_edge_features": (0, MAX_FEATURES)}
    for name, (low, high) in limits.items():
        if not low <= getattr(info, name) <= high:
            yield f"has {name} = {getattr(info, name)}, expected {low} to {high}"
    if info.num_train + info.num_val + info.num_test > info.num_nodes:
        yield f"has more nodes in its splits than the {info.num_nodes} of the graph"


def _faults_of_labels(info: GraphInfo) -> Iterator[str]:
    for name, choices in (("task", TASKS), ("node_names", NODE_NAMES)):
        if getattr(info, name) not in choices:
            yield f"has {name} {str(getattr(info, name))[:40]!r}, expected one of {', '.join(choices)}"
    if type(info.has_edge_weights) is not bool:
        yield f"has has_edge_weights of type {type(info.has_edge_weights).__name__}, expected a bool"
    if info.is_multi_label != (info.task == "multi-label"):
        yield f"has is_multi_label {info.is_multi_label} and task {info.task}, which contradict each other"
    if len(info.feature_names) > info.num_features:
        yield f"has {len(info.feature_names)} feature_names for {info.num_features} columns"
    if info.class_names and (info.task == "regression" or len(set(info.class_names)) != info.num_classes):
        yield f"has class_names that are not {info.num_classes} different names, one per class"


def _faults_of_types(info: GraphInfo) -> Iterator[str]:
    if len(set(info.relation_names)) != len(info.relation_names) or len(info.relation_names) > MAX_CLASSES:
        yield f"has relation_names that are not at most {MAX_CLASSES} different names"
    if any(len(pair) != 2 or [type(value) for value in pair] != [str, int] or pair[1] < 0 for pair in info.node_types):
        yield "has a type of nodes that is not a name and a number of nodes"
    elif info.node_types and sum(count for _, count in info.node_types) != info.num_nodes:
        yield f"has types of nodes that do not sum to {info.num_nodes}"
    if info.type_columns and (len(info.type_columns) != len(info.node_types)
                              or any(type(count) is not int or count < 0 for count in info.type_columns)
                              or sum(info.type_columns) != info.num_features):
        yield f"has type_columns that are not {info.num_features} columns, shared out among its types of nodes"
    if info.relation_columns and (len(info.relation_names) % len(info.relation_columns)
                                  or any(type(count) is not int or count < 0 for count in info.relation_columns)
                                  or (sum(info.relation_columns) != info.num_edge_features
                                      and set(info.relation_columns) != {0, info.num_edge_features})):
        yield f"has relation_columns that are not {info.num_edge_features} columns, shared out among its relations"


def _faults_of_clusters(info: GraphInfo) -> Iterator[str]:
    most = min(info.num_nodes, MAX_CLUSTERS)
    if not 0 <= info.num_clusters <= most or (info.cluster_digest and not info.num_clusters):
        yield f"has num_clusters = {info.num_clusters}, expected 1 to {most}"
    digest = info.cluster_digest
    if info.num_clusters and not (isinstance(digest, str) and DIGEST.fullmatch(digest)):
        yield "has a cluster_digest that is not of hexadecimal digits"


def _faults_of_links(info: GraphInfo) -> Iterator[str]:
    counts = (info.num_val_links, info.num_test_links, *info.links_of_parts)
    if any(type(count) is not int or count < 0 for count in counts):
        yield "has a number of held-out links that is no whole number"
    num_links = info.num_val_links + info.num_test_links
    if info.links_of_parts and (len(info.links_of_parts) != info.num_parts
                                or not num_links <= sum(info.links_of_parts) <= 2 * num_links):
        yield f"has links_of_parts that does not fit {num_links} held-out links of {info.num_parts} parts"


def _faults_of_statistics(info: GraphInfo) -> Iterator[str]:
    rows = info.statistics
    for part, row in enumerate(rows):
        counts = [row.num_inner, row.num_central, row.num_halo, row.num_boundary, row.num_sent, row.num_edges,
                  row.num_cut_edges, *row.sent_to, *row.boundary_importance, *row.sent_importance]
        if row.part != part or min(counts) < 0 or not (math.isfinite(row.imbalance) and row.imbalance >= 0):
            yield f"has statistics of part {part} that can't be: a negative count, or another part's number"
        if max(row.num_central, row.num_boundary) > row.num_inner or row.num_cut_edges > row.num_edges:
            yield (f"has statistics of part {part} that count more central or boundary rows than inner rows, or more "
                   "cut edges than edges")
        for name, total in (("sent_to", row.num_sent), ("sent_importance", row.num_sent),
                            ("boundary_importance", row.num_boundary)):
            if sum(getattr(row, name)) != total:
                yield f"has statistics of part {part} with a {name} that does not sum to {total}"
        if sum(other.sent_to[part] for other in rows) != row.num_halo:
            yield f"has statistics of part {part} with a num_halo that differs from the number of rows sent to it"
    for name, total in (("num_inner", info.num_nodes), ("num_edges", info.num_edges)):
        if sum(getattr(row, name) for row in rows) != total:
            yield f"has statistics with a {name} that does not sum to {total}"
    degrees = info.boundary_degree
    if any(low > high for low, high in zip((0, *degrees), degrees, strict=False)):
        yield "has boundary_degree that does not rise from 0"
    if bool(degrees) != any(row.num_sent for row in rows):
        yield "has boundary_degree although no row is sent, or lacks it although rows are sent"


def _faults_of_reports(info: GraphInfo) -> Iterator[str]:
    made = info.provenance
    if [type(value) for value in (made.source, made.partitioner, made.seed, made.settings)] != [str, str, int, dict]:
        yield "has a provenance in which source, partitioner, seed or settings has the wrong type"
    for item in fields(CleaningReport):
        if type(getattr(info.cleaning, item.name)) is not type(item.default):
            yield f"has a cleaning report with a {item.name} that is no {type(item.default).__name__}"
    if not all(isinstance(remark, str) for remark in info.cleaning.remarks):
        yield "has a cleaning report with remarks that are no texts"
    if not all(len(line) == 2 and all(isinstance(text, str) for text in line) for line in info.what_was_read.lines):
        yield "has a line of what_was_read that is not a topic and a text"


BLOCK_ENTRIES = 1 << 18     # values that are checked while they are in a cache
FLOAT16_INFINITY = 0x7C00


def part_layout(info: GraphInfo, part: int) -> Layout:
    """Type and shape of each array of a part file, from graph.h5, except packages and texts."""
    counts = info.statistics[part]
    num_rows, inner = counts.num_inner + counts.num_halo, (counts.num_inner,)
    by_task = {"classes": (np.int64, inner), "multi-label": (np.uint8, (*inner, info.num_classes)),
               "regression": (np.float32, (*inner, info.num_classes))}
    layout: Layout = {
        "inner_id": (np.int64, inner), "halo_id": (np.int64, (counts.num_halo,)),
        "halo_offset": (np.int64, (info.num_parts + 1,)), "boundary_index": (np.int32, (counts.num_sent,)),
        "boundary_offset": (np.int64, (info.num_parts + 1,)), "indptr": (np.int64, (counts.num_inner + 1,)),
        "indices": (np.int32, (counts.num_edges,)), "in_degree": (np.int32, (num_rows,)),
        "importance": (np.float32, (num_rows,)), "labels": by_task[info.task],
        "train_mask": (bool, inner), "val_mask": (bool, inner), "test_mask": (bool, inner)}
    if info.has_edge_weights:
        layout[schema.EDGE_WEIGHT] = (np.float32, (counts.num_edges,))
    if info.relation_names:
        layout[schema.EDGE_TYPE] = (np.int32, (counts.num_edges,))
    if info.num_edge_features:
        layout[schema.EDGE_ATTR] = (np.float32, (counts.num_edges, info.num_edge_features))
    if info.num_clusters:
        layout[schema.CLUSTER] = (np.int32, inner)
    if info.links_of_parts:
        layout[schema.HELD_OUT] = (np.int64, (info.links_of_parts[part], 4 if info.relation_names else 3))
    if info.node_names == "integers":
        layout[schema.INNER_NAME] = (np.int64, inner)
    if info.feature_dtype != PACKAGE:
        layout["features"] = (info.feature_dtype, (*inner, info.num_features))
    return layout


def find_part_fault(part: Partition, info: GraphInfo) -> str | None:
    """The first fault of a part, as the rest of a sentence that starts with its file; None if it has none.

    Arrays must have the types and shapes of `part_layout`.
    """
    return next(chain.from_iterable(faults(part, info) for faults in (
        _faults_of_offsets, _faults_of_ids, _faults_of_peers, _faults_of_arcs, _faults_of_nodes,
        _faults_of_held_out)), None)


def find_row_fault(part: Partition) -> str | None:
    """A fault if the sources of some row do not ascend in global ids, else None; slower than `find_part_fault`.

    A source comes again only with a larger relation, or an equal one and other attributes.
    """
    order = part.node_id[part.indices]
    if part.edge_type is not None:
        order = order * (int(part.edge_type.max(initial=0)) + 1) + part.edge_type
    if not _ascends(order, part.indptr, may_repeat=part.edge_attr is not None):
        return "has a row of indices with sources that do not ascend"
    return None


def is_finite(values: np.ndarray) -> bool:
    """Whether no value is NaN or infinite; (n, ...) float16 or float32, read once."""
    flat = values.reshape(-1)
    for first in range(0, flat.size, BLOCK_ENTRIES):
        block = flat[first:first + BLOCK_ENTRIES]
        if block.dtype == np.float16:
            # Comparing bits avoids a conversion of each value.
            fault = (block.view(np.uint16) & 0x7FFF).max() >= FLOAT16_INFINITY
        else:
            fault = not (np.isfinite(block.min()) and np.isfinite(block.max()))
        if fault:
            return False
    return True


def _faults_of_offsets(part: Partition, info: GraphInfo) -> Iterator[str]:
    for name, last in (("halo_offset", part.num_halo), ("boundary_offset", len(part.boundary_index)),
                       ("indptr", part.num_edges)):
        offset = getattr(part, name)
        if offset[0] != 0 or offset[-1] != last or (offset[1:] < offset[:-1]).any():
            yield f"has {name} that does not rise from 0 to {last}"
    counts = info.statistics[part.part]
    if part.num_central != counts.num_central:
        yield f"has num_central = {part.num_central}, and graph.h5 says {counts.num_central}"
    if tuple(np.diff(part.boundary_offset).tolist()) != counts.sent_to:
        yield "has a boundary_offset that disagrees with sent_to in graph.h5"


def _faults_of_ids(part: Partition, info: GraphInfo) -> Iterator[str]:
    for name in ("inner_id", "halo_id"):
        yield from _out_of_range(name, getattr(part, name), info.num_nodes)
    is_known = np.zeros(info.num_nodes, bool)
    is_known[part.inner_id] = True
    is_known[part.halo_id] = True
    if np.count_nonzero(is_known) != part.num_inner + part.num_halo:
        yield "names a node twice in inner_id and halo_id"
    if part.inner_name is not None and len(np.unique(part.inner_name)) != part.num_inner:
        yield "has an id twice in inner_name"
    if not _ascends(part.halo_id, part.halo_offset):
        yield "has halo_id that does not ascend within an owner"


def _faults_of_peers(part: Partition, info: GraphInfo) -> Iterator[str]:
    for name in ("halo_offset", "boundary_offset"):
        offset = getattr(part, name)
        if offset[part.part] != offset[part.part + 1]:
            yield f"has {name} by which it exchanges rows with itself"
    yield from _out_of_range("boundary_index", part.boundary_index, part.num_inner)
    if not _ascends(part.inner_id[part.boundary_index], part.boundary_offset):
        yield "has boundary_index with ids that do not ascend within a receiver"


def _faults_of_arcs(part: Partition, info: GraphInfo) -> Iterator[str]:
    yield from _out_of_range("indices", part.indices, part.num_inner + part.num_halo)
    central = part.indices[:part.indptr[part.num_central]]
    if central.max(initial=0) >= max(part.num_inner, 1):
        yield "has a central row with a halo neighbor in indices"
    # Parallel edges count.
    yield from _out_of_range("in_degree", part.in_degree, info.num_edges + 1 if info.has_typed_edges else
                             info.num_nodes)
    if not np.array_equal(part.in_degree[:part.num_inner], np.diff(part.indptr)):
        yield "has in_degree that disagrees with indptr for the inner rows"
    weight = part.edge_weight
    if weight is not None and weight.size and not (weight.min() > 0 and np.isfinite(weight.max())):
        yield "has edge_weight that is not positive and finite"
    if part.edge_type is not None:
        yield from _out_of_range("edge_type", part.edge_type, len(info.relation_names))
    if part.edge_attr is not None and not is_finite(part.edge_attr):
        yield "has edge_attr that is NaN or infinite"
    if part.importance.size and not (part.importance.min() >= 0 and part.importance.max() <= 1):
        yield "has importance that is not between 0 and 1"


def _faults_of_nodes(part: Partition, info: GraphInfo) -> Iterator[str]:
    masks = [getattr(part, f"{split}_mask") for split in ("train", "val", "test")]
    total = sum(mask.view(np.uint8) for mask in masks)
    if any(mask.view(np.uint8).max(initial=0) > 1 for mask in masks) or total.max(initial=0) > 1:
        yield "has a node in two of train_mask, val_mask and test_mask, or values other than 0 and 1"
    if info.task == "regression":
        if np.isinf(part.labels).any() or np.isnan(part.labels[total.view(bool)]).all(axis=1).any():
            yield "has targets that are infinite, or none for a node in a split"
    elif info.is_multi_label:
        is_odd = (part.labels > 1) & (part.labels != UNKNOWN_INDICATOR)
        if is_odd.any():
            yield f"has labels up to {part.labels[is_odd].max()}, expected 0, 1 or {UNKNOWN_INDICATOR} where unknown"
        if (part.labels[total.view(bool)] == UNKNOWN_INDICATOR).all(axis=1).any():
            yield "has a node in a split with unknown labels"
    elif part.labels.size:
        if not -1 <= part.labels.min() <= part.labels.max() < info.num_classes:
            yield (f"has labels from {part.labels.min()} to {part.labels.max()}, expected -1 where unknown, or 0 to "
                   f"{info.num_classes - 1}")
        if (part.labels[total.view(bool)] < 0).any():
            yield "has a node in a split with an unknown label"
    if part.cluster is not None:
        yield from _out_of_range("cluster", part.cluster, info.num_clusters)
    if not is_finite(part.features):
        yield "has features that are NaN or infinite"


def _faults_of_held_out(part: Partition, info: GraphInfo) -> Iterator[str]:
    held = part.held_out
    if held is None or not len(held):
        return
    yield from _out_of_range("held_out", held[:, :2], info.num_nodes)
    yield from _out_of_range("relations of held_out", held[:, 3:], len(info.relation_names))
    if not np.isin(held[:, 2], (1, 2)).all() or not np.isin(held[:, :2], part.inner_id).any(axis=1).all():
        yield "has a held-out link of neither validation nor test, or with no end among its nodes"


def _out_of_range(name: str, array: np.ndarray, limit: int) -> Iterator[str]:
    if array.size:
        low, high = array.min(), array.max()
        if low < 0 or high >= limit:
            yield f"has {name} from {low} to {high}, expected 0 to {limit - 1}"


def _ascends(ids: np.ndarray, offset: np.ndarray, may_repeat: bool = False) -> bool:
    rises = ids[1:] >= ids[:-1] if may_repeat else ids[1:] > ids[:-1]
    starts = offset[1:-1]
    rises[starts[(starts > 0) & (starts < len(ids))] - 1] = True
    return bool(rises.all())
