"""Refines a partition: moves nodes between parts so that fewer rows are sent, within limits of load.

Nodes move in three phases. First, parts may grow to FREEDOM times their limit, as full parts would refuse most moves.
Second, overfull parts give nodes away where that costs least. Third, nodes move within the limit.

A node heavier than the limit fills its part alone: it counts as much as the limit, and no other part may grow to it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from hpcgnn._ext.refinement import PartNeighbors
from hpcgnn.data.options import ProgressTask

# Factor by which parts may first exceed their limit, before nodes are moved out again where that costs least: without
# this freedom, full parts would refuse most moves.
FREEDOM = 2.0
ROUNDS, RELIEVING_ROUNDS = 2, 3     # more rounds improve little
PASSES = 4     # of a refinement: one counts, three move nodes
# Parts are relieved to a little below their limit, to allow for an excess that no single move removes.
MARGIN = 0.998
# Where parts stay overfull, nodes heavier than these shares of the limit find their parts in turn, as if lighter ones
# weighed nothing; then they stay and lighter ones make room. Two nodes of 0.7 in a part, and no other part with room
# for 0.7: no single move of these helps.
SHARES, SPREADING_ROUNDS = (0.5, 0.125, 0.03125, 0.0), 100


@dataclass(frozen=True)
class PartitionCounts:
    """Cost and evenness of a partition, counted on the undirected graph."""

    volume: int      # rows that cross: for each node, the other parts that have a neighbor
    num_cut_edges: int
    node_imbalance: float      # nodes of the largest part over the mean of all parts
    edge_imbalance: float      # the same of edges; an edge counts at both ends


@dataclass(frozen=True)
class Refinement:
    """Counts of a partition before and after its refinement."""

    before: PartitionCounts
    after: PartitionCounts

    def as_settings(self) -> dict[str, float]:
        """Counts by name ("volume_before", ..), for the shards' provenance."""
        return {f"{name}_{when}": value for when, counts in (("before", self.before), ("after", self.after))
                for name, value in asdict(counts).items()}


def count_partition(indptr: np.ndarray, indices: np.ndarray, owner: np.ndarray, num_parts: int) -> PartitionCounts:
    weight = np.ones((len(owner), 1), np.int64)
    state = _count(indptr, indices, owner.copy(), num_parts, weight, load_limits(weight, num_parts, (1.0,)))
    return _counts(state, indptr, owner, num_parts)


def load_limits(weight: np.ndarray, num_parts: int, slack: tuple[float, ...]) -> np.ndarray:
    """Largest load of a part per kind, (num_kinds,) int64: `slack` times the mean, but at least the mean rounded up."""
    total = weight.sum(axis=0)
    return np.maximum(np.maximum((np.array(slack) * total / num_parts).astype(np.int64), -(-total // num_parts)), 1)


def refine_owners(indptr: np.ndarray, indices: np.ndarray, owner: np.ndarray, num_parts: int, weight: np.ndarray,
                  limit: np.ndarray, task: ProgressTask | None = None) -> tuple[np.ndarray, Refinement]:
    """Move nodes between parts so that fewer rows cross; returns new owners, `owner` is not changed.

    If the given parts keep the limits, so do the refined ones, and the volume never grows. If the given parts exceed
    them, the sum of relative excesses never grows. A part with one node heavier than the limit keeps it if its other
    nodes weigh nothing. No part is emptied. It runs on one thread, so the result is always the same.

    The graph is undirected neighbor lists without loops. `weight`, (num_nodes, num_kinds) int64, is what a node adds to
    its part's load of each kind, and `limit`, (num_kinds,) int64, the largest load, see `load_limits`.

    Reference: the moves follow Fiduccia and Mattheyses, DAC 1982, without rollback; the volume that they lower is
    defined in Hendrickson and Kolda, Parallel Computing 26 (2000), section 3.
    """
    moved, allowed, task = owner.copy(), limit.copy(), task or ProgressTask()
    heaviest = np.where(weight <= limit, weight, 0).max(axis=0)     # of nodes within the limit
    weight = np.minimum(weight, limit)
    state = _count(indptr, indices, moved, num_parts, weight, allowed)
    task.advance(len(owner))
    before = _counts(state, indptr, moved, num_parts)
    least = np.maximum(load_limits(weight, num_parts, (1.0,)), heaviest)
    tight = np.maximum((limit * MARGIN).astype(np.int64), np.minimum(limit, least))
    allowed[:] = (limit * FREEDOM).astype(np.int64)
    state.lower_volume(ROUNDS)
    task.advance(len(owner))
    allowed[:] = tight
    state.relieve_parts(RELIEVING_ROUNDS)
    task.advance(len(owner))
    allowed[:] = limit
    state.lower_volume(ROUNDS)
    task.advance(len(owner))
    found = _excess(moved, num_parts, weight, limit), state.volume
    if found[0] > 0.0:
        spread = moved.copy()
        state_of_spread = _spread_large_nodes(indptr, indices, spread, num_parts, weight, tight, limit)
        if (excess := _excess(spread, num_parts, weight, limit)) < found[0]:
            moved, state, found = spread, state_of_spread, (excess, state_of_spread.volume)
    if found >= (_excess(owner, num_parts, weight, limit), before.volume):
        return owner.copy(), Refinement(before, before)
    return moved, Refinement(before, _counts(state, indptr, moved, num_parts))


def _spread_large_nodes(indptr: np.ndarray, indices: np.ndarray, owner: np.ndarray, num_parts: int, weight: np.ndarray,
                        tight: np.ndarray, limit: np.ndarray) -> PartNeighbors:
    allowed, largest = tight.copy(), np.inf
    for share in SHARES:
        heavy = np.where(weight > share * tight, weight, 0)
        state = _count(indptr, indices, owner, num_parts, heavy, allowed)
        state.relieve_parts(SPREADING_ROUNDS, largest)
        largest = share
    allowed[:] = limit
    state.lower_volume(ROUNDS)
    return state


def _count(indptr: np.ndarray, indices: np.ndarray, owner: np.ndarray, num_parts: int, weight: np.ndarray,
           limit: np.ndarray) -> PartNeighbors:
    num_nodes = len(owner)
    near_start = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.minimum(np.diff(indptr), num_parts), out=near_start[1:])
    return PartNeighbors(
        indptr, indices, weight, owner, near_start, np.zeros(num_nodes, np.int32),
        np.empty((near_start[-1] + 1, 2), np.int32), np.zeros(num_parts, np.int64),
        np.zeros((num_parts, weight.shape[1]), np.int64), limit, np.empty(num_parts, np.int32),
        np.zeros(num_parts, np.uint8), np.zeros(num_parts, np.int32), np.empty(2 * num_nodes, np.int32),
        np.zeros(num_nodes, np.uint8), np.empty(num_nodes))


def _counts(state: PartNeighbors, indptr: np.ndarray, owner: np.ndarray, num_parts: int) -> PartitionCounts:
    nodes = np.bincount(owner, minlength=num_parts)
    ends = np.bincount(owner, weights=np.diff(indptr), minlength=num_parts)
    return PartitionCounts(state.volume, state.num_cut_edges, float(nodes.max() * num_parts / len(owner)),
                           float(ends.max() * num_parts / max(1.0, ends.sum())))


def _excess(owner: np.ndarray, num_parts: int, weight: np.ndarray, limit: np.ndarray) -> float:
    load = np.stack([np.bincount(owner, weights=kind, minlength=num_parts) for kind in weight.T], axis=1)
    return float(np.maximum(load / limit - 1.0, 0.0).sum())
