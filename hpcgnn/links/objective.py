"""LinkObjective: the loss by which the rows of a link's two ends get a larger product than rows of drawn nodes.

A model makes a row for each node; the score of the link u -> v is the product of their rows. Every edge of the graph is
a link to be learned. An epoch draws some nodes, the same on all ranks, whose rows come to every rank in one sum over
ranks. An edge's score must exceed the products of its target with the drawn rows. Take ranks that own nodes 0, 1, 2 and
3, 4, 5, and the drawn nodes 4 and 1: each rank gets the rows of both and multiplies its own three rows by them. The row
of an edge's source comes as a halo row, by one exchange more than the model has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from mpi4py import MPI
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.reductions import Adjacency, build_adjacency
from hpcgnn.links.questions import Question
from hpcgnn.links.ranking import link_scores
from hpcgnn.ops.aggregation import SparseRows, multiply_weighted
from hpcgnn.ops.attention import sampled_products
from hpcgnn.ops.counter import NEGATIVES, CounterKey, words_of
from hpcgnn.ops.cuda.resident import resident
from hpcgnn.training.objective import Objective
from hpcgnn.training.scores import Score

SOFTMAX, CROSS_ENTROPY, RANKING = "softmax", "bce", "bpr"
MOST_PRODUCTS = 1 << 22      # products of rows and drawn rows at a time
NO_ROWS = np.empty(0, np.int64)
SPREAD = 0x9E3779B97F4A7C15 - (1 << 64)      # an odd factor, by which close numbers get far apart


class Drawn(NamedTuple):
    """The drawn nodes of an epoch, equal on all ranks."""

    rows: torch.Tensor       # (num_drawn, dim) float32
    order: torch.Tensor      # (num_drawn,) int64, places in `rows` by ascending class
    count: torch.Tensor      # (num_classes,) int64, drawn nodes of each class
    word: int                # a random number of the epoch


@dataclass(frozen=True)
class LinkObjective(Objective):
    """What `Objective` is for nodes; `labels` are the classes that an answer's candidates share, all 0 without."""

    questions: tuple[Question, ...] = ()      # about held-out links
    num_drawn: int = 1
    kind: str = SOFTMAX
    # Whether an edge's source must win against drawn nodes, for its target; and its target, for its source.
    learned: tuple[bool, bool] = (True, False)
    num_of_class: tuple[int, ...] = ()      # nodes of all ranks by class
    # indptr and indices of all edges, by destination, in local rows: edges that dropout leaves out are learned, too.
    edges: tuple[np.ndarray, np.ndarray] = (NO_ROWS, NO_ROWS)
    num_rows: int = 0      # inner and halo rows

    def loss_sum(self, logits: torch.Tensor, split: str, graph: LocalGraph | None = None) -> torch.Tensor:
        """Collective: sum of the loss over edges into this rank's nodes; nan for held-out links, which have none."""
        if split != "train" or graph is None:
            return torch.tensor(float("nan"))
        rows = graph.halo(logits.to(graph.x.dtype)).float()
        drawn, adjacency = self._draw(graph, rows), self._adjacency(graph)
        products = _EdgeProducts.apply(rows, adjacency)
        # Keeps both exchanges in every rank's backward pass, also on ranks without edges.
        total = 0.0 * (rows.sum() + drawn.rows.sum())
        matrix, transposed, order = adjacency
        if self.learned[0]:
            total = total + self._of_edges(matrix, products, rows, drawn, graph)
        if self.learned[1]:
            by_source = products[torch.from_numpy(order).to(rows.device)]
            total = total + self._of_edges(transposed, by_source, rows, drawn, graph)
        return total

    def _adjacency(self, graph: LocalGraph) -> Adjacency:
        if len(graph.arcs[1]) == len(self.edges[1]):
            return graph.adjacency(with_self=False)
        return self._of_all_edges

    @cached_property
    def _of_all_edges(self) -> Adjacency:
        return build_adjacency(resident(self.edges[0]), resident(self.edges[1]), self.num_rows, False)

    def scores(self, comm: MPI.Comm, outputs: torch.Tensor, score: Score) -> list[float]:
        """Collective: scores of training, nan since the model has seen its links, validation and test."""
        return [float("nan"), *link_scores(comm, outputs, self.node_id, self.labels, self.questions, score.name)]

    def _draw(self, graph: LocalGraph, rows: torch.Tensor) -> Drawn:
        current = graph.current_pass
        words = words_of(np.arange(self.num_drawn + 1), 1, CounterKey(current.seed, current.epoch, NEGATIVES, 0))[:, 0]
        node = torch.from_numpy((words[:-1] * np.uint64(graph.num_nodes) >> np.uint64(32)).astype(np.int64))
        node = node.to(rows.device)
        own, place = torch.sort(self.node_id)
        at = torch.searchsorted(own, node).clamp_(max=max(0, len(own) - 1))
        mine = torch.nonzero(own[at] == node).flatten() if len(own) else at[:0]
        row = place[at[mine]]
        found = torch.zeros(self.num_drawn, device=rows.device)
        if len(self.num_of_class) > 1:
            found[mine] = self.labels[row].float()
            found = graph.sum_over_ranks(found)
        of_class = found.long()
        return Drawn(_DrawnRows.apply(rows, row, mine, self.num_drawn, graph), torch.argsort(of_class, stable=True),
                     torch.bincount(of_class, minlength=len(self.num_of_class)), int(words[-1]))

    def _of_edges(self, matrix: SparseRows, products: torch.Tensor, rows: torch.Tensor, drawn: Drawn,
                  graph: LocalGraph) -> torch.Tensor:
        """Loss of the entries (anchor, answer) of a matrix, whose scores are `products`, (num_entries,)."""
        step, total = max(1, MOST_PRODUCTS // self.num_drawn), products.new_zeros(())
        first = np.arange(0, matrix.num_rows, step)
        degree = (matrix.end - matrix.begin).astype(np.int64)
        sizes = np.add.reduceat(degree, first).tolist() if len(first) else []
        of_answer = self._class_of_rows(graph)[torch.from_numpy(matrix.indices).long().to(rows.device)]
        number = self._numbers(matrix, degree, graph)
        anchor = torch.from_numpy(np.repeat(np.arange(matrix.num_rows) % step, degree)).to(rows.device)
        blocks = zip(rows[:matrix.num_rows].split(step), products.split(sizes), anchor.split(sizes),
                     of_answer.split(sizes), number.split(sizes), strict=True)
        for block in blocks if matrix.num_rows else ():
            if len(block[1]):
                total = total + checkpoint(self._of_block, drawn, *block, use_reentrant=False)
        return total

    def _of_block(self, drawn: Drawn, anchors: torch.Tensor, products: torch.Tensor, anchor: torch.Tensor,
                  of_answer: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        others = (anchors @ drawn.rows.t())[:, drawn.order]
        if self.kind == RANKING:
            count = drawn.count[of_answer]
            start = (drawn.count.cumsum(0) - drawn.count)[of_answer]
            # One of the drawn nodes of the answer's class, by the edge's own number.
            picked = (((number + drawn.word) * SPREAD >> 20) & 0xFFFFFFFF) % count.clamp(min=1)
            worse = functional.softplus(others[anchor, (start + picked).clamp_(max=self.num_drawn - 1)] - products)
            return (worse * (count > 0)).sum()
        by_class = torch.stack([self._of_class(part, size) for part, size in zip(
            others.split(drawn.count.tolist(), dim=1), self.num_of_class, strict=True)], dim=1)[anchor, of_answer]
        if self.kind == CROSS_ENTROPY:
            return (functional.softplus(-products) + by_class).sum()
        return functional.softplus(by_class - products).sum()

    def _of_class(self, others: torch.Tensor, num_nodes: int) -> torch.Tensor:
        """What an anchor's loss needs of its products with the drawn nodes of one class, (num_anchors,)."""
        if not others.shape[1]:
            return others.new_full((len(others),), 0.0 if self.kind == CROSS_ENTROPY else -1e9)
        if self.kind == CROSS_ENTROPY:
            return functional.softplus(others).mean(dim=1)
        return torch.logsumexp(others, dim=1) + float(np.log(num_nodes / others.shape[1]))

    def _class_of_rows(self, graph: LocalGraph) -> torch.Tensor:
        if len(self.num_of_class) == 1:
            return torch.zeros(graph.num_rows, dtype=torch.int64, device=self.labels.device)
        return graph.share(self.labels.float()[:, None])[:, 0].round().long()

    def _numbers(self, matrix: SparseRows, degree: np.ndarray, graph: LocalGraph) -> torch.Tensor:
        """A number of each entry's pair of nodes, (num_entries,) int64, the same on any rank."""
        if self.kind != RANKING:
            return torch.zeros(len(matrix.indices), dtype=torch.int64, device=self.labels.device)
        node_id = graph.node_id.astype(np.int64)
        anchor = np.repeat(node_id[:matrix.num_rows], degree)
        return torch.from_numpy(anchor * graph.num_nodes + node_id[matrix.indices]).to(self.labels.device)


class _EdgeProducts(torch.autograd.Function):
    """<rows[v], rows[u]> for the entries (v, u) of the graph, (num_entries,) float32."""

    @staticmethod
    def forward(ctx, rows: torch.Tensor, adjacency: Adjacency) -> torch.Tensor:
        ctx.save_for_backward(rows)
        ctx.adjacency = adjacency
        matrix = adjacency[0]
        return sampled_products(matrix, rows[:matrix.num_rows], rows, 1)[:, 0].float()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (rows,), (matrix, transposed, order) = ctx.saved_tensors, ctx.adjacency
        gradient = gradient.contiguous()[:, None]
        total = multiply_weighted(transposed, rows[:matrix.num_rows], gradient, order)
        total[:matrix.num_rows] += multiply_weighted(matrix, rows, gradient)
        return total, None


class _DrawnRows(torch.autograd.Function):
    """Rows of drawn nodes on all ranks: those of this rank are rows[row], at the places `mine`."""

    @staticmethod
    def forward(ctx, rows: torch.Tensor, row: torch.Tensor, mine: torch.Tensor, num_drawn: int,
                graph: LocalGraph) -> torch.Tensor:
        ctx.shape, ctx.row, ctx.mine, ctx.graph = rows.shape, row, mine, graph
        found = rows.new_zeros((num_drawn, rows.shape[1]))
        found[mine] = rows[row]
        return graph.sum_over_ranks(found)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        total = ctx.graph.sum_over_ranks(gradient)
        return gradient.new_zeros(ctx.shape).index_add_(0, ctx.row, total[ctx.mine]), None, None, None, None
