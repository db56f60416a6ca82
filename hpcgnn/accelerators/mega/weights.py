"""How W comes through the Weight Buffer, and the windows of rows that stay in the Input Buffer meanwhile.

Cycles are not known here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.accelerators.mega.rules import Rules, bytes_of


@dataclass(frozen=True)
class WeightLoads:
    """Loads of W.

    Attributes
    ----------
    name : {"resident", "streamed", "by need"}
    window_start : (num_windows + 1,) int64     rows of X that are in the Input Buffer together
    load : (num_loads,) int64                   window that a request is made for; not descending
    offset, num_bytes : (num_loads,) int64      of the request, from the first byte of W
    """

    name: str
    window_start: np.ndarray
    load: np.ndarray
    offset: np.ndarray
    num_bytes: np.ndarray


def weight_loads(row_end: np.ndarray, count: np.ndarray, dim: int, combined_dim: int, rules: Rules) -> WeightLoads:
    """Choose how W is loaded.

    W that half of the Weight Buffer holds is read once. Any other is read again for each window of rows, which stays in
    the half of the Input Buffer: assumed, either all of it, in blocks of the columns that are multiplied at once, where
    such a block fits; or the rows of W that the window has values for. Of two that can be, the one that reads fewer
    bytes. Assumed: no two values of a window share a column, and the rows of W that it needs lie evenly apart, since
    counts do not say where values stand. Windows of the second kind have no more values than half of the Weight Buffer
    has rows of W, but for a window of one row, whose values take turns.

    Parameters
    ----------
    row_end : (num_rows + 1,) int64             bytes that rows take in the Input Buffer, summed up; zeros where all of
                                                them are there already
    count : (num_rows,) int64                   values of a row that are not zero
    """
    half, weight_row_bytes = rules.half("weight"), bytes_of(combined_dim, rules["weight_bits"])
    num_bytes = dim * weight_row_bytes
    count_end = np.concatenate([[0], np.cumsum(count)])
    windows = _windows([(row_end, rules.half("input"))])
    if num_bytes <= half:
        return WeightLoads("resident", windows, *(np.array([number]) for number in (0, 0, num_bytes)))
    scarce = _windows([(row_end, rules.half("input")), (count_end, max(half // weight_row_bytes, 1))])
    needed = np.diff(count_end[scarce])
    streamed_bytes = (len(windows) - 1) * num_bytes
    if dim * bytes_of(rules.pes_per_tile, rules["weight_bits"]) <= half and (
            streamed_bytes <= int(needed.sum()) * weight_row_bytes):
        load = np.arange(len(windows) - 1)
        return WeightLoads("streamed", windows, load, np.zeros_like(load), np.full_like(load, num_bytes))
    load = np.repeat(np.arange(len(needed)), needed)
    place = np.arange(len(load)) - np.repeat(np.cumsum(needed) - needed, needed)
    offset = place * dim // needed[load] * weight_row_bytes
    return WeightLoads("by need", scarce, load, offset, np.full(len(load), weight_row_bytes))


def _windows(limits: list[tuple[np.ndarray, int]]) -> np.ndarray:
    """Return bounds of runs of rows that stay below each limit by its sums; a run has a row at least."""
    num_rows, bounds = len(limits[0][0]) - 1, [0]
    while bounds[-1] < num_rows:
        at = bounds[-1]
        ends = (int(np.searchsorted(end, end[at] + limit, "right")) - 1 for end, limit in limits)
        bounds.append(max(min(ends), at + 1))
    return np.array(bounds, np.int64)
