"""GivenGraph: a graph as a user has it, with ids, labels and splits of any form, and how it becomes a GraphDataset.

Each kind of object or file is taken apart in a file of its own; none is known here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcgnn.datasets.arcs import Ends, chunks
from hpcgnn.datasets.assemble import assemble_dataset
from hpcgnn.datasets.cleaning import build_weighted_csr
from hpcgnn.datasets.dataset import GraphDataset
from hpcgnn.datasets.features import Features
from hpcgnn.datasets.given_splits import read_splits
from hpcgnn.datasets.ids import NodeRows, ids_of_ends, plain_ids
from hpcgnn.datasets.made import assemble_made_dataset, refuse_given_labels
from hpcgnn.datasets.options import SourceOptions
from hpcgnn.datasets.splits import Masks
from hpcgnn.datasets.targets import Labels, read_labels
from hpcgnn.datasets.weights import check_weights
from hpcgnn.datasets.what_was_read import NOWHERE, Origins
from hpcgnn.errors import DatasetError


@dataclass(frozen=True)
class GivenGraph:
    """Hold what a user's object or files say, before anything is decided.

    Attributes
    ----------
    name : str
    source, target : (num_edges,) ids of the nodes that each arc leads from and to; numbers may be what reads slices
    weight : (num_edges,) number, or None
    node_id : (num_nodes,) id of each row, or None where the ends of arcs are the numbers of rows
    row_name : (num_nodes,) id of each row of a graph whose arcs are between the numbers of rows, or None
    num_nodes : int, or None where features, labels or ids tell
    features : (num_nodes, num_features) number, ndarray, scipy CSR or RowFile, or None
    labels : (num_nodes,) or (num_nodes, num_columns) number or text, or None
    label_names : tuple of str       names of several columns of labels
    num_classes : int, or None where labels tell
    task : {"auto", "regression"}    what the source says of its labels
    splits : what read_splits takes, or None
    split_column : int or None       which of several splits
    ignore : tuple or None           labels that are unknown; None takes each but NaN for a class
    is_symmetric : bool              each edge is listed once and holds both ways
    remarks : tuple of str           for the cleaning report
    labels_hint : str                how labels are given, for the sentence that asks for them
    origins : Origins                where all this stood, for the screen of what was read
    """

    name: str
    source: Ends
    target: Ends
    weight: np.ndarray | None = None
    node_id: np.ndarray | None = None
    row_name: np.ndarray | None = None
    num_nodes: int | None = None
    features: Features | None = None
    labels: np.ndarray | None = None
    label_names: tuple[str, ...] = ()
    num_classes: int | None = None
    task: str = "auto"
    splits: Any = None
    split_column: int | None = None
    ignore: tuple | None = ()
    is_symmetric: bool = False
    remarks: tuple[str, ...] = ()
    labels_hint: str = "labels=ARRAY"
    origins: Origins = NOWHERE


def finish_dataset(given: GivenGraph, options: SourceOptions) -> GraphDataset:
    """Number the nodes, clean the edges, decide what labels mean, and check the whole.

    Raises
    ------
    DatasetError       arrays that disagree, an id that no node has, no labels where none are to be made, weights that
                       are not positive, or what `assemble_dataset` refuses
    """
    labels = _labels(given, options)
    source, target, num_nodes, rows = _numbered(given)
    graph, weight = build_weighted_csr(source, target, given.weight, num_nodes,
                                       options.symmetrize or given.is_symmetric, given.name, options.progress,
                                       options.scratch)
    if given.row_name is not None:
        rows = NodeRows(plain_ids(given.row_name, f"{given.name}: the ids of nodes"), given.name)
        if len(rows) != num_nodes:
            raise DatasetError(f"{given.name} has {len(rows)} ids for {num_nodes} nodes; expected one each")
    name = None if rows is None else rows.names
    if labels is None:
        return assemble_made_dataset(given.name, graph, given.features, options, given.remarks, weight, name,
                                     given.origins)
    masks = None if given.splits is None else _masks(given, num_nodes, rows)
    return assemble_dataset(given.name, graph, given.features, labels.values, labels.num_classes, masks, options,
                            given.remarks + labels.remarks, weight, name, labels.class_names,
                            replace(given.origins, dubious=given.origins.dubious + labels.dubious), labels.unlabeled)


def _labels(given: GivenGraph, options: SourceOptions) -> Labels | None:
    if given.labels is not None:
        refuse_given_labels(given.name, options)
        task = given.task if options.task == "auto" else options.task
        return read_labels(given.labels, task, given.name, given.num_classes, given.label_names, given.ignore,
                           given.origins)
    if options.made_classes is None:
        raise DatasetError(f"{given.name} has no labels, which training needs; give them by {given.labels_hint}, or "
                           "have K classes made from in-degrees by --make-labels K (make_labels=K in Python)")
    return None


def _numbered(given: GivenGraph) -> tuple[Ends, Ends, int, NodeRows | None]:
    """Return the rows of both ends of each arc, the number of nodes, and what tells a row from an id, if needed."""
    source, target = given.source, given.target
    if given.node_id is not None or not source.dtype.kind == target.dtype.kind == "i":
        source, target = (plain_ids(np.asarray(ends), f"{given.name}: the ends of edges") for ends in (source, target))
    if len(source) != len(target):
        raise DatasetError(f"{given.name} has {len(source)} sources and {len(target)} targets of edges; expected as "
                           "many of both")
    if given.node_id is None and source.dtype.kind == target.dtype.kind == "i":
        return source, target, _num_nodes(given, source, target), None
    if given.node_id is not None:
        ids = plain_ids(given.node_id, f"{given.name}: the nodes")
    else:
        ids = ids_of_ends(source, target)
        if _num_rows(given):
            raise DatasetError(f"{given.name} has edges between texts such as {source[:2].tolist()}, and rows of "
                               "labels or features without ids; give the id of each row, too")
    rows = NodeRows(ids, given.name)
    check_weights(given.weight, source, target, given.name)      # here, where its sentence can name the ids
    return rows.find(source, "an edge"), rows.find(target, "an edge"), len(rows), rows


def _num_rows(given: GivenGraph) -> list[int]:
    return [rows.shape[0] for rows in (given.features, given.labels) if rows is not None]


def _num_nodes(given: GivenGraph, source: Ends, target: Ends) -> int:
    if given.num_nodes is not None:
        return given.num_nodes
    known = _num_rows(given)
    if len(set(known)) > 1:
        raise DatasetError(f"{given.name} has {known[0]} feature rows and {known[1]} labels; expected one of each a "
                           "node")
    if known:
        return known[0]
    return max((int(ends.max()) for part in chunks(source, target) for ends in part), default=-1) + 1


def _masks(given: GivenGraph, num_nodes: int, rows: NodeRows | None) -> Masks:
    return read_splits(given.splits, num_nodes, given.name, rows, given.split_column)
