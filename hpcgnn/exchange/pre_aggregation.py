"""PreAggregation: where several rows of a rank go to few rows of another, their sum travels in their place.

Of the arcs from one rank's rows to another's, a minimum vertex cover is taken. An arc whose source is in it has the
source's row sent, as always; any other has its target in it, and the sender sums what it has for that target, so that
one row crosses. No other choice sends fewer rows. It fits reductions that are linear in their rows.

What is computed here depends on the partition, not on rows; `outgoing_rows` sums these. Messages are those of an
ordinary ExchangePlan, whose inner rows are the table of what a rank sends.

Reference: SuperGCN (arXiv 2411.16025), which calls these pre- and post-aggregation.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse
from mpi4py import MPI

from hpcgnn.exchange.plan import ExchangePlan, RowList
from hpcgnn.exchange.reach import Reach, tell_owners
from hpcgnn.exchange.swap import swap, swap_rows
from hpcgnn.graph.far_arcs import NO_ROW, FarArcs
from hpcgnn.partition.partition import Partition
from hpcgnn.partition.vertex_cover import minimum_vertex_cover


@dataclass(frozen=True)
class PreAggregation:
    """Rows that a rank sends, some of them sums, and the arcs by which it reads what comes.

    Attributes
    ----------
    plan : ExchangePlan                 of the messages: its inner rows are those of the table, its halo rows what comes
    arcs : FarArcs                      of the inner rows, from inner rows and from what comes
    begin : (num_sent + 1,) int64, source : int32      the inner rows that each row of the table sums, a CSR
    weight : float32 beside source, or None            of their arcs; 1 for rows that are sent as they stand
    is_sum : (num_sent,) bool           the row is a sum over arcs, not an inner row as it stands
    hops : (num_sent,) int32 or None    to the loss through the nearest receiver, ascending; None where nobody knows
    reach : Reach or None               of `plan`
    importance : (num_sent + num_halo,) float32     of a sum, the largest of what it sums
    """

    plan: ExchangePlan
    arcs: FarArcs
    begin: np.ndarray
    source: np.ndarray
    weight: np.ndarray | None
    is_sum: np.ndarray
    hops: np.ndarray | None
    reach: Reach | None
    importance: np.ndarray

    @property
    def num_sent(self) -> int:
        """Return the rows of the table."""
        return len(self.is_sum)

    def num_within(self, reach: int | None) -> int:
        """Return how many rows of the table, the first ones, a pass sends that needs `reach` hops; None is all."""
        return self.num_sent if reach is None or self.hops is None else int(np.searchsorted(self.hops, reach, "right"))

    @classmethod
    def build(cls, comm: MPI.Comm, part: Partition, plan: ExchangePlan, reach: Reach | None) -> PreAggregation:
        """Collective: choose what is summed where, and tell the owners of the rows.

        Parameters
        ----------
        plan : ExchangePlan      in which every source of an arc travels
        reach : Reach or None    of that plan
        """
        wanted = _Wanted.choose(part, plan)
        table = _Table.asked(comm, part, plan, wanted)
        halo = tuple(RowList(rows, node_id, np.arange(len(rows), dtype=np.int32))
                     for rows, node_id in zip(wanted.rows_by_peer, wanted.ids_by_peer(part, plan), strict=True))
        thin = replace(plan, num_inner=table.num_rows, num_halo=len(wanted.importance), boundary=table.boundary,
                       halo=halo)
        hops = None
        if reach is not None:
            reach = _reach_of(comm, thin, wanted.arcs, reach)
            hops = np.full(table.num_rows, reach.num_hops + 1, np.int32)
            for rows, told in zip(thin.boundary, reach.boundary, strict=True):
                np.minimum.at(hops, rows.index, told)
            order = np.argsort(hops, kind="stable")
            table, hops = table.sorted(order), hops[order]
            thin = replace(thin, boundary=table.boundary)
        return cls(thin, wanted.arcs, table.begin, table.source, table.weight, table.is_sum, hops, reach,
                   np.concatenate([table.importance, wanted.importance]))


@dataclass(frozen=True)
class _Wanted:
    """What one rank wants of each of its peers.

    Attributes
    ----------
    arcs : FarArcs
    is_plain : (part.num_halo,) bool        the halo row is to come as it stands
    plain, sums : one a peer; halo rows of `part` that come as they stand, and inner rows that a sum comes for, in the
                  order in which they come: both by ascending global id
    sources : one a peer; halo rows of `part`, the sources of each sum one after the other
    counts : one a peer; (number of sums,) int32, how many sources each has
    weights : one a peer; float32 beside the sources; empty arrays without weights
    importance : (num_halo,) float32        of what comes
    """

    arcs: FarArcs
    is_plain: np.ndarray
    plain: list[np.ndarray]
    sums: list[np.ndarray]
    sources: list[np.ndarray]
    counts: list[np.ndarray]
    weights: list[np.ndarray]
    importance: np.ndarray

    @property
    def rows_by_peer(self) -> list[np.ndarray]:
        """Return the numbers of the rows that come from each peer, (n,) int32 counted from the first that comes."""
        ends = np.cumsum([0] + [len(plain) + len(sums) for plain, sums in zip(self.plain, self.sums, strict=True)])
        return [np.arange(start, stop, dtype=np.int32) for start, stop in itertools.pairwise(ends)]

    def ids_by_peer(self, part: Partition, plan: ExchangePlan) -> list[np.ndarray]:
        """Return the ids of the rows that come from each peer, (n,) int64 ascending; see `_sum_ids`."""
        return [np.concatenate([part.halo_id[plain], _sum_ids(part, part.inner_id[sums], peer)])
                for peer, plain, sums in zip(plan.peers, self.plain, self.sums, strict=True)]

    @classmethod
    def choose(cls, part: Partition, plan: ExchangePlan) -> _Wanted:
        """Cover the arcs that come from each peer."""
        num_inner = part.num_inner
        entry = np.flatnonzero(part.indices >= num_inner)
        target = np.repeat(np.arange(num_inner, dtype=np.int32), np.diff(part.indptr))[entry]
        source = part.indices[entry] - num_inner
        is_plain, number = np.zeros(part.num_halo, bool), np.empty(part.num_halo, np.int32)
        by_peer, halo_row, importance, num_known = [], [], [], 0
        ends: list[tuple[np.ndarray, np.ndarray]] = []
        for rows, own in zip(plan.halo, _arcs_by_peer(plan, source), strict=True):
            first = rows.index[0] if len(rows) else 0
            targets, column = np.unique(part.inner_id[target[own]], return_inverse=True)   # whatever the rows' order
            pairs = scipy.sparse.csr_matrix((np.ones(len(own), bool), (source[own] - first, column)),
                                            shape=(len(rows), len(targets)))
            is_plain[rows.index], _ = minimum_vertex_cover(pairs)
            plain = rows.index[is_plain[rows.index]]
            number[plain] = num_known + np.arange(len(plain))
            moved = own[~is_plain[source[own]]]
            sums, row = np.unique(part.inner_id[target[moved]], return_inverse=True)
            order = np.argsort(row, kind="stable")
            moved, row = moved[order], row[order]
            begin = np.searchsorted(row, np.arange(len(sums)))
            of_sum = target[moved[begin]]
            ends.append((of_sum, num_known + len(plain) + np.arange(len(sums), dtype=np.int32)))
            weight = np.empty(0, np.float32) if part.edge_weight is None else part.edge_weight[entry[moved]]
            by_peer.append((plain, of_sum, source[moved], np.diff(begin, append=len(moved)).astype(np.int32), weight))
            known = part.importance[num_inner:]
            importance += [known[plain], _largest(known[source[moved]], begin)]
            halo_row += [plain, np.full(len(sums), NO_ROW, np.int32)]
            num_known += len(plain) + len(sums)
        rows, columns = (np.concatenate(arrays) for arrays in zip(*ends, strict=True))
        arcs = _thinned(part, entry, is_plain[source], number[source], rows, columns, np.concatenate(halo_row))
        return cls(arcs, is_plain, *(list(arrays) for arrays in zip(*by_peer, strict=True)),
                   np.concatenate(importance))


@dataclass(frozen=True)
class _Table:
    """The rows that a rank sends; see `PreAggregation`.

    Attributes
    ----------
    begin, source, weight, is_sum : see `PreAggregation`
    importance : (num_rows,) float32
    boundary : tuple of RowList      one a peer, of rows of the table
    """

    begin: np.ndarray
    source: np.ndarray
    weight: np.ndarray | None
    is_sum: np.ndarray
    importance: np.ndarray
    boundary: tuple[RowList, ...]

    @property
    def num_rows(self) -> int:
        return len(self.is_sum)

    @classmethod
    def asked(cls, comm: MPI.Comm, part: Partition, plan: ExchangePlan, wanted: _Wanted) -> _Table:
        """Collective: have the peers tell what they want."""
        is_plain = [told.astype(bool) for told in tell_owners(comm, plan, wanted.is_plain.astype(np.uint8))]
        sizes = swap_rows(comm, plan.peers, np.array([[len(sums), len(sources)] for sums, sources
                                                      in zip(wanted.sums, wanted.sources, strict=True)], np.int64))
        first = [rows.index[:1] for rows in plan.halo]
        position = [sources - start for sources, start in zip(wanted.sources, first, strict=True)]
        target = [part.inner_id[sums] for sums in wanted.sums]
        counts = _received(comm, plan, wanted.counts, sizes[:, 0])
        target = _received(comm, plan, target, sizes[:, 0])
        position = _received(comm, plan, position, sizes[:, 1])
        has_weight = part.edge_weight is not None
        weight = _received(comm, plan, wanted.weights, sizes[:, 1] * has_weight)
        plain = [rows.index[kept] for rows, kept in zip(plan.boundary, is_plain, strict=True)]
        as_they_stand = np.unique(np.concatenate(plain))
        summed = [rows.index[at] for rows, at in zip(plan.boundary, position, strict=True)]
        source = np.concatenate([as_they_stand, *summed]).astype(np.int32)
        count = np.concatenate([np.ones(len(as_they_stand), np.int32), *counts])
        begin = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
        boundary, num_rows = [], len(as_they_stand)
        for rows, kept, own, ids in zip(plan.boundary, is_plain, plain, target, strict=True):
            index = np.concatenate([np.searchsorted(as_they_stand, own), num_rows + np.arange(len(ids))])
            node_id = np.concatenate([rows.node_id[kept], _sum_ids(part, ids, comm.rank)])
            boundary.append(RowList(index.astype(np.int32), node_id, np.arange(len(index), dtype=np.int32)))
            num_rows += len(ids)
        ones = np.ones(len(as_they_stand), np.float32)
        return cls(begin, source, np.concatenate([ones, *weight]) if has_weight else None,
                   np.arange(num_rows) >= len(as_they_stand), _largest(part.importance[source], begin[:-1]),
                   tuple(boundary))

    def sorted(self, order: np.ndarray) -> _Table:
        """Return the same rows where row order[i] is row i."""
        place = np.empty(len(order), np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        rows = scipy.sparse.csr_matrix((np.arange(len(self.source)), self.source, self.begin),
                                       shape=(self.num_rows, 1 + int(self.source.max(initial=0))))[order]
        boundary = tuple(replace(listed, index=place[listed.index]) for listed in self.boundary)
        return _Table(rows.indptr.astype(np.int64), self.source[rows.data],
                      None if self.weight is None else self.weight[rows.data], self.is_sum[order],
                      self.importance[order], boundary)


def _sum_ids(part: Partition, target: np.ndarray, sender: int) -> np.ndarray:
    """Return ids, (n,) int64, of the sums that a rank sends for nodes of others: no node has them, nor another sum.

    Draws of a row's rounding are keyed by its id, and a message lists rows by ascending ids.
    """
    return part.num_nodes_global + target * part.num_parts + sender


def _received(comm: MPI.Comm, plan: ExchangePlan, sent: list[np.ndarray], lengths: np.ndarray) -> list[np.ndarray]:
    """Collective: send an array to each peer, and return what came, arrays of these lengths."""
    received = [np.empty(length, array.dtype) for length, array in zip(lengths, sent, strict=True)]
    swap(comm, plan.peers, [np.ascontiguousarray(array) for array in sent], received)
    return received


def _arcs_by_peer(plan: ExchangePlan, source: np.ndarray) -> list[np.ndarray]:
    """Return the arcs whose sources, halo rows, are of each peer, (n,) int64 each, ascending."""
    stops = np.cumsum([len(rows) for rows in plan.halo])      # halo rows lie by owner, in the order of the peers
    peer = np.searchsorted(stops, source, "right").astype(np.int32)
    order = np.argsort(peer, kind="stable")
    return np.split(order, np.searchsorted(peer[order], np.arange(1, len(plan.peers))))


def _largest(values: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """Return the largest value of each group, none of which is empty; groups begin at `begin`."""
    return np.maximum.reduceat(values, begin) if len(begin) else np.empty(0, values.dtype)


def _thinned(part: Partition, entry: np.ndarray, is_kept: np.ndarray, number: np.ndarray, rows: np.ndarray,
             columns: np.ndarray, halo_row: np.ndarray) -> FarArcs:
    """Return the arcs of a part where some from halo rows have given way to one from each sum.

    Parameters
    ----------
    entry : (n,) int64           the arcs from halo rows
    is_kept : (n,) bool          which of them stay
    number : (n,) int32          the number of the halo row, counted from the first that comes, where they stay
    rows, columns : (m,)         of the arcs from sums; columns are counted likewise
    halo_row : see `FarArcs`
    """
    moved = entry[~is_kept]
    target = np.searchsorted(part.indptr, moved, "right") - 1
    indptr = part.indptr - np.concatenate([[0], np.cumsum(np.bincount(target, minlength=part.num_inner))])
    indices = part.indices.copy()
    indices[entry[is_kept]] = part.num_inner + number[is_kept]
    order = np.lexsort((columns, rows))
    at = indptr[rows[order] + 1]
    indices = np.insert(np.delete(indices, moved), at, part.num_inner + columns[order])
    weight = None
    if part.edge_weight is not None:
        weight = np.insert(np.delete(part.edge_weight, moved), at, np.float32(1.0))
    indptr = indptr + np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=part.num_inner))])
    return FarArcs(indptr.astype(np.int64), indices.astype(np.int32), halo_row, weight)


def _reach_of(comm: MPI.Comm, plan: ExchangePlan, arcs: FarArcs, reach: Reach) -> Reach:
    """Collective: return how far what comes is from the loss, where that is known of the inner rows."""
    nowhere, num_inner = reach.num_hops + 1, len(arcs.indptr) - 1
    is_far = arcs.indices >= num_inner
    behind = np.minimum(np.repeat(reach.inner, np.diff(arcs.indptr))[is_far] + 1, nowhere)
    halo = np.full(arcs.num_halo, nowhere, np.int32)
    np.minimum.at(halo, arcs.indices[is_far] - num_inner, behind)
    return replace(reach, halo=halo, boundary=tell_owners(comm, plan, halo))
