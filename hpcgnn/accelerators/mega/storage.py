"""Where each row of X lies in DRAM, as Adaptive-Packages or as values at one width, from counts of values alone.

What rows mean, and who reads them, is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcgnn.accelerators.mega.rules import Rules
from hpcgnn.accelerators.workload import FeatureCounts
from hpcgnn.errors import ConfigError
from hpcgnn.quantized.package import HEADER_BITS, MAX_BIT_WIDTH


@dataclass(frozen=True)
class StoredRows:
    """Rows, one after the other, as values and, apart from them, as bitmaps of positions.

    Attributes
    ----------
    width : (num_rows,) int64               bits of each value of a row as it is stored
    value_end : (num_rows + 1,) int64       byte where the values of the rows before end; a package that several rows
                                            share belongs to the row that opened it
    position_end : (num_rows + 1,) int64    likewise of positions, one bit a column
    """

    width: np.ndarray
    value_end: np.ndarray
    position_end: np.ndarray

    @property
    def num_bytes(self) -> int:
        return int(self.value_end[-1] + self.position_end[-1])


def stored_rows(rows: FeatureCounts, rules: Rules) -> StoredRows:
    """Store rows as the rule `storage` says.

    Raises
    ------
    ConfigError                             values of more than 8 bits or, where there are any, of none

    Reference: MEGA, §V-B; Fig. 19 for the bitmap format, whose values all have the largest width.
    """
    count, width = rows.row_nonzeros(), rows.bit_width.astype(np.int64)
    used = width[count > 0]
    if used.size and not 1 <= used.min() <= used.max() <= MAX_BIT_WIDTH:
        raise ConfigError(f"values have {used.min()} to {used.max()} bits; MEGA stores 1 to {MAX_BIT_WIDTH}")
    if rules["storage"] == "bitmap":
        width = np.full(len(width), used.max(initial=1))
        bits = count * width
    else:
        bits, _ = package_bits(count, width, rules["package_lengths"])
    return StoredRows(width, _byte_ends(bits), _byte_ends(np.full(len(width), rows.dim, np.int64)))


def package_bits(count: np.ndarray, width: np.ndarray, lengths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bits of the packages that each row opens, headers and padding included, and how many those are.

    Parameters
    ----------
    count, width : (num_rows,) int64       values of a row that are not zero, and bits of each
    lengths : three int, not descending    bits of values of a short, medium and long package

    Returns
    -------
    bits, num_packages : (num_rows,) int64

    Reference: MEGA, §V-B and §V-D: a package takes the values of successive rows until it is full or the width changes;
    its mode is then the least that holds them. A row without values changes nothing.
    """
    bits, num_packages = np.zeros(len(count), np.int64), np.zeros(len(count), np.int64)
    row = np.flatnonzero(count)
    if not row.size:
        return bits, num_packages
    lengths, count, width = np.asarray(lengths, np.int64), count[row].astype(np.int64), width[row].astype(np.int64)
    begins = np.concatenate([[True], width[1:] != width[:-1]])     # a run of rows of one width
    end = np.cumsum(count)
    before = end - count
    first, run = before[begins], np.cumsum(begins) - 1
    capacity = lengths[2] // width
    num_packages[row] = -(-(end - first[run]) // capacity) + -(before - first[run]) // capacity
    full_bits = _least_length(lengths, capacity * width)
    bits[row] = num_packages[row] * (full_bits + HEADER_BITS)
    run_width, run_capacity = width[begins], capacity[begins]
    full_before = (np.concatenate([first[1:], end[-1:]]) - first - 1) // run_capacity * run_capacity
    opener = np.searchsorted(before, first + full_before, "right") - 1
    rest = np.concatenate([first[1:], end[-1:]]) - first - full_before
    bits[row[opener]] += _least_length(lengths, rest * run_width) - full_bits[opener]
    return bits, num_packages


def _least_length(lengths: np.ndarray, bits: np.ndarray) -> np.ndarray:
    return lengths[np.searchsorted(lengths, bits)]


def _byte_ends(bits: np.ndarray) -> np.ndarray:
    return -(-np.concatenate([[0], np.cumsum(bits)]) // 8)
