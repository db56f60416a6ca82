"""Node features: read and treated block by block, normalized, freed of non-finite values, or made from the graph.

Dense features are never changed in place: a `FeatureRows` applies its treatments to the rows when they are read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import scipy.sparse

from hpcgnn.data.arrays import RowFile, Sliced
from hpcgnn.data.options import ProgressTask, SourceOptions
from hpcgnn.errors import DatasetError
from hpcgnn.registry import read_registry

# Makes new float32 rows from some rows of the features and the index of these rows; leaves its input unchanged.
Treatment = Callable[[np.ndarray, slice | np.ndarray], np.ndarray]


def finite_rows(values: np.ndarray, rows: slice | np.ndarray) -> np.ndarray:
    """Zeros for NaN and values that float32 can't hold."""
    return np.where(np.abs(values) <= np.finfo(np.float32).max, values, np.float32(0))


def divided_rows(divisor: np.ndarray, values: np.ndarray, rows: slice | np.ndarray) -> np.ndarray:
    """Each row divided by its own number, divisor (num_nodes, 1) float64."""
    return (values / divisor[rows]).astype(np.float32)


def scaled_columns(mean: np.ndarray, scale: np.ndarray, values: np.ndarray, rows: slice | np.ndarray) -> np.ndarray:
    """Each column shifted by -mean, then multiplied by scale; both (num_features,) float64."""
    shifted = values - mean
    shifted *= scale
    return shifted.astype(np.float32)


class ColumnTypes(NamedTuple):
    """In a graph with types of nodes, each with columns of its own: the type of each row, and of each column.

    of_row : (num_nodes,) int64, of_column : (num_features,) int64
    """

    of_row: np.ndarray
    of_column: np.ndarray

    def fitted_on(self, fit_mask: np.ndarray) -> np.ndarray:
        """`fit_mask`, and all rows of the types that have none in it."""
        has_any = np.bincount(self.of_row[fit_mask], minlength=1 + int(self.of_row.max())) > 0
        return fit_mask | ~has_any[self.of_row]

    def counts(self, fit_mask: np.ndarray) -> np.ndarray:
        """Rows of `fit_mask` of each column's type, (num_features,) int64."""
        of_type = np.bincount(self.of_row[fit_mask], minlength=1 + int(self.of_row.max()))
        return np.maximum(1, of_type[self.of_column])

    def own(self, values: np.ndarray, rows: slice | np.ndarray) -> np.ndarray:
        """Values of some rows, with zeros in the columns of other types than the row's."""
        return np.where(self.of_row[rows][:, None] == self.of_column, values, values.dtype.type(0))


@dataclass(frozen=True)
class FeatureRows(Sliced):
    """Features as in their source, and treatments that are applied to rows when they are read; results are not kept.

    source : (num_nodes, num_features) number, ndarray, scipy CSR or RowFile; never changed
    treatments : tuple of Treatment, applied in this order
    """

    source: np.ndarray | scipy.sparse.csr_matrix | RowFile
    treatments: tuple[Treatment, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        return self.source.shape

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float32)

    @property
    def bytes_on_disk(self) -> int:
        """Bytes of a source that is read from a file, or 0."""
        return self.source.size * self.source.dtype.itemsize if isinstance(self.source, RowFile) else 0

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """Some rows, (num_rows, num_features) float32."""
        return self.exact(rows).astype(np.float32, copy=False) if self.treatments else self._held(rows, np.float32)

    def exact(self, rows: slice | np.ndarray) -> np.ndarray:
        """Some rows with the digits of the source: float32, or float64 if float32 does not hold all of its numbers."""
        values = self._held(rows, np.promote_types(self.source.dtype, np.float32))
        for treatment in self.treatments:
            values = treatment(values, rows)
        return values

    def _held(self, rows: slice | np.ndarray, dtype: np.dtype | type) -> np.ndarray:
        held = self.source[rows]
        return np.asarray(held.toarray() if scipy.sparse.issparse(held) else held, dtype)

    def treated(self, treatment: Treatment) -> FeatureRows:
        """The same rows with one more treatment."""
        return FeatureRows(self.source, (*self.treatments, treatment))


STRUCTURAL_DIM, STRUCTURAL_HOPS = 128, 3
BLOCK_VALUES = 1 << 24
SEEN_VALUES = 1 << 28     # feature values that are examined: 1 GiB of float32
FIRST_ROWS, SHOWN_COLUMNS = 1000, 8
LARGE = 1000.0            # incomes, dates and counts reach it; standardized columns, words and shares do not
SILENT = ProgressTask()

Features: TypeAlias = np.ndarray | scipy.sparse.csr_matrix | RowFile | FeatureRows


def prepare_features(given: Features | None, indptr: np.ndarray, indices: np.ndarray, train_mask: np.ndarray,
                     options: SourceOptions, name: str, types: ColumnTypes | None = None
                     ) -> tuple[Features, tuple[str, ...]]:
    """Choose, clean and normalize the features as the options say.

    Parameters
    ----------
    given : (num_nodes, num_features) number, ndarray, scipy CSR or RowFile, or None; non-finite values of sparse
        features are overwritten
    indptr, indices                the cleaned graph

    Returns
    -------
    features : (num_nodes, num_features) float32: the given ndarray, scipy CSR, or FeatureRows
    remarks : tuple of str         what was done, for the cleaning report
    """
    if options.feature_kind == "structural" or (options.feature_kind == "auto" and given is None):
        features = structural_features(indptr, indices)
        remarks = [f"{STRUCTURAL_DIM} structural features were made from the graph alone"]
    elif given is None:
        raise DatasetError(f"{name} has no features; pass --features structural to make them from the graph alone")
    else:
        features, remarks = _as_float32(given), []
        if options.non_finite == "zero":
            features, count = zero_non_finite(features)
            remarks += [f"{count} feature values that were NaN or infinite were set to zero"] if count else []
    normalization, reason = options.normalize_features, ""
    if normalization == "auto":
        known = read_registry()["datasets"].get(name, {}) if options.is_public else {}
        normalization = known.get("normalize_features", "none")
        reason = f", as is usual for {name}; --normalize-features none leaves them as they are"
    if normalization == "row":
        features = normalize_rows(features, options.progress("normalizing features", features.shape[0]))
        remarks.append(f"feature rows were scaled to unit sum of absolute values{reason}")
    elif normalization == "standard":
        task = options.progress("normalizing features", 2 * features.shape[0])
        features = standardize_columns(features, train_mask, task, types)
        of_types = "" if types is None else ", and those of types without any on all their nodes"
        remarks.append(f"feature columns were standardized on the training nodes{of_types}{reason}")
    return features, tuple(remarks)


def look_at_features(features: Features, names: tuple[str, ...] = (), is_scaled: bool = False,
                     others: tuple[str, ...] = ()) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Notes about constant columns and rows of zeros, and warnings about columns that look like a row number or hold
    large values.

    Only the first SEEN_VALUES values are examined. `names` are the columns' names, or empty. Features that will be
    normalized (`is_scaled`) may hold large values. `others` are the names that ignore= takes.
    """
    num_rows, num_columns = features.shape
    if scipy.sparse.issparse(features):
        filled = np.bincount(features.indices, minlength=num_columns) > 0
        constant, counting, zeros = np.flatnonzero(~filled), [], int(np.count_nonzero(np.diff(features.indptr) == 0))
        seen, largest = num_rows, np.zeros(num_columns)
    else:
        constant, counting, zeros, seen, largest = _columns_and_rows(features)
    is_large = (largest <= np.finfo(np.float32).max) & (largest >= LARGE) & (not is_scaled)
    large = np.setdiff1d(np.flatnonzero(is_large), np.union1d(constant, counting))
    of_seen = "" if seen == num_rows else f" among the first {seen:,}"
    notes = [f"{zeros:,} nodes have features of zeros only{of_seen}"] if zeros else []
    called = [names[column] if len(names) == num_columns else f"column {column}" for column in range(num_columns)
              ] if len(constant) or len(counting) or len(large) else []
    if len(constant) and num_rows > 1:
        notes.append(f"{len(constant):,} of {num_columns:,} feature columns have one value for all nodes{of_seen}: "
                     f"{_shown_columns(constant, called)}")
    dubious = [f"feature {called[column]} counts the rows, which says nothing about a node; " + (
        f"ignore={called[column]} leaves it out" if called[column] in others else "leave it out if it is an index")
        for column in counting[:SHOWN_COLUMNS]]
    if len(large):
        dubious.append(f"{len(large):,} of {num_columns:,} feature columns hold values up to "
                       f"{_plain(largest[large].max())}, and models learn badly from such values: "
                       f"{_shown_columns(large, called)}; --normalize-features standard "
                       "(normalize_features=\"standard\" in Python) gives columns mean 0 and variance 1")
    return tuple(notes), tuple(dubious)


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value < 1e15 else f"{value:.3g}"


def _shown_columns(columns: np.ndarray, called: list[str]) -> str:
    shown = ", ".join(called[column] for column in columns[:SHOWN_COLUMNS])
    return f"{shown}{', ...' if len(columns) > SHOWN_COLUMNS else ''}"


def _columns_and_rows(features: np.ndarray | RowFile | FeatureRows
                      ) -> tuple[np.ndarray, np.ndarray, int, int, np.ndarray]:
    num_rows, num_columns = features.shape
    num_seen = min(num_rows, max(3, SEEN_VALUES // max(1, num_columns)))
    first = next(_row_blocks(num_seen, num_columns), slice(0, 0))
    head = np.asarray(features[:min(first.stop, FIRST_ROWS)], np.float64)
    step = head[1] - head[0] if len(head) > 1 else np.zeros(num_columns)
    with np.errstate(invalid="ignore"):
        is_even = (head == head[:1] + step * np.arange(len(head))[:, None]).all(axis=0)
    constant, counting = np.flatnonzero(is_even & (step == 0)), np.flatnonzero(is_even & (step != 0) & (num_rows > 2))
    zeros, largest = 0, np.zeros(num_columns)      # of absolute values
    for rows in _row_blocks(num_seen, num_columns):
        block = np.asarray(features[rows])
        for end in (np.fmax.reduce(block), np.fmin.reduce(block)):      # NaN is passed over
            largest = np.fmax(largest, np.abs(end.astype(np.float64)))
        zeros += int(np.count_nonzero(~block.any(axis=1)))
        if len(constant):
            constant = constant[(block[:, constant] == head[0, constant]).all(axis=0)]
        if len(counting):
            number = np.arange(rows.start, rows.start + len(block))[:, None]
            expected = head[0, counting] + step[counting] * number
            counting = counting[(block[:, counting] == expected.astype(block.dtype)).all(axis=0)]
    return constant, counting, zeros, num_seen, largest


def structural_features(indptr: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Features from the graph alone, (num_nodes, 128) float32: hops of a sparse random projection.

    X has entries -1, 0, +1 with probabilities 1/6, 2/3, 1/6. X <- D^-1 A X is applied three times; the hops, each
    scaled to unit rows, are summed and the columns standardized. A node without in-neighbors has zeros in every hop.
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


def normalize_rows(features: Features, task: ProgressTask = SILENT) -> Features:
    """Divide each row by the sum of its absolute values; a zero row stays zero. `task` advances by rows.

    Reference: Kipf and Welling, ICLR 2017, section 5.2 (row-normalized bags of words, with non-negative entries).
    """
    if scipy.sparse.issparse(features):
        total = np.asarray(abs(features).sum(axis=1), dtype=np.float64).ravel()
        scale = 1 / np.where(total > 0, total, 1)
        scaled = (features.data * np.repeat(scale, np.diff(features.indptr))).astype(np.float32)
        return scipy.sparse.csr_matrix((scaled, features.indices, features.indptr), shape=features.shape)
    features = _rows_of(features)
    total = np.empty((len(features), 1), np.float64)
    for rows in _row_blocks(*features.shape):
        total[rows] = np.abs(features.exact(rows)).sum(axis=1, dtype=np.float64, keepdims=True)
        task.advance(rows.stop - rows.start)
    return features.treated(partial(divided_rows, np.where(total > 0, total, 1)))


def standardize_columns(features: Features, fit_mask: np.ndarray, task: ProgressTask = SILENT,
                        types: ColumnTypes | None = None) -> FeatureRows:
    """Shift and scale each column to mean 0 and variance 1 over the rows of `fit_mask`; a constant column is only
    shifted. With `types`, columns are fitted on rows of their type, and rows of other types keep their zeros; then a
    constant column, such as the ones of a type without features, stays as it is.

    `task` advances by rows of two passes. Sparse features become dense, block by block.
    """
    features = _rows_of(features)
    fit_mask = fit_mask if types is None else types.fitted_on(fit_mask)
    count = max(1, int(np.count_nonzero(fit_mask))) if types is None else types.counts(fit_mask)
    blocks = list(_row_blocks(*features.shape))

    def sums(squared_from: np.ndarray | None = None) -> np.ndarray:
        total = np.zeros(features.shape[1])
        for rows in blocks:
            task.advance(rows.stop - rows.start)
            values = features.exact(rows)[fit_mask[rows]].astype(np.float64)
            if squared_from is not None:
                values -= squared_from
                np.square(values, out=values)
            fitted = np.flatnonzero(fit_mask[rows]) + rows.start
            total += (values if types is None else types.own(values, fitted)).sum(axis=0)
        return total

    mean = sums() / count
    deviation = np.sqrt(sums(mean) / count)
    varies = deviation > 1e-12 * np.maximum(1, np.abs(mean))
    scale = 1 / np.where(varies, deviation, 1)
    mean = mean if types is None else np.where(varies, mean, 0)
    scaled = features.treated(partial(scaled_columns, mean, scale))
    return scaled if types is None else scaled.treated(types.own)


def zero_non_finite(features: Features) -> tuple[Features, int]:
    """Features with zeros for NaN and infinite values, and the number of these; changes sparse features in place."""
    is_sparse = scipy.sparse.issparse(features)
    values = features.data.reshape(-1, 1) if is_sparse else features
    count = 0
    for rows in _row_blocks(*values.shape):
        is_bad = ~np.isfinite(values[rows])
        count += int(np.count_nonzero(is_bad))
        if is_sparse and is_bad.any():
            values[rows][is_bad] = 0
    return (features if is_sparse or not count else _rows_of(features).treated(finite_rows)), count


def _as_float32(features: Features) -> Features:
    # Returns sparse features and float32 arrays unchanged; others as FeatureRows, which read rows as float32.
    if scipy.sparse.issparse(features):
        return features if features.dtype == np.float32 else features.astype(np.float32)
    return features if isinstance(features, np.ndarray) and features.dtype == np.float32 else _rows_of(features)


def _rows_of(features: Features) -> FeatureRows:
    return features if isinstance(features, FeatureRows) else FeatureRows(features)


def _row_blocks(num_rows: int, num_columns: int):
    step = max(1, BLOCK_VALUES // max(1, num_columns))
    return (slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step))
