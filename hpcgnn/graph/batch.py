"""Batch: the rows that one optimizer step computes, the rows they read, and the edges between them.

`BatchCutter` cuts a batch out of a part and renumbers it. Example: row 1 has edges from 0, 5 and 8. In the batch of the
rows [1, 5], row 5 is inside and becomes 1; 0 and 8 are far rows and become 2 and 3, after the batch's own rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn._ext import cutting as kernels
from hpcgnn.graph.rows import Prefixes
from hpcgnn.ops.resident import make_resident


@dataclass(frozen=True)
class Batch:
    """The rows and edges of one step on one rank."""

    rows: np.ndarray     # (num_batch,) int64, inner rows to compute, ascending or in the order of `order_rows`
    # (num_far,) int64, rows that are only read: first, ascending, halo rows that other ranks compute in this step, then
    # all others in the order of the edges
    far: np.ndarray
    num_fresh: int       # number of those halo rows
    # (num_batch + 1,) int64, CSR; a column below num_batch is an index into `rows`, others are num_batch plus an index
    # in `far`
    indptr: np.ndarray
    indices: np.ndarray  # (num_arcs,) int32
    arc: np.ndarray      # (num_arcs,) int64, index of each edge in the CSR of the part
    # Whether every column is a far row; then rows of the batch that others read are listed in `far` too.
    reads_only: bool = False
    prefixes: Prefixes | None = None    # see `order_rows`; None where every row is computed

    def __post_init__(self):
        make_resident(self, "rows", "far")      # every layer of the step indexes by them

    @classmethod
    def of_all(cls, indptr: np.ndarray, indices: np.ndarray, num_rows: int) -> Batch:
        num_inner = len(indptr) - 1
        halo = np.arange(num_inner, num_rows)
        return cls(np.arange(num_inner), halo, len(halo), indptr, indices, np.arange(len(indices)))

    @property
    def fresh_halo(self) -> np.ndarray:
        return self.far[:self.num_fresh]


class BatchCutter:
    """Cut batches out of a part: a CSR by destination of local rows; `num_rows` counts inner and halo rows.

    num_within : list of int, or None           number of inner rows within k hops of the loss, which come first
    is_shared : (num_inner,) bool, or None      rows that other ranks also read; None: no row
    """

    def __init__(self, indptr: np.ndarray, indices: np.ndarray, num_rows: int, num_within: list[int] | None = None,
                 is_shared: np.ndarray | None = None):
        self._indptr, self._indices, self._num_within, self._is_shared = indptr, indices, num_within, is_shared
        self._place = np.full(num_rows, -1, np.int32)      # index of each row in the batch that is being cut

    def cut(self, rows: np.ndarray, fresh: np.ndarray, few_arcs: bool = False, reads_only: bool = False) -> Batch:
        """The batch of some inner `rows` and `fresh` halo rows, which other ranks compute in this step; both ascend.

        With `reads_only` no gradient follows an edge.
        """
        num_arcs = int((self._indptr[rows + 1] - self._indptr[rows]).sum())
        prefixes = None
        if self._num_within is not None:
            order, prefixes = self._order(rows, num_arcs, few_arcs, reads_only)
            rows = rows[order]
        far = np.empty(len(fresh) + min(num_arcs, len(self._place)), np.int64)
        far[:len(fresh)] = fresh
        indptr, indices = np.empty(len(rows) + 1, np.int64), np.empty(num_arcs, np.int32)
        arc = np.empty(num_arcs, np.int64)
        num_far = kernels.cut_rows(self._indptr, self._indices, self._place, rows, len(fresh), far, indptr, indices,
                                   arc)
        far = far[:num_far].copy()
        if reads_only:
            inside = np.flatnonzero(indices < len(rows))
            read, place = np.unique(indices[inside], return_inverse=True)
            indices[inside] = len(rows) + num_far + place
            far = np.concatenate([far, rows[read]])
        return Batch(rows, far, len(fresh), indptr, indices, arc, reads_only, prefixes)

    def _order(self, rows: np.ndarray, num_arcs: int, few_arcs: bool,
               reads_only: bool) -> tuple[np.ndarray, Prefixes]:
        hops, num_hops = np.searchsorted(self._num_within, rows, side="right"), len(self._num_within) - 1
        if reads_only:
            return order_rows(hops, np.empty(0, np.int32), np.empty(0, np.int32), None, num_hops, few_arcs)
        source, target = np.empty(num_arcs, np.int32), np.empty(num_arcs, np.int32)
        num_inside = kernels.arcs_inside(self._indptr, self._indices, self._place, rows, source, target)
        return order_rows(hops, source[:num_inside], target[:num_inside],
                          None if self._is_shared is None else self._is_shared[rows], num_hops, few_arcs)


def order_rows(hops: np.ndarray, source: np.ndarray, target: np.ndarray, is_shared: np.ndarray | None,
               num_hops: int, few_arcs: bool) -> tuple[np.ndarray, Prefixes]:
    """Order the rows of a batch so that each layer computes a prefix, and gradients reach a prefix.

    `hops`, (n,) int64, count to the loss in the whole graph; num_hops + 1 means farther. Edges inside the batch go from
    `source` to `target`. `is_shared` marks rows that other ranks may read in this batch.

    Returns the old index of each new row, (n,) int64, and the prefixes. Prefix k of `num_within` has all rows within k
    hops and all that prefix k - 1 reads; `num_back` has the same for rows that a gradient reaches from k hops away.
    """
    level = np.where(hops == 0, 0, num_hops + 1).astype(np.int16)      # hops to the loss inside the batch
    if is_shared is not None:
        level[is_shared] = np.minimum(level, np.maximum(hops, 1))[is_shared]
    # Walk against the edges: rows that a row of level `near` reads are at most one hop farther.
    for near in range(num_hops):
        read = source[level[target] == near]
        level[read] = np.minimum(level[read], near + 1)
    hops = hops.astype(np.int16)
    # Gradients follow only edges inside the batch. With few such edges, hardly any unlabeled row has a gradient, so
    # rows with a gradient come first; otherwise rows near the loss come first.
    order = np.argsort(level * (num_hops + 2) + hops if few_arcs else hops * (num_hops + 2) + level, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    arcs = place[source], place[target]
    return order, Prefixes(*(_first_rows(place, distance, num_hops, *arcs) for distance in (hops, level)))


def _first_rows(place: np.ndarray, distance: np.ndarray, farthest: int, source: np.ndarray,
                target: np.ndarray) -> list[int]:
    # For each distance: the prefix that holds all rows up to it and everything that the prefix before reads.
    counts: list[int] = []
    for reach in range(farthest + 1):
        needed = [place[distance <= reach]]
        if counts:
            needed.append(source[target < counts[-1]])
        counts.append(1 + max(int(places.max(initial=-1)) for places in needed))
    return counts
