"""A graph with held-out links, and the loss of its edges in plain torch, beside which trainings of links are tested."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from reference import draws_of, stream_of
from torch.nn import functional
from training_setup import easy_graph

from hpcgnn.data.cleaning import build_csr
from hpcgnn.data.hold_out import hold_out
from hpcgnn.ops.counter import NEGATIVES

DRAWN = 24
LINK_SETTINGS = {"task": "links", "negatives": DRAWN}


def with_links(seed=0, shares=(0.1, 0.2), is_directed=False):
    """An easy graph without the links that are held out; every second edge in one direction only if directed."""
    dataset = easy_graph(seed)
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
    return replace(dataset, indptr=graph.indptr, indices=graph.indices, held_out=held,
                   cleaning=replace(dataset.cleaning, is_symmetric=graph.report.is_symmetric)).check()


def expected_loss(dataset, rows, kind, classes, learned, seed, epoch, asked=None, answers=None, step=0):
    """The summed loss of all edges from rows (num_nodes, dim).

    `asked`, (num_nodes,) bool, are the nodes that are asked; `answers` the rows of answers and drawn nodes, if they
    are others.
    """
    answers = rows if answers is None else answers
    halves = draws_of(np.arange(DRAWN + 1), 2, seed, epoch, stream_of(NEGATIVES, 0, step)).tolist()
    words = [low + (high << 16) for low, high in halves]
    node = [word * dataset.num_nodes >> 32 for word in words[:-1]]
    order = sorted(range(DRAWN), key=lambda place: (classes[node[place]], place))
    target = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr)).tolist()
    total = rows.new_zeros(())
    for source, end in zip(dataset.indices.tolist(), target, strict=True):
        for anchor, answer, is_learned in ((end, source, learned[0]), (source, end, learned[1])):
            if not is_learned or not (asked is None or asked[anchor]):
                continue
            of_class = [node[place] for place in order if classes[node[place]] == classes[answer]]
            positive = (rows[anchor] * answers[answer]).sum()
            others = answers[of_class] @ rows[anchor]
            if kind == "bpr":
                number = anchor * dataset.num_nodes + answer + words[-1]
                spread = (number * 0x9E3779B97F4A7C15 + (1 << 63)) % (1 << 64) - (1 << 63)
                total = total + functional.softplus(others[(spread >> 20 & 0xFFFFFFFF) % len(of_class)] - positive)
            elif kind == "bce":
                total = total + functional.softplus(-positive) + functional.softplus(others).mean()
            else:
                many = np.log((classes == classes[answer]).sum() / len(of_class))
                total = total + functional.softplus(torch.logsumexp(others, 0) + many - positive)
    return total
