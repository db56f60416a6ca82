"""`PartLoads`: the work and messages of each part in a training pass, counted from the owners of the nodes.

The rows of an exchange are exactly the rows of a training.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
import scipy.sparse

from hpcgnn.partition.vertex_cover import minimum_vertex_cover
from hpcgnn.partition.work import hops_to_loss

ARCS_AT_ONCE = 1 << 23


@dataclass(frozen=True)
class Pairs:
    """Rows that one part sends to another forward; backward, as many gradients come back."""

    # source, destination: (n,) int64, parts, ascending by source; each pair that shares a row once
    source: np.ndarray
    destination: np.ndarray
    # (n, num_hops + 1) int64, rows at most 0, 1, .. hops from the loss through `destination`
    rows_within: np.ndarray
    rows: np.ndarray           # (n,) int64, all rows

    def where(self, is_kept: np.ndarray) -> Pairs:
        return Pairs(*(getattr(self, own.name)[is_kept] for own in fields(self)))


@dataclass(frozen=True)
class PartLoads:
    num_parts: int
    num_hops: int                      # aggregations between the input and the loss
    # num_inner, num_halo, num_edges: (num_parts,) int64
    num_inner: np.ndarray
    num_halo: np.ndarray
    num_edges: np.ndarray
    rows_within: np.ndarray            # (num_parts, num_hops + 1) int64, inner rows at most 0, 1, .. hops from the loss
    arcs_within: np.ndarray            # edges into such rows, in the same shape
    far_arcs_within: np.ndarray        # those edges that come from halo rows
    central_arcs_within: np.ndarray    # those edges that go into rows without a halo neighbor
    pairs: Pairs
    # rows sent if ranks of a node share rows, see `count_shared_pairs`; None: not shared, or unknown
    shared: Pairs | None = None
    inputs: Pairs | None = None      # input rows that are sent, if they are others than `pairs`

    def of_step(self, num_steps: int) -> PartLoads:
        """The rows and edges of one of `num_steps` equal steps, rounded up; `num_inner` stays, pairs too."""
        if num_steps == 1:
            return self
        names = ("num_halo", "rows_within", "arcs_within", "far_arcs_within", "central_arcs_within")
        return replace(self, **{name: -(-getattr(self, name) // num_steps) for name in names})

    @property
    def of_evaluation(self) -> PartLoads:
        """The same parts in a pass that computes all rows."""
        return replace(self, rows_within=np.repeat(self.num_inner[:, None], self.num_hops + 1, axis=1))

    @property
    def halo_ratio(self) -> float:
        """Halo rows over inner rows, of all parts."""
        return float(self.num_halo.sum() / self.num_inner.sum())


def count_loads(indptr: np.ndarray, indices: np.ndarray, train_mask: np.ndarray, owner: np.ndarray, num_parts: int,
                num_hops: int, hops: np.ndarray | None = None) -> PartLoads:
    """Count the work and the sent rows of a graph's parts, in 8 bytes per edge of a block.

    Parameters
    ----------
    owner : (num_nodes,) int32, values < num_parts; nodes with a negative owner are sources only, and pairs with them
    have
            source num_parts
    hops : what `hops_to_loss` returns; computed if not given
    """
    if hops is None:
        hops = hops_to_loss(indptr, indices, train_mask, num_hops)
    owner = np.where(owner < 0, num_parts, owner).astype(np.int64)
    degree = np.diff(indptr)
    by_part = np.argsort(owner, kind="stable")
    by_part = by_part[:np.searchsorted(owner[by_part], num_parts)]
    far_degree, found = np.zeros(len(owner), np.int64), []
    for rows, block_degree, sources in _arc_blocks(indptr, indices, by_part, owner):
        target = np.repeat(rows, block_degree)
        is_far = owner[sources] != owner[target]
        far_degree[rows] = np.bincount(np.repeat(np.arange(len(rows)), block_degree)[is_far], minlength=len(rows))
        found.append(_count_pairs(sources[is_far], target[is_far], owner, owner, hops, num_parts, num_hops))
    pairs = _sorted_by_source(_joined(found, num_hops))
    halo = np.bincount(pairs.destination, weights=pairs.rows, minlength=num_parts).astype(np.int64)

    def within(amount: np.ndarray) -> np.ndarray:
        place = owner[by_part] * (num_hops + 2) + hops[by_part]
        table = np.bincount(place, weights=amount[by_part], minlength=num_parts * (num_hops + 2))
        return table.reshape(num_parts, num_hops + 2).cumsum(axis=1).astype(np.int64)

    rows, arcs = within(np.ones(len(owner))), within(degree)
    return PartLoads(num_parts, num_hops, rows[:, -1], halo, arcs[:, -1], rows[:, :-1], arcs[:, :-1],
                     within(far_degree)[:, :-1], within(np.where(far_degree > 0, 0, degree))[:, :-1], pairs)


def count_shared_pairs(indptr: np.ndarray, indices: np.ndarray, hops: np.ndarray, owner: np.ndarray,
                       ranks_per_node: int, loads: PartLoads) -> Pairs:
    """Count the rows sent between parts if the parts of a node share rows.

    Each row of another node is sent once, to one of its readers; no row is sent within a node.

    Parameters
    ----------
    hops, owner : as in `count_loads`, every node owned
    ranks_per_node : int      part p is on node p // ranks_per_node
    loads : PartLoads         loads of the same parts
    """
    owner = owner.astype(np.int64)
    node, num_parts, found = owner // ranks_per_node, loads.num_parts, []
    for rows, block_degree, sources in _arc_blocks(indptr, indices, np.argsort(node, kind="stable"), node):
        target = np.repeat(rows, block_degree)
        is_far = node[sources] != node[target]
        found.append(_count_pairs(sources[is_far], target[is_far], owner, node, hops, num_parts, loads.num_hops))
    by_node = _sorted_by_source(_joined(found, loads.num_hops))
    # Readers of an owner's rows on a node, by owner and node, and the one among them that `compute_node` takes.
    readers = loads.pairs.where(loads.pairs.source // ranks_per_node != loads.pairs.destination // ranks_per_node)
    groups = readers.source * num_parts + readers.destination // ranks_per_node
    known, first, counts = np.unique(groups, return_index=True, return_counts=True)
    place = np.searchsorted(known, by_node.source * num_parts + by_node.destination)
    gateway = readers.destination[first[place] + by_node.source % counts[place]]
    return _sorted_by_source(replace(by_node, destination=gateway))


def count_summed_pairs(indptr: np.ndarray, indices: np.ndarray, hops: np.ndarray, owner: np.ndarray,
                       loads: PartLoads) -> Pairs:
    """Count the rows and sums of rows that travel with pre_aggregation; see `hpcgnn.exchange.pre_aggregation`.

    Parameters are as in `count_shared_pairs`.
    """
    target = np.repeat(np.arange(len(owner)), np.diff(indptr))
    far = np.flatnonzero(owner[indices] != owner[target])
    source, target = indices[far], target[far]
    pair = owner[source].astype(np.int64) * loads.num_parts + owner[target]
    order = np.argsort(pair, kind="stable")
    rows_within = []
    for arcs in np.split(order, np.flatnonzero(np.diff(pair[order])) + 1) if len(order) else []:
        (_, row), (end, column) = (np.unique(ends[arcs], return_inverse=True) for ends in (source, target))
        cut = scipy.sparse.csr_matrix((np.ones(len(arcs), bool), (row, column)))
        is_plain, _ = minimum_vertex_cover(cut)
        # A row counts at the hops of its nearest reader, a sum at the hops of its target.
        reach, nearest = hops[target[arcs]] + 1, np.full(len(is_plain), loads.num_hops + 1)
        np.minimum.at(nearest, row, reach)
        summed = np.unique(column[~is_plain[row]])
        found = np.minimum(np.concatenate([nearest[is_plain], hops[end[summed]] + 1]), loads.num_hops + 1)
        rows_within.append(np.bincount(found, minlength=loads.num_hops + 2).cumsum())
    table = np.array(rows_within, np.int64).reshape(-1, loads.num_hops + 2)
    return Pairs(loads.pairs.source, loads.pairs.destination, table[:, :-1], table[:, -1])


def _arc_blocks(indptr: np.ndarray, indices: np.ndarray, rows: np.ndarray,
                owner: np.ndarray | None = None) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    # With `owner`, no block ends inside a part.
    degree = indptr[rows + 1] - indptr[rows]
    end, first = np.cumsum(degree), 0
    ends_part = np.arange(1, len(rows) + 1) if owner is None else np.append(
        np.flatnonzero(np.diff(owner[rows])) + 1, len(rows))
    while first < len(rows):
        done = end[first - 1] if first else 0
        enough = int(np.searchsorted(end, done + ARCS_AT_ONCE, side="right"))
        place = np.searchsorted(ends_part, enough, side="right") - 1
        last = int(ends_part[place]) if place >= 0 else first
        if last <= first:      # one row, or one part, alone is more than a block
            last = int(ends_part[np.searchsorted(ends_part, first, side="right")])
        block = degree[first:last]
        start = indptr[rows[first:last]] - (end[first:last] - block - done)
        yield rows[first:last], block, indices[np.arange(block.sum()) + np.repeat(start, block)]
        first = last


def _count_pairs(sources: np.ndarray, targets: np.ndarray, owner: np.ndarray, reader: np.ndarray, hops: np.ndarray,
                 num_parts: int, num_hops: int) -> Pairs:
    # A reader is a part or a node. A row counts at the fewest hops of its edges, an edge's being its target's plus one.
    steps = num_hops + 2
    reach = np.minimum(hops[targets].astype(np.int64) + 1, num_hops + 1)
    needed = np.sort((reader[targets] * len(owner) + sources) * steps + reach)
    row = needed // steps
    is_first = np.append(True, row[1:] != row[:-1]) if len(row) else np.zeros(0, bool)
    row, reach = row[is_first], needed[is_first] % steps
    pair, place = np.unique(owner[row % len(owner)] * num_parts + row // len(owner), return_inverse=True)
    table = np.bincount(place.ravel() * steps + reach, minlength=len(pair) * steps).reshape(len(pair), steps)
    table = table.cumsum(axis=1)
    return Pairs(pair // num_parts, pair % num_parts, table[:, :-1], table[:, -1])


def _joined(found: list[Pairs], num_hops: int) -> Pairs:
    none = np.zeros(0, np.int64)
    found = [Pairs(none, none, np.zeros((0, num_hops + 1), np.int64), none), *found]
    return Pairs(*(np.concatenate([getattr(pairs, own.name) for pairs in found]) for own in fields(Pairs)))


def _sorted_by_source(pairs: Pairs) -> Pairs:
    return pairs.where(np.lexsort((pairs.destination, pairs.source)))
