"""Questions about held-out links: which node is the other end, among all nodes but those that are linked already?

The link u -> v asks the owner of u for its target, and the owner of v for its source. The node that is asked about is
the anchor, the other end the answer. With relations, a question is about an anchor and a relation. If relations have
reverses, (u, r, v) asks u for its target by r, and v for its target by the reverse of r.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from hpcgnn.data.hold_out import num_reversible
from hpcgnn.partition.partition import Partition

BOTH, TARGETS, SOURCES = "both", "targets", "sources"


@dataclass(frozen=True)
class Relations:
    """The relations of a graph, and the relation by which an edge's reverse is stored.

    `--symmetrize` gives every edge (u, r, v) of R relations the reverse (v, r + R, u). Three relations likes, knows,
    owns become six: the reverse of knows (1) is "knows reverse" (4), and the reverse of that is knows. "Who likes v?"
    then asks for the target of v by "likes reverse", so every question is about targets.

    number : int               0 if edges are of one kind
    has_reverses : bool        each edge of relation r has a reverse of relation r + number / 2
    """

    number: int = 0
    has_reverses: bool = False

    @classmethod
    def of(cls, names: tuple[str, ...]) -> Relations:
        return cls(len(names), num_reversible(names) > 0)

    def reverse(self, relation: np.ndarray) -> np.ndarray:
        return (relation + self.number // 2) % self.number


NONE = Relations()


@dataclass(frozen=True)
class Question:
    """Questions of one kind: this rank's anchors, their held-out links, and what they are linked to in the graph.

    anchor : (m,) int64           inner rows, ascending
    relation : (m,) int64         ascending for one anchor; 0 without relations
    asks_sources : bool           answers are sources of links to the anchor, else targets
    place : (n,) int64            the question of each link, as a place in `anchor`, ascending
    answer : (n,) int64           global ids
    split : (n,) int64            1 for validation, 2 for test
    is_asked : (n,) bool          the others are only known to be links
    known_start : (m + 1,) int64  known[known_start[i]:known_start[i + 1]] are the nodes that can't answer question i
    known : int64                 global ids
    """

    anchor: np.ndarray
    relation: np.ndarray
    asks_sources: bool
    place: np.ndarray
    answer: np.ndarray
    split: np.ndarray
    is_asked: np.ndarray
    known_start: np.ndarray
    known: np.ndarray


def questions_of(comm: MPI.Comm, part: Partition, is_symmetric: bool, asked: str, relations: Relations = NONE,
                 links: np.ndarray | None = None, without_self: bool = False) -> tuple[Question, ...]:
    """Collective: the questions for this rank's anchors.

    Nodes that an anchor is linked to, by the question's relation, are no answers. Without relations, or if
    `without_self`, neither is the anchor itself.

    Parameters
    ----------
    is_symmetric : bool       every edge, and so every link, holds both ways: a node's links are one question, whichever
                              end they list first; without effect with relations
    asked : str               "both", "targets" or "sources"
    links : (n, 3) int64      source, target and split of links, with a fourth column of relations if there are any;
                              None takes the part's held-out links
    """
    if links is None:
        links = np.empty((0, 4), np.int64) if part.held_out is None else part.held_out
    if links.shape[1] == 3:
        links = np.column_stack([links, np.zeros(len(links), np.int64)])
    edges = _edges_of(part)
    forward, backward = links, links[:, [1, 0, 2, 3]]
    to_here = edges[:, [1, 0, 2]]      # target, source: edges are stored where they end
    if relations.has_reverses:
        to_here[:, 2], backward = relations.reverse(to_here[:, 2]), backward.copy()
        backward[:, 3] = relations.reverse(backward[:, 3])
        ways = [way for way, name in ((forward, TARGETS), (backward, SOURCES)) if asked in (BOTH, name)]
        every = np.concatenate(ways)
        return (_asked(part.inner_id, every, np.ones(len(every), bool), to_here, False, without_self),)
    if is_symmetric and not relations.number:
        ways = [np.column_stack([way, np.full(len(way), is_asked)])
                for way, is_asked in ((forward, asked != SOURCES), (backward, asked != TARGETS))]
        both = np.concatenate(ways)
        both = both[np.argsort(-both[:, 4], kind="stable")]      # what is asked first
        both = both[np.sort(np.unique(both[:, :2], axis=0, return_index=True)[1])]
        return (_asked(part.inner_id, both[:, :4], both[:, 4] > 0, to_here, True, True),)
    found, every = [], np.ones(len(links), bool)
    without_self = without_self or not relations.number
    if asked in (BOTH, TARGETS):
        found.append(_asked(part.inner_id, forward, every, _by_source(comm, part, edges), False, without_self))
    if asked in (BOTH, SOURCES):
        found.append(_asked(part.inner_id, backward, every, to_here, True, without_self))
    return tuple(found)


def _edges_of(part: Partition) -> np.ndarray:
    """Global ids of source and target, and relation, of this rank's edges, (n, 3) int64."""
    relation = np.zeros(len(part.indices), np.int64) if part.edge_type is None else part.edge_type
    return np.column_stack([part.node_id[part.indices], np.repeat(part.inner_id, np.diff(part.indptr)),
                            relation]).astype(np.int64)


def _by_source(comm: MPI.Comm, part: Partition, edges: np.ndarray) -> np.ndarray:
    """Collective: all edges from this rank's nodes, as `_edges_of`; edges are stored where they end."""
    owner = np.full(part.num_inner + part.num_halo, part.part, np.int64)
    owner[part.num_inner:] = np.repeat(np.arange(part.num_parts), np.diff(part.halo_offset))
    to = owner[part.indices]
    ordered = edges[np.argsort(to, kind="stable")]
    counts = (edges.shape[1] * np.bincount(to, minlength=comm.size)).tolist()
    coming = comm.alltoall(counts)
    received = np.empty(sum(coming), edges.dtype)
    comm.Alltoallv([ordered.reshape(-1), counts], [received, coming])
    return received.reshape(-1, edges.shape[1])


def _asked(inner_id: np.ndarray, links: np.ndarray, is_asked: np.ndarray, edges: np.ndarray, asks_sources: bool,
           without_self: bool) -> Question:
    """Questions from links (anchor, answer, split, relation) and edges (anchor, other end, relation)."""
    order = np.argsort(inner_id)
    by_id = inner_id[order]
    is_here = np.isin(links[:, 0], by_id)
    links, is_asked = links[is_here], is_asked[is_here]
    num_relations = 1 + max((int(column.max()) for column in (links[:, 3], edges[:, 2]) if len(column)), default=0)
    row_of_link, row_of_edge = (order[np.searchsorted(by_id, ids)] for ids in (links[:, 0], edges[:, 0]))
    question, place = np.unique(row_of_link * num_relations + links[:, 3], return_inverse=True)
    by_place = np.lexsort((links[:, 1], place))
    of_edge = row_of_edge * num_relations + edges[:, 2]
    is_of_question = np.isin(of_edge, question)
    anchor, relation = np.divmod(question, num_relations)
    of, known = np.searchsorted(question, of_edge[is_of_question]), edges[is_of_question, 1]
    if without_self:
        of, known = np.concatenate([np.arange(len(anchor)), of]), np.concatenate([inner_id[anchor], known])
    start = np.concatenate([[0], np.cumsum(np.bincount(of, minlength=len(anchor)))])
    return Question(anchor, relation, asks_sources, place[by_place], links[by_place, 1], links[by_place, 2],
                    is_asked[by_place], start, known[np.argsort(of, kind="stable")].astype(np.int64))
