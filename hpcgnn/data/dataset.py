"""GraphDataset: the one in-memory form of a source graph; every source makes it and partition/ reads it.

WhatWasRead says how the columns of a source were understood and what is dubious, as `preprocess` prints it. A reader
notes in `Origins` where ids, weights, features, labels and splits were and what it did not use; `describe` adds the
counts.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse

from hpcgnn.errors import DatasetError

if TYPE_CHECKING:
    from hpcgnn.data.features import FeatureRows

MAX_NAME_BYTES = 128     # the name is part of a run folder's name, and file systems allow 255
CHECKED_VALUES = 1 << 22      # feature values that are checked at a time
UNKNOWN_INDICATOR = 255     # it is unknown whether a node has this label
REVERSE = " reverse"      # ends the name of a relation of added reverses
INT32_NODES = 1 << 31         # from this number of nodes on, ids are int64
MAX_CLASSES, MAX_FEATURES = 1 << 20, 1 << 24     # a weight matrix has one row or column for each


def is_plain_name(name: str) -> bool:
    """Whether a graph's name can be part of a folder name: printable, short, and no path."""
    return (0 < len(name) <= MAX_NAME_BYTES and name.isprintable() and len(name.encode()) <= MAX_NAME_BYTES
            and name not in (".", "..") and not set(name) & set("/\\"))


DUBIOUS = "dubious"
WIDTH, INDENT = 80, 11
Line = tuple[str, str]


@dataclass(frozen=True)
class Origins:
    """Where a source holds the data that was read, in words such as "column field of papers.csv"; empty if unknown.

    feature_names : tuple of str       names of the columns of features, in order
    skipped : tuple of str             lines or rows left out and why, as "3 lines of a.csv that start with #"
    unused : tuple of str              columns, attributes and arrays that were not used
    others : tuple of str              other columns or attributes of nodes; the intended labels may be among them
    way : str                          how a user names other labels than those that were found
    direction : str                    a warning that no name tells the direction of edges, or empty
    place : str                        a column of coordinates next to labels called y, if the labels were not named
    dubious : tuple of str             warnings about guesses that may be wrong, with the option that changes them
    """

    ids: str = ""
    weights: str = ""
    relations: str = ""
    edge_attr: str = ""
    features: str = ""
    feature_names: tuple[str, ...] = ()
    labels: str = ""
    splits: str = ""
    skipped: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    way: str = "label=COLUMN (labels=COLUMN in Python)"
    place: str = ""
    direction: str = ""
    dubious: tuple[str, ...] = ()


NOWHERE = Origins()
NO_WEIGHTS = "none, as asked"


@dataclass(frozen=True)
class WhatWasRead:
    """How a source was understood, as lines of (topic, text); as text, the screen that `hpcgnn preprocess` prints."""

    lines: tuple[Line, ...] = ()

    def of(self, topic: str) -> tuple[str, ...]:
        """Texts of one topic, such as "labels"."""
        return tuple(text for known, text in self.lines if known == topic)

    @property
    def dubious(self) -> tuple[str, ...]:
        """Warnings about guesses that may be wrong."""
        return self.of(DUBIOUS)

    def __str__(self) -> str:
        return "\n".join(text for topic, line in self.lines for text in _wrapped(topic, line))


def _wrapped(topic: str, text: str) -> list[str]:
    head = f"! {topic}" if topic == DUBIOUS else f"  {topic}"
    return textwrap.wrap(text, WIDTH, initial_indent=f"{head:<{INDENT}} ", subsequent_indent=" " * (INDENT + 1),
                         break_long_words=False, break_on_hyphens=False) or [head]


NOTHING_READ = WhatWasRead()


@dataclass(frozen=True)
class CleaningReport:
    """Counts of what was read, and of what cleaning found and did, in directed edges and nodes."""

    source_edges: int = 0
    duplicate_edges_removed: int = 0
    self_loops_removed: int = 0
    reverse_edges_added: int = 0
    isolated_nodes: int = 0
    is_symmetric: bool = True
    remarks: tuple[str, ...] = ()
    read: WhatWasRead = NOTHING_READ


@dataclass(frozen=True)
class GraphDataset:
    """A whole graph with features, labels and splits.

    Attributes
    ----------
    name : str                               key into data/registry.toml, e.g. "cora", "ogbn-products"
    indptr : (num_nodes + 1,) int64          CSR by destination: row v lists the sources u of the edges u -> v
    indices : (num_edges,) int32 or int64    sources, ascending within a row, no self-loops; a source comes again only
                                             with another relation or other attributes
    features : (num_nodes, num_features) float32: ndarray (possibly memory-mapped), scipy CSR, or FeatureRows
    labels : (num_nodes,) int64 class ids, -1 if unknown; or (num_nodes, num_classes) uint8 indicators, 255 if unknown;
                                             or (num_nodes, num_classes) float32 targets, NaN if unknown
    num_classes : int                        for a regression, the number of targets
    train_mask, val_mask, test_mask : (num_nodes,) bool, disjoint
    edge_weight : (num_edges,) float32, positive and finite; None for equal weights
    edge_type : (num_edges,) int32           the relation of each edge, ascending for one source; None without relations
    edge_attr : (num_edges, num_edge_features) float32, finite; None without
    relation_names : tuple of str            by relation; empty without relations
    node_types : tuple of (str, int)         types of nodes, each with its number of nodes; nodes are numbered type by
                                             type; empty without types
    type_columns : tuple of int              columns of features of each type, side by side; empty if types share them
    relation_columns : tuple of int          columns of edge_attr of each relation, side by side, or the same ones for
                                             each relation that has any; relations beyond are the reverses of these,
                                             with the same columns; empty if all share all columns
    feature_names : tuple of str             names of the columns of features in the source, in order; empty without
    node_name : (num_nodes,) int64 or str objects    ids in the source; None if these are 0..num_nodes - 1
    class_names : tuple of str               by class id; empty if the source has numbers
    held_out : (n, 3) int64                  links left out of the edges: source, target, 1 for validation or 2 for
                                             test; (n, 4) with the relation if edges have one; None without any
    """

    name: str
    indptr: np.ndarray
    indices: np.ndarray
    features: np.ndarray | scipy.sparse.csr_matrix | FeatureRows
    labels: np.ndarray
    num_classes: int
    train_mask: np.ndarray
    val_mask: np.ndarray
    test_mask: np.ndarray
    cleaning: CleaningReport = field(default_factory=CleaningReport)
    edge_weight: np.ndarray | None = None
    node_name: np.ndarray | None = None
    class_names: tuple[str, ...] = ()
    held_out: np.ndarray | None = None
    edge_type: np.ndarray | None = None
    edge_attr: np.ndarray | None = None
    relation_names: tuple[str, ...] = ()
    node_types: tuple[tuple[str, int], ...] = ()
    type_columns: tuple[int, ...] = ()
    relation_columns: tuple[int, ...] = ()
    feature_names: tuple[str, ...] = ()

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Number of directed edges."""
        return len(self.indices)

    @property
    def num_features(self) -> int:
        """Number of columns of features."""
        return self.features.shape[1]

    @property
    def task(self) -> str:
        """Kind of task by the labels: "classes", "multi-label" or "regression"."""
        if self.labels.dtype.kind == "f":
            return "regression"
        return "multi-label" if self.labels.ndim == 2 else "classes"

    @property
    def is_multi_label(self) -> bool:
        """Whether a node may have several labels."""
        return self.task == "multi-label"

    def name_of(self, node: int) -> str:
        """A node's id in the source, else its number, for a sentence."""
        return str(node) if self.node_name is None else repr(self.node_name[node:node + 1].tolist()[0])

    @property
    def is_labeled(self) -> bool:
        """Whether some node has a label or is in a split; if not, a trained model can only predict."""
        return bool((self.labels != -1).any() or self.val_mask.any() or self.test_mask.any())

    def in_degree(self) -> np.ndarray:
        """Number of in-neighbors of every node, (num_nodes,) int64."""
        return np.diff(self.indptr)

    def check(self) -> GraphDataset:
        """Check every invariant that later stages rely on; returns self.

        Raises
        ------
        DatasetError      an edge to a node that does not exist, labels out of range, non-finite features, masks
                          that overlap, array lengths that disagree, no training node in the whole graph
        """
        self._check_structure()
        self._check_weights()
        self._check_relations()
        self._check_names()
        self._check_features()
        self._check_labels()
        self._check_masks()
        return self

    def _check_structure(self) -> None:
        n = self.num_nodes
        if n == 0:
            raise DatasetError(f"{self.name} has no nodes; expected at least one")
        if self.indptr[0] != 0 or self.indptr[-1] != self.num_edges or (self.indptr[1:] < self.indptr[:-1]).any():
            raise DatasetError(f"{self.name}: indptr does not rise from 0 to the number of edges, {self.num_edges}")
        if self.num_edges:
            low, high = int(self.indices.min()), int(self.indices.max())
            if low < 0 or high >= n:
                bad = low if low < 0 else high
                raise DatasetError(f"{self.name} has an edge to node {bad}, which does not exist; "
                                   f"node ids run from 0 to {n - 1}")

    def _check_weights(self) -> None:
        weight = self.edge_weight
        if weight is None:
            return
        if weight.shape != (self.num_edges,) or weight.dtype != np.float32:
            raise DatasetError(f"{self.name} has edge weights of {weight.dtype} and shape {weight.shape}; "
                               f"expected float32, one for each of {self.num_edges} edges")
        if len(weight) and not (weight.min() > 0 and np.isfinite(weight.max())):
            raise DatasetError(f"{self.name} has edge weights that are not positive and finite")

    def _check_relations(self) -> None:
        relation, attr, num_relations = self.edge_type, self.edge_attr, len(self.relation_names)
        if (relation is None) != (num_relations == 0):
            raise DatasetError(f"{self.name} has {num_relations} relation names, and edges "
                               f"{'without' if relation is None else 'with'} relations; expected both or neither")
        if relation is not None:
            if relation.shape != (self.num_edges,) or relation.dtype != np.int32:
                raise DatasetError(f"{self.name} has relations of {relation.dtype} and shape {relation.shape}; "
                                   f"expected int32, one for each of {self.num_edges} edges")
            if len(relation) and not 0 <= relation.min() <= relation.max() < num_relations:
                raise DatasetError(f"{self.name} has relations from {relation.min()} to {relation.max()}; expected 0 "
                                   f"to {num_relations - 1}")
        if attr is None:
            return
        if attr.ndim != 2 or len(attr) != self.num_edges or not attr.shape[1] or attr.dtype != np.float32:
            raise DatasetError(f"{self.name} has edge attributes of {attr.dtype} and shape {attr.shape}; expected "
                               f"float32, a row for each of {self.num_edges} edges")
        step = max(1, CHECKED_VALUES // attr.shape[1])
        if not all(np.isfinite(attr[first:first + step]).all() for first in range(0, len(attr), step)):
            raise DatasetError(f"{self.name} has edge attributes that are NaN or infinite")

    def _check_names(self) -> None:
        if self.node_name is not None and self.node_name.shape != (self.num_nodes,):
            raise DatasetError(f"{self.name} has {len(self.node_name)} node ids for {self.num_nodes} nodes")
        if self.class_names and (self.task == "regression" or len(self.class_names) != self.num_classes):
            raise DatasetError(f"{self.name} has {len(self.class_names)} class names for {self.num_classes} classes")

    def _check_features(self) -> None:
        if self.features.shape[0] != self.num_nodes:
            raise DatasetError(f"{self.name} has {self.features.shape[0]} feature rows for {self.num_nodes} nodes")
        sparse = scipy.sparse.issparse(self.features)
        values = self.features.data if sparse else self.features
        step = max(1, CHECKED_VALUES // max(1, self.num_features))
        for start in range(0, len(values), step):
            finite = np.isfinite(values[start:start + step])
            if not finite.all():
                where = "" if sparse else f", first at node {self.name_of(start + int(np.argmin(finite.all(axis=1))))}"
                raise DatasetError(f"{self.name} has features that are NaN or infinite{where}; "
                                   "clean the source, or pass --non-finite zero")

    def _check_labels(self) -> None:
        if len(self.labels) != self.num_nodes:
            raise DatasetError(f"{self.name} has {len(self.labels)} labels for {self.num_nodes} nodes")
        if self.labels.ndim == 2 and self.labels.shape[1] != self.num_classes:
            raise DatasetError(f"{self.name} has labels of shape {self.labels.shape}; expected {self.num_classes} "
                               "columns")
        if self.is_multi_label:
            is_odd = (self.labels > 1) & (self.labels != UNKNOWN_INDICATOR)
            if is_odd.any():
                raise DatasetError(f"{self.name}: multi-label indicators must be 0 or 1, found "
                                   f"{self.labels[is_odd].max()}")
        elif self.task == "regression":
            if self.labels.ndim != 2 or self.labels.dtype != np.float32 or np.isinf(self.labels).any():
                raise DatasetError(f"{self.name} has targets of {self.labels.dtype} and shape {self.labels.shape}; "
                                   "expected finite float32, one row per node, NaN where unknown")
        else:
            low, high = int(self.labels.min()), int(self.labels.max())
            if low < -1 or high >= self.num_classes:
                bad = low if low < -1 else high
                raise DatasetError(f"{self.name} has label {bad}; labels must lie in 0..{self.num_classes - 1}, "
                                   "or be -1 where unknown")
        used = (self.train_mask | self.val_mask | self.test_mask) & ~has_label(self.labels)
        if used.any():
            unknown = "-1" if self.task == "classes" else "NaN"
            raise DatasetError(f"{self.name} has a node in a split with an unknown label ({unknown}): node "
                               f"{self.name_of(int(np.argmax(used)))}; leave nodes without a label out of the splits")

    def _check_masks(self) -> None:
        masks = {"train": self.train_mask, "val": self.val_mask, "test": self.test_mask}
        for split, mask in masks.items():
            if mask.shape != (self.num_nodes,) or mask.dtype != bool:
                raise DatasetError(f"{self.name}: {split}_mask must be bool of length {self.num_nodes}, "
                                   f"found {mask.dtype} of shape {mask.shape}")
        if (self.train_mask.astype(np.int8) + self.val_mask + self.test_mask > 1).any():
            raise DatasetError(f"{self.name}: a node is in two of the train, validation and test splits")
        if not self.train_mask.any() and self.is_labeled and self.held_out is None:
            raise DatasetError(f"{self.name} has no training node; at least one is needed")


def feature_rows(dataset: GraphDataset, node_id: np.ndarray | slice) -> np.ndarray:
    """Dense features of some nodes, (num_chosen, num_features) float32."""
    rows = dataset.features[node_id]
    return np.ascontiguousarray(rows.toarray() if scipy.sparse.issparse(rows) else rows, dtype=np.float32)


def has_label(labels: np.ndarray) -> np.ndarray:
    """Whether each node has a label, (num_nodes,) bool, from labels in any form of a GraphDataset."""
    if labels.dtype.kind == "f":
        return ~np.isnan(labels).all(axis=1)
    return labels >= 0 if labels.ndim == 1 else (labels != UNKNOWN_INDICATOR).any(axis=1)
