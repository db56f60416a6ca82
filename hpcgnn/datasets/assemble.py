"""The last steps that every source shares: features, splits, report and check. No file format is known here."""

from __future__ import annotations

import dataclasses

import numpy as np

from hpcgnn.datasets.dataset import MAX_CLASSES, MAX_FEATURES, CleaningReport, GraphDataset, is_plain_name
from hpcgnn.datasets.description import describe
from hpcgnn.datasets.features import Features, look_at_features, prepare_features
from hpcgnn.datasets.options import SourceOptions
from hpcgnn.datasets.splits import Masks, random_split
from hpcgnn.datasets.what_was_read import NOWHERE, Origins
from hpcgnn.errors import DatasetError


def assemble_dataset(name: str, graph: tuple[np.ndarray, np.ndarray, CleaningReport], features: Features | None,
                     labels: np.ndarray, num_classes: int, masks: Masks | None, options: SourceOptions,
                     remarks: tuple[str, ...] = (), edge_weight: np.ndarray | None = None,
                     node_name: np.ndarray | None = None, class_names: tuple[str, ...] = (),
                     origins: Origins = NOWHERE, unlabeled: np.ndarray | None = None) -> GraphDataset:
    """Join a cleaned graph with its features, labels and splits, and check the whole.

    Parameters
    ----------
    graph : (indptr, indices, report)        as `cleaning.build_csr` returns it
    features : (num_nodes, num_features) float, ndarray or scipy CSR, or None where the source has none
    labels, edge_weight, node_name, class_names     as of GraphDataset
    masks : three (num_nodes,) bool, or None where the source has no split
    remarks : tuple of str                   of the source's reader, for the cleaning report
    origins : Origins                        where the source holds what was read
    unlabeled : (num_nodes,) bool            nodes that no split may hold, or None

    Raises
    ------
    DatasetError                             whatever `GraphDataset.check` refuses
    """
    if not is_plain_name(name):
        raise DatasetError(f"the graph would be called {name[:60]!r} after its file; rename that to something short "
                           "and printable")
    _check_columns(name, features, num_classes)
    indptr, indices, report = graph
    num_nodes = len(indptr) - 1
    drawn_with = options.seed if masks is None else None
    if masks is None:
        masks = random_split(labels, options, unlabeled)
    for what, rows in (("labels", len(labels)), ("split masks", len(masks[0])),
                       ("feature rows", num_nodes if features is None else features.shape[0])):
        if rows != num_nodes:
            raise DatasetError(f"{name} has {rows} {what} for {num_nodes} nodes; expected one a node")
    if unlabeled is not None and any((mask & unlabeled).any() for mask in masks):
        count = sum(int((mask & unlabeled).sum()) for mask in masks)
        masks = tuple(mask & ~unlabeled for mask in masks)
        origins = dataclasses.replace(origins, dubious=(*origins.dubious, f"{count:,} nodes of the splits have no "
                                                        "label, and were left out of the splits"))
    options.progress("preparing features", None)
    if features is not None and options.features != "structural":
        notes, dubious = look_at_features(features, origins.feature_names)
        remarks += notes
        origins = dataclasses.replace(origins, dubious=origins.dubious + dubious)
    features, feature_remarks = prepare_features(features, indptr, indices, masks[0], options, name)
    report = dataclasses.replace(report, remarks=report.remarks + remarks + feature_remarks)
    train_mask, val_mask, test_mask = masks
    dataset = GraphDataset(name, indptr, indices, features, labels, num_classes, train_mask, val_mask, test_mask,
                           report, edge_weight, node_name, class_names).check()
    report = dataclasses.replace(report, read=describe(dataset, origins, drawn_with))
    return dataclasses.replace(dataset, cleaning=report)


def _check_columns(name: str, features: Features | None, num_classes: int) -> None:
    """Refuse features or a number of classes that no model can have weights for."""
    if not 1 <= num_classes <= MAX_CLASSES:
        raise DatasetError(f"{name} has {num_classes} classes; expected 1 to {MAX_CLASSES}")
    if features is None:
        return
    if features.ndim != 2 or features.dtype.kind not in "fiub":
        raise DatasetError(f"{name} has features of {features.dtype} and shape {features.shape}; expected a matrix of "
                           "numbers, a row a node")
    if not 1 <= features.shape[1] <= MAX_FEATURES:
        raise DatasetError(f"{name} has {features.shape[1]} feature columns; expected 1 to {MAX_FEATURES}, or pass "
                           "--features structural to make some from the graph alone")
