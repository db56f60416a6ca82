"""Ranks of the answers to questions about links, over all nodes of all ranks, and the scores made of them.

All rows pass by every rank in blocks, twice: first each rank takes the rows of its answers, then it counts how many
candidates beat each answer. Products are computed in float64 and rounded to float32, so that a rank depends neither on
the blocks nor on the number of ranks, and equal rows tie, unless large terms of a product cancel. A candidate that ties
counts one half.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

from hpcgnn._ext.rivals import count_rivals
from hpcgnn.data.hold_out import TEST, VALIDATION
from hpcgnn.links.decoders import in_float64, network_of, queries, scores_of_all, scores_of_pairs
from hpcgnn.links.questions import Question
from hpcgnn.run.watchdog import HERE

BLOCK_ROWS = 1 << 12       # candidates at a time
BLOCK_PRODUCTS = 1 << 22      # products at a time
AUC = "auc"
UNSEEN = ("recall", "ndcg")      # scores of lists that may hold other links of test


@dataclass(frozen=True)
class Block:
    """Some candidates: global ids, ascending, (b,) int64; rows, (b, dim) float64; classes, (b,) int64."""

    node_id: np.ndarray
    rows: torch.Tensor
    of_class: np.ndarray

    def of_one_class(self, number: int) -> Block:
        """The candidates of one class."""
        if (self.of_class == number).all():
            return self
        chosen = np.flatnonzero(self.of_class == number)
        return Block(self.node_id[chosen], self.rows[torch.from_numpy(chosen)], self.of_class[chosen])


def blocks_of(comm: MPI.Comm, rows: torch.Tensor, node_id: np.ndarray, of_class: np.ndarray) -> Iterator[Block]:
    """Collective: the rows of all ranks, a block at a time; every rank must exhaust the iterator."""
    order = np.argsort(node_id)
    mine = rows.detach().cpu().numpy()[order], node_id[order], of_class[order]
    for rank, num_rows in enumerate(comm.allgather(len(node_id))):
        for first in range(0, num_rows, BLOCK_ROWS):
            size = min(BLOCK_ROWS, num_rows - first)
            HERE.note("ranks links" if comm.rank == rank else "waits for rows of links")
            if comm.rank == rank:
                block, ids, classes = (np.ascontiguousarray(array[first:first + size]) for array in mine)
            else:
                block, ids, classes = np.empty((size, rows.shape[1]), np.float32), *np.empty((2, size), np.int64)
            for array in (block, ids, classes) if comm.size > 1 else ():
                comm.Bcast(array, root=rank)
            HERE.note("ranks links")
            yield Block(ids, torch.from_numpy(block).double(), classes)


@dataclass(frozen=True)
class Ranks:
    """Ranks of a question's answers, (n,) float64 from 1.

    filtered      among nodes that the anchor has no other link to, in any split
    unseen        among nodes that the anchor has no link to in the graph, nor, for test, in validation

    With relations, links are those of the question's relation.
    """

    filtered: np.ndarray
    unseen: np.ndarray


def link_scores(comm: MPI.Comm, rows: torch.Tensor, node_id: torch.Tensor, of_class: torch.Tensor,
                questions: tuple[Question, ...], name: str, decoder: nn.Module | None = None,
                candidates: list[Ranks] | None = None) -> list[float]:
    """Collective: the score `name` of held-out links of validation and of test; nan for a split without links.

    Parameters
    ----------
    rows : (num_inner, dim)            of this rank's nodes
    node_id : (num_inner,) int64       global ids
    of_class : (num_inner,) int64      an answer's candidates are the nodes of its class
    name : str                         mrr, auc, hits@K, recall@K or ndcg@K
    decoder : nn.Module or None        makes queries; None takes the anchors' rows
    candidates : list of Ranks or None     what `num_candidates` returns; None counts them, if the score asks for it
    """
    ids, classes = node_id.cpu().numpy(), of_class.cpu().numpy()
    rows, decoder = rows.float(), in_float64(decoder)
    ranks = [_ranks(comm, rows, ids, classes, question, decoder) for question in questions]
    if name != AUC:
        return _means(comm, questions, name, [_gain(name, found) for found in ranks])
    if candidates is None:
        candidates = num_candidates(comm, node_id, of_class, questions)
    return _means(comm, questions, name, [_share_beaten(found.filtered, of.filtered)
                                          for found, of in zip(ranks, candidates, strict=True)])


def num_candidates(comm: MPI.Comm, node_id: torch.Tensor, of_class: torch.Tensor,
                   questions: tuple[Question, ...]) -> list[Ranks]:
    """Collective: the number of candidates of each answer, itself among them, which is its greatest rank."""
    ids, classes = node_id.cpu().numpy(), of_class.cpu().numpy()
    # Of n candidates that all tie, the answer's rank is (n + 1) / 2.
    tied = [_ranks(comm, torch.zeros(len(ids), 1), ids, classes, question, None) for question in questions]
    return [Ranks(*(np.rint(2 * ranks - 1).astype(np.int64) for ranks in (one.filtered, one.unseen))) for one in tied]


def chance_scores(comm: MPI.Comm, questions: tuple[Question, ...], name: str, candidates: list[Ranks]) -> list[float]:
    """Collective: the means of `link_scores` over all orders of each question's candidates."""
    gains = []
    for number in candidates:
        if name == AUC:
            gains.append(np.full(len(number.filtered), 0.5))
            continue
        most = max((int(ranks.max()) for ranks in (number.filtered, number.unseen) if len(ranks)), default=0)
        total = np.append(0.0, np.cumsum(_gain(name, Ranks(*np.tile(np.arange(1.0, most + 1), (2, 1))))))
        of_links = number.unseen if name.partition("@")[0] in UNSEEN else number.filtered
        gains.append(total[of_links] / of_links)
    return _means(comm, questions, name, gains)


def _share_beaten(rank: np.ndarray, number: np.ndarray) -> np.ndarray:
    # The area under an answer's ROC curve: how likely it is that it beats one of its rivals; 1/2 without rivals.
    return np.where(number > 1, 1 - (rank - 1) / np.maximum(number - 1, 1), 0.5)


def _gain(name: str, ranks: Ranks) -> np.ndarray:
    """What each link adds to a score."""
    kind, _, most = name.partition("@")
    if kind == "mrr":
        return 1 / ranks.filtered
    is_found = (ranks.unseen if kind in UNSEEN else ranks.filtered) <= float(most)
    return is_found / np.log2(ranks.unseen + 1) if kind == "ndcg" else is_found.astype(float)


def _means(comm: MPI.Comm, questions: tuple[Question, ...], name: str, gains: list[np.ndarray]) -> list[float]:
    """Collective: mean of validation and of test, nan for a split without links.

    Recall and NDCG are means over anchors of their lists of K nodes, as in He et al., LightGCN, SIGIR 2020; the others
    means over links, as in Bordes et al., NeurIPS 2013.
    """
    sums, (kind, _, most) = np.zeros((2, 2)), name.partition("@")
    for question, gain in zip(questions, gains, strict=True):
        for number, split in enumerate((VALIDATION, TEST)):
            asked = question.is_asked & (question.split == split)
            if kind in UNSEEN:
                anchors, of = np.unique(question.place[asked], return_inverse=True)
                count = np.bincount(of, minlength=len(anchors))
                ideal = count if kind == "recall" else np.cumsum(1 / np.log2(np.arange(2, int(most) + 2)))[
                    np.minimum(count, int(most)) - 1]
                sums[number] += float((np.bincount(of, gain[asked], len(anchors)) / ideal).sum()), len(anchors)
            else:
                sums[number] += float(gain[asked].sum()), np.count_nonzero(asked)
    comm.Allreduce(MPI.IN_PLACE, sums)
    return [total / count if count else float("nan") for total, count in sums.tolist()]


def _ranks(comm: MPI.Comm, rows: torch.Tensor, node_id: np.ndarray, of_class: np.ndarray,
           question: Question, decoder: nn.Module | None) -> Ranks:
    """Collective: the ranks of a question's answers."""
    asked, network = queries_of(question, rows, decoder), network_of(decoder)
    own, of_answer = products_of_answers(comm, rows, node_id, of_class, question, asked, network)
    better, equal = np.zeros((2, len(own)), np.int64)
    for block in blocks_of(comm, rows, node_id, of_class):
        for one in np.unique(block.of_class):
            _count(asked, block.of_one_class(one), question, np.flatnonzero(of_answer == one), own, better, equal,
                   network)
    return _without_held_out(question, own, of_answer, better, equal)


@torch.no_grad()
def _count(queries: torch.Tensor, block: Block, question: Question, links: np.ndarray, own: np.ndarray,
           better: np.ndarray, equal: np.ndarray, network: nn.Module | None) -> None:
    """Add the candidates of a block that beat the answers of some links, and those that tie with them."""
    asked, place = np.unique(question.place[links], return_inverse=True)
    step = max(1, BLOCK_PRODUCTS // len(block.node_id))
    bounds = np.searchsorted(place, np.arange(0, len(asked) + step, step))
    for number, first in enumerate(range(0, len(asked), step)):
        HERE.note("ranks links")
        some = asked[first:first + step]
        products = scores_of_all(network, queries[torch.from_numpy(some)], block.rows).float().numpy()
        hide_known(products, block, question, some)
        chosen = slice(bounds[number], bounds[number + 1])
        of = links[chosen]
        is_here = np.isin(question.answer[of], block.node_id)
        # An answer ties with itself, in whatever order its own product was summed.
        products[place[chosen][is_here] - first,
                 np.searchsorted(block.node_id, question.answer[of][is_here])] = own[of][is_here]
        above, alike = np.empty((2, len(of)), np.int64)
        count_rivals(products, place[chosen] - first, own[of], above, alike)
        better[of] += above
        equal[of] += alike - is_here      # the answer itself is a candidate, and no rival


@torch.no_grad()
def queries_of(question: Question, rows: torch.Tensor, decoder: nn.Module | None) -> torch.Tensor:
    """The query of each anchor, (m, dim) float64, from the rows of all inner nodes and a decoder in float64."""
    anchors = rows.detach().cpu()[torch.from_numpy(question.anchor)].double()
    return queries(decoder, anchors, torch.from_numpy(question.relation), question.asks_sources)


@torch.no_grad()
def products_of_answers(comm: MPI.Comm, rows: torch.Tensor, node_id: np.ndarray, of_class: np.ndarray,
                        question: Question, queries: torch.Tensor,
                        network: nn.Module | None) -> tuple[np.ndarray, np.ndarray]:
    """Collective: the product of each link, or its score by a network, (n,) float32; its answer's class, (n,) int64."""
    wanted, at = np.unique(question.answer, return_inverse=True)
    found, classes = torch.empty(len(wanted), rows.shape[1], dtype=torch.float64), np.zeros(len(wanted), np.int64)
    for block in blocks_of(comm, rows, node_id, of_class):
        place = np.searchsorted(block.node_id, wanted)
        here = np.flatnonzero(block.node_id[np.minimum(place, len(block.node_id) - 1)] == wanted)
        found[here], classes[here] = block.rows[place[here]], block.of_class[place[here]]
    own = np.empty(len(at), np.float32)
    step = max(1, BLOCK_PRODUCTS // max(1, rows.shape[1]))
    for first in range(0, len(at), step):
        links = slice(first, first + step)
        own[links] = scores_of_pairs(network, queries[question.place[links]], found[at[links]]).float().numpy()
    return own, classes[at]


def hide_known(products: np.ndarray, block: Block, question: Question, asked: np.ndarray) -> None:
    """Give the nodes that are no answers a product below all others; `asked` are places in question.anchor."""
    size = question.known_start[asked + 1] - question.known_start[asked]
    at = np.arange(size.sum()) + np.repeat(question.known_start[asked] - np.cumsum(size) + size, size)
    ids = question.known[at]
    place = np.minimum(np.searchsorted(block.node_id, ids), len(block.node_id) - 1)
    is_here = block.node_id[place] == ids
    products[np.repeat(np.arange(len(asked)), size)[is_here], place[is_here]] = -np.inf


def _without_held_out(question: Question, own: np.ndarray, of_answer: np.ndarray, better: np.ndarray,
                      equal: np.ndarray) -> Ranks:
    """Ranks, from the counts over all nodes that are not linked in the graph: other held-out answers are left out."""
    order = np.lexsort((own, of_answer, question.place))
    of_group, product = np.column_stack([question.place, of_answer])[order], own[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (of_group[1:] != of_group[:-1]).any(1)
    group_end = _ends_of_runs(is_first)
    is_first[1:] |= product[1:] != product[:-1]
    tie_end, starts = _ends_of_runs(is_first), np.flatnonzero(is_first)
    tie_start = starts[np.cumsum(is_first) - 1]
    is_test = question.split[order] == TEST
    num_val = np.append(0, np.cumsum(~is_test))      # of links before each one
    # A link's rivals in its group are above it, or tie and count one half.
    above, ties = group_end - tie_end, tie_end - tie_start
    val_above, val_ties = num_val[group_end] - num_val[tie_end], num_val[tie_end] - num_val[tie_start]
    filtered, unseen = better + equal / 2, better + equal / 2
    filtered[order] -= above + (ties - 1) / 2      # a link ties with itself
    unseen[order] -= is_test * (val_above + val_ties / 2)
    return Ranks(filtered + 1, unseen + 1)


def _ends_of_runs(is_first: np.ndarray) -> np.ndarray:
    """Where the run of each place ends, (n,) int64, from the places that begin a run."""
    starts = np.flatnonzero(is_first)
    return np.append(starts[1:], len(is_first))[np.cumsum(is_first) - 1]
