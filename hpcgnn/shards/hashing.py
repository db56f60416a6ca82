"""The fingerprint of a cleaned dataset, hashed in blocks. No file format is known here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from hpcgnn.datasets.arcs import INT32_NODES
from hpcgnn.datasets.dataset import GraphDataset
from hpcgnn.datasets.options import ProgressTask, silent
from hpcgnn.partition.build import feature_rows
from hpcgnn.shards.feature_formats import PACKAGE
from hpcgnn.shards.features import FeatureStorage, row_slices
from hpcgnn.shards.fingerprint import DIGEST_BYTES, Fingerprint

BLOCK_ENTRIES = 1 << 20


def fingerprint_of(dataset: GraphDataset, storage: FeatureStorage,
                   progress: Callable[[str, float | None], ProgressTask] = silent) -> Fingerprint:
    """Hash a dataset with the form in which its features are stored; memory: one block of rows.

    Features are hashed as they are stored, after rounding to float16. Packages hold what their rows and their bits
    determine, so for them the rows before rounding are hashed.
    """
    task = progress("computing the fingerprint", dataset.num_nodes)
    return Fingerprint(hash_graph(dataset), _hash_split(dataset), _hash_features(dataset, storage, task))


def hash_clusters(cluster: np.ndarray) -> str:
    """Hash the cluster of every node, (num_nodes,) int32, apart from the fingerprint: a model that was trained in steps
    over one clustering fits the graph under any other.
    """
    digest = _begin("clusters", len(cluster))
    _add(digest, cluster, "<i4")
    return digest.hexdigest()


def hash_graph(dataset: GraphDataset) -> str:
    """Hash nodes, arcs and weights, the first digest of the fingerprint."""
    digest = _begin("graph", dataset.num_nodes, dataset.num_edges)
    _add(digest, dataset.indptr, "<i8")
    _add(digest, dataset.indices, "<i4" if dataset.num_nodes < INT32_NODES else "<i8")
    if dataset.edge_weight is not None:
        _add(digest, dataset.edge_weight, "<f4")      # so many more bytes that no other graph has them
    return digest.hexdigest()


def _hash_split(dataset: GraphDataset) -> str:
    is_regression = dataset.task == "regression"
    digest = _begin("split", dataset.num_nodes, dataset.num_classes,
                    "regression" if is_regression else dataset.is_multi_label)
    _add(digest, dataset.labels, "<f4" if is_regression else "<u1" if dataset.is_multi_label else "<i8")
    for mask in (dataset.train_mask, dataset.val_mask, dataset.test_mask):
        _add(digest, mask, "<u1")
    return digest.hexdigest()


def _hash_features(dataset: GraphDataset, storage: FeatureStorage, task: ProgressTask) -> str:
    is_packed = storage.form == PACKAGE
    digest = _begin("features", dataset.num_nodes, dataset.num_features, storage.form,
                    storage.bits if is_packed else None)
    for block in row_slices(dataset.num_nodes, dataset.num_features):
        rows = feature_rows(dataset, block)
        _add(digest, rows, "<f2" if storage.form == "float16" else "<f4")
        task.advance(block.stop - block.start)
    return digest.hexdigest()


def _begin(*header: object) -> hashlib.blake2b:
    """Return a digest whose header says what follows and how long it is, so that no two inputs give the same bytes."""
    return hashlib.blake2b(repr(header).encode(), digest_size=DIGEST_BYTES)


def _add(digest: hashlib.blake2b, array: np.ndarray, dtype: str) -> None:
    """Add an array in blocks of its rows, little-endian and of one type however it lies in memory."""
    step = max(1, BLOCK_ENTRIES // max(1, int(np.prod(array.shape[1:]))))
    for first in range(0, len(array), step):
        digest.update(np.ascontiguousarray(array[first:first + step], dtype).data)
