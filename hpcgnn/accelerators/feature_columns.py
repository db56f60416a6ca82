"""Where a row's values that are not zero may lie, as only their number in each slice is known.

What an accelerator does with them is not known here.
"""

from __future__ import annotations

import numpy as np

from hpcgnn.accelerators.workload import NUM_SLICES, FeatureCounts

KNUTH = 2654435761      # 2^32 over the golden ratio: consecutive numbers are spread over all of 32 bits


def slice_bounds(rows: FeatureCounts) -> np.ndarray:
    """Return the first column of each slice, and the number of columns, (NUM_SLICES + 1,) int64."""
    return np.minimum(np.arange(NUM_SLICES + 1, dtype=np.int64) * rows.slice_dim, rows.dim)


def nonzeros_before(nonzeros: np.ndarray, rows: FeatureCounts, column: np.ndarray | int) -> np.ndarray:
    """Return how many values that are not zero lie before columns, if each slice's are spread evenly, rounded down.

    Parameters
    ----------
    nonzeros : (..., NUM_SLICES) int         of a row, or of some rows together
    column : (n,) int64                      from 0 to dim

    Returns
    -------
    (..., n) int64
    """
    bounds = slice_bounds(rows)
    width = np.diff(bounds)
    covered = np.clip(np.atleast_1d(column)[:, None] - bounds[:-1], 0, width)
    counted = nonzeros[..., None, :].astype(np.int64) * covered // np.maximum(width, 1)
    return counted.sum(axis=-1)


def spread_columns(rows: FeatureCounts, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Place the values of rows first to last - 1 in columns: evenly spaced in their slice, from a column that is drawn
    for each row and slice by a hash of the two.

    assumed: which columns are not zero is not known, so none is needed by more rows than another.

    Returns
    -------
    row, column : (num_values,) int64         row ascending; the columns of a row are distinct
    """
    bounds = slice_bounds(rows)
    width = np.tile(np.diff(bounds), last - first)
    count = rows.nonzeros[first:last].astype(np.int64).ravel()
    index = np.arange(first * NUM_SLICES, last * NUM_SLICES, dtype=np.int64)
    offset = (index * KNUTH % 2**32) * width >> 32
    place = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    slot = np.repeat(np.arange(len(count)), count)
    within = (offset[slot] + place * width[slot] // count[slot]) % width[slot]
    return first + slot // NUM_SLICES, np.tile(bounds[:-1], last - first)[slot] + within
