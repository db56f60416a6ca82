"""Questions about held-out links: which node is the other end, among all nodes but those that are linked already?

The link u -> v asks the owner of u for its target, and the owner of v for its source. The node that is asked about is
the anchor, the other end the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from hpcgnn.partition.partition import Partition

BOTH, TARGETS, SOURCES = "both", "targets", "sources"


@dataclass(frozen=True)
class Question:
    """Held-out links of this rank's anchors, and what the anchors are linked to in the graph.

    anchor : (m,) int64           inner rows, ascending
    place : (n,) int64            the anchor of each link, as a place in `anchor`, ascending
    answer : (n,) int64           global ids
    split : (n,) int64            1 for validation, 2 for test
    is_asked : (n,) bool          the others are only known to be links
    known_start : (m + 1,) int64  known[known_start[i]:known_start[i + 1]] are the nodes that anchor i is linked to
    known : int64                 global ids, the anchor's own among them
    """

    anchor: np.ndarray
    place: np.ndarray
    answer: np.ndarray
    split: np.ndarray
    is_asked: np.ndarray
    known_start: np.ndarray
    known: np.ndarray


def questions_of(comm: MPI.Comm, part: Partition, is_symmetric: bool, asked: str,
                 links: np.ndarray | None = None) -> tuple[Question, ...]:
    """Collective: the questions for this rank's anchors, about links (n, 3) or by default the held-out ones.

    `asked` is "both", "targets" or "sources". Where every edge holds both ways, so does every link: a node's links are
    one question, whichever end they list first.
    """
    if links is None:
        links = np.empty((0, 3), np.int64) if part.held_out is None else part.held_out
    source, target = _ends_of_edges(part)
    forward, backward = links[:, [0, 1, 2]], links[:, [1, 0, 2]]
    if is_symmetric:
        ways = [np.column_stack([way, np.full(len(way), is_asked)])
                for way, is_asked in ((forward, asked != SOURCES), (backward, asked != TARGETS))]
        both = np.concatenate(ways)
        both = both[np.argsort(-both[:, 3], kind="stable")]      # what is asked first
        both = both[np.sort(np.unique(both[:, :2], axis=0, return_index=True)[1])]
        return (_asked(part.inner_id, both[:, :3], both[:, 3] > 0, (target, source)),)
    found = []
    if asked in (BOTH, TARGETS):
        found.append(_asked(part.inner_id, forward, np.ones(len(links), bool), _by_source(comm, part, source, target)))
    if asked in (BOTH, SOURCES):
        found.append(_asked(part.inner_id, backward, np.ones(len(links), bool), (target, source)))
    return tuple(found)


def _ends_of_edges(part: Partition) -> tuple[np.ndarray, np.ndarray]:
    """Global ids of the sources and targets of this rank's edges."""
    return part.node_id[part.indices], np.repeat(part.inner_id, np.diff(part.indptr))


def _by_source(comm: MPI.Comm, part: Partition, source: np.ndarray, target: np.ndarray
               ) -> tuple[np.ndarray, np.ndarray]:
    """Collective: sources and targets of all edges from this rank's nodes; edges are stored where they end."""
    owner = np.full(part.num_inner + part.num_halo, part.part, np.int64)
    owner[part.num_inner:] = np.repeat(np.arange(part.num_parts), np.diff(part.halo_offset))
    to = owner[part.indices]
    pairs = np.stack([source, target], axis=1)[np.argsort(to, kind="stable")]
    counts = (2 * np.bincount(to, minlength=comm.size)).tolist()
    coming = comm.alltoall(counts)
    received = np.empty(sum(coming), pairs.dtype)
    comm.Alltoallv([pairs.reshape(-1), counts], [received, coming])
    return received[0::2], received[1::2]


def _asked(inner_id: np.ndarray, links: np.ndarray, is_asked: np.ndarray, edges: tuple[np.ndarray, np.ndarray]
           ) -> Question:
    """Questions from links (n, 3), anchor and answer first, and edges (anchor, other end)."""
    order = np.argsort(inner_id)
    by_id = inner_id[order]
    is_here = _has(by_id, links[:, 0])
    links, is_asked = links[is_here], is_asked[is_here]
    row = order[np.searchsorted(by_id, links[:, 0])]
    anchor, place = np.unique(row, return_inverse=True)
    by_place = np.lexsort((links[:, 1], place))
    ends = inner_id[anchor]
    by_end = np.argsort(ends)
    is_of_anchor = _has(ends[by_end], edges[0])
    of = by_end[np.searchsorted(ends[by_end], edges[0][is_of_anchor])] if len(anchor) else np.empty(0, np.int64)
    of, known = np.concatenate([np.arange(len(anchor)), of]), np.concatenate([ends, edges[1][is_of_anchor]])
    start = np.concatenate([[0], np.cumsum(np.bincount(of, minlength=len(anchor)))])
    return Question(anchor, place[by_place], links[by_place, 1], links[by_place, 2], is_asked[by_place], start,
                    known[np.argsort(of, kind="stable")].astype(np.int64))


def _has(ascending: np.ndarray, values: np.ndarray) -> np.ndarray:
    if not len(ascending):
        return np.zeros(len(values), bool)
    return ascending[np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)] == values
