"""The buffer in front of DRAM, and the lines that an aggregation reads through it: MEGA, HPCA 2024, Fig. 6 and 20b."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hpcgnn._ext import condense_traffic as kernels
from hpcgnn.accelerators.schedule import runs_of
from hpcgnn.errors import ConfigError
from hpcgnn.partition.condense import ClusteredRows, CondensedRegions

POLICIES = ("lru", "fifo")
MOST_LINES = np.iinfo(np.int32).max
BYTES_AN_ID = 4
ENTRIES_A_RUN = 1 << 20


@dataclass(frozen=True)
class Buffer:
    """A fully associative buffer in front of DRAM; the defaults are MEGA's (§VI, Table IV; §V-E for the line).

    num_bytes : int             size; by default MEGA's Combination Buffer (96 KiB) and Sparse Buffer (32 KiB) together
    line_bytes : int            what one DRAM access reads or writes
    policy : {"lru", "fifo"}    evicts the least recently used line, or the line fetched first
    sparse_share : float        share that Condense-Edge sets aside as its Sparse Buffer
    """

    num_bytes: int = 128 << 10
    line_bytes: int = 128
    policy: str = "lru"
    sparse_share: float = 0.25

    @property
    def sparse_bytes(self) -> int:
        return int(self.num_bytes * self.sparse_share)

    def dense(self) -> Buffer:
        return replace(self, num_bytes=self.num_bytes - self.sparse_bytes)

    def check(self) -> Buffer:
        if self.policy not in POLICIES:
            raise ConfigError(f"unknown policy {self.policy!r}; choose one of {', '.join(POLICIES)}")
        if not 0 < self.sparse_share < 1:
            raise ConfigError(f"the share of the Sparse Buffer is {self.sparse_share}; expected it between 0 and 1")
        if not 0 < self.line_bytes <= self.num_bytes:
            raise ConfigError(f"a buffer of {self.num_bytes} bytes holds no line of {self.line_bytes} bytes; "
                              "choose a larger buffer or narrower lines of at least one byte")
        return self


class FetchedLines(NamedTuple):
    """Lines that a run of clusters reads from DRAM, in reading order.

    start : (num_clusters + 1,) int64     cluster first_cluster + i reads line[start[i]:start[i + 1]]
    line : (num_lines,) int32             its bytes are line * line_bytes .. (line + 1) * line_bytes - 1
    is_sparse : (num_lines,) bool         whether it is read for a source of another cluster
    """

    first_cluster: int
    start: np.ndarray
    line: np.ndarray
    is_sparse: np.ndarray


def fetched_lines(rows: ClusteredRows, row_bytes: int, buffer: Buffer,
                  entries_a_run: int = ENTRIES_A_RUN) -> Iterator[FetchedLines]:
    """Yield the lines that come from DRAM, for runs of clusters with about `entries_a_run` entries.

    Rows are summed one after the other, the sources of each in order. Rows of `row_bytes` lie one after the other,
    without padding. Raises ConfigError for an impossible buffer, or more lines than 32-bit numbers can count.
    """
    check_lines(rows, row_bytes, buffer)
    start, indptr = (np.ascontiguousarray(array, np.int64) for array in (rows.start, rows.indptr))
    num_lines = -(-rows.num_rows * row_bytes // buffer.line_bytes)
    newer, older = (np.full(num_lines + 1, -1, np.int32) for _ in range(2))
    newer[-1] = older[-1] = num_lines
    held, entry = np.zeros(1, np.int64), indptr[start]
    for first, last in runs_of(entry, entries_a_run):
        room = int(entry[last] - entry[first]) * ((row_bytes - 1) // buffer.line_bytes + 2) + 1
        line, is_sparse, end = np.empty(room, np.int32), np.empty(room, np.uint8), np.zeros(last - first, np.int64)
        if entry[last] > entry[first]:
            kernels.list_fetched_lines(start, indptr, np.ascontiguousarray(rows.indices, np.int32), first, last,
                                       row_bytes, buffer.line_bytes, buffer.num_bytes // buffer.line_bytes,
                                       buffer.policy == "lru", newer, older, held, line, is_sparse, end)
        yield FetchedLines(first, np.concatenate([[0], end]), line[:end[-1]].copy(), is_sparse[:end[-1]].astype(bool))


def source_lines(regions: CondensedRegions, row_bytes: int, buffer: Buffer) -> tuple[np.ndarray, np.ndarray]:
    row = regions.copied_row.astype(np.int64)
    first, last = row * row_bytes // buffer.line_bytes, ((row + 1) * row_bytes - 1) // buffer.line_bytes
    read_to = np.concatenate([[-1], last[:-1]])[:len(row)]
    read_to[regions.start[:-1][regions.start[:-1] < len(row)]] = -1      # at its first read, a cluster has read nothing
    first = np.maximum(first, read_to + 1)
    return first, last - first + 1


def pruned_entries(rows: ClusteredRows, pruned_share: float) -> np.ndarray:
    entry = np.flatnonzero(rows.is_sparse())
    cluster = rows.cluster_of_rows()
    reader = np.repeat(cluster, np.diff(rows.indptr))[entry]
    _, pair, num_arcs = np.unique(reader * rows.num_clusters + cluster[rows.indices[entry]], return_inverse=True,
                                  return_counts=True)
    is_dropped = np.zeros(len(rows.indices), bool)
    is_dropped[entry[np.argsort(num_arcs[pair], kind="stable")][:round(pruned_share * len(rows.indices))]] = True
    return is_dropped


def check_lines(rows: ClusteredRows, row_bytes: int, buffer: Buffer) -> None:
    buffer.check()
    if row_bytes < 1 or rows.num_rows * row_bytes // buffer.line_bytes >= MOST_LINES:
        raise ConfigError(f"found {rows.num_rows} rows of {row_bytes} bytes; expected at least 1 byte per row, and at "
                          f"most {MOST_LINES} lines of {buffer.line_bytes} bytes in all; choose wider lines")
