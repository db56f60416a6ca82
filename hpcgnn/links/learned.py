"""LearnedLinks: the questions that a rank's edges ask in training, and their answers.

The edge u -> v asks its target v for a source, and u is the answer; in a directed graph it also asks u for a target.
Edges of one node and relation ask the same question. Take the edges (1, likes, 5), (2, likes, 5) and (3, knows, 5):
node 5 has two questions, and the first has two answers. If relations have reverses, v is asked for its target by the
reverse of the relation; the reverse edge asks the other end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import nn

from hpcgnn.graph.reductions import Adjacency, build_adjacency
from hpcgnn.links.decoders import DistMult, cubes, queries
from hpcgnn.links.questions import Relations
from hpcgnn.ops.aggregation import chosen_rows
from hpcgnn.ops.counter import CounterKey, words_of
from hpcgnn.ops.resident import resident


@dataclass(frozen=True)
class Asked:
    """The questions that edges ask about one of their ends, and the answers that the edges give."""

    adjacency: Adjacency      # per question, the local rows of its answers
    anchor: np.ndarray | None      # (num_questions,) int64, local rows; None: of question q it is q
    relation: np.ndarray | None      # (num_questions,) int64; None: 0
    asks_sources: bool
    num_rows: int      # inner and halo rows

    @property
    def arrays(self) -> list[np.ndarray]:
        matrix, transposed, order = self.adjacency
        own = [array for array in (self.anchor, self.relation) if array is not None]
        return [*own, order, *(array for one in (matrix, transposed) for array in (one.begin, one.indices))]

    def drawn(self, share: float, node_id: np.ndarray, num_nodes: int, key: CounterKey,
              among: np.ndarray | None = None) -> np.ndarray:
        """The questions that an epoch learns, each with probability `share`; the same on any number of ranks.

        node_id : (num_rows,) int64        global ids of inner and halo rows
        among : (n,) int64                 questions to draw from; None: all

        Returns their numbers, (m,) int64.
        """
        anchor, relation = self.of_questions if among is None else (own[among] for own in self.of_questions)
        kept = np.flatnonzero(words_of(relation * num_nodes + node_id[anchor], 1, key)[:, 0] < share * 2.0**32)
        return kept if among is None else among[kept]

    def entries(self, questions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The answers of some questions, (n,) int64, as a CSR of local rows: (n + 1,) int64 and int32."""
        matrix = self.adjacency.matrix
        degree = (matrix.end - matrix.begin)[questions].astype(np.int64)
        indptr = np.concatenate([[0], np.cumsum(degree)])
        entry = np.arange(indptr[-1]) + np.repeat(matrix.begin[questions] - indptr[:-1], degree)
        return indptr, matrix.indices[entry]

    def chosen(self, questions: np.ndarray, place: np.ndarray | None = None, num_rows: int = 0) -> Asked:
        """Some of the questions, (n,) int64. `place`, (num_rows,) int32, is each local row's among `num_rows` others.
        """
        anchor, relation = (own[questions] for own in self.of_questions)
        indptr, indices = self.entries(questions)
        if place is None:
            num_rows = self.num_rows
        else:
            anchor, indices = place[anchor].astype(np.int64), place[indices]
        return replace(self, adjacency=build_adjacency(indptr, indices, num_rows, False), anchor=anchor,
                       relation=relation, num_rows=num_rows)

    @cached_property
    def of_questions(self) -> tuple[np.ndarray, np.ndarray]:
        """Anchor and relation of each question, both (num_questions,) int64."""
        number = self.adjacency.matrix.num_rows
        return (np.arange(number) if self.anchor is None else self.anchor,
                np.zeros(number, np.int64) if self.relation is None else self.relation)

    def queries(self, rows: torch.Tensor, decoder: nn.Module | None) -> torch.Tensor:
        num_questions = self.adjacency.matrix.num_rows
        if self.anchor is None:
            anchors, relation = rows[:num_questions], torch.zeros(num_questions, dtype=torch.int64)
        else:
            anchors = chosen_rows(rows, torch.from_numpy(self.anchor).to(rows.device))
            relation = torch.from_numpy(self.relation)
        return queries(decoder, anchors, relation.to(rows.device), self.asks_sources)

    def cubes(self, anchors: torch.Tensor, answers: torch.Tensor, decoder: nn.Module | None) -> torch.Tensor:
        """Sum over edges of the cubes of their ends' and their relation's values, see `decoders.cubes`."""
        of_anchors, of_answers, of_relations = (torch.from_numpy(count).to(answers.device) for count in self._counts)
        if anchors is answers:
            total = (cubes(decoder, answers) * (of_anchors + of_answers)).sum()
        else:
            total = (cubes(decoder, anchors) * of_anchors[:len(anchors)]).sum() \
                + (cubes(decoder, answers) * of_answers).sum()
        if isinstance(decoder, DistMult) and decoder.weight is not None:
            total = total + (cubes(decoder, decoder.weight)[:len(of_relations)] * of_relations).sum()
        return total

    @cached_property
    def _counts(self) -> tuple[np.ndarray, ...]:
        """How often edges ask about each local row, have it for an answer, and name each relation, float32."""
        matrix = self.adjacency.matrix
        degree = matrix.end - matrix.begin
        anchor, relation = self.of_questions
        counts = (np.bincount(anchor, degree, self.num_rows), np.bincount(matrix.indices, minlength=self.num_rows),
                  np.bincount(relation, degree))
        return tuple(count.astype(np.float32) for count in counts)


@dataclass(frozen=True)
class LearnedLinks:
    """All edges into a rank's nodes: edges that dropout leaves out of the graph are learned, too.

    indptr, indices : CSR by destination, in local rows
    edge_type : (num_edges,) int32 or None
    node_id : (num_rows,) int64        global ids of inner and halo rows
    of_class : (num_rows,) int64       classes that an answer's candidates share, all 0 without
    about : (bool, bool)               whether edges ask for their sources, and whether for their targets
    is_asked : (num_inner,) bool       targets that are asked for sources; None asks all
    """

    indptr: np.ndarray
    indices: np.ndarray
    edge_type: np.ndarray | None
    relations: Relations
    node_id: np.ndarray
    of_class: np.ndarray
    about: tuple[bool, bool]
    is_asked: np.ndarray | None = None

    @cached_property
    def asked(self) -> list[Asked]:
        ways = [self._about_sources] * self.about[0] + [self._about_targets] * self.about[1]
        return [way() for way in ways]

    def _about_sources(self) -> Asked:
        if self.edge_type is None and self.is_asked is None:
            return Asked(self._adjacency(self.indptr, self.indices), None, None, True, self.num_rows)
        target = self._target
        relation = np.zeros(len(target), np.int64) if self.edge_type is None else self.edge_type.astype(np.int64)
        if self.relations.has_reverses:
            relation = self.relations.reverse(relation)
        kept = slice(None) if self.is_asked is None else self.is_asked[target]
        return self._grouped(target[kept], self.indices[kept], relation[kept], not self.relations.has_reverses)

    def _about_targets(self) -> Asked:
        if self.edge_type is not None:
            return self._grouped(self.indices, self._target, self.edge_type.astype(np.int64), False)
        matrix, transposed, order = self._adjacency(self.indptr, self.indices)
        return Asked(Adjacency(transposed, matrix, resident(np.argsort(order))), None, None, False,
                     self.num_rows)

    @property
    def num_rows(self) -> int:
        return len(self.node_id)

    @property
    def num_inner(self) -> int:
        return len(self.indptr) - 1

    def places_of(self, nodes: np.ndarray) -> np.ndarray:
        """The inner rows of those nodes, (n,) int64 global ids, that are here."""
        order, ascending = self._by_id
        if not len(order):
            return order
        at = np.minimum(np.searchsorted(ascending, nodes), len(order) - 1)
        return order[at[ascending[at] == nodes]]

    @cached_property
    def _by_id(self) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(self.node_id[:self.num_inner])
        return order, self.node_id[order]

    @property
    def _target(self) -> np.ndarray:
        return np.repeat(np.arange(self.num_inner), np.diff(self.indptr))

    def _grouped(self, anchor: np.ndarray, answer: np.ndarray, relation: np.ndarray, asks_sources: bool) -> Asked:
        order = np.lexsort((answer, relation, anchor))
        anchor, relation = anchor[order].astype(np.int64), relation[order]
        is_first = np.ones(len(order), bool)
        is_first[1:] = (np.diff(anchor) != 0) | (np.diff(relation) != 0)
        start = np.flatnonzero(is_first)
        return Asked(self._adjacency(np.append(start, len(order)), answer[order].astype(np.int32)), anchor[start],
                     relation[start], asks_sources, self.num_rows)

    def _adjacency(self, indptr: np.ndarray, indices: np.ndarray) -> Adjacency:
        return build_adjacency(resident(indptr), resident(indices), self.num_rows, False)


_NONE = np.empty(0, np.int64)
NO_LINKS = LearnedLinks(np.zeros(1, np.int64), _NONE.astype(np.int32), None, Relations(), _NONE, _NONE, (False, False))
