"""Check that graph.h5 makes sense: types, counts that add up, and a name that is no path."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import fields

import numpy as np

from hpcgnn.datasets.dataset import MAX_CLASSES, MAX_FEATURES, CleaningReport, is_plain_name
from hpcgnn.partition.importance import IMPORTANCE_BINS
from hpcgnn.partition.statistics import PartitionStatistics
from hpcgnn.shards.feature_formats import FEATURE_FORMATS
from hpcgnn.shards.fingerprint import DIGEST
from hpcgnn.shards.layout import Layout
from hpcgnn.shards.schema import NODE_NAMES, TASKS, GraphInfo

RUN_ID = re.compile(r"[0-9a-f]{32}")
MAX_NODES = 1 << 40
MAX_CLUSTERS = (1 << 31) - 1
QUANTILES = 101


def graph_layout(num_nodes: int, num_parts: int, num_quantiles: int) -> Layout:
    """Return the type and shape of each array of graph.h5."""
    columns = {item.name: (np.int64, (num_parts,)) for item in fields(PartitionStatistics)}
    columns |= {"imbalance": (np.float64, (num_parts,)), "sent_to": (np.int64, (num_parts, num_parts)),
                "boundary_importance": (np.int64, (num_parts, IMPORTANCE_BINS)),
                "sent_importance": (np.int64, (num_parts, IMPORTANCE_BINS))}
    return {"owner": (np.int32, (num_nodes,)), "boundary_degree": (np.int64, (num_quantiles,)),
            **{f"statistics/{name}": what for name, what in columns.items()}}


def find_graph_fault(info: GraphInfo) -> str | None:
    """Say what is wrong first, as the rest of a sentence that starts with the file; None where nothing is."""
    for faults in (_faults_of_names, _faults_of_counts, _faults_of_labels, _faults_of_clusters, _faults_of_statistics,
                   _faults_of_reports):
        fault = next(faults(info), None)
        if fault is not None:
            return fault
    return None


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
              "num_val": (0, info.num_nodes), "num_test": (0, info.num_nodes)}
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
    if info.class_names and (info.task == "regression" or len(set(info.class_names)) != info.num_classes):
        yield f"has class_names other than a different one for each of {info.num_classes} classes"


def _faults_of_clusters(info: GraphInfo) -> Iterator[str]:
    most = min(info.num_nodes, MAX_CLUSTERS)
    if not 0 <= info.num_clusters <= most or (info.cluster_digest and not info.num_clusters):
        yield f"has num_clusters = {info.num_clusters}, expected 1 to {most}"
    digest = info.cluster_digest
    if info.num_clusters and not (isinstance(digest, str) and DIGEST.fullmatch(digest)):
        yield "has a cluster_digest that is not of hexadecimal digits"


def _faults_of_statistics(info: GraphInfo) -> Iterator[str]:
    rows = info.statistics
    for part, row in enumerate(rows):
        counts = [row.num_inner, row.num_central, row.num_halo, row.num_boundary, row.num_sent, row.num_edges,
                  row.num_cut_edges, *row.sent_to, *row.boundary_importance, *row.sent_importance]
        if row.part != part or min(counts) < 0 or not (math.isfinite(row.imbalance) and row.imbalance >= 0):
            yield f"has statistics of part {part} that can't be: a negative count, or another part's number"
        if max(row.num_central, row.num_boundary) > row.num_inner or row.num_cut_edges > row.num_edges:
            yield f"has statistics of part {part} that name more rows or edges of a kind than of all"
        for name, total in (("sent_to", row.num_sent), ("sent_importance", row.num_sent),
                            ("boundary_importance", row.num_boundary)):
            if sum(getattr(row, name)) != total:
                yield f"has statistics of part {part} whose {name} does not sum to {total}"
        if sum(other.sent_to[part] for other in rows) != row.num_halo:
            yield f"has statistics of part {part} that receives other rows than are sent to it"
    for name, total in (("num_inner", info.num_nodes), ("num_edges", info.num_edges)):
        if sum(getattr(row, name) for row in rows) != total:
            yield f"has statistics whose {name} does not sum to {total}"
    degrees = info.boundary_degree
    if any(low > high for low, high in zip((0, *degrees), degrees, strict=False)):
        yield "has boundary_degree that does not rise from 0"
    if bool(degrees) != any(row.num_sent for row in rows):
        yield "has boundary_degree of rows that do not cross, or none of rows that do"


def _faults_of_reports(info: GraphInfo) -> Iterator[str]:
    made = info.provenance
    if [type(value) for value in (made.source, made.partitioner, made.seed, made.settings)] != [str, str, int, dict]:
        yield "has a provenance with values of other types than source, partitioner, seed and settings"
    for item in fields(CleaningReport):
        if type(getattr(info.cleaning, item.name)) is not type(item.default):
            yield f"has a cleaning report whose {item.name} is no {type(item.default).__name__}"
    if not all(isinstance(remark, str) for remark in info.cleaning.remarks):
        yield "has a cleaning report whose remarks are no texts"
    if not all(len(line) == 2 and all(isinstance(text, str) for text in line) for line in info.what_was_read.lines):
        yield "has lines of what was read that are no topics with texts"
