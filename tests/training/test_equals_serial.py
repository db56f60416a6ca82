"""P ranks train as one does: the same losses, with dropout, however the graph is cut."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from mpi4py import MPI
from training_setup import (
    arcs_where,
    easy_graph,
    losses,
    on_rank_zero,
    random_owner,
    train,
    two_islands,
    write,
)

from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.partition.owner import assign_owners

EPOCHS = 3
PUBMED = Path(os.environ.get("HPCGNN_DATASETS", "/nowhere")) / "pubmed.npz"


def cut_by_metis(num_parts):
    dataset = easy_graph()
    return dataset, assign_owners(dataset, num_parts, "metis", seed=0)


def pubmed_cut_by_metis(num_parts):
    dataset = load_source(f"npz:{PUBMED}", SourceOptions(normalize_features="row"))
    return dataset, assign_owners(dataset, num_parts, "metis", seed=0)


def drawn_at_random(num_parts):
    dataset = easy_graph(seed=1)
    return dataset, random_owner(dataset, num_parts)


def rank_without_training_nodes(num_parts):
    """All training nodes on rank 0."""
    dataset = easy_graph(seed=2)
    return dataset, np.where(dataset.train_mask, 0, random_owner(dataset, num_parts)).astype(np.int32)


def last_rank_with_one_node(num_parts):
    dataset = easy_graph(seed=3)
    owner = random_owner(dataset, max(1, num_parts - 1))
    owner[dataset.in_degree().argmax()] = num_parts - 1
    return dataset, owner


def last_rank_without_a_node(num_parts):
    dataset = easy_graph(seed=4)
    return dataset, random_owner(dataset, max(1, num_parts - 1))


def last_rank_without_boundary(num_parts):
    """The second island whole on the last rank, the first cut among the others."""
    dataset = two_islands()
    owner = random_owner(dataset, max(1, num_parts - 1))
    owner[dataset.num_nodes // 2:] = num_parts - 1
    return dataset, owner


def directed_arcs(num_parts):
    """Arcs towards the higher id only, so that halo and boundary differ."""
    dataset = arcs_where(easy_graph(seed=5), lambda source, target: source < target)
    return dataset, random_owner(dataset, num_parts)


def multi_label(num_parts):
    dataset = easy_graph(seed=6, spec="synthetic:nodes=200,mean_degree=6,classes=5,features=8,multi_label=true")
    return dataset, random_owner(dataset, num_parts)


CUTS = [drawn_at_random, rank_without_training_nodes, last_rank_with_one_node, last_rank_without_a_node,
        last_rank_without_boundary, directed_arcs, multi_label]


def share_that_may_turn(dataset, run):
    """By how much the test score of a run on one rank can change where its logits change by 2e-4 of the largest.

    A node's answer turns only where its two largest logits are within twice that of each other, or, of several labels,
    one is within it of 0; an answer that turns changes the F1 score of several labels by less than 2 / their number.
    """
    graph, model = run.session.graph, run.learner.model.eval()
    graph.begin_forward(seed=0, epoch=0, is_training=False)
    with torch.no_grad():
        logits = model(graph, graph.x)
    node_id = graph.node_id[:graph.num_inner]
    is_tested, labels = dataset.test_mask[node_id], dataset.labels[node_id]
    reach = 2e-4 * logits.abs().max()
    if labels.ndim == 2:
        return 2 * int((logits[is_tested].abs() <= reach).sum()) / labels[is_tested].sum()
    largest = logits[is_tested].topk(2, dim=1).values
    return int((largest[:, 0] - largest[:, 1] <= 2 * reach).sum()) / is_tested.sum()


def assert_trains_as_one(comm, cut, folder, **settings):
    """Losses to 1e-4 relative, and the same scores at the end but for nodes between two answers."""
    settings.update(dropout=0.5, epochs=EPOCHS, eval_every=EPOCHS)

    def train_alone():
        dataset, owner = cut(comm.size)
        write(dataset, owner, comm.size, folder / "shards")
        one = write(dataset, np.zeros_like(owner), 1, folder / "one")
        summary, metrics, run = train(MPI.COMM_SELF, one, folder / "alone", **settings)
        return summary, metrics, share_that_may_turn(dataset, run)

    alone, expected, may_turn = on_rank_zero(comm, train_alone)
    summary, metrics, _ = train(comm, folder / "shards", folder / "run", **settings)
    assert len(metrics) == EPOCHS
    np.testing.assert_allclose(losses(metrics), losses(expected), rtol=1e-4)
    assert may_turn <= 0.03
    assert summary["test_score"] == pytest.approx(alone["test_score"], abs=may_turn + 1e-9)


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("norm", ["none", "layer"])
@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_losses_equal_those_of_one_rank_with_dropout(shared_path, model, norm):
    assert_trains_as_one(MPI.COMM_WORLD, cut_by_metis, shared_path, model=model, layers=3, hidden=16, norm=norm)


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("model", ["sage-max", "gat", "gin"])
def test_losses_of_the_other_models_equal_those_of_one_rank(shared_path, model):
    assert_trains_as_one(MPI.COMM_WORLD, cut_by_metis, shared_path, model=model, layers=3, hidden=16)


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("cut", CUTS)
def test_losses_equal_those_of_one_rank_however_the_graph_is_cut(shared_path, cut):
    assert_trains_as_one(MPI.COMM_WORLD, cut, shared_path, model="sage", weight_decay=5e-4)


@pytest.mark.skipif(not PUBMED.exists(), reason="HPCGNN_DATASETS names no folder with pubmed.npz")
@pytest.mark.parallel(2)
@pytest.mark.parametrize("model", ["gcn", pytest.param("sage", marks=pytest.mark.long)])
def test_losses_on_pubmed_equal_those_of_one_rank(shared_path, model):
    assert_trains_as_one(MPI.COMM_WORLD, pubmed_cut_by_metis, shared_path, model=model, hidden=16, norm="none",
                         weight_decay=5e-4, weight_decay_layers="first")


@pytest.mark.parallel(3)
@pytest.mark.parametrize("method", ["vanilla", "pipegcn"])
def test_alltoallv_brings_the_rows_of_the_ring_bit_for_bit(shared_path, shards, method):
    ring, at_once = (losses(train(MPI.COMM_WORLD, shards, shared_path / exchange, method=method, exchange=exchange)[1])
                     for exchange in ("ring", "alltoallv"))
    np.testing.assert_array_equal(at_once, ring)
