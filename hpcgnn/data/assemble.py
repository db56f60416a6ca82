"""The last steps of every source: features, labels, splits, the report of what was read, and the check of the whole."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hpcgnn.data.cleaning import CleanGraph
from hpcgnn.data.dataset import (
    DUBIOUS,
    MAX_CLASSES,
    MAX_FEATURES,
    NO_WEIGHTS,
    NOWHERE,
    GraphDataset,
    Origins,
    WhatWasRead,
    has_label,
    is_plain_name,
)
from hpcgnn.data.features import ColumnTypes, Features, look_at_features, prepare_features
from hpcgnn.data.hold_out import doubts_about, hold_out, links_of
from hpcgnn.data.ids import NodeRows
from hpcgnn.data.labels import Labels
from hpcgnn.data.options import SourceOptions
from hpcgnn.errors import DatasetError

Masks = tuple[np.ndarray, np.ndarray, np.ndarray]


def random_split(labels: np.ndarray, options: SourceOptions, unlabeled: np.ndarray | None = None) -> Masks:
    """Cut one random permutation of the labeled nodes into training, validation and test nodes.

    Parameters
    ----------
    labels : as in GraphDataset
    unlabeled : (num_nodes,) bool, nodes to leave out, or None

    Returns
    -------
    train_mask, val_mask, test_mask : (num_nodes,) bool
    """
    labeled = np.flatnonzero(has_label(labels) if unlabeled is None else has_label(labels) & ~unlabeled)
    order = labeled[np.random.default_rng(options.seed).permutation(len(labeled))]
    train, val = options.split
    # At the default fractions the cuts are int(0.6 n) and int(0.8 n), without the rounding of 0.6 + 0.2.
    cuts = [int(train * len(order)), int(round(train + val, 12) * len(order))]
    return tuple(_mask(part, len(labels)) for part in np.split(order, cuts))


def masks_from_ids(ids: tuple[np.ndarray, np.ndarray, np.ndarray], num_nodes: int, name: str) -> Masks:
    """Masks of lists of training, validation and test node ids. Raises DatasetError for an id that is no node."""
    for split, members in zip(("training", "validation", "test"), ids, strict=True):
        if len(members) and (members.min() < 0 or members.max() >= num_nodes):
            bad = int(members.min() if members.min() < 0 else members.max())
            raise DatasetError(f"{name} has node {bad} in its {split} split, which does not exist; "
                               f"node ids run from 0 to {num_nodes - 1}")
        if len(members) > len(np.unique(members)):      # as Batch of PyG joins lists of the rows of several graphs
            bad = int(np.sort(members)[:-1][np.diff(np.sort(members)) == 0][0])
            raise DatasetError(f"{name} lists node {bad} twice in its {split} split; expected each once")
    return tuple(_mask(members, num_nodes) for members in ids)


def _mask(members: np.ndarray, num_nodes: int) -> np.ndarray:
    mask = np.zeros(num_nodes, dtype=bool)
    mask[members.astype(np.int64)] = True
    return mask


def refuse_given_labels(source: str, options: SourceOptions) -> None:
    """Raise DatasetError if labels are to be made for a source that has its own."""
    if options.make_labels is not None:
        raise DatasetError(f"{source} has labels of its own; leave out --make-labels")


SHOWN_NAMES, SHOWN_IDS, SHOWN_CHARACTERS, SHOWN_OF_KINDS = 12, 3, 24, 60
UNEVEN, MOST_LOOKED_AT = 100, 1_000_000      # the largest weight over the median of so many
MAX_LINES, MAX_TEXT = 40, 600     # lines, and characters per line: an attribute of HDF5 holds 64 KiB


def describe(dataset: GraphDataset, origins: Origins, drawn_with: int | None) -> WhatWasRead:
    """Describe the content of a finished graph and its origins; drawn_with is the seed of a random split."""
    report = dataset.cleaning
    lines = [("nodes", _nodes(dataset, origins)), *_types(dataset), ("edges", _edges(dataset)),
             ("weights", _weights(dataset, origins)), *_of_edges(dataset, origins),
             ("features", _features(dataset, origins)), ("labels", _labels(dataset, origins)),
             ("splits", _splits(dataset, origins, drawn_with))]
    lines += [("skipped", text) for text in origins.skipped]
    lines += [("unused", ", ".join(_shortened(origins.unused)))] if origins.unused else []
    lines += [("note", text) for text in report.remarks]
    lines += [(DUBIOUS, text) for text in (
        *origins.dubious, *filter(None, [origins.direction] * (not report.is_symmetric)),
        *_doubts_about_weights(dataset.edge_weight), *_doubts_about_types(dataset))]
    return WhatWasRead(tuple((topic, text[:MAX_TEXT]) for topic, text in lines[:MAX_LINES]))


def _nodes(dataset: GraphDataset, origins: Origins) -> str:
    if dataset.node_name is None:
        return f"{dataset.num_nodes:,}, numbered from 0 in the order of {origins.ids or 'the rows'}"
    kind = "texts" if dataset.node_name.dtype.kind in "UO" else "integers"
    shown = ", ".join(str(name)[:SHOWN_CHARACTERS] for name in dataset.node_name[:SHOWN_IDS].tolist())
    return f"{dataset.num_nodes:,}; ids are {kind}{_from(origins.ids)}: {shown}, ..."


def _types(dataset: GraphDataset) -> list[tuple[str, str]]:
    if not dataset.node_types:
        return []
    names, counts = zip(*dataset.node_types, strict=True)
    return [("types", f"{len(names):,}, numbered one after another: {_counts(names, np.array(counts))}")]


def _doubts_about_types(dataset: GraphDataset) -> tuple[str, ...]:
    is_labeled = dataset.train_mask | dataset.val_mask | dataset.test_mask
    if not dataset.node_types or not is_labeled.any() or dataset.in_degree()[is_labeled].any():
        return ()
    return ("no edge leads to a node of the splits, so a model sees nothing but their own features; --symmetrize "
            "(symmetrize=True) adds the reverse of every edge",)


def _edges(dataset: GraphDataset) -> str:
    report = dataset.cleaning
    counts = [f"{report.duplicate_edges_removed:,} duplicates and {report.self_loops_removed:,} self-loops removed"]
    if report.reverse_edges_added:
        counts.append(f"{report.reverse_edges_added:,} reverse edges added")
    direction = "every edge holds both ways" if report.is_symmetric else "edges are directed"
    return (f"{report.source_edges:,} read, {', '.join(counts)}: {dataset.num_edges:,} kept; {direction}; "
            f"{report.isolated_nodes:,} isolated nodes")


def _weights(dataset: GraphDataset, origins: Origins) -> str:
    weight = dataset.edge_weight
    if weight is None:
        return origins.weights if origins.weights == NO_WEIGHTS else "none"
    span = f"from {weight.min():.4g} to {weight.max():.4g}" if len(weight) else "of no edge"
    return f"{origins.weights or 'one per edge'}, {span}"


def _doubts_about_weights(weight: np.ndarray | None) -> tuple[str, ...]:
    if weight is None or not len(weight):
        return ()
    ratio = weight.max() / np.median(weight[::1 + len(weight) // MOST_LOOKED_AT])
    return (f"the largest weight is {ratio:,.0f} times the median, and in a sum by weights such edges outweigh all "
            "others of a node; take logarithms, or weight=none (edge_weight=False)",) if ratio > UNEVEN else ()


# Names of what may hold a split, or weights of edges; as in p.train_nodes of a type, or "count of edges" of a table.
MAY_SPLIT = re.compile(r"(.+[._])?(mask|folds?|subset|partition|phase|(data_?)?splits?(_?(masks?|idx))?|"
                       r"train(ing)?(_?(mask|idx|ind(ex|ices)|ids?|nodes|set))?s?)( of nodes)?", re.IGNORECASE)
MAY_WEIGH = re.compile(r"(.+[._])?(edge_?)?(weight|w|value|strength|count|amount|score|rating|frequency)s?( \(.*\))?"
                       "( of edges)?", re.IGNORECASE)


def _doubts_about_unused(origins: Origins, is_split_drawn: bool, are_features_made: bool, is_unweighted: bool
                         ) -> tuple[str, ...]:
    """Warnings where something was made or left out, and an unused column or attribute may hold it."""
    found = ()
    if splits := [name for name in (*origins.unused, *origins.feature_names) if MAY_SPLIT.fullmatch(name)]:
        found += (f"the split was drawn at random, and {', '.join(_shortened(splits))} may hold one; call them "
                  "train_mask, val_mask and test_mask, or choose by split= (splits=), which split=none (splits=False) "
                  "leaves to chance",) * (is_split_drawn and origins.splits != NO_WEIGHTS)
    if weights := [name.removesuffix(" of edges") for name in origins.unused if MAY_WEIGH.fullmatch(name)]:
        found += (f"edges have no weights, and {', '.join(_shortened(weights))} may hold them; weight={weights[0]} "
                  "(edge_weight=) takes them, and weight=none (edge_weight=False) says that they are none",
                  ) * (is_unweighted and not origins.weights)
    if others := [name for name in origins.others if name in origins.unused]:
        found += (f"features were made from the graph and not taken from {', '.join(_shortened(others))}; call what "
                  "holds features x, or pass features=NAME in Python",
                  ) * (are_features_made and origins.features != NO_WEIGHTS)
    return found


def _of_edges(dataset: GraphDataset, origins: Origins) -> list[tuple[str, str]]:
    lines = []
    if dataset.edge_type is not None:
        names = dataset.relation_names
        count = np.bincount(dataset.edge_type, minlength=len(names))
        lines.append(("relations", f"{len(names):,}{_from(origins.relations)}: {_counts(names, count)}"))
    if dataset.edge_attr is not None:
        lines.append(("edge_attr", f"{dataset.edge_attr.shape[1]:,} per edge{_from(origins.edge_attr, 'from')}"))
    return lines


def _features(dataset: GraphDataset, origins: Origins) -> str:
    names = origins.feature_names
    shown = f": {', '.join(_shortened(names))}" if len(names) == dataset.num_features else ""
    return f"{dataset.num_features:,}{_from(origins.features)}{shown}"


def _labels(dataset: GraphDataset, origins: Origins) -> str:
    labels, where = dataset.labels, _from(origins.labels)
    names = dataset.class_names or range(dataset.num_classes)
    if dataset.task == "regression":
        known = ~np.isnan(labels)
        counts = f"{int(known.any(axis=1).sum()):,} nodes have one"
        spans = [f"from {column[is_known].min(initial=np.inf):.4g} to {column[is_known].max(initial=-np.inf):.4g}"
                 for column, is_known in zip(labels.T[:SHOWN_IDS], known.T, strict=False)]
        more = ", ..." if labels.shape[1] > SHOWN_IDS else ""
        return f"{labels.shape[1]:,} targets of a regression{where}: {', '.join(spans)}{more}; {counts}"
    if dataset.task == "multi-label":
        has = labels == 1
        count, lacking = has.sum(axis=0), int(np.count_nonzero(~has.any(axis=1)))
        return (f"{dataset.num_classes:,}, several per node{where}: {_counts(names, count)}; {lacking:,} nodes have "
                "none of them")
    if not dataset.is_labeled:
        return "none"
    count = np.bincount(labels[labels >= 0], minlength=dataset.num_classes)
    return (f"{dataset.num_classes:,} classes{where}: {_counts(names, count)}; {int((labels < 0).sum()):,} nodes "
            "without a label")


def _counts(names: Sequence, count: np.ndarray) -> str:
    texts = [str(name) for name in names[:SHOWN_NAMES]]
    pairs = [f"{name if len(name) <= SHOWN_OF_KINDS else name[:SHOWN_OF_KINDS] + '..'} ({number:,})"
             for name, number in zip(texts, count[:SHOWN_NAMES].tolist(), strict=False)]
    more = len(names) - SHOWN_NAMES
    return ", ".join(pairs) + (f" and {more:,} more" if more > 0 else "")


def _splits(dataset: GraphDataset, origins: Origins, drawn_with: int | None) -> str:
    train, val, test = (int(mask.sum()) for mask in (dataset.train_mask, dataset.val_mask, dataset.test_mask))
    how = f"given{_from(origins.splits, 'by')}" if drawn_with is None else (
        f"drawn at random with seed {drawn_with}, as the source has none")
    return f"{how}: {train:,} train, {val:,} val, {test:,} test; {dataset.num_nodes - train - val - test:,} in none"


def _from(where: str, word: str = "of") -> str:
    return f" {word} {where}" if where and where != NO_WEIGHTS else ""


def _shortened(names: Iterable[str]) -> list[str]:
    names = [str(name)[:SHOWN_CHARACTERS] for name in names]
    more = len(names) - SHOWN_NAMES
    return names if more <= 0 else [*names[:SHOWN_NAMES], f"and {more:,} more"]


class Types(NamedTuple):
    """Types of nodes and their columns, as in GraphDataset."""

    node_types: tuple[tuple[str, int], ...] = ()
    type_columns: tuple[int, ...] = ()
    relation_columns: tuple[int, ...] = ()

    def of_columns(self, features: Features | None) -> ColumnTypes | None:
        """The type of each row and column, if each type has columns of its own."""
        counts = [count for _, count in self.node_types]
        if features is None or features.shape != (sum(counts), sum(self.type_columns)):
            return None
        return ColumnTypes(*(np.repeat(np.arange(len(counts)), sizes) for sizes in (counts, self.type_columns)))


NO_TYPES = Types()


def assemble_dataset(name: str, graph: CleanGraph, features: Features | None, labels: Labels, masks: Masks | None,
                     options: SourceOptions, node_name: np.ndarray | None = None,
                     origins: Origins = NOWHERE, held_out: np.ndarray | None = None,
                     types: Types = NO_TYPES) -> GraphDataset:
    """Join a cleaned graph with its features, labels and splits, and check the whole.

    Parameters
    ----------
    features : (num_nodes, num_features) float, ndarray or scipy CSR, or None
    masks : three (num_nodes,) bool, or None for a random split
    node_name                                as in GraphDataset
    origins : Origins                        where the source holds what was read
    held_out : (n, 3) int64 or None          links of validation and test, see `hold_out`
    """
    if not is_plain_name(name):
        raise DatasetError(f"the graph would be called {name[:60]!r} after its file; rename that to something short "
                           "and printable")
    _check_columns(name, features, labels.num_classes)
    if options.val_links is not None or options.test_links is not None:
        if held_out is not None:
            raise DatasetError(f"{name} has held-out links of its own; leave out --val-links and --test-links")
        of_names = None if node_name is None else NodeRows(node_name, name)
        held_out = links_of((options.val_links, options.test_links), len(graph.indptr) - 1, of_names, name,
                            graph.relation_names)
    relation_names = graph.relation_names
    graph, held_out = hold_out(graph, held_out, options.hold_out, options.seed, name, options.hold_out_relation)
    graph = graph.with_remarks(labels.remarks)
    indptr, indices, report = graph[:3]
    num_nodes, unlabeled = len(indptr) - 1, labels.unlabeled
    origins = replace(origins, dubious=origins.dubious + labels.dubious + doubts_about(graph, held_out))
    drawn_with = options.seed if masks is None else None
    if masks is None:
        masks = random_split(labels.values, options, unlabeled)
    is_made = features is None and options.feature_kind == "auto"
    origins = replace(origins, dubious=origins.dubious + _doubts_about_unused(
        origins, drawn_with is not None and bool(masks[0].any()), is_made, graph.edge_weight is None))
    for what, rows in (("labels", len(labels.values)), ("split masks", len(masks[0])),
                       ("feature rows", num_nodes if features is None else features.shape[0])):
        if rows != num_nodes:
            raise DatasetError(f"{name} has {rows} {what} for {num_nodes} nodes; expected one per node")
    if unlabeled is not None and any((mask & unlabeled).any() for mask in masks):
        count = sum(int((mask & unlabeled).sum()) for mask in masks)
        masks = tuple(mask & ~unlabeled for mask in masks)
        origins = replace(origins, dubious=(*origins.dubious, f"{count:,} nodes of the splits have no "
                                                        "label, and were left out of the splits"))
    options.progress("preparing features", None)
    feature_names = ()
    if features is not None and options.feature_kind != "structural":
        feature_names = tuple(map(str, origins.feature_names))
        is_scaled = options.is_public or options.normalize_features in ("row", "standard")
        notes, dubious = look_at_features(features, origins.feature_names, is_scaled, origins.others)
        report = replace(report, remarks=report.remarks + notes)
        origins = replace(origins, dubious=origins.dubious + dubious)
    features, feature_remarks = prepare_features(features, indptr, indices, masks[0], options, name,
                                                 types.of_columns(features))
    report = replace(report, remarks=report.remarks + feature_remarks)
    train_mask, val_mask, test_mask = masks
    dataset = GraphDataset(name, indptr, indices, features, labels.values, labels.num_classes, train_mask, val_mask,
                           test_mask, report, graph.edge_weight, node_name, labels.class_names, held_out,
                           graph.edge_type, graph.edge_attr, relation_names, types.node_types,
                           # Structural features, which all types share, may have taken the place of the source's.
                           types.type_columns if sum(types.type_columns) == features.shape[1] else (),
                           types.relation_columns, feature_names).check()
    _check_types(dataset)
    report = replace(report, read=describe(dataset, origins, drawn_with))
    return replace(dataset, cleaning=report)


def _check_types(dataset: GraphDataset) -> None:
    # A held-out link may only be between types that edges of its relation join, if it has edges.
    if not dataset.node_types:
        return
    names, counts = zip(*dataset.node_types, strict=True)
    if sum(counts) != dataset.num_nodes:
        raise DatasetError(f"{dataset.name} has {dataset.num_nodes} nodes, and its types have {sum(counts)}; expected "
                           "the same number")
    held, type_of = dataset.held_out, np.repeat(np.arange(len(counts)), counts)
    if held is None:
        return
    target = np.repeat(np.arange(dataset.num_nodes), dataset.in_degree())
    relation, of = (0, np.zeros(len(held), int)) if dataset.edge_type is None else (dataset.edge_type, held[:, 3])
    joined = np.zeros((len(dataset.relation_names) or 1, len(names), len(names)), bool)
    joined[relation, type_of[dataset.indices], type_of[target]] = True
    source, end = type_of[held[:, 0]], type_of[held[:, 1]]
    lost = np.flatnonzero(~joined[of, source, end] & joined.any((1, 2))[of])
    if len(lost):
        one = lost[0]
        known = " or ".join(f"{names[first]} to {names[last]}" for first, last in np.argwhere(joined[of[one]]))
        of_relation = f" of {dataset.relation_names[of[one]]}" if dataset.relation_names else ""
        raise DatasetError(f"{dataset.name} has a held-out link{of_relation} from {names[source[one]]} to "
                           f"{names[end[one]]}, and its edges go from {known}; swap the columns of source and target, "
                           "or leave such links out")


def _check_columns(name: str, features: Features | None, num_classes: int) -> None:
    if not 1 <= num_classes <= MAX_CLASSES:
        raise DatasetError(f"{name} has {num_classes} classes; expected 1 to {MAX_CLASSES}")
    if features is None:
        return
    if features.ndim != 2 or features.dtype.kind not in "fiub":
        raise DatasetError(f"{name} has features of {features.dtype} and shape {features.shape}; expected a matrix of "
                           "numbers, one row per node")
    if not 1 <= features.shape[1] <= MAX_FEATURES:
        raise DatasetError(f"{name} has {features.shape[1]} feature columns; expected 1 to {MAX_FEATURES}, or pass "
                           "--features structural to make some from the graph alone")
