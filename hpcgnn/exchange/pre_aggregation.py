"""PreAggregation: if many rows of a rank go into few rows of another, the sender sums them and sends the sums.

Example: rows 1, 2 and 3 of rank 0 all have edges into row 7 of rank 1. Instead of three rows, rank 0 sends their sum.
For each pair of ranks a minimum vertex cover of the edges between them decides: an edge with its source in the cover
reads the source's row; any other edge has its target in the cover, and the sender sums its rows for that target. A
message then has one row per member of the cover, the fewest possible. This fits reductions that are linear in rows.

Messages follow an ordinary ExchangePlan. It indexes a table of all rows and sums that a rank sends, where other plans
index the rank's inner rows.

Reference: SuperGCN (arXiv 2411.16025), which calls these pre- and post-aggregation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse
import torch
from mpi4py import MPI

from hpcgnn.errors import KernelError
from hpcgnn.exchange.arrival import PassedOn
from hpcgnn.exchange.halo import Around, HaloExchange
from hpcgnn.exchange.plan import ExchangePlan, RowList
from hpcgnn.exchange.reach import Reach, tell_owners
from hpcgnn.exchange.transfer import swap, swap_rows
from hpcgnn.graph.hop import Arrival, ExchangeSite
from hpcgnn.graph.reductions import degree_factor
from hpcgnn.graph.rows import NO_ROW, FarArcs
from hpcgnn.ops.aggregation import SparseRows, add_product, from_csr, multiply
from hpcgnn.ops.arena import empty
from hpcgnn.ops.resident import resident
from hpcgnn.partition.partition import Partition
from hpcgnn.partition.vertex_cover import minimum_vertex_cover


@dataclass(frozen=True)
class PreAggregation:
    """Rows that a rank sends, some of them sums, and the edges from arriving rows and sums."""

    plan: ExchangePlan         # inner rows of the plan are the table's rows, halo rows the arriving rows
    arcs: FarArcs              # edges into inner rows, from inner and arriving rows
    begin: np.ndarray          # (num_sent + 1,) int64, CSR: the inner rows that each row of the table sums
    source: np.ndarray
    weight: np.ndarray | None  # edge weights; 1 for single rows
    is_sum: np.ndarray         # (num_sent,) bool
    hops: np.ndarray | None    # (num_sent,) int32, hops to the loss through the nearest receiver, ascending
    reach: Reach | None        # reach of `plan`
    importance: np.ndarray     # (num_sent + num_halo,) float32; a sum counts as its most important row

    @property
    def num_sent(self) -> int:
        return len(self.is_sum)

    def num_within(self, reach: int | None) -> int:
        """Return the number of leading table rows that a pass over `reach` hops sends; all rows if `reach` is None."""
        return self.num_sent if reach is None or self.hops is None else int(np.searchsorted(self.hops, reach, "right"))

    @classmethod
    def build(cls, comm: MPI.Comm, part: Partition, plan: ExchangePlan, reach: Reach | None) -> PreAggregation:
        """Collective: choose the sums and tell the owners. `plan` sends the source of every cut edge, without sums."""
        wanted = _wanted(part, plan)
        arcs, table = _arcs_of(part, wanted), _Table.asked(comm, part, plan, wanted)
        first = _ends([len(one.halo_row) for one in wanted]).astype(np.int32)
        halo = tuple(one.row_list(part, peer, start)
                     for one, peer, start in zip(wanted, plan.peers, first[:-1], strict=True))
        thin = replace(plan, num_inner=table.num_rows, num_halo=arcs.num_halo, boundary=table.boundary, halo=halo)
        hops = None
        if reach is not None:
            reach = _reach_of(comm, thin, arcs, reach)
            hops = np.full(table.num_rows, reach.num_hops + 1, np.int32)
            for rows, told in zip(thin.boundary, reach.boundary, strict=True):
                np.minimum.at(hops, rows.index, told)
            order = np.argsort(hops, kind="stable")
            table, hops = table.sorted(order), hops[order]
            thin = replace(thin, boundary=table.boundary)
        importance = np.concatenate([table.importance, *(one.importance(part) for one in wanted)])
        return cls(thin, arcs, table.begin, table.source, table.weight, table.is_sum, hops, reach, importance)


def _wanted(part: Partition, plan: ExchangePlan) -> list[_FromPeer]:
    arcs = np.flatnonzero(part.indices >= part.num_inner)
    target = np.repeat(np.arange(part.num_inner, dtype=np.int32), np.diff(part.indptr))[arcs]
    by_peer = _by_peer(plan, part.indices[arcs] - part.num_inner)
    return [_FromPeer.cover(part, rows, arcs[own], target[own]) for rows, own in zip(plan.halo, by_peer, strict=True)]


def _by_peer(plan: ExchangePlan, source: np.ndarray) -> list[np.ndarray]:
    stops = np.cumsum([len(rows) for rows in plan.halo])      # halo rows are sorted by owner, in the order of the peers
    peer = np.searchsorted(stops, source, "right").astype(np.int32)
    order = np.argsort(peer, kind="stable")
    return np.split(order, np.searchsorted(peer[order], np.arange(1, len(plan.peers))))


@dataclass(frozen=True)
class _FromPeer:
    plain: np.ndarray   # (num_plain,) int32, halo rows that arrive singly
    target: np.ndarray  # (num_sums,) int32, inner row of each sum
    count: np.ndarray   # (num_sums,) int32, rows of each sum
    entry: np.ndarray   # (num_summed,) int64, edges that sums replace, sum by sum
    source: np.ndarray  # (num_summed,) int32, halo row at the start of each of these edges

    @classmethod
    def cover(cls, part: Partition, halo: RowList, arcs: np.ndarray, target: np.ndarray) -> _FromPeer:
        source = part.indices[arcs] - part.num_inner
        first = halo.index[0] if len(halo) else 0
        # By global id, so that the cover does not depend on the order of the rows.
        node_id, column = np.unique(part.inner_id[target], return_inverse=True)
        pairs = scipy.sparse.csr_matrix((np.ones(len(arcs), bool), (source - first, column)),
                                        shape=(len(halo), len(node_id)))
        is_plain, _ = minimum_vertex_cover(pairs)
        summed = np.flatnonzero(~is_plain[source - first])
        summed = summed[np.argsort(column[summed], kind="stable")]
        begin = np.flatnonzero(np.diff(column[summed], prepend=-1))
        return cls(halo.index[is_plain], target[summed[begin]], np.diff(begin, append=len(summed)).astype(np.int32),
                   arcs[summed], source[summed])

    @property
    def halo_row(self) -> np.ndarray:
        return np.concatenate([self.plain, np.full(len(self.target), NO_ROW, np.int32)])

    def weight(self, part: Partition) -> np.ndarray:
        return np.empty(0, np.float32) if part.edge_weight is None else part.edge_weight[self.entry]

    def importance(self, part: Partition) -> np.ndarray:
        known = part.importance[part.num_inner:]
        begin = np.cumsum(self.count) - self.count
        return np.concatenate([known[self.plain], _largest(known[self.source], begin)])

    def row_list(self, part: Partition, peer: int, first: int) -> RowList:
        rows = np.arange(len(self.plain) + len(self.target), dtype=np.int32)
        node_id = np.concatenate([part.halo_id[self.plain], _sum_ids(part, part.inner_id[self.target], peer)])
        return RowList(first + rows, node_id, rows)


def _arcs_of(part: Partition, wanted: list[_FromPeer]) -> FarArcs:
    halo_row = np.concatenate([one.halo_row for one in wanted])
    is_plain, number = halo_row != NO_ROW, np.empty(part.num_halo, np.int32)
    number[halo_row[is_plain]] = np.flatnonzero(is_plain)
    # Remove the summed edges, then insert one edge from each sum to its target.
    summed = np.concatenate([one.entry for one in wanted])
    row = np.searchsorted(part.indptr, summed, "right") - 1
    indptr = part.indptr - _ends(np.bincount(row, minlength=part.num_inner))
    indices = np.delete(part.indices, summed)
    is_far = indices >= part.num_inner
    indices[is_far] = part.num_inner + number[indices[is_far] - part.num_inner]
    row = np.concatenate([one.target for one in wanted])
    order = np.argsort(row, kind="stable")
    at, column = indptr[row[order] + 1], part.num_inner + np.flatnonzero(~is_plain)[order]
    weight = None
    if part.edge_weight is not None:
        weight = np.insert(np.delete(part.edge_weight, summed), at, np.float32(1.0))
    indptr = indptr + _ends(np.bincount(row, minlength=part.num_inner))
    return FarArcs(indptr.astype(np.int64), np.insert(indices, at, column).astype(np.int32), halo_row, weight)


@dataclass(frozen=True)
class _Table:
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
    def asked(cls, comm: MPI.Comm, part: Partition, plan: ExchangePlan, wanted: list[_FromPeer]) -> _Table:
        asks_plain = np.zeros(part.num_halo, np.uint8)
        asks_plain[np.concatenate([one.plain for one in wanted])] = 1
        is_plain = [told.astype(bool) for told in tell_owners(comm, plan, asks_plain)]
        sizes = np.array([[len(one.target), len(one.source)] for one in wanted], np.int64)
        num_sums, num_summed = swap_rows(comm, plan.peers, sizes).T
        place = [one.source - rows.index[:1] for one, rows in zip(wanted, plan.halo, strict=True)]
        count = _received(comm, plan, [one.count for one in wanted], num_sums)
        target = _received(comm, plan, [part.inner_id[one.target] for one in wanted], num_sums)
        place = _received(comm, plan, place, num_summed)
        has_weight = part.edge_weight is not None
        weight = _received(comm, plan, [one.weight(part) for one in wanted], num_summed * has_weight)
        plain = [rows.index[kept] for rows, kept in zip(plan.boundary, is_plain, strict=True)]
        as_they_stand = np.unique(np.concatenate(plain))
        summed = [rows.index[at] for rows, at in zip(plan.boundary, place, strict=True)]
        source = np.concatenate([as_they_stand, *summed]).astype(np.int32)
        ones = np.ones(len(as_they_stand), np.int32)
        begin = _ends(np.concatenate([ones, *count])).astype(np.int64)
        boundary, num_rows = [], len(as_they_stand)
        for rows, kept, own, ids in zip(plan.boundary, is_plain, plain, target, strict=True):
            index = np.concatenate([np.searchsorted(as_they_stand, own), num_rows + np.arange(len(ids))])
            node_id = np.concatenate([rows.node_id[kept], _sum_ids(part, ids, comm.rank)])
            boundary.append(RowList(index.astype(np.int32), node_id, np.arange(len(index), dtype=np.int32)))
            num_rows += len(ids)
        return cls(begin, source, np.concatenate([ones, *weight], dtype=np.float32) if has_weight else None,
                   np.arange(num_rows) >= len(as_they_stand), _largest(part.importance[source], begin[:-1]),
                   tuple(boundary))

    def sorted(self, order: np.ndarray) -> _Table:
        place = np.empty(len(order), np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        rows = scipy.sparse.csr_matrix((np.arange(len(self.source)), self.source, self.begin),
                                       shape=(self.num_rows, 1 + int(self.source.max(initial=0))))[order]
        boundary = tuple(replace(listed, index=place[listed.index]) for listed in self.boundary)
        return _Table(rows.indptr.astype(np.int64), self.source[rows.data],
                      None if self.weight is None else self.weight[rows.data], self.is_sum[order],
                      self.importance[order], boundary)


def _sum_ids(part: Partition, target: np.ndarray, sender: int) -> np.ndarray:
    # Sums need their own ids: ids key the rounding, and messages list rows by ascending id.
    return part.num_nodes_global + target * part.num_parts + sender


def _received(comm: MPI.Comm, plan: ExchangePlan, sent: list[np.ndarray], lengths: np.ndarray) -> list[np.ndarray]:
    received = [np.empty(length, array.dtype) for length, array in zip(lengths, sent, strict=True)]
    swap(comm, plan.peers, [np.ascontiguousarray(array) for array in sent], received)
    return received


def _reach_of(comm: MPI.Comm, plan: ExchangePlan, arcs: FarArcs, reach: Reach) -> Reach:
    nowhere, num_inner = reach.num_hops + 1, len(arcs.indptr) - 1
    is_far = arcs.indices >= num_inner
    behind = np.minimum(np.repeat(reach.inner, np.diff(arcs.indptr))[is_far] + 1, nowhere)
    halo = np.full(arcs.num_halo, nowhere, np.int32)
    np.minimum.at(halo, arcs.indices[is_far] - num_inner, behind)
    return replace(reach, halo=halo, boundary=tell_owners(comm, plan, halo))


class OutgoingRows:
    """Sums inner rows into the table of sent rows, and takes the table's gradients back to inner rows.

    degree, (num_inner,), has in-degrees, or sums of weights, in the whole graph.
    """

    def __init__(self, sums: PreAggregation, degree: np.ndarray):
        self.sums, self._degree = sums, degree
        self._num_inner = len(degree)
        self._whole: dict[str, tuple[SparseRows, SparseRows]] = {}
        self._made: dict[tuple, SparseRows] = {}

    def of(self, h: torch.Tensor, site: ExchangeSite) -> torch.Tensor:
        """Compute the table rows that a pass sends; h (n, dim) has the first n inner rows, all that the pass computes.

        Sums are scaled as the site's reduction demands; single rows are sent unscaled.
        """
        num_rows = self.sums.num_within(site.reach)
        shape = "out", site.reduction, num_rows, len(h)
        if shape not in self._made:
            forward, _ = self._matrices(site.reduction)
            self._made[shape] = replace(forward.rows(0, num_rows), split=self._num_inner, num_near=len(h))
        return multiply(self._made[shape], h)

    def empty_gradients(self, like: torch.Tensor) -> torch.Tensor:
        return empty((self.sums.num_sent, like.shape[1]), like.dtype, like.device).zero_()

    def add_gradients(self, gradients: torch.Tensor, rows: torch.Tensor, site: ExchangeSite) -> None:
        """Add gradients of the table's rows, (num_sent, dim), to the gradients of the first inner rows, (n, dim)."""
        shape = "home", site.reduction, len(rows)
        if shape not in self._made:
            _, back = self._matrices(site.reduction)
            self._made[shape] = back.rows(0, len(rows))
        add_product(self._made[shape], gradients, None, rows)

    def _matrices(self, reduction: str | None) -> tuple[SparseRows, SparseRows]:
        if reduction is None:
            raise KernelError("rows are summed before they are sent, and this layer names no reduction; use "
                              "--set pre_aggregation=off")
        if reduction not in self._whole:
            self._whole[reduction] = self._build(reduction)
        return self._whole[reduction]

    def _build(self, reduction: str) -> tuple[SparseRows, SparseRows]:
        sums = self.sums
        weight = np.ones(len(sums.source), np.float32) if sums.weight is None else sums.weight
        factor = degree_factor(self._degree, reduction) if reduction == "gcn" else None
        if factor is not None:
            of_sum = np.repeat(sums.is_sum, np.diff(sums.begin))
            weight = np.where(of_sum, weight * factor[sums.source], weight)
        table = scipy.sparse.csr_matrix((weight, sums.source, sums.begin), shape=(sums.num_sent, self._num_inner))
        back = table.tocsc()
        has_scale = factor is not None or sums.weight is not None
        forward, home = ({"entry_scale": resident(made.data.astype(np.float32))} if has_scale else {}
                         for made in (table, back))
        return (from_csr(resident(sums.begin), resident(sums.source), self._num_inner, **forward),
                from_csr(resident(back.indptr.astype(np.int64)), resident(back.indices.astype(np.int32)), sums.num_sent,
                         **home))


class SummedExchange(Around):
    """The exchange of a rank that sends some rows as sums; `exchange` sends them, and `inputs` brings input rows."""

    def __init__(self, exchange: HaloExchange | Around, outgoing: OutgoingRows, inputs: HaloExchange | Around):
        super().__init__(exchange)
        self._outgoing, self._inputs, self.setup = outgoing, inputs, inputs.setup

    def takes_columns(self, site: ExchangeSite, dtype: torch.dtype) -> bool:
        return False      # some rows travel as sums that were rounded once

    def start_fetch(self, h: torch.Tensor, site: ExchangeSite) -> Arrival:
        return self.exchange.start_fetch(self._outgoing.of(h, site), site)

    def start_take_home(self, gradient: torch.Tensor, site: ExchangeSite) -> SummedGradients:
        return SummedGradients(self._outgoing, self.exchange.start_take_home(gradient, site), site)

    def input_rows(self, features: torch.Tensor) -> torch.Tensor:
        """Collective: see `HaloExchange.input_rows`."""
        return self._inputs.input_rows(features)


@dataclass(frozen=True)
class SummedGradients(PassedOn):
    """Gradients of the table's rows on their way to the sender of these rows."""

    outgoing: OutgoingRows
    arrival: Arrival
    site: ExchangeSite

    def finish(self, rows: torch.Tensor) -> None:
        gradients = self.outgoing.empty_gradients(rows)
        self.arrival.finish(gradients)
        self.outgoing.add_gradients(gradients, rows, self.site)


def _ends(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)])


def _largest(values: np.ndarray, begin: np.ndarray) -> np.ndarray:
    return np.maximum.reduceat(values, begin) if len(begin) else np.empty(0, values.dtype)
