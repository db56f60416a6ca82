"""GivenGraph: a user's graph, with ids, labels, splits and relations in any form; and how it becomes a GraphDataset.

All sources except public data sets end in `finish_dataset`: number the nodes, clean the edges, read labels and splits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from hpcgnn.data.arcs import Ends
from hpcgnn.data.arrays import Sliced
from hpcgnn.data.assemble import (
    Masks,
    Types,
    assemble_dataset,
    masks_from_ids,
    refuse_given_labels,
)
from hpcgnn.data.cleaning import CleanGraph, TypedEdges, build_csr, build_typed_csr, check_weights
from hpcgnn.data.columns import Words, as_ids, as_labels, as_mask, as_numbers, as_words, is_mask
from hpcgnn.data.dataset import MAX_CLASSES, MAX_FEATURES, NOWHERE, GraphDataset, Origins
from hpcgnn.data.features import Features
from hpcgnn.data.hold_out import as_times, last_links, links_of
from hpcgnn.data.ids import SPARSE, NodeRows, ids_of_ends, look_at_ids, numbers_of_ends, renumbered
from hpcgnn.data.labels import UNKNOWN, Labels, alike, made_labels, read_labels
from hpcgnn.data.options import SourceOptions
from hpcgnn.errors import DatasetError

SPLITS = ("training", "validation", "test")
WORDS = {"train": 0, "training": 0, "tr": 0, "trn": 0, "val": 1, "valid": 1, "validation": 1, "va": 1, "dev": 1,
         "test": 2, "testing": 2, "te": 2, "tst": 2}
NO_SPLIT = ("", "none", "nan", "unused")


def read_splits(splits: Any, num_nodes: int, name: str, rows: NodeRows | None = None,
                column: int | None = None) -> Masks:
    """Read training, validation and test masks, (num_nodes,) bool.

    Parameters
    ----------
    splits : one word per node, (num_nodes,) str: train, val (valid, validation), test, or "" for none;
        or three arrays in this order, or a dict of them by these words; each a mask, (num_nodes,) bool, or a list of
        node ids. A mask of several splits is (num_nodes, num_splits). A dict needs only the training nodes
    column : int or None      which of several splits, counted from 0; masks of one split hold for all of them
    rows : NodeRows           finds nodes by id; None if ids are row numbers
    """
    if isinstance(splits, dict):
        members = [None, None, None]
        for key, value in splits.items():
            members[_place_of(str(key), name)] = value
    elif isinstance(splits, list | tuple) and len(splits) == 3 and not isinstance(splits[0], str):
        members = list(splits)
    else:
        return masks_from_words(splits, num_nodes, name)
    if members[0] is None:
        raise DatasetError(f"{name} has splits without training nodes; expected train, val and test")
    return tuple(np.zeros(num_nodes, bool) if part is None
                 else _mask(part, num_nodes, name, place, rows, column)
                 for place, part in enumerate(members))


def masks_from_words(words: Any, num_nodes: int, name: str) -> Masks:
    """Masks of one word per node, see `read_splits`."""
    try:
        found = as_words(words, f"{name}: the splits")
    except DatasetError as reason:
        raise DatasetError(f"{reason}: expected one word per node (train, val, test), or three masks or lists of node "
                           "ids") from None
    if found.code.shape != (num_nodes,):
        raise DatasetError(f"{name} has splits of shape {found.code.shape} for {num_nodes} nodes; expected one word "
                           "per node (train, val, test), or three masks or lists of node ids")
    split = np.array([*(-1 if word.strip().lower() in NO_SPLIT else _place_of(word, name) for word in found.word), -1],
                     np.int64)[found.code]
    return tuple(split == number for number in range(3))


def _place_of(word: str, name: str) -> int:
    place = WORDS.get(word.strip().lower())
    if place is None:
        raise DatasetError(f"{name} has a split called {word[:40]!r}; expected train, val (valid, validation) or test")
    return place


def _mask(part: Any, num_nodes: int, name: str, place: int, rows: NodeRows | None, column: int | None) -> np.ndarray:
    what = f"{name}: the nodes of the {SPLITS[place]} split"
    if len(np.shape(as_labels(part, what) if isinstance(part, list | tuple) else part)) == 2:
        return _one_of_several(as_mask(part, what), num_nodes, name, place, column)
    if is_mask(part, num_nodes, what):
        mask = as_mask(part, what)
        if mask.shape != (num_nodes,):
            raise DatasetError(f"{name} has a {SPLITS[place]} mask of shape {mask.shape}; expected ({num_nodes},)")
        return mask
    members = [np.empty(0, np.int64)] * 3
    members[place] = as_ids(part, what) if len(part) else members[0]
    if rows is not None:
        members[place] = rows.find(members[place], f"a {SPLITS[place]} split that refers")
    elif not isinstance(members[place], np.ndarray):
        raise DatasetError(f"{what} are texts, and nodes have no ids but their numbers, 0 to {num_nodes - 1}")
    return masks_from_ids(tuple(members), num_nodes, name)[place]


def _one_of_several(masks: np.ndarray, num_nodes: int, name: str, place: int, column: int | None) -> np.ndarray:
    if len(masks) != num_nodes:
        raise DatasetError(f"{name} has {SPLITS[place]} masks of shape {masks.shape}; expected a row for each of "
                           f"{num_nodes} nodes, with 0 or 1 for each split")
    num_splits = masks.shape[1]
    if column is None and num_splits == 1:
        column = 0
    if column is None or not 0 <= column < num_splits:
        chosen = "and none is chosen" if column is None else f"and split {column} is none of them"
        raise DatasetError(f"{name} has {num_splits} splits, the columns of its {SPLITS[place]} mask, {chosen}; choose "
                           f"one from 0 to {num_splits - 1}, as in split=0 (splits=0 in Python)")
    return masks[:, column]


def read_relations(given: Any, names: tuple[str, ...], num_edges: int, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """The relation of each edge, (num_edges,) int32, and the names of relations, (num_relations,) by number.

    Texts are numbered in alphabetical order: "likes", "cites" and "likes" become 1, 0 and 1. Numbers stay as they are,
    up to the largest. If fewer than half of these numbers occur, as with ids of a database, those that occur are
    numbered in ascending order and keep the numbers as names.

    Parameters
    ----------
    given : column of numbers or texts
    names : tuple of str      by number, or empty
    name : str                name of the dataset, for messages

    Raises
    ------
    DatasetError              a relation that is unknown, negative or not whole, a number that has no name, names for
                              texts, or another number of relations than of edges
    """
    what = f"{name}: the relations of edges"
    found = as_labels(given, what)
    values = found.code if isinstance(found, Words) else found
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.shape != (num_edges,):
        raise DatasetError(f"{what} have shape {values.shape}; expected one for each of {num_edges} edges")
    if isinstance(found, Words):
        return _of_words(values, found.word, names, what)
    with np.errstate(invalid="ignore"):
        is_bad = ~(values >= 0) | (values > np.iinfo(np.int64).max)
        is_bad |= (values % 1 != 0) if values.dtype.kind == "f" else False
    if is_bad.any():
        place = int(np.argmax(is_bad))
        raise DatasetError(f"{what} are {values[place]} at place {place}; expected whole numbers from 0, or texts: "
                           "leave out edges without a relation, or all relations by relation=none (relation=False in "
                           "Python)")
    values = values.astype(np.int64)
    highest = int(values.max(initial=-1))
    if names:
        if highest >= len(names):
            raise DatasetError(f"{what} go up to {highest}, and there are {len(names)} relation names; expected a name "
                               "for each number from 0")
        return _with_names(values, names, what)
    if highest < SPARSE * num_edges:
        occurs = np.bincount(values, minlength=highest + 1) > 0
        if highest + 1 <= SPARSE * np.count_nonzero(occurs):
            return _with_names(values, tuple(map(str, range(highest + 1))), what)
    numbers, place = np.unique(values, return_inverse=True)
    return _with_names(place, tuple(map(str, numbers.tolist())), what)


def _of_words(code: np.ndarray, word: tuple[str, ...], names: tuple[str, ...],
              what: str) -> tuple[np.ndarray, tuple[str, ...]]:
    is_unknown = np.isin(code, [-1, *(number for number, text in enumerate(word) if not text)])
    if is_unknown.any():
        raise DatasetError(f"{what} lack a name at place {int(np.argmax(is_unknown))}; leave out edges without a "
                           "relation, or all relations by relation=none (relation=False in Python)")
    lacking = next((text for text in word if text not in names), None) if names else None
    if lacking is not None:
        raise DatasetError(f"{what} hold {lacking[:40]!r}, which is none of {len(names)} relation names; expected one "
                           "of them for each edge")
    names = names or tuple(sorted(word))
    number_of = {text: number for number, text in enumerate(names)}
    return _with_names(np.array([number_of[text] for text in word], np.int64)[code], names, what)


def _with_names(number: np.ndarray, names: tuple[str, ...], what: str) -> tuple[np.ndarray, tuple[str, ...]]:
    if len(names) > MAX_CLASSES:
        raise DatasetError(f"{what} are of {len(names)} kinds; expected at most {MAX_CLASSES}")
    return number.astype(np.int32), names


def read_relation_names(given: Any, what: str) -> tuple[str, ...]:
    """Names of relations by number, from a column of texts; DatasetError for a name that is unknown or comes twice."""
    words = as_words(given, what)
    names = [words.word[code] if code >= 0 else "" for code in words.code.reshape(-1).tolist()]
    if "" in names or len(set(names)) < len(names):
        raise DatasetError(f"{what} lack a name or have one twice; expected a different one for each relation")
    return tuple(names)


def read_attributes(given: Any, num_edges: int, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Attributes of edges, (num_edges, num_edge_features) float32, from a column or matrix of numbers, and a warning if
    float32 rounds whole numbers among them.

    Raises DatasetError for texts, for another number of rows than of edges, and for values that are unknown, infinite
    or too large for float32.
    """
    what = f"{name}: the attributes of edges"
    values = as_numbers(given, what)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or len(values) != num_edges or not 1 <= values.shape[1] <= MAX_FEATURES:
        raise DatasetError(f"{what} have shape {values.shape}; expected a row for each of {num_edges} edges, with at "
                           "least one number")
    with np.errstate(over="ignore"):
        stored = values.astype(np.float32)
    is_bad = ~np.isfinite(stored)
    if is_bad.any():
        edge, column = np.argwhere(is_bad)[0].tolist()
        raise DatasetError(f"{what} hold {values[edge, column]} in column {column} of edge {edge}; expected finite "
                           "numbers: fill in such values first, or leave all attributes out by edge_features=none "
                           "(edge_attr=False in Python)")
    # float32 holds each whole number up to 2**24, and float64 up to 2**53: beyond, a float is no count or time.
    most = 2.0**53 if values.dtype.kind == "f" else np.inf
    is_rounded = (np.abs(stored) >= 2**24) & (np.abs(stored) < most) & (stored != values) & (values % 1 == 0)
    if not is_rounded.any():
        return stored, ()
    edge, column = np.argwhere(is_rounded)[0].tolist()
    return stored, (
        f"{int(is_rounded.any(axis=1).sum()):,} edges have attributes that float32 rounds, such as "
        f"{values[edge, column]:.0f} in column {column}, and edges that are equal then are duplicates; subtract the "
        "least value of the column from it first",)


@dataclass(frozen=True)
class GivenGraph:
    """The content of a user's object or files, before anything is decided.

    source, target : (num_edges,) ids of the ends of edges: columns of any library, or numbers read in slices
    weight : (num_edges,) column of numbers, or None
    node_id : (num_nodes,) column with the id of each row, or None if ends are row numbers
    row_name : (num_nodes,) column of ids to show, although ends are row numbers; or None
    num_nodes : int, or None if features, labels or ids give it
    features : (num_nodes, num_features) number, ndarray, scipy CSR or RowFile, or None
    labels : (num_nodes,) column, or (num_nodes, num_columns), of numbers or texts, or None
    label_names : tuple of str       names of several columns of labels
    num_classes : int, or None if labels give it
    splits : see read_splits, or None
    relation : (num_edges,) column, the relation of each edge, numbers or texts; or None
    relation_names : tuple of str    by number; empty: see `read_relations`
    edge_attr : (num_edges,) or (num_edges, num_edge_features) numbers, or None
    node_types : tuple of (str, int) types of nodes, each with its number of nodes, which are numbered one after another
    type_columns : tuple of int      columns of features of each type, side by side; empty if types share columns
    relation_columns : tuple of int  columns of edge_attr of each relation, see `GraphDataset`
    time : (num_edges,) column, the time of each edge, by which links are held out; or None
    is_timed : (num_edges,) bool, the edges that `time` is of, only these are held out; or None: all
    val_links, test_links : held-out links, of each what `links_of` takes, with ids as edges have them; or None
    ignore : tuple or None           labels that mean "unknown"; None: only NaN does
    is_symmetric : bool              each edge is listed once and holds both ways
    labels_hint : str                how labels are given, for the sentence that asks for them
    origins : Origins                where the source held all this, for the report of what was read
    """

    name: str
    source: Ends | Any
    target: Ends | Any
    weight: Any = None
    node_id: Any = None
    row_name: Any = None
    num_nodes: int | None = None
    features: Features | None = None
    labels: Any = None
    label_names: tuple[str, ...] = ()
    num_classes: int | None = None
    task: str = "auto"
    splits: Any = None
    relation: Any = None
    relation_names: tuple[str, ...] = ()
    edge_attr: Any = None
    node_types: tuple[tuple[str, int], ...] = ()
    type_columns: tuple[int, ...] = ()
    relation_columns: tuple[int, ...] = ()
    time: Any = None
    is_timed: np.ndarray | None = None
    val_links: Any = None
    test_links: Any = None
    split_column: int | None = None
    ignore: tuple | None = ()
    is_symmetric: bool = False
    remarks: tuple[str, ...] = ()
    labels_hint: str = "labels=ARRAY"
    origins: Origins = NOWHERE


def finish_dataset(given: GivenGraph, options: SourceOptions) -> GraphDataset:
    """Number the nodes, clean the edges, decide what labels mean, and check the whole."""
    labels, dubious = _labels(given, options), given.origins.dubious
    if given.weight is not None:
        weight = as_numbers(given.weight, f"{given.name}: the weights of edges")
        given = replace(given, weight=weight[:, 0] if weight.ndim == 2 and weight.shape[1] == 1 else weight)
    source, target, num_nodes, rows = _numbered(given)
    if rows is not None and given.node_id is None and isinstance(rows.ids, np.ndarray):
        given = replace(given, remarks=(*given.remarks, f"edges name {num_nodes:,} of the numbers 0 to "
                                        f"{rows.ids[-1]:,}, so these are the nodes, called by their numbers"))
    if rows is not None:
        dubious += look_at_ids(rows.ids)
    if given.edge_attr is not None:
        attr, rounded = read_attributes(given.edge_attr, len(source), given.name)
        given, dubious = replace(given, edge_attr=attr), dubious + rounded
    if given.relation is not None:
        relation, names = read_relations(given.relation, given.relation_names, len(source), given.name)
        given = replace(given, relation=relation, relation_names=names)
    graph = _cleaned(given, source, target, num_nodes, options).with_remarks(given.remarks)
    if rows is given.row_name is None and not given.node_types and len(graph.indices) and not graph.indptr[1] and (
            graph.indices.min() == 1 or (graph.indices.min() > 1 and graph.indptr[2])):
        dubious += ("no edge has node 0, and some have node 1: subtract 1 from the ends of edges if they count nodes "
                    "from 1",)
    origins = replace(given.origins, dubious=dubious + alike(graph.relation_names, "relations"))
    held_out = links_of((given.val_links, given.test_links), num_nodes, rows, given.name, graph.relation_names)
    if given.time is not None:
        if held_out is not None or options.val_links is not None or options.test_links is not None:
            raise DatasetError(f"{given.name} has held-out links of its own; leave out the times of edges")
        timed = slice(None) if given.is_timed is None else given.is_timed
        ends = [np.asarray(column)[timed] for column in (source, target, given.relation) if column is not None]
        held_out, remark = last_links(graph, np.column_stack(ends), as_times(
            given.time, f"{given.name}: the times of edges"), options.hold_out, given.name, options.hold_out_relation)
        graph = graph.with_remarks((remark,))
        options = replace(options, hold_out=(0.0, 0.0), hold_out_relation="")
    if given.row_name is not None:
        rows = NodeRows(given.row_name, given.name)
        if len(rows) != num_nodes:
            raise DatasetError(f"{given.name} has {len(rows)} ids for {num_nodes} nodes; expected one each")
    name, splits = given.name, None if labels is None else given.splits
    if labels is None and options.make_labels is not None:
        # The name of the dataset says so in every run and report: no such score is a benchmark.
        num_classes = options.make_labels
        labels = Labels(made_labels(graph.indptr, graph.indices, num_classes, name), num_classes, remarks=(
            f"MADE LABELS: the source has none; {num_classes} classes of equal size by rank of in-degree stand in, so "
            "no score on them is a benchmark",))
        name, origins = f"{name}-made-labels-{num_classes}", replace(origins, labels="in-degrees, made")
    elif labels is None:
        labels = _no_labels(given, num_nodes, held_out is not None or options.holds_out)
    masks = None if splits is None else read_splits(splits, num_nodes, name, rows, given.split_column)
    return assemble_dataset(name, graph, given.features, labels, masks, options, None if rows is None else rows.names,
                            origins, held_out, Types(given.node_types, given.type_columns, given.relation_columns))


def _cleaned(given: GivenGraph, source: Ends, target: Ends, num_nodes: int, options: SourceOptions) -> CleanGraph:
    if given.relation is None and given.edge_attr is None:
        return build_csr(source, target, num_nodes, options.symmetrize or given.is_symmetric, given.name,
                         options.progress, options.scratch, given.weight)
    source, target = (np.asarray(ends) for ends in (source, target))
    return build_typed_csr(TypedEdges(source, target, given.weight, given.relation, given.edge_attr), num_nodes,
                           given.is_symmetric, options.symmetrize, given.name,
                           () if given.relation is None else given.relation_names, options.progress)


def _labels(given: GivenGraph, options: SourceOptions) -> Labels | None:
    if given.labels is not None:
        refuse_given_labels(given.name, options)
        task = given.task if options.task == "auto" else options.task
        return read_labels(given.labels, task, given.name, given.num_classes, given.label_names, given.ignore,
                           replace(given.origins, way=given.labels_hint))
    return None


def _no_labels(given: GivenGraph, num_nodes: int, has_links: bool) -> Labels:
    # Labels of a graph without any: a trained model can predict for it, and only links are trained on it.
    unknown = np.full(num_nodes, UNKNOWN, np.int64)
    return Labels(unknown, 1) if has_links else Labels(unknown, 1, dubious=(
        f"{given.name} has no labels, so only a trained model can predict for it; to train on it, give labels by "
        f"{given.labels_hint}, or have K classes made from in-degrees by --make-labels K (make_labels=K in Python)",))


def _numbered(given: GivenGraph) -> tuple[Ends, Ends, int, NodeRows | None]:
    # Returns the rows of both ends of each edge, the number of nodes, and the NodeRows that find ids, if needed.
    source, target = given.source, given.target
    if given.node_id is not None or not (_are_rows(source) and _are_rows(target)):
        source, target = (as_ids(np.asarray(ends) if isinstance(ends, Sliced) else ends,
                                 f"{given.name}: the ends of edges") for ends in (source, target))
    if len(source) != len(target):
        raise DatasetError(f"{given.name} has {len(source)} sources and {len(target)} targets of edges; expected as "
                           "many of both")
    if given.node_id is None and _are_rows(source) and _are_rows(target):
        num_nodes = _known_nodes(given)
        if num_nodes is not None:
            return source, target, num_nodes, None
        num_nodes, ids = numbers_of_ends(source, target)
        if ids is None:
            return source, target, num_nodes, None
        source, target = (renumbered(ends, ids) for ends in (source, target))
        return source, target, len(ids), NodeRows(ids, given.name)
    if given.node_id is None and _num_rows(given):
        texts = source if isinstance(source, pa.Array) else target
        raise DatasetError(f"{given.name} has edges between texts such as {texts[:2].to_pylist()}, and rows of "
                           "labels or features without ids; give the id of each row, too")
    rows = NodeRows(ids_of_ends(source, target) if given.node_id is None else given.node_id, given.name,
                    given.origins.ids)
    check_weights(given.weight, source, target, given.name)      # checked here, where the error can name the ids
    return rows.find(source, "an edge"), rows.find(target, "an edge"), len(rows), rows


def _num_rows(given: GivenGraph) -> list[int]:
    return [rows.shape[0] if hasattr(rows, "shape") else len(rows) for rows in (given.features, given.labels)
            if rows is not None]


def _are_rows(ends: Any) -> bool:
    return (isinstance(ends, np.ndarray | Sliced) and not isinstance(ends, np.ma.MaskedArray)
            and ends.ndim == 1 and ends.dtype.kind == "i" and ends.dtype.isnative)


def _known_nodes(given: GivenGraph) -> int | None:
    if given.num_nodes is not None:
        return given.num_nodes
    known = _num_rows(given)
    if len(set(known)) > 1:
        raise DatasetError(f"{given.name} has {known[0]} feature rows and {known[1]} labels; expected one of each per "
                           "node")
    return known[0] if known else None
