"""Writes the feature rows of a part in blocks, so that they are never in memory as a whole; and hashes a dataset.

The fingerprint has three digests, of graph, split and features. Features are hashed as they are stored.
"""

from __future__ import annotations

import hashlib
import mmap
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.sparse

from hpcgnn.data.dataset import INT32_NODES, GraphDataset, feature_rows
from hpcgnn.data.features import FeatureRows
from hpcgnn.data.options import Progress, ProgressTask, silent
from hpcgnn.errors import ConfigError
from hpcgnn.shards.feature_formats import PACKAGE, feature_format
from hpcgnn.shards.schema import DIGEST_BYTES, Fingerprint

BLOCK_ENTRIES = 1 << 20


def fingerprint_of(dataset: GraphDataset, storage: FeatureStorage,
                   progress: Progress = silent) -> Fingerprint:
    """Hash a dataset with the form in which its features are stored, one block of rows at a time.

    Features are hashed after rounding to float16; if stored as packages, before rounding.
    """
    task = progress("computing the fingerprint", dataset.num_nodes)
    return Fingerprint(hash_graph(dataset), _hash_split(dataset), _hash_features(dataset, storage, task))


def hash_clusters(cluster: np.ndarray) -> str:
    """Digest of the cluster of every node, (num_nodes,) int32.

    It is not part of the fingerprint: a model trained in steps over one clustering fits the graph under any other.
    """
    digest = _begin("clusters", len(cluster))
    _add(digest, cluster, "<i4")
    return digest.hexdigest()


def hash_graph(dataset: GraphDataset) -> str:
    digest = _begin("graph", dataset.num_nodes, dataset.num_edges)
    _add(digest, dataset.indptr, "<i8")
    _add(digest, dataset.indices, "<i4" if dataset.num_nodes < INT32_NODES else "<i8")
    if dataset.edge_weight is not None:
        _add(digest, dataset.edge_weight, "<f4")      # more bytes than a graph without weights has
    # Named, since the bytes alone could be those of weights.
    if dataset.edge_type is not None:
        digest.update(f"relations {len(dataset.relation_names)}".encode())
        _add(digest, dataset.edge_type, "<i4")
    if dataset.edge_attr is not None:
        digest.update(f"attributes {dataset.edge_attr.shape[1]}".encode())
        _add(digest, dataset.edge_attr, "<f4")
    return digest.hexdigest()


def _hash_split(dataset: GraphDataset) -> str:
    is_regression = dataset.task == "regression"
    digest = _begin("split", dataset.num_nodes, dataset.num_classes,
                    "regression" if is_regression else dataset.is_multi_label)
    _add(digest, dataset.labels, "<f4" if is_regression else "<u1" if dataset.is_multi_label else "<i8")
    for mask in (dataset.train_mask, dataset.val_mask, dataset.test_mask):
        _add(digest, mask, "<u1")
    if dataset.held_out is not None:
        _add(digest, dataset.held_out, "<i8")      # only then, so that earlier fingerprints stay
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
    return hashlib.blake2b(repr(header).encode(), digest_size=DIGEST_BYTES)


def _add(digest: hashlib.blake2b, array: np.ndarray, dtype: str) -> None:
    # In blocks of rows, little-endian and of one type, so that the digest does not depend on memory order.
    step = max(1, BLOCK_ENTRIES // max(1, int(np.prod(array.shape[1:]))))
    for first in range(0, len(array), step):
        digest.update(np.ascontiguousarray(array[first:first + step], dtype).data)


CHUNK_BYTES = 1 << 20
CHUNKS_PER_BLOCK = 32
WINDOW_BYTES, MOST_WINDOWS = 1 << 24, 256      # of rows that are put in order at once, at least, and how often at most
COMPRESSED_DENSITY = 0.25   # below this share of non-zeros, lzf saves more time on the disk than it costs
SAMPLED_ROWS = 4096
FLOAT16_OVERFLOW = 65520.0   # the smallest magnitude that rounds to infinity; the largest float16 is 65504


@dataclass(frozen=True)
class FeatureStorage:
    """How features are stored in a part file.

    form : {"float32", "float16", "package"}
    is_compressed : bool      float values in chunks compressed with lzf, not in one piece
    bits : int                widest row of packages
    is_signed : bool          packages hold negative values
    """

    form: str
    is_compressed: bool = False
    bits: int = 8
    is_signed: bool = False


class FloatFeatures:
    """Rows of float32 or float16 as one array, in chunks compressed with lzf if few values are not zero.

    `new_rows` makes the array that rows are read into.
    """

    new_rows: Callable[..., np.ndarray] = np.empty

    @staticmethod
    def choose(dataset: GraphDataset, form: str, bits: int) -> FeatureStorage:
        """Choose compression by the values of the dataset; ConfigError for a value beyond float16."""
        if form == "float16":
            check_float16(dataset)
        return FeatureStorage(form, feature_density(dataset) < COMPRESSED_DENSITY)

    @staticmethod
    def store(file: h5py.File, blocks: Iterable[np.ndarray], shape: tuple[int, int], storage: FeatureStorage) -> None:
        layout = {}
        if storage.is_compressed and 0 not in shape:
            layout = {"chunks": (min(shape[0], chunk_rows(shape[1])), shape[1]), "compression": "lzf"}
        stored = file.create_dataset("features", shape=shape, dtype=storage.form, **layout)
        first = 0
        for rows in blocks:
            if shape[1]:
                stored[first:first + len(rows)] = rows.astype(storage.form, copy=False)
            first += len(rows)

    @staticmethod
    def load(file: h5py.File, path: Path, shape: tuple[int, int]) -> np.ndarray:
        rows = FloatFeatures.new_rows(shape, file["features"].dtype)
        if rows.size:
            file["features"].read_direct(rows)
        return rows


def chunk_rows(num_features: int) -> int:
    return max(1, CHUNK_BYTES // (4 * max(1, num_features)))


def row_slices(num_rows: int, num_features: int) -> Iterator[slice]:
    step = CHUNKS_PER_BLOCK * chunk_rows(num_features)
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))


def check_float16(dataset: GraphDataset) -> None:
    """Raise ConfigError if a feature value becomes infinite as float16."""
    is_sparse = scipy.sparse.issparse(dataset.features)
    for block in row_slices(dataset.num_nodes, dataset.num_features):
        rows = dataset.features[block]
        magnitude = np.abs(rows.data if is_sparse else rows).max(initial=0.0)
        if magnitude >= FLOAT16_OVERFLOW:
            raise ConfigError(f"{dataset.name} has a feature of magnitude {magnitude:g} among nodes {block.start} to "
                              f"{block.stop - 1}, and float16 ends at 65504; use --feature-format float32, or "
                              "--normalize-features standard")


def feature_density(dataset: GraphDataset) -> float:
    """Share of non-zero feature values: exact for sparse features, from evenly spaced rows for dense ones."""
    features: Any = dataset.features
    if scipy.sparse.issparse(features):
        return features.nnz / max(1, dataset.num_nodes * dataset.num_features)
    sample = features[:: max(1, dataset.num_nodes // SAMPLED_ROWS)]
    return np.count_nonzero(sample) / max(1, sample.size)


def has_negative_features(dataset: GraphDataset) -> bool:
    features: Any = dataset.features
    if scipy.sparse.issparse(features):
        return bool((features.data < 0).any())
    return any((features[block] < 0).any() for block in row_slices(dataset.num_nodes, dataset.num_features))


def store_features(file: h5py.File, dataset: GraphDataset, node_id: np.ndarray, storage: FeatureStorage,
                   folder: Path, task: ProgressTask) -> None:
    """Write the features of `node_id`, (num_inner,) int64; `task` advances by rows.

    Rows that are put in order on the way lie in a file without a name in `folder`.
    """
    feature_format(storage.form).store(file, _read_blocks(dataset, node_id, folder, task),
                                       (len(node_id), dataset.num_features), storage)


def _read_blocks(dataset: GraphDataset, node_id: np.ndarray, folder: Path, task: ProgressTask) -> Iterator[np.ndarray]:
    found: Iterator[np.ndarray] = (feature_rows(dataset, node_id[block])
                                   for block in row_slices(len(node_id), dataset.num_features))
    # A row that is read alone takes a page of the disk. If these are more bytes than the whole file, it is scanned.
    if isinstance(dataset.features, FeatureRows) and len(node_id) * mmap.PAGESIZE >= dataset.features.bytes_on_disk > 0:
        found = _scanned(dataset, node_id, folder)
    for rows in found:
        yield rows
        task.advance(len(rows))


def _scanned(dataset: GraphDataset, node_id: np.ndarray, folder: Path) -> Iterator[np.ndarray]:
    """Rows in the order of `node_id`, from one scan of a source on a disk.

    The order is cut into windows. While the source is read, the rows of a window are collected in its piece of a file;
    they come by ascending node, so their places within the window are known without being written.
    """
    row_bytes = 4 * dataset.num_features
    rows_a_window = max(1, WINDOW_BYTES // row_bytes, len(node_id) // MOST_WINDOWS)
    windows = [slice(first, first + rows_a_window) for first in range(0, len(node_id), rows_a_window)]
    window_of = np.full(dataset.num_nodes, -1, np.int32)
    window_of[node_id] = np.arange(len(node_id)) // rows_a_window
    num_held = np.zeros(len(windows), np.int64)
    with tempfile.TemporaryFile(dir=folder) as file:
        for block in row_slices(dataset.num_nodes, dataset.num_features):
            chosen = np.flatnonzero(window_of[block] >= 0)
            number = window_of[block][chosen]
            by_window = np.argsort(number, kind="stable")
            rows = feature_rows(dataset, block)[chosen[by_window]]
            ends = np.cumsum(np.bincount(number, minlength=len(windows)))
            for one in np.unique(number).tolist():
                piece = rows[ends[one - 1] if one else 0:ends[one]]
                file.seek((one * rows_a_window + int(num_held[one])) * row_bytes)
                file.write(piece.data)
                num_held[one] += len(piece)
        for window in windows:
            file.seek(window.start * row_bytes)
            place = np.argsort(node_id[window])
            held = np.frombuffer(file.read(len(place) * row_bytes), np.float32).reshape(len(place), -1)
            rows = np.empty_like(held)
            rows[place] = held
            yield rows
