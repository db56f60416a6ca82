"""Splits row numbers into ranges: central and marginal rows, and blocks of a long range.

A rank sums its central rows while messages travel. With rows 0 1 2 3 4 and row 3 marginal, `spans` gives
((0, 3), (4, 5)) and ((3, 4),).
"""

from __future__ import annotations

import itertools

import numpy as np

MAX_SPANS = 64       # ranges of central and marginal rows; more would cost more than is hidden
LEAST_CENTRAL = 1 / 16      # least share of central rows: summing fewer hides nothing, and takes a table meanwhile
BLOCKS, MIN_BLOCK = 8, 2048
MIN_DEVICE_BLOCK = 1 << 19      # a device takes longer to start a kernel than to compute fewer rows
ROWS_AT_ONCE = 1 << 14      # rows that are made, mapped and freed together; products of fewer rows are slower in oneDNN

Spans = tuple[tuple[int, int], ...]


def spans(is_marginal: np.ndarray, device: str = "cpu") -> tuple[Spans, Spans]:
    """Central and marginal rows as few long ranges; is_marginal, (num_out,), says which rows have a halo neighbor.

    All rows count as marginal if nearly all are, or if ranges would be too short. Central ranges are cut into blocks;
    messages make progress between two blocks.
    """
    num_out = len(is_marginal)
    bounds = [0, *(np.flatnonzero(np.diff(is_marginal)) + 1).tolist(), num_out]
    if len(bounds) > MAX_SPANS or num_out - is_marginal.sum() <= LEAST_CENTRAL * num_out:
        return (), ((0, num_out),)
    ranges = [(start, stop) for start, stop in itertools.pairwise(bounds) if start < stop]
    marginal = tuple(span for span in ranges if is_marginal[span[0]])
    central = [span for span in ranges if not is_marginal[span[0]]]
    return tuple(block for start, stop in central for block in blocks(start, stop, device)), marginal


def blocks(start: int, stop: int, device: str = "cpu") -> list[tuple[int, int]]:
    """The range start .. stop in blocks; `device`, torch's name of its type, gets fewer and longer ones."""
    least = MIN_BLOCK if device == "cpu" else MIN_DEVICE_BLOCK
    step = max(least, -(-(stop - start) // BLOCKS))
    return [(first, min(first + step, stop)) for first in range(start, stop, step)]


def short_blocks(num_rows: int) -> list[tuple[int, int]]:
    if num_rows <= ROWS_AT_ONCE:
        return [(0, num_rows)]
    return [(first, min(first + ROWS_AT_ONCE, num_rows)) for first in range(0, num_rows, ROWS_AT_ONCE)]
