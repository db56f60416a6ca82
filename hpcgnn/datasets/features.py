"""Node features: made from the graph alone, normalized, and freed of values that are not finite.

No file format is known here.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse

from hpcgnn.datasets.options import SourceOptions
from hpcgnn.errors import DatasetError
from hpcgnn.registry import read_registry

STRUCTURAL_DIM, STRUCTURAL_HOPS = 128, 3
BLOCK_VALUES = 1 << 24

Features = np.ndarray | scipy.sparse.csr_matrix


def prepare_features(given: Features | None, indptr: np.ndarray, indices: np.ndarray, train_mask: np.ndarray,
                     options: SourceOptions, name: str) -> tuple[Features, tuple[str, ...]]:
    """Choose, clean and normalize the features as the options say.

    Parameters
    ----------
    given : (num_nodes, num_features) float, ndarray or scipy CSR, None where the source has none; may be overwritten
    indptr, indices                the cleaned graph
    train_mask : (num_nodes,) bool

    Returns
    -------
    features : (num_nodes, num_features) float32, ndarray or scipy CSR
    remarks : tuple of str         what was done, for the cleaning report

    Raises
    ------
    DatasetError                   no features given and none asked to be made
    """
    if options.features == "structural" or (options.features == "auto" and given is None):
        features = structural_features(indptr, indices)
        remarks = [f"{STRUCTURAL_DIM} structural features were made from the graph alone"]
    elif given is None:
        raise DatasetError(f"{name} has no features; pass --features structural to make them from the graph alone")
    else:
        features, remarks = _as_float32(given), []
        if options.non_finite == "zero" and (count := zero_non_finite(features)):
            remarks.append(f"{count} feature values that were NaN or infinite were set to zero")
    normalization = options.normalize_features
    if normalization == "auto":
        normalization = read_registry().get("datasets", {}).get(name, {}).get("normalize_features", "none")
    if normalization == "row":
        features = normalize_rows(features)
        remarks.append("feature rows were scaled to unit sum of absolute values")
    elif normalization == "standard":
        features = standardize_columns(features, train_mask)
        remarks.append("feature columns were standardized on the training nodes")
    return features, tuple(remarks)


def structural_features(indptr: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Features that use the graph alone: hops of a sparse random projection.

    X has entries -1, 0, +1 with probabilities 1/6, 2/3, 1/6. X <- D^-1 A X is applied three times; the hops, each
    scaled to unit rows, are summed and the columns standardized. A node without in-neighbors has zero hops.

    Returns
    -------
    features : (num_nodes, 128) float32, the same for the same graph
    """
    num_nodes = len(indptr) - 1
    rng = np.random.default_rng(0)
    hop = np.empty((num_nodes, STRUCTURAL_DIM), dtype=np.float32)
    for rows in _row_blocks(num_nodes, STRUCTURAL_DIM):
        hop[rows] = rng.choice([-1.0, 0.0, 1.0], size=hop[rows].shape, p=[1 / 6, 2 / 3, 1 / 6])
    weights = np.repeat(1 / np.maximum(np.diff(indptr), 1), np.diff(indptr)).astype(np.float32)
    average = scipy.sparse.csr_matrix((weights, indices, indptr), shape=(num_nodes, num_nodes))
    total = np.zeros_like(hop)
    for _ in range(STRUCTURAL_HOPS):
        hop = average @ hop
        norm = np.linalg.norm(hop, axis=1, keepdims=True)
        total += hop / np.where(norm > 0, norm, 1)
    return standardize_columns(total, np.ones(num_nodes, dtype=bool))


def normalize_rows(features: Features) -> Features:
    """Divide each row by the sum of its absolute values; a zero row stays zero. A dense array is overwritten.

    Reference: Kipf and Welling, ICLR 2017, section 5.2 (row-normalized bags of words, whose entries are non-negative).
    """
    if scipy.sparse.issparse(features):
        total = np.asarray(abs(features).sum(axis=1), dtype=np.float64).ravel()
        scale = 1 / np.where(total > 0, total, 1)
        scaled = (features.data * np.repeat(scale, np.diff(features.indptr))).astype(np.float32)
        return scipy.sparse.csr_matrix((scaled, features.indices, features.indptr), shape=features.shape)
    for rows in _row_blocks(*features.shape):
        total = np.abs(features[rows]).sum(axis=1, dtype=np.float64, keepdims=True)
        features[rows] /= np.where(total > 0, total, 1)
    return features


def standardize_columns(features: Features, fit_mask: np.ndarray) -> np.ndarray:
    """Shift and scale each column to mean 0 and variance 1 over the rows of `fit_mask`; a constant column is shifted.

    Sparse features become dense; a dense array is overwritten.
    """
    if scipy.sparse.issparse(features):
        features = features.toarray()
    count = max(1, int(np.count_nonzero(fit_mask)))
    blocks = list(_row_blocks(*features.shape))
    mean = sum(_fit_rows(features, fit_mask, rows).sum(axis=0) for rows in blocks) / count
    variance = sum(((_fit_rows(features, fit_mask, rows) - mean) ** 2).sum(axis=0) for rows in blocks) / count
    deviation = np.sqrt(variance)
    scale = 1 / np.where(deviation > 1e-12 * np.maximum(1, np.abs(mean)), deviation, 1)
    for rows in blocks:
        features[rows] = (features[rows] - mean) * scale
    return features


def zero_non_finite(features: Features) -> int:
    """Set NaN and infinite values to zero in place and return how many there were."""
    values = features.data.reshape(-1, 1) if scipy.sparse.issparse(features) else features
    count = 0
    for rows in _row_blocks(*values.shape):
        is_bad = ~np.isfinite(values[rows])
        if is_bad.any():
            values[rows][is_bad] = 0
            count += int(np.count_nonzero(is_bad))
    return count


def _fit_rows(features: np.ndarray, fit_mask: np.ndarray, rows: slice) -> np.ndarray:
    return features[rows][fit_mask[rows]].astype(np.float64)


def _as_float32(features: Features) -> Features:
    if scipy.sparse.issparse(features):
        return features if features.dtype == np.float32 else features.astype(np.float32)
    # A float32 memory map stays one.
    return features if features.dtype == np.float32 else features.astype(np.float32)


def _row_blocks(num_rows: int, num_columns: int):
    step = max(1, BLOCK_VALUES // max(1, num_columns))
    return (slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step))
