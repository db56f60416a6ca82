"""LinkObjective: the loss by which the rows of a link's two ends get a larger score than rows of drawn nodes.

A model makes a row for each node. A decoder makes a row for each question, its query; without a decoder this is the
row of the node that is asked. The score of an answer is the product of its row and the query. Every edge of the graph
is a link to be learned. An epoch draws some nodes, the same on all ranks; their rows come to every rank in one sum over
ranks. An edge's score must exceed the products of its query with the drawn rows. Take ranks that own nodes 0, 1, 2 and
3, 4, 5, and the drawn nodes 4 and 1: each rank gets the rows of both and multiplies its own queries by them. The row of
an edge's source comes as a halo row, by one exchange more than the model has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from hpcgnn.config import LINK_DECODER
from hpcgnn.graph.local_graph import LocalGraph, draw_numbers
from hpcgnn.graph.reductions import Adjacency
from hpcgnn.links.learned import NO_LINKS, Asked, LearnedLinks
from hpcgnn.links.questions import Question
from hpcgnn.links.ranking import link_scores
from hpcgnn.nn.distributed import plain
from hpcgnn.nn.heads import Outputs, scored
from hpcgnn.ops.aggregation import multiply_weighted
from hpcgnn.ops.attention import sampled_products
from hpcgnn.ops.counter import NEGATIVES, CounterKey, words_of
from hpcgnn.training.objective import Objective
from hpcgnn.training.scores import Score

SOFTMAX, CROSS_ENTROPY, RANKING = "softmax", "bce", "bpr"
MOST_PRODUCTS = 1 << 22      # products of rows and drawn rows at a time
SPREAD = 0x9E3779B97F4A7C15 - (1 << 64)      # an odd factor, by which close numbers get far apart


class Drawn(NamedTuple):
    """The drawn nodes of an epoch, equal on all ranks."""

    rows: torch.Tensor       # (num_drawn, dim) float32, by ascending class
    count: torch.Tensor      # (num_classes,) int64, drawn nodes of each class
    word: int                # a random number of the epoch


@dataclass(frozen=True)
class LinkObjective(Objective):
    """What `Objective` is for nodes; `labels` are the classes that an answer's candidates share, all 0 without."""

    questions: tuple[Question, ...] = ()      # about held-out links
    num_drawn: int = 1
    kind: str = SOFTMAX
    num_of_class: tuple[int, ...] = ()      # nodes of all ranks by class
    links: LearnedLinks = NO_LINKS
    n3: float = 0.0      # weight of the regularizer
    share: float = 1.0      # of the questions, which an epoch draws
    decoder: nn.Module | None = None      # makes queries; None takes the anchors' rows

    def of_model(self, model: nn.Module) -> LinkObjective:
        return replace(self, decoder=getattr(plain(model), LINK_DECODER, None))

    @property
    def structure_bytes(self) -> int:
        return sum(array.nbytes for asked in self.links.asked for array in asked.arrays)

    def loss_sum(self, logits: Outputs, split: str, graph: LocalGraph | None = None) -> torch.Tensor:
        """Collective: sum of the loss over edges into this rank's nodes; nan for held-out links, which have none."""
        if split != "train" or graph is None:
            return torch.tensor(float("nan"))
        rows = graph.halo(scored(logits).to(graph.x.dtype)).float()
        drawn = self._draw(graph, rows)
        # Keeps both exchanges in every rank's backward pass, also on ranks without edges.
        total = 0.0 * (rows.sum() + drawn.rows.sum())
        for asked in self._asked(graph):
            total = total + self._of_edges(asked, asked.queries(rows, self.decoder), rows, drawn, graph)
            if self.n3:
                total = total + self.n3 * asked.cubes(rows, self.decoder)
        return total / self.share

    def _asked(self, graph: LocalGraph) -> list[Asked]:
        if self.share == 1:
            return self.links.asked
        seed, epoch = graph.current_pass.seed, graph.current_pass.epoch
        return [asked.drawn(self.share, graph.node_id, graph.num_nodes, CounterKey(seed, epoch, NEGATIVES, 1 + place))
                for place, asked in enumerate(self.links.asked)]

    def scores(self, comm: MPI.Comm, outputs: torch.Tensor, score: Score) -> list[float]:
        """Collective: scores of training, nan since the model has seen its links, validation and test."""
        return [float("nan"), *link_scores(comm, outputs, self.node_id, self.labels, self.questions, score.name,
                                          self.decoder)]

    def _draw(self, graph: LocalGraph, rows: torch.Tensor) -> Drawn:
        current = graph.current_pass
        key = CounterKey(current.seed, current.epoch, NEGATIVES, 0)
        node, of_class = draw_numbers(self.num_drawn, graph.num_nodes, key), torch.zeros(
            self.num_drawn, dtype=torch.int64, device=rows.device)
        if len(self.num_of_class) > 1:
            of_class = graph.rows_of(self.labels[:, None].float(), self.node_id, node)[:, 0].long()
            node = node[torch.argsort(of_class.cpu(), stable=True)]
        word = words_of(np.array([self.num_drawn]), 1, key)
        return Drawn(graph.rows_of(rows, self.node_id, node),
                     torch.bincount(of_class, minlength=len(self.num_of_class)), int(word[0, 0]))

    def _of_edges(self, asked: Asked, queries: torch.Tensor, rows: torch.Tensor, drawn: Drawn,
                  graph: LocalGraph) -> torch.Tensor:
        """Loss of the edges that ask some questions, which have `queries`, (num_questions, dim)."""
        matrix = asked.adjacency.matrix
        products = _EdgeProducts.apply(queries, rows[:matrix.num_columns], asked.adjacency)
        degree = (matrix.end - matrix.begin).astype(np.int64)
        of_answer = self._class_of_rows(graph)[torch.from_numpy(matrix.indices).long().to(rows.device)]
        number = self._numbers(asked, degree, graph)
        question = torch.from_numpy(np.repeat(np.arange(matrix.num_rows), degree)).to(rows.device)
        first = np.arange(0, matrix.num_rows, max(1, MOST_PRODUCTS // self.num_drawn))
        of_questions = np.append(first, matrix.num_rows)
        of_edges = np.concatenate([[0], np.cumsum(degree)])[of_questions]
        blocks = [(slice(*ends), slice(*edges)) for ends, edges in zip(pairwise(of_questions.tolist()),
                                                                       pairwise(of_edges.tolist()), strict=True)]

        def loss_of(queries: torch.Tensor, products: torch.Tensor, drawn_rows: torch.Tensor, start: int,
                    edges: slice) -> torch.Tensor:
            return self._of_block(drawn._replace(rows=drawn_rows), queries, products, question[edges] - start,
                                  of_answer[edges], number[edges])
        return _ByBlock.apply(loss_of, [block for block in blocks if block[1].start < block[1].stop], queries, products,
                              drawn.rows)

    def _of_block(self, drawn: Drawn, queries: torch.Tensor, products: torch.Tensor, question: torch.Tensor,
                  of_answer: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        others = queries @ drawn.rows.t()
        if self.kind == RANKING:
            count = drawn.count[of_answer]
            start = (drawn.count.cumsum(0) - drawn.count)[of_answer]
            # One of the drawn nodes of the answer's class, by the edge's own number.
            picked = (((number + drawn.word) * SPREAD >> 20) & 0xFFFFFFFF) % count.clamp(min=1)
            worse = functional.softplus(others[question, (start + picked).clamp_(max=self.num_drawn - 1)] - products)
            return (worse * (count > 0)).sum()
        by_class = torch.stack([self._of_class(part, size) for part, size in zip(
            others.split(drawn.count.tolist(), dim=1), self.num_of_class, strict=True)], dim=1)[question, of_answer]
        if self.kind == CROSS_ENTROPY:
            return (functional.softplus(-products) + by_class).sum()
        return functional.softplus(by_class - products).sum()

    def _of_class(self, others: torch.Tensor, num_nodes: int) -> torch.Tensor:
        """What a question's loss needs of its products with the drawn nodes of one class, (num_questions,)."""
        if not others.shape[1]:
            return others.new_full((len(others),), 0.0 if self.kind == CROSS_ENTROPY else -1e9)
        if self.kind == CROSS_ENTROPY:
            return functional.softplus(others).mean(dim=1)
        return torch.logsumexp(others, dim=1) + float(np.log(num_nodes / others.shape[1]))

    def _class_of_rows(self, graph: LocalGraph) -> torch.Tensor:
        if len(self.num_of_class) == 1:
            return torch.zeros(graph.num_rows, dtype=torch.int64, device=self.labels.device)
        return graph.share(self.labels.float()[:, None])[:, 0].round().long()

    def _numbers(self, asked: Asked, degree: np.ndarray, graph: LocalGraph) -> torch.Tensor:
        """A number of each entry's anchor, answer and relation, (num_entries,) int64, the same on any rank."""
        matrix = asked.adjacency.matrix
        if self.kind != RANKING:
            return torch.zeros(len(matrix.indices), dtype=torch.int64, device=self.labels.device)
        node_id = graph.node_id.astype(np.int64)
        number = node_id[:matrix.num_rows] if asked.anchor is None else \
            asked.relation * graph.num_nodes + node_id[asked.anchor]
        return torch.from_numpy(np.repeat(number, degree) * graph.num_nodes + node_id[matrix.indices]).to(
            self.labels.device)


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class _ByBlock(torch.autograd.Function):
    """The loss of blocks of questions and their edges. Gradients are made with it, so no product is kept or made again.
    """

    @staticmethod
    def forward(ctx, loss_of: Callable[..., torch.Tensor], blocks: list[tuple[slice, slice]], queries: torch.Tensor,
                products: torch.Tensor, drawn_rows: torch.Tensor) -> torch.Tensor:
        total, is_needed = products.new_zeros(()), any(ctx.needs_input_grad)
        gradients = [torch.zeros_like(tensor) for tensor in (queries, products, drawn_rows) if is_needed]
        for questions, edges in blocks:
            inputs = [tensor.detach().requires_grad_(is_needed)
                      for tensor in (queries[questions], products[edges], drawn_rows)]
            # What a block keeps is freed with it, so that no hook of the forward pass counts or stores it.
            with torch.set_grad_enabled(is_needed), saved_tensors_hooks(_itself, _itself):
                loss = loss_of(*inputs, questions.start, edges)
            if is_needed:
                of_queries, of_products, of_rows = torch.autograd.grad(loss, inputs)
                gradients[0][questions], gradients[1][edges] = of_queries, of_products
                gradients[2] += of_rows
            total += loss.detach()
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, None, *(gradient * of_input for of_input in ctx.saved_tensors)


class _EdgeProducts(torch.autograd.Function):
    """<queries[q], rows[u]> for the entries (q, u) of a matrix of questions and answers, (num_entries,) float32."""

    @staticmethod
    def forward(ctx, queries: torch.Tensor, rows: torch.Tensor, adjacency: Adjacency) -> torch.Tensor:
        ctx.save_for_backward(queries, rows)
        ctx.adjacency = adjacency
        return sampled_products(adjacency.matrix, queries, rows, 1)[:, 0].float()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        (queries, rows), (matrix, transposed, order) = ctx.saved_tensors, ctx.adjacency
        gradient = gradient.contiguous()[:, None]
        return (multiply_weighted(matrix, rows, gradient), multiply_weighted(transposed, queries, gradient, order),
                None)
