"""LinkObjective: the loss by which the rows of a link's two ends get a larger score than rows of drawn nodes.

A model makes a row for each node. A decoder makes a row for each question, its query; without a decoder this is the
row of the node that is asked. The score of an answer is the product of its row and the query. Every edge of the graph
is a link to be learned. An epoch draws some nodes, the same on all ranks; their rows come to every rank in one sum over
ranks. An edge's score must exceed the products of its query with the drawn rows. Take ranks that own nodes 0, 1, 2 and
3, 4, 5, and the drawn nodes 4 and 1: each rank gets the rows of both and multiplies its own queries by them. The row of
an edge's source comes as a halo row, by one exchange more than the model has.

A step of an epoch of several steps learns the questions about its own nodes. Answers and drawn nodes are constants, of
the step itself or as last known, so that each node is pulled to its answers and pushed from drawn nodes alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.nn import functional

from hpcgnn.config import LINK_DECODER
from hpcgnn.graph.local_graph import LocalGraph, draw_numbers
from hpcgnn.graph.reductions import Adjacency
from hpcgnn.links.decoders import network_of, scores_of_all, scores_of_pairs
from hpcgnn.links.learned import NO_LINKS, Asked, LearnedLinks
from hpcgnn.links.questions import Question
from hpcgnn.links.ranking import AUC, Ranks, chance_scores, link_scores, num_candidates
from hpcgnn.nn.heads import Outputs, scored
from hpcgnn.nn.models import plain
from hpcgnn.ops.aggregation import chosen_rows, multiply_weighted
from hpcgnn.ops.attention import sampled_products
from hpcgnn.ops.counter import NEGATIVES, CounterKey, words_of
from hpcgnn.steps.step_graphs import StepGraph
from hpcgnn.training.objective import Objective
from hpcgnn.training.scores import Score

SOFTMAX, CROSS_ENTROPY, RANKING = "softmax", "bce", "bpr"
MOST_PRODUCTS = 1 << 22      # products of rows and drawn rows at a time
SPREAD = 0x9E3779B97F4A7C15 - (1 << 64)      # an odd factor, by which close numbers get far apart


class Drawn(NamedTuple):
    """The drawn nodes of an epoch or a step, equal on all ranks."""

    node: torch.Tensor       # (num_drawn,) int64, global ids, by ascending class
    count: torch.Tensor      # (num_classes,) int64, drawn nodes of each class
    word: int                # a random number of the epoch or step


class Ends(NamedTuple):
    """Rows of the ends of the links that a pass learns."""

    asked: list[Asked]       # with places in the other fields for local rows
    anchors: torch.Tensor    # (n, dim) float32
    rows: torch.Tensor       # (num_rows, dim) float32, of answers and drawn nodes; in a step without gradient
    local: np.ndarray        # (num_rows,) int64, their numbers among the rank's rows


@dataclass(frozen=True)
class LinkObjective(Objective):
    """What `Objective` is for nodes; `labels` are the classes that an answer's candidates share, all 0 without."""

    questions: tuple[Question, ...] = ()      # about held-out links
    num_drawn: tuple[int, ...] = (1,)      # of all nodes; or of each class, where classes are ranges of ids
    kind: str = SOFTMAX
    num_of_class: tuple[int, ...] = ()      # nodes of all ranks by class
    links: LearnedLinks = NO_LINKS
    adversarial_temperature: float = 0.0      # see `_of_class`
    n3: float = 0.0      # weight of the regularizer
    share: float = 1.0      # of the questions, which an epoch draws
    step: int = 0      # of the epoch
    decoder: nn.Module | None = None      # makes queries; None takes the anchors' rows

    def of_model(self, model: nn.Module) -> LinkObjective:
        return replace(self, decoder=getattr(plain(model), LINK_DECODER, None))

    def of_rows(self, rows: np.ndarray, num_steps: int = 1, step: int = 0) -> LinkObjective:
        return replace(self, step=step)      # a step's graph says its rows

    @property
    def structure_bytes(self) -> int:
        return sum(array.nbytes for asked in self.links.asked for array in asked.arrays)

    def loss_sum(self, logits: Outputs, split: str, graph: LocalGraph | None = None) -> torch.Tensor:
        """Collective: sum of the loss over edges into this rank's nodes; nan for held-out links, which have none."""
        if split != "train" or graph is None:
            return torch.tensor(float("nan"))
        outputs, drawn = scored(logits).to(graph.x.dtype), self._draw(graph)
        ends = self._ends_of_step(graph, outputs, drawn) if isinstance(graph, StepGraph) else self._ends(graph, outputs)
        # A node that is drawn comes from its owner.
        own = np.where(ends.local < self.links.num_inner, self.links.node_id[ends.local], -1)
        drawn_rows = graph.whole[0].rows_of(ends.rows, torch.from_numpy(own).to(ends.rows.device), drawn.node)
        # Keeps all exchanges in every rank's backward pass, also on ranks without edges.
        total = 0.0 * (ends.anchors.sum() + ends.rows.sum() + drawn_rows.sum())
        for asked in ends.asked:
            queries = asked.queries(ends.anchors, self.decoder)
            total = total + self._of_edges(asked, queries, ends, drawn, drawn_rows)
            if self.n3:
                total = total + self.n3 * asked.cubes(ends.anchors, ends.rows, self.decoder)
        return total / self.share

    def _ends(self, graph: LocalGraph, outputs: torch.Tensor) -> Ends:
        """Collective: the ends of all links, or of an epoch's share."""
        rows, asked = graph.halo(outputs).float(), self.links.asked
        if self.share < 1:
            asked = [one.chosen(kept) for one, kept in zip(asked, self._drawn_questions(graph), strict=True)]
        return Ends(asked, rows, rows, np.arange(len(rows)))

    def _ends_of_step(self, graph: StepGraph, outputs: torch.Tensor, drawn: Drawn) -> Ends:
        """Collective: the ends of the questions about a step's nodes.

        Other ends and drawn nodes are constants: of the step if it computes them, else as last known.
        """
        links, held = self.links, graph.whole_rows.cpu().numpy()
        # Sources of edges that other ranks compute in this step may be asked here for targets.
        num_anchors = graph.num_back if links.about[1] else graph.num_inner
        is_in_step, is_held = np.zeros((2, links.num_rows), bool)
        is_in_step[held[:num_anchors]], is_held[held] = True, True
        chosen = [np.flatnonzero(is_in_step[one.of_questions[0]]) for one in links.asked]
        if self.share < 1:
            chosen = self._drawn_questions(graph, chosen)
        read = np.unique(np.concatenate([links.places_of(drawn.node.numpy()), *(
            one.entries(questions)[1] for one, questions in zip(links.asked, chosen, strict=True))]))
        more = read[~is_held[read]].astype(np.int64)
        rows = graph.halo(outputs if links.about[1] else outputs.detach())
        known = torch.cat([rows.detach(), graph.last_rows(rows, more)]).float()
        place = np.full(links.num_rows, -1, np.int32)
        local = np.concatenate([held, more])
        place[local] = np.arange(len(local))
        asked = [one.chosen(questions, place, len(local)) for one, questions in zip(links.asked, chosen, strict=True)]
        return Ends(asked, (rows if links.about[1] else outputs).float(), known, local)

    def _drawn_questions(self, graph: LocalGraph, among: Sequence[np.ndarray | None] | None = None) -> list[np.ndarray]:
        current, asked = graph.current_pass, self.links.asked
        return [one.drawn(self.share, self.links.node_id, graph.num_nodes,
                          CounterKey(current.seed, current.epoch, NEGATIVES, 1 + way), some)
                for way, (one, some) in enumerate(zip(asked, among or [None] * len(asked), strict=True))]

    def scores(self, comm: MPI.Comm, outputs: torch.Tensor, score: Score) -> list[float]:
        """Collective: scores of training, nan since the model has seen its links, validation and test."""
        return [float("nan"), *link_scores(comm, outputs, self.node_id, self.labels, self.questions, score.name,
                                          self.decoder, self.num_candidates if score.name == AUC else None)]

    def score_by_chance(self, score: Score) -> float | None:
        return chance_scores(self.comm, self.questions, score.name, self.num_candidates)[1] \
            if self.num_global["test"] else None

    @cached_property
    def num_candidates(self) -> list[Ranks]:
        return num_candidates(self.comm, self.node_id, self.labels, self.questions)

    def _draw(self, graph: LocalGraph) -> Drawn:
        """Collective: draw nodes."""
        current, links = graph.current_pass, self.links
        key = CounterKey(current.seed, current.epoch, NEGATIVES, 0, self.step)
        num_of_class, total = np.array(self.num_of_class), sum(self.num_drawn)
        of_class = torch.zeros(total, dtype=torch.int64)
        if len(self.num_drawn) > 1:
            classes = np.repeat(np.arange(len(num_of_class)), self.num_drawn)
            first = torch.from_numpy((np.cumsum(num_of_class) - num_of_class)[classes])
            node, of_class = first + draw_numbers(total, num_of_class[classes], key), torch.from_numpy(classes)
        else:
            node = draw_numbers(total, graph.num_nodes, key)
            if len(num_of_class) > 1:
                known = torch.from_numpy(links.of_class[:links.num_inner, None]).float().to(graph.x.device)
                ids = torch.from_numpy(links.node_id[:links.num_inner]).to(graph.x.device)
                of_class = graph.whole[0].rows_of(known, ids, node)[:, 0].long().cpu()
                node = node[torch.argsort(of_class, stable=True)]
        return Drawn(node, torch.bincount(of_class, minlength=len(num_of_class)).to(graph.x.device),
                     int(words_of(np.array([total]), 1, key)[0, 0]))

    def _of_edges(self, asked: Asked, queries: torch.Tensor, ends: Ends, drawn: Drawn,
                  drawn_rows: torch.Tensor) -> torch.Tensor:
        """Loss of the edges that ask some questions, which have `queries`, (num_questions, dim)."""
        matrix, network, device = asked.adjacency.matrix, network_of(self.decoder), queries.device
        # What the answers add to a block: products with the queries, or their rows, which a network reads.
        if network is None:
            own, weights = _EdgeProducts.apply(queries, ends.rows[:matrix.num_columns], asked.adjacency), {}
        else:
            own = chosen_rows(ends.rows, torch.from_numpy(np.asarray(matrix.indices)).to(device))
            weights = dict(network.named_parameters())
        degree = (matrix.end - matrix.begin).astype(np.int64)
        answer = ends.local[matrix.indices]
        of_answer = torch.from_numpy(self.links.of_class[answer]).to(device)
        number = torch.from_numpy(self._numbers(asked, degree, ends, answer)).to(device)
        question = torch.from_numpy(np.repeat(np.arange(matrix.num_rows), degree)).to(device)
        values_a_question = len(drawn.node) * (1 if network is None else queries.shape[1])
        first = np.arange(0, matrix.num_rows, max(1, MOST_PRODUCTS // values_a_question))
        of_questions = np.append(first, matrix.num_rows)
        of_edges = np.concatenate([[0], np.cumsum(degree)])[of_questions]
        blocks = [(slice(*some), slice(*edges)) for some, edges in zip(pairwise(of_questions.tolist()),
                                                                       pairwise(of_edges.tolist()), strict=True)]

        def loss_of(start: int, edges: slice, queries: torch.Tensor, own: torch.Tensor, drawn_rows: torch.Tensor,
                    *values: torch.Tensor) -> torch.Tensor:
            place, score = question[edges] - start, None
            if network is not None:
                score = partial(functional_call, network, dict(zip(weights, values, strict=True)))
                own = scores_of_pairs(score, queries[place], own)
            return self._of_block(drawn, scores_of_all(score, queries, drawn_rows), own, place, of_answer[edges],
                                  number[edges])
        return _ByBlock.apply(loss_of, [block for block in blocks if block[1].start < block[1].stop], queries, own,
                              drawn_rows, *weights.values())

    def _of_block(self, drawn: Drawn, others: torch.Tensor, products: torch.Tensor, question: torch.Tensor,
                  of_answer: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        if self.kind == RANKING:
            count = drawn.count[of_answer]
            start = (drawn.count.cumsum(0) - drawn.count)[of_answer]
            # One of the drawn nodes of the answer's class, by the edge's own number.
            picked = (((number + drawn.word) * SPREAD >> 20) & 0xFFFFFFFF) % count.clamp(min=1)
            worse = functional.softplus(others[question, (start + picked).clamp_(max=len(drawn.node) - 1)] - products)
            return (worse * (count > 0)).sum()
        by_class = torch.stack([self._of_class(part, size) for part, size in zip(
            others.split(drawn.count.tolist(), dim=1), self.num_of_class, strict=True)], dim=1)[question, of_answer]
        if self.kind == CROSS_ENTROPY:
            return (functional.softplus(-products) + by_class).sum()
        return functional.softplus(by_class - products).sum()

    def _of_class(self, others: torch.Tensor, num_nodes: int) -> torch.Tensor:
        """What a question's loss needs of its products with the drawn nodes of one class, (num_questions,).

        With `adversarial_temperature` a, cross-entropy weighs each drawn node by softmax(a * product), a constant in
        the gradient, so that nodes which the model mistakes for answers count most. This suits one by one terms: the
        gradient of the softmax loss has such weights already. The drawn nodes stay the same on any number of ranks.

        Reference: Sun et al., RotatE: Knowledge Graph Embedding by Relational Rotation in Complex Space, ICLR 2019,
        Eq. (4)-(5).
        """
        if not others.shape[1]:
            return others.new_full((len(others),), 0.0 if self.kind == CROSS_ENTROPY else -1e9)
        if self.kind == CROSS_ENTROPY:
            terms, temperature = functional.softplus(others), self.adversarial_temperature
            return (torch.softmax(temperature * others.detach(), dim=1) * terms).sum(dim=1) if temperature \
                else terms.mean(dim=1)
        return torch.logsumexp(others, dim=1) + float(np.log(num_nodes / others.shape[1]))

    def _numbers(self, asked: Asked, degree: np.ndarray, ends: Ends, answer: np.ndarray) -> np.ndarray:
        """A number of each entry's anchor, answer and relation, (num_entries,) int64, the same on any rank."""
        if self.kind != RANKING:
            return np.zeros(len(answer), np.int64)
        anchor, relation = asked.of_questions
        num_nodes, node_id = sum(self.num_of_class), self.links.node_id
        number = relation * num_nodes + node_id[ends.local[anchor]]
        return np.repeat(number, degree) * num_nodes + node_id[answer]


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class _ByBlock(torch.autograd.Function):
    """The loss of blocks of questions and their edges. Gradients are made with it, so no product is kept or made again.

    A block has some of the queries and some of the edges' values, and all of the other tensors.
    """

    @staticmethod
    def forward(ctx, loss_of: Callable[..., torch.Tensor], blocks: list[tuple[slice, slice]],
                *tensors: torch.Tensor) -> torch.Tensor:
        total = tensors[0].new_zeros(())
        ctx.needed = [number for number in range(len(tensors)) if ctx.needs_input_grad[2 + number]]
        gradients = [torch.zeros_like(tensors[number]) for number in ctx.needed]
        for questions, edges in blocks:
            places = questions, edges, *[slice(None)] * (len(tensors) - 2)
            inputs = [tensor[place].detach().requires_grad_(number in ctx.needed)
                      for number, (tensor, place) in enumerate(zip(tensors, places, strict=True))]
            # What a block keeps is freed with it, so that no hook of the forward pass counts or stores it.
            with torch.set_grad_enabled(bool(ctx.needed)), saved_tensors_hooks(_itself, _itself):
                loss = loss_of(questions.start, edges, *inputs)
            if ctx.needed:
                found = torch.autograd.grad(loss, [inputs[number] for number in ctx.needed])
                for number, so_far, gradient in zip(ctx.needed, gradients, found, strict=True):
                    so_far[places[number]] += gradient
            total += loss.detach()
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        of_inputs = dict(zip(ctx.needed, ctx.saved_tensors, strict=True))
        return None, None, *(gradient * of_inputs[number] if number in of_inputs else None
                             for number in range(len(ctx.needs_input_grad) - 2))


class _EdgeProducts(torch.autograd.Function):
    """<queries[q], rows[u]> for the entries (q, u) of a matrix of questions and answers, (num_entries,) float32."""

    @staticmethod
    def forward(ctx, queries: torch.Tensor, rows: torch.Tensor, adjacency: Adjacency) -> torch.Tensor:
        ctx.save_for_backward(queries, rows)
        ctx.adjacency = adjacency
        return sampled_products(adjacency.matrix, queries, rows, 1)[:, 0].float()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        (queries, rows), (matrix, transposed, order) = ctx.saved_tensors, ctx.adjacency
        gradient = gradient.contiguous()[:, None]
        of_rows = multiply_weighted(transposed, queries, gradient, order) if ctx.needs_input_grad[1] else None
        return multiply_weighted(matrix, rows, gradient), of_rows, None
