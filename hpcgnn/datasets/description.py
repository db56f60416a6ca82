"""describe: the lines of WhatWasRead, counted on the finished graph, so that all sources have the same screen."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hpcgnn.datasets.dataset import GraphDataset
from hpcgnn.datasets.what_was_read import DUBIOUS, NO_WEIGHTS, Origins, WhatWasRead

SHOWN_NAMES, SHOWN_IDS, SHOWN_CHARACTERS = 12, 3, 24
MAX_LINES, MAX_TEXT = 40, 600     # an attribute of HDF5 holds 64 KiB


def describe(dataset: GraphDataset, origins: Origins, drawn_with: int | None) -> WhatWasRead:
    """Count what a finished graph holds and say where it stood.

    Parameters
    ----------
    drawn_with : int or None      seed of the split; None where the source has one
    """
    report = dataset.cleaning
    lines = [("nodes", _nodes(dataset, origins)), ("edges", _edges(dataset)), ("weights", _weights(dataset, origins)),
             ("features", _features(dataset, origins)), ("labels", _labels(dataset, origins)),
             ("splits", _splits(dataset, origins, drawn_with))]
    lines += [("skipped", text) for text in origins.skipped]
    lines += [("unused", ", ".join(_shortened(origins.unused)))] if origins.unused else []
    lines += [("note", text) for text in report.remarks]
    lines += [(DUBIOUS, text) for text in origins.dubious]
    return WhatWasRead(tuple((topic, text[:MAX_TEXT]) for topic, text in lines[:MAX_LINES]))


def _nodes(dataset: GraphDataset, origins: Origins) -> str:
    if dataset.node_name is None:
        return f"{dataset.num_nodes:,}, numbered from 0 in the order of {origins.ids or 'the rows'}"
    kind = "texts" if dataset.node_name.dtype.kind in "UO" else "integers"
    shown = ", ".join(str(name)[:SHOWN_CHARACTERS] for name in dataset.node_name[:SHOWN_IDS].tolist())
    return f"{dataset.num_nodes:,}; ids are {kind}{_from(origins.ids)}: {shown}, ..."


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
    return f"{origins.weights or 'one an edge'}, {span}"


def _features(dataset: GraphDataset, origins: Origins) -> str:
    names = origins.feature_names
    shown = f": {', '.join(_shortened(names))}" if len(names) == dataset.num_features else ""
    return f"{dataset.num_features:,}{_from(origins.features)}{shown}"


def _labels(dataset: GraphDataset, origins: Origins) -> str:
    labels, where = dataset.labels, _from(origins.labels)
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
        return (f"{dataset.num_classes:,}, several a node{where}: {_counts(dataset, count)}; {lacking:,} nodes have "
                "none of them")
    if not dataset.is_labeled:
        return "none"
    count = np.bincount(labels[labels >= 0], minlength=dataset.num_classes)
    return (f"{dataset.num_classes:,} classes{where}: {_counts(dataset, count)}; {int((labels < 0).sum()):,} nodes "
            "without a label")


def _counts(dataset: GraphDataset, count: np.ndarray) -> str:
    names = dataset.class_names or range(dataset.num_classes)
    pairs = [f"{str(name)[:SHOWN_CHARACTERS]} ({number:,})"
             for name, number in zip(names[:SHOWN_NAMES], count[:SHOWN_NAMES].tolist(), strict=False)]
    more = dataset.num_classes - SHOWN_NAMES
    return ", ".join(pairs) + (f" and {more:,} more" if more > 0 else "")


def _splits(dataset: GraphDataset, origins: Origins, drawn_with: int | None) -> str:
    train, val, test = (int(mask.sum()) for mask in (dataset.train_mask, dataset.val_mask, dataset.test_mask))
    how = f"given{_from(origins.splits, 'by')}" if drawn_with is None else (
        f"drawn at random with seed {drawn_with}, as the source has none")
    return f"{how}: {train:,} train, {val:,} val, {test:,} test; {dataset.num_nodes - train - val - test:,} in none"


def _from(where: str, word: str = "of") -> str:
    return f" {word} {where}" if where else ""


def _shortened(names: Iterable[str]) -> list[str]:
    names = [str(name)[:SHOWN_CHARACTERS] for name in names]
    more = len(names) - SHOWN_NAMES
    return names if more <= 0 else [*names[:SHOWN_NAMES], f"and {more:,} more"]
