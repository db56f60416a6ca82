"""Sorts a list of edges into a CSR graph by buckets of rows, so that only the graph and one bucket are in memory.

Each edge u -> v becomes a 64-bit number, v then u, in the bucket of row v. Buckets are then sorted one after the other;
equal numbers are duplicates, and reverse edges are added as separate edges.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcgnn.data.arrays import Sliced, refusals
from hpcgnn.data.dataset import INT32_NODES
from hpcgnn.data.options import ProgressTask
from hpcgnn.errors import DatasetError

ARCS_A_CHUNK, ARCS_A_BUCKET = 1 << 20, 1 << 20
MAX_BUCKETS = 1 << 16     # numbers of 16 bits are sorted by counting
MAX_GROUPS = 1 << 20      # rows are counted by groups, so that counting a chunk takes no longer than reading it
KEPT_BYTES = 1 << 25      # most bytes that are sorted in memory; more go to the scratch folder, if there is one
SOURCE_BITS = 32


class RowsOfEntries(Sliced):
    """The row of every entry of a CSR matrix, as an array that is read in slices."""

    def __init__(self, indptr: np.ndarray, num_entries: int, name: str) -> None:
        if len(indptr) < 2 or indptr[0] != 0 or indptr[-1] != num_entries or (indptr[1:] < indptr[:-1]).any():
            raise DatasetError(f"{name}: indptr does not rise from 0 to the number of indices, {num_entries}; "
                               "the file is damaged")
        self._indptr = indptr
        self.shape = (num_entries,)
        self.dtype = np.dtype(np.int32 if len(indptr) - 1 < INT32_NODES else np.int64)

    def __getitem__(self, entries: slice) -> np.ndarray:
        start, stop, _ = entries.indices(len(self))
        first = int(np.searchsorted(self._indptr, start, side="right")) - 1
        last = int(np.searchsorted(self._indptr, stop, side="left"))
        ends = np.clip(self._indptr[first:last + 1], start, stop)
        return np.repeat(np.arange(first, last, dtype=self.dtype), np.diff(ends))


Ends = np.ndarray | Sliced


def chunks(source: Ends, target: Ends) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Read both ends of edges in chunks, in order."""
    for first in range(0, len(source), ARCS_A_CHUNK):
        part = slice(first, first + ARCS_A_CHUNK)
        yield source[part], target[part]


@dataclass(frozen=True)
class SortedArcs:
    """A CSR graph without loops and duplicates.

    indptr : (num_nodes + 1,) int64          by destination
    indices : (num_edges,) int32             sources, ascending within a row
    num_loops : int                          edges from a node to itself that were left out
    num_unique : int                         distinct edges given, before reverses were added
    """

    indptr: np.ndarray
    indices: np.ndarray
    num_loops: int
    num_unique: int


def sort_arcs(source: Ends, target: Ends, num_nodes: int, with_reverse: bool, scratch: Path | None,
              task: ProgressTask) -> SortedArcs:
    """Sort edges by destination, then source; remove duplicates and loops.

    Parameters
    ----------
    source, target : (num_source_edges,) integer in 0..num_nodes - 1, below 2**31
    with_reverse : bool                      add the reverse of each edge
    scratch : Path or None                   folder for the buckets of a large graph; None keeps them in memory
    task : ProgressTask                      advances by each source edge when it is read, and again when it is sorted
    """
    cut = _cut_rows(source, target, num_nodes, with_reverse)
    given, reverse = (Buckets(cut, scratch) for _ in range(2))
    num_loops = 0
    for u, v in chunks(source, target):
        is_arc = u != v
        u, v = u[is_arc], v[is_arc]
        num_loops += len(is_arc) - len(u)
        given.add(u, v)
        if with_reverse:
            reverse.add(v, u)
        task.advance(len(is_arc))
    counts = np.zeros(num_nodes + 1, np.int64)
    indices = np.empty(given.num_arcs + reverse.num_arcs, np.int32)
    num_edges = num_unique = 0
    for bucket in range(cut.num_buckets):
        keys = given.distinct(bucket)
        num_unique += len(keys)
        task.advance(int(given.size[bucket]))
        if with_reverse:
            keys = np.concatenate([keys, reverse.distinct(bucket)])
            keys.sort(kind="stable")     # merges two sorted runs
            keys = without_repeats(keys)
        row = keys >> SOURCE_BITS
        if len(keys):
            first = int(row[0])
            counts[first + 1:int(row[-1]) + 2] += np.bincount(row - first)
        indices[num_edges:num_edges + len(keys)] = keys & ((1 << SOURCE_BITS) - 1)
        num_edges += len(keys)
    task.advance(num_loops)
    indices.resize(num_edges, refcheck=False)     # there is no other reference, so the array shrinks in place
    return SortedArcs(np.cumsum(counts, out=counts), indices, num_loops, num_unique)


@dataclass(frozen=True)
class RowCut:
    """Assigns rows to buckets, by groups of 2**group_bits consecutive rows.

    bucket_of : (num_groups,) uint16, ascending
    """

    bucket_of: np.ndarray
    group_bits: int
    num_buckets: int

    def __call__(self, row: np.ndarray) -> np.ndarray:
        """Bucket of each row, uint16."""
        return self.bucket_of[row >> row.dtype.type(self.group_bits)]


def _cut_rows(source: Ends, target: Ends, num_nodes: int, with_reverse: bool) -> RowCut:
    num_arcs = len(source) * (2 if with_reverse else 1)
    group_bits = max(0, (num_nodes - 1).bit_length() - (MAX_GROUPS.bit_length() - 1))
    num_groups = (num_nodes - 1 >> group_bits) + 1
    wanted = max(1, min(MAX_BUCKETS, num_arcs // ARCS_A_BUCKET))
    if wanted == 1:
        return RowCut(np.zeros(num_groups, np.uint16), group_bits, 1)
    count = np.zeros(num_groups, np.int64)
    for ends in chunks(source, target):
        for rows in ends if with_reverse else ends[1:]:
            count += np.bincount((rows >> rows.dtype.type(group_bits)).astype(np.int64, copy=False),
                                 minlength=num_groups)
    before = np.cumsum(count) - count
    return RowCut((before * wanted // (num_arcs + 1)).astype(np.uint16), group_bits, wanted)


@dataclass
class Buckets:
    """Edges by bucket of their target, in memory or a file; each is a 64-bit number, target then source.

    `size`, (num_buckets,) int64, is the number of edges in each bucket.
    """

    cut: RowCut
    scratch: Path | None

    def __post_init__(self) -> None:
        self.size = np.zeros(self.cut.num_buckets, np.int64)
        self._starts: list[np.ndarray] = []
        limit = 0 if self.scratch is None else KEPT_BYTES
        self._file = tempfile.SpooledTemporaryFile(max_size=limit, dir=self.scratch)     # noqa: SIM115 - it is kept

    @property
    def num_arcs(self) -> int:
        return int(self.size.sum())

    def add(self, source: np.ndarray, target: np.ndarray) -> None:
        keys = target.astype(np.int64)
        keys <<= SOURCE_BITS
        keys |= source.astype(np.int64, copy=False)
        bucket = self.cut(target)
        count = np.bincount(bucket, minlength=self.cut.num_buckets)
        if self.cut.num_buckets > 1:
            keys = keys[np.argsort(bucket, kind="stable")]
        self._starts.append(8 * (self.num_arcs + np.append(0, np.cumsum(count))))
        self.size += count
        with refusals(self.scratch, "the edges that are sorted"):
            self._file.write(keys.data)

    def distinct(self, bucket: int) -> np.ndarray:
        """Edges of one bucket, each once, ascending, int64."""
        keys, done = np.empty(self.size[bucket], np.int64), 0
        with refusals(self.scratch, "the edges that are sorted"):
            for starts in self._starts:
                self._file.seek(starts[bucket])
                held = np.frombuffer(self._file.read(starts[bucket + 1] - starts[bucket]), np.int64)
                keys[done:done + len(held)] = held
                done += len(held)
        if (keys[1:] < keys[:-1]).any():
            keys.sort()
        return without_repeats(keys)


def without_repeats(keys: np.ndarray) -> np.ndarray:
    """The distinct ones of ascending keys."""
    is_first = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    return keys if is_first.all() else keys[is_first]
