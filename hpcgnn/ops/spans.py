"""Ranges of rows: central and marginal ones, and pieces of a range. Rows are numbers here, without torch."""

from __future__ import annotations

import itertools

import numpy as np

MAX_SPANS = 64       # ranges of central and marginal rows; more would cost more than is hidden
LEAST_CENTRAL = 1 / 16      # of the rows; the sums of fewer hide nothing, and their table is there while messages are
BLOCKS, MIN_BLOCK = 8, 2048
MIN_DEVICE_BLOCK = 1 << 19      # a device takes longer to start a kernel than to compute fewer rows
ROWS_AT_ONCE = 1 << 14      # that are made, mapped and gone; oneDNN takes longer for products of fewer

Spans = tuple[tuple[int, int], ...]


def spans(is_marginal: np.ndarray, device: str = "cpu") -> tuple[Spans, Spans]:
    """Central and marginal rows as few long ranges; all are marginal where they alternate too often to be worth it, or
    nearly all are.

    Central ranges come in blocks, between which messages are given a chance to make progress.

    Parameters
    ----------
    is_marginal : (num_out,) bool       the row has a halo neighbor
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
    """The range start .. stop in pieces, between which messages can be looked after; a device has fewer, longer ones.

    Parameters
    ----------
    device : str      type of the device that computes a piece, as torch names it
    """
    least = MIN_BLOCK if device == "cpu" else MIN_DEVICE_BLOCK
    step = max(least, -(-(stop - start) // BLOCKS))
    return [(first, min(first + step, stop)) for first in range(start, stop, step)]


def short_blocks(num_rows: int) -> list[tuple[int, int]]:
    """Return the range 0 .. num_rows in pieces, one at least, of rows that are never all there."""
    return [(first, min(first + ROWS_AT_ONCE, num_rows)) for first in range(0, max(num_rows, 1), ROWS_AT_ONCE)]
