"""DRAM traffic of one aggregation through a buffer, for each scheme that MEGA compares (HPCA 2024, Fig. 6 and 20b).

Counts the rows read, their copies and the lists of copies. Edges, new rows and sums are left out, since their bytes are
the same in every scheme.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hpcgnn._ext import condense_traffic as kernels
from hpcgnn.errors import ConfigError
from hpcgnn.partition.condense import ClusteredRows, CondensedRegions, condensed_regions

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


@dataclass(frozen=True)
class DramTraffic:
    """Bytes of one aggregation.

    dense_bytes, sparse_bytes : int       read for sources of the same cluster, and of other clusters
    copy_bytes : int                      written to condensed regions
    list_bytes : int                      read from the lists that say which row is copied where
    dropped_arcs : int                    edges left out by the scheme; this changes the result
    """

    dense_bytes: int
    sparse_bytes: int
    copy_bytes: int = 0
    list_bytes: int = 0
    dropped_arcs: int = 0

    @property
    def total_bytes(self) -> int:
        return self.dense_bytes + self.sparse_bytes + self.copy_bytes + self.list_bytes


def gather_traffic(rows: ClusteredRows, row_bytes: int, buffer: Buffer) -> DramTraffic:
    """Simulate exactly how each row's sources are read in order through the buffer, row after row.

    Rows of `row_bytes` lie one after the other, without padding. Raises ConfigError for an impossible buffer, or more
    lines than 32-bit numbers can count.
    """
    _check_lines(rows, row_bytes, buffer)
    dense, sparse = kernels.fetch_lines(
        np.ascontiguousarray(rows.start, np.int64), np.ascontiguousarray(rows.indptr, np.int64),
        np.ascontiguousarray(rows.indices, np.int32), row_bytes, buffer.line_bytes,
        buffer.num_bytes // buffer.line_bytes, buffer.policy == "lru")
    return DramTraffic(dense * buffer.line_bytes, sparse * buffer.line_bytes)


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
    """Yield the lines that `gather_traffic` counts, for runs of clusters with about `entries_a_run` entries."""
    _check_lines(rows, row_bytes, buffer)
    start, indptr = (np.ascontiguousarray(array, np.int64) for array in (rows.start, rows.indptr))
    num_lines = -(-rows.num_rows * row_bytes // buffer.line_bytes)
    newer, older = (np.full(num_lines + 1, -1, np.int32) for _ in range(2))
    newer[-1] = older[-1] = num_lines
    held, entry, first = np.zeros(1, np.int64), indptr[start], 0
    while first < rows.num_clusters:
        last = max(int(np.searchsorted(entry, entry[first] + entries_a_run, "right")) - 1, first + 1)
        room = int(entry[last] - entry[first]) * ((row_bytes - 1) // buffer.line_bytes + 2) + 1
        line, is_sparse, end = np.empty(room, np.int32), np.empty(room, np.uint8), np.zeros(last - first, np.int64)
        if entry[last] > entry[first]:
            kernels.list_fetched_lines(start, indptr, np.ascontiguousarray(rows.indices, np.int32), first, last,
                                       row_bytes, buffer.line_bytes, buffer.num_bytes // buffer.line_bytes,
                                       buffer.policy == "lru", newer, older, held, line, is_sparse, end)
        yield FetchedLines(first, np.concatenate([[0], end]), line[:end[-1]].copy(), is_sparse[:end[-1]].astype(bool))
        first = last


def direct_traffic(rows: ClusteredRows, row_bytes: int, buffer: Buffer) -> DramTraffic:
    """Count the bytes if the buffer holds the current cluster's rows only; sources of other clusters come from DRAM."""
    is_sparse = rows.is_sparse()
    dense = gather_traffic(rows.without(is_sparse), row_bytes, buffer)
    source = rows.indices[is_sparse].astype(np.int64)
    num_lines = ((source + 1) * row_bytes - 1) // buffer.line_bytes - source * row_bytes // buffer.line_bytes + 1
    return replace(dense, sparse_bytes=int(num_lines.sum()) * buffer.line_bytes)


def source_traffic(rows: ClusteredRows, row_bytes: int, buffer: Buffer) -> DramTraffic:
    """Count the bytes if a cluster is aggregated source by source, as with Condense-Edge, but without condensed copies.

    For each cluster, the sources that lie in other clusters are read once, at their own addresses in ascending order,
    so rows next to each other in memory share a line.

    Reference: MEGA, §V-E, which reads copies in this order; here the rows themselves are read in it.
    """
    dense = gather_traffic(rows.without(rows.is_sparse()), row_bytes, buffer)
    _, num_lines = source_lines(condensed_regions(rows), row_bytes, buffer)
    return replace(dense, sparse_bytes=int(num_lines.sum()) * buffer.line_bytes)


def source_lines(regions: CondensedRegions, row_bytes: int, buffer: Buffer) -> tuple[np.ndarray, np.ndarray]:
    row = regions.copied_row.astype(np.int64)
    first, last = row * row_bytes // buffer.line_bytes, ((row + 1) * row_bytes - 1) // buffer.line_bytes
    read_to = np.concatenate([[-1], last[:-1]])[:len(row)]
    read_to[regions.start[:-1][regions.start[:-1] < len(row)]] = -1      # at its first read, a cluster has read nothing
    first = np.maximum(first, read_to + 1)
    return first, last - first + 1


def pruned_traffic(rows: ClusteredRows, row_bytes: int, buffer: Buffer, pruned_share: float) -> DramTraffic:
    """Count the bytes if, as in GCoD, edges between clusters are pruned, first between the least connected clusters.

    `pruned_share` is a share of all edges; fewer are pruned if there are fewer edges between clusters.

    Reference: You et al., HPCA 2022 (GCoD), as MEGA uses it for comparison. The order of pruning is our choice.
    """
    is_dropped = pruned_entries(rows, pruned_share)
    traffic = gather_traffic(rows.without(is_dropped), row_bytes, buffer)
    return replace(traffic, dropped_arcs=int(is_dropped.sum()))


def pruned_entries(rows: ClusteredRows, pruned_share: float) -> np.ndarray:
    entry = np.flatnonzero(rows.is_sparse())
    cluster = rows.cluster_of_rows()
    reader = np.repeat(cluster, np.diff(rows.indptr))[entry]
    _, pair, num_arcs = np.unique(reader * rows.num_clusters + cluster[rows.indices[entry]], return_inverse=True,
                                  return_counts=True)
    is_dropped = np.zeros(len(rows.indices), bool)
    is_dropped[entry[np.argsort(num_arcs[pair], kind="stable")][:round(pruned_share * len(rows.indices))]] = True
    return is_dropped


def condensed_traffic(rows: ClusteredRows, row_bytes: int, buffer: Buffer) -> DramTraffic:
    """Condense-Edge: sources of the same cluster through the dense share, all other sources from condensed regions.

    A region begins at a line boundary. It is written whenever its part of the Sparse Buffer is full. It is read once,
    from front to back, while its cluster is aggregated source by source. Raises ConfigError also if the dense or the
    sparse share of the buffer holds no line.

    Reference: MEGA, Algorithm 1 (line 16 for the write).
    """
    if buffer.check().sparse_bytes < buffer.line_bytes:
        raise ConfigError(f"a Sparse Buffer of {buffer.sparse_bytes} bytes holds no line of {buffer.line_bytes} bytes; "
                          "choose a larger buffer or a larger share")
    regions = condensed_regions(rows)
    num_copies = np.diff(regions.start)
    dense = gather_traffic(rows.without(rows.is_sparse()), row_bytes, buffer.dense())
    return DramTraffic(dense.dense_bytes, _lines(num_copies * row_bytes, buffer) * buffer.line_bytes,
                       _written_lines(num_copies, row_bytes, buffer) * buffer.line_bytes,
                       BYTES_AN_ID * regions.num_copies)


def _check_lines(rows: ClusteredRows, row_bytes: int, buffer: Buffer) -> None:
    buffer.check()
    if row_bytes < 1 or rows.num_rows * row_bytes // buffer.line_bytes >= MOST_LINES:
        raise ConfigError(f"found {rows.num_rows} rows of {row_bytes} bytes; expected at least 1 byte per row, and at "
                          f"most {MOST_LINES} lines of {buffer.line_bytes} bytes in all; choose wider lines")


def _lines(num_bytes: np.ndarray, buffer: Buffer) -> int:
    return int((-(-num_bytes // buffer.line_bytes)).sum())


def _written_lines(num_copies: np.ndarray, row_bytes: int, buffer: Buffer) -> int:
    """Lines written for regions of `num_copies` copies; the last line of a region may be partly empty."""
    share_bytes = buffer.sparse_bytes // max(len(num_copies), 1)
    if share_bytes >= buffer.line_bytes:
        return _lines(num_copies * row_bytes, buffer)
    rows_at_once = max(share_bytes // row_bytes, 1)
    return int((-(-num_copies // rows_at_once)).sum()) * -(-rows_at_once * row_bytes // buffer.line_bytes)
