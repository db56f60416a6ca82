"""Reach: each row's hops to the loss, over all ranks, so that training computes and sends only rows that affect it.

A pass of L aggregations needs the rows within L hops of a training node; its last layer only the training nodes.
Example: on the path a - b - c - d with training node a, two layers need a, b and c at first and a, b after one layer; d
is never computed. Ranks walk hop by hop against the edges and send the hops of halo rows to their owners.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.transfer import swap
from hpcgnn.ops.arena import empty_array
from hpcgnn.partition.partition import Partition

EDGES_AT_ONCE = 1 << 22      # so that what is computed of edges takes little beside them


@dataclass(frozen=True)
class Reach:
    """Hops from each row to the loss; num_hops + 1 means farther."""

    num_hops: int
    inner: np.ndarray                 # (num_inner,) int32, hops from each inner row
    halo: np.ndarray  # (num_halo,) int32, fewest hops to the loss on paths whose first edge goes into an inner row
    # (num_sent,) int32 per peer, that peer's `halo` for the rows that it receives
    boundary: tuple[np.ndarray, ...]

    @classmethod
    def measure(cls, comm: MPI.Comm, part: Partition, plan: ExchangePlan, num_hops: int) -> Reach:
        """Collective: walk num_hops hops against the edges, from the training nodes of all ranks."""
        nowhere = num_hops + 1
        inner = np.where(part.train_mask, 0, nowhere).astype(np.int32)
        halo = np.full(part.num_halo, nowhere, np.int32)
        degree = np.diff(part.indptr)
        boundary = tell_owners(comm, plan, halo)
        for hops in range(1, num_hops + 1):
            # In-neighbors of the rows that the last hop reached.
            for rows_at, edges in edge_blocks(part.indptr):
                column = part.indices[edges][np.repeat(inner[rows_at] == hops - 1, degree[rows_at])]
                inner_column = column[column < part.num_inner]
                inner[inner_column] = np.minimum(inner[inner_column], hops)
                halo_column = column[column >= part.num_inner] - part.num_inner
                halo[halo_column] = np.minimum(halo[halo_column], hops)
            boundary = tell_owners(comm, plan, halo)
            for rows, told in zip(plan.boundary, boundary, strict=True):
                np.minimum.at(inner, rows.index, told)
        return cls(num_hops, inner, halo, boundary)

    @property
    def num_within(self) -> list[int]:
        return [int((self.inner <= hops).sum()) for hops in range(self.num_hops + 1)]

    def plan_within(self, plan: ExchangePlan, hops: int) -> ExchangePlan:
        """Return the plan of the rows that reach the loss within `hops` hops by an edge into their receiver's rows."""
        return plan.restricted(tuple(told <= hops for told in self.boundary), self.halo <= hops)

    def sorted(self, order: np.ndarray) -> Reach:
        return replace(self, inner=self.inner[order])


def edge_blocks(indptr: np.ndarray) -> Iterator[tuple[slice, slice]]:
    """Rows and their edges, by blocks of whole rows with about EDGES_AT_ONCE edges."""
    first, num_rows = 0, len(indptr) - 1
    while first < num_rows:
        enough = int(np.searchsorted(indptr, indptr[first] + EDGES_AT_ONCE, side="right")) - 1
        last = max(first + 1, min(enough, num_rows))
        yield slice(first, last), slice(int(indptr[first]), int(indptr[last]))
        first = last


def nearest_first(part: Partition, reach: Reach) -> tuple[Partition, Reach]:
    """Sort inner rows by hops to the loss, then rows without halo neighbors (central) first, otherwise stably."""
    degree, is_marginal = np.diff(part.indptr), np.zeros(part.num_inner, bool)
    for rows, edges in edge_blocks(part.indptr):
        target = np.repeat(np.arange(rows.start, rows.stop), degree[rows])
        is_marginal[target[part.indices[edges] >= part.num_inner]] = True
    order = np.lexsort((is_marginal, reach.inner))
    return reorder(part, order), reach.sorted(order)


def reorder(part: Partition, order: np.ndarray) -> Partition:
    """Move the partition's inner row order[i] to row i. Central rows no longer come first, so num_central becomes 0."""
    new_row = np.empty(part.num_inner, np.int32)
    new_row[order] = np.arange(part.num_inner, dtype=np.int32)
    degree = np.diff(part.indptr)[order]
    indptr = np.concatenate([[0], np.cumsum(degree)]).astype(np.int64)
    number = np.int32 if len(part.indices) <= np.iinfo(np.int32).max else np.int64
    shift = (part.indptr[:-1][order] - indptr[:-1]).astype(number)      # from a row's new entries to its old ones

    def entries_of(rows: slice, edges: slice) -> np.ndarray:
        return np.repeat(shift[rows], degree[rows]) + np.arange(edges.start, edges.stop, dtype=number)

    indices = np.empty_like(part.indices)
    for rows_at, edges in edge_blocks(indptr):
        chosen = part.indices[entries_of(rows_at, edges)]
        is_inner = chosen < part.num_inner
        chosen[is_inner] = new_row[chosen[is_inner]]
        indices[edges] = chosen
    has_values = any(getattr(part, name) is not None for name in ("edge_weight", "edge_type", "edge_attr"))
    entry = entries_of(slice(None), slice(0, len(indices))) if has_values else None
    known: dict[str, Any] = {name: np.concatenate([array[:part.num_inner][order], array[part.num_inner:]])
             for name, array in (("in_degree", part.in_degree), ("importance", part.importance))}
    rows: dict[str, Any] = {name: getattr(part, name)[order]
            for name in ("inner_id", "labels", "train_mask", "val_mask", "test_mask")}
    features = empty_array(part.features.shape, part.features.dtype)
    rows["features"] = np.take(part.features, order, axis=0, out=features, mode="clip")      # other modes copy
    rows |= {name: getattr(part, name)[at]
             for name, at in (("edge_weight", entry), ("edge_type", entry), ("edge_attr", entry), ("inner_name", order),
                              ("cluster", order))
             if getattr(part, name) is not None}
    return replace(part, indptr=indptr, indices=indices, num_central=0, boundary_index=new_row[part.boundary_index],
                   **known, **rows)


def tell_owners(comm: MPI.Comm, plan: ExchangePlan, halo: np.ndarray) -> tuple[np.ndarray, ...]:
    """Collective: send a value per halo row, `halo` (num_halo,), to the row's owner.

    Returns, per peer, the values of this rank's boundary rows that the peer sent.
    """
    told = tuple(np.empty(len(rows), halo.dtype) for rows in plan.boundary)
    swap(comm, plan.peers, [halo[rows.index] for rows in plan.halo], told)
    return told


def halo_values(comm: MPI.Comm, plan: ExchangePlan, values: np.ndarray) -> np.ndarray:
    """Collective: a value per halo row, (num_halo,), from the owners, which have `values` of inner rows."""
    halo = np.empty(plan.num_halo, values.dtype)
    told = [np.empty(len(rows), values.dtype) for rows in plan.halo]
    swap(comm, plan.peers, [np.ascontiguousarray(values[rows.index]) for rows in plan.boundary], told)
    for rows, received in zip(plan.halo, told, strict=True):
        halo[rows.index] = received
    return halo
