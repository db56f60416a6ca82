"""HyGCN's windows on the sources of intervals: sliding and shrinking. No bytes and no cycles are known here."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hpcgnn.accelerators.row_requests import distinct


class Windows(NamedTuple):
    """Rows that are loaded for intervals, a window's one after the other.

    Attributes
    ----------
    interval : (num_windows,) int64     ascending
    first_row : (num_windows,) int64    ascending within an interval
    num_rows : (num_windows,) int64     from 1 to the height of a window
    """

    interval: np.ndarray
    first_row: np.ndarray
    num_rows: np.ndarray


def windows_of(interval: np.ndarray, source: np.ndarray, num_nodes: int, height: int) -> Windows:
    """Return the windows that cover the sources of each interval's arcs.

    A window slides down to the first source that none has covered, reaches `height` rows, and shrinks from below to
    the last source within it; rows between the two are loaded, needed or not (HyGCN, Yan et al., HPCA 2020, data-aware
    sparsity elimination).

    Parameters
    ----------
    interval, source : (num_arcs,) int64     of each arc, in any order
    height : int                             rows that the input buffer's half holds
    """
    stride = num_nodes + height
    key = distinct(interval.astype(np.int64) * stride + source)
    if not len(key):
        return Windows(*(np.empty(0, np.int64) for _ in Windows._fields))
    is_first = _first_of_windows(key, stride, height)
    first = np.flatnonzero(is_first)
    last = np.append(first[1:], len(key)) - 1
    return Windows(key[first] // stride, key[first] % stride, key[last] - key[first] + 1)


def _first_of_windows(key: np.ndarray, stride: int, height: int) -> np.ndarray:
    """Return which sources begin a window, walking all intervals in step."""
    if height == 1:
        return np.ones(len(key), bool)
    is_first = np.zeros(len(key), bool)
    at = np.flatnonzero(np.diff(key // stride, prepend=-1))
    end = np.append(at[1:], len(key))
    while len(at):
        is_first[at] = True
        at = np.searchsorted(key, key[at] + height)
        at, end = at[at < end], end[at < end]
    return is_first
