"""A graph with held-out links, and the loss of its edges in plain torch, beside which trainings of links are tested."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from reference import draws_of, stream_of
from torch.nn import functional
from training_setup import EASY, easy_graph

from hpcgnn.data.cleaning import build_csr
from hpcgnn.data.hold_out import hold_out
from hpcgnn.ops.counter import NEGATIVES

DRAWN = 24
LINK_SETTINGS = {"task": "links", "negatives": DRAWN}


def with_links(seed=0, shares=(0.1, 0.2), is_directed=False, has_types=False, mean_degree=8):
    """An easy graph without the links that are held out; every second edge in one direction only if directed.

    It may have six types, one of them of no node.
    """
    dataset = easy_graph(seed, EASY.replace("mean_degree=8", f"mean_degree={mean_degree}"))
    if is_directed:
        target = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
        kept = (dataset.indices < target) | ((dataset.indices + target) % 3 == 0)
        indptr = np.concatenate([[0], np.cumsum(kept)])[dataset.indptr]
        dataset = replace(dataset, indptr=indptr, indices=dataset.indices[kept],
                          cleaning=replace(dataset.cleaning, is_symmetric=False))
    graph = build_csr(dataset.indices, np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr)),
                      dataset.num_nodes, False, dataset.name)
    assert graph.report.is_symmetric is not is_directed
    graph, held = hold_out(graph, None, shares, seed, dataset.name)
    counts = (50, 0, 90, 60, 7, dataset.num_nodes - 207)
    return replace(dataset, indptr=graph.indptr, indices=graph.indices, held_out=held,
                   node_types=tuple(zip("abcdef", counts, strict=True)) if has_types else (),
                   cleaning=replace(dataset.cleaning, is_symmetric=graph.report.is_symmetric)).check()


def classes_by(dataset, candidates):
    """What an answer's candidates share with it, by node."""
    if candidates == "type":
        return np.repeat(np.arange(len(dataset.node_types)), [count for _, count in dataset.node_types])
    return dataset.labels if candidates == "label" else np.zeros(dataset.num_nodes, int)


def words_drawn(count, seed, epoch, step=0):
    """The random words of an epoch or step: one for each drawn node, and one more."""
    halves = draws_of(np.arange(count + 1), 2, seed, epoch, stream_of(NEGATIVES, 0, step)).tolist()
    return [low + (high << 16) for low, high in halves]


def loss_of_edge(kind, positive, others, size, number, temperature=0.0):
    """From the score of an answer and those of the drawn nodes of its class, (n,), which has `size` nodes; `number` is
    the edge's own.
    """
    if kind == "bpr":
        spread = (number * 0x9E3779B97F4A7C15 + (1 << 63)) % (1 << 64) - (1 << 63)
        return functional.softplus(others[(spread >> 20 & 0xFFFFFFFF) % len(others)] - positive)
    if kind == "bce":
        power = np.exp(temperature * others.detach().numpy().astype(float))
        shares = torch.from_numpy(power / power.sum()).float()
        return functional.softplus(-positive) + shares @ functional.softplus(others)
    return functional.softplus(torch.logsumexp(others, 0) + np.log(size / len(others)) - positive)


def expected_loss(dataset, rows, kind, classes, learned, seed, epoch, asked=None, answers=None, step=0,
                  temperature=0.0):
    """The summed loss of all edges from rows (num_nodes, dim).

    `asked`, (num_nodes,) bool, are the nodes that are asked; `answers` the rows of answers and drawn nodes, if they
    are others. In a graph with types, all types that have nodes are drawn equally often.
    """
    answers = rows if answers is None else answers
    ranges = [(0, dataset.num_nodes)]
    if dataset.node_types:
        ends = np.cumsum([count for _, count in dataset.node_types]).tolist()
        ranges = [(first, end) for first, end in pairwise([0, *ends]) if first < end]
    ranges = [one for one in ranges for _ in range(-(-DRAWN // len(ranges)))]
    words = words_drawn(len(ranges), seed, epoch, step)
    node = [first + (word * (end - first) >> 32) for word, (first, end) in zip(words, ranges, strict=False)]
    order = sorted(range(len(node)), key=lambda place: (classes[node[place]], place))
    target = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr)).tolist()
    total = rows.new_zeros(())
    for source, end in zip(dataset.indices.tolist(), target, strict=True):
        for anchor, answer, is_learned in ((end, source, learned[0]), (source, end, learned[1])):
            if not is_learned or not (asked is None or asked[anchor]):
                continue
            of_class = [node[place] for place in order if classes[node[place]] == classes[answer]]
            positive, others = (rows[anchor] * answers[answer]).sum(), answers[of_class] @ rows[anchor]
            total = total + loss_of_edge(kind, positive, others, (classes == classes[answer]).sum(),
                                         anchor * dataset.num_nodes + answer + words[-1], temperature)
    return total


def normal_rows(dataset):
    return torch.from_numpy(np.random.default_rng(1).standard_normal((dataset.num_nodes, 5)).astype(np.float32) / 2)
