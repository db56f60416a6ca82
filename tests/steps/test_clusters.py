"""Clusters, and the step of an epoch that each of them belongs to."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI
from training_setup import SMALL, easy_graph, losses, on_rank_zero, train, write

from hpcgnn.config import TrainConfig
from hpcgnn.errors import ConfigError
from hpcgnn.shards.writer import Making, make_shards
from hpcgnn.steps.clusters import Clusters, count_inside, first_steps
from hpcgnn.training.session import OWN_CLUSTERS, Session

COMM = MPI.COMM_WORLD


def clusters(count, inner=None):
    inner = np.arange(count) if inner is None else inner
    return Clusters(inner, np.empty(0, np.int64), count, inside=1.0)


@pytest.mark.parametrize("count, num_steps", [(7, 7), (40, 8), (1600, 40), (103, 10), (5, 2), (1, 1)])
def test_steps_have_equally_many_clusters_but_for_the_two_ends(count, num_steps):
    step = clusters(count).steps(0, 3, num_steps)
    sizes = np.bincount(step, minlength=num_steps)
    assert sizes.sum() == count and len(sizes) == num_steps
    assert count // num_steps - 1 <= sizes.min() and sizes.max() <= count // num_steps + 2


def test_clusters_that_follow_each_other_go_to_different_steps():
    """So a rank, whose clusters follow each other, has as much to do in every step."""
    step = clusters(160).steps(1, 0, 8)
    for start in range(0, 152):
        of_rank = np.bincount(step[start:start + 8], minlength=8)
        assert of_rank.max() <= 2


def test_another_epoch_or_seed_groups_anew_and_the_same_one_alike():
    some = clusters(200)
    drawn = some.steps(5, 9, 10)
    assert np.array_equal(drawn, some.steps(5, 9, 10))
    for other in (some.steps(5, 10, 10), some.steps(6, 9, 10)):
        assert 0.02 < (drawn == other).mean() < 0.3      # a tenth by chance


def test_every_pair_of_distant_clusters_meets_as_often_as_chance_has_it():
    """Over 2,000 epochs of 5 steps a pair shares a step in 1 of 5; four standard deviations are 0.036."""
    some, together = clusters(30), np.zeros((30, 30))
    for epoch in range(2000):
        step = some.steps(0, epoch, 5)
        together += step[:, None] == step[None, :]
    far = together[0, 12:25] / 2000
    assert np.abs(far - 0.2).max() < 0.036


def test_more_steps_than_clusters_are_refused_with_the_number_that_can_be_had():
    clusters(6).check(6)
    with pytest.raises(ConfigError, match="this graph has 6; choose at most 6 for --steps"):
        clusters(6).check(7)


@pytest.mark.parametrize("num_nodes, num_clusters, expected", [
    (0, 0, 1), (1_000, 8, 1), (2_708, 22, 2), (13_752, 108, 13), (20_000, 157, 16), (32_768, 256, 16),
    (40_000, 313, 19), (169_343, 1_323, 82), (169_343, 40, 10), (3_000, 7, 1)])
def test_steps_begin_with_2048_rows_or_on_a_small_graph_with_1024_and_with_four_clusters(num_nodes, num_clusters,
                                                                                         expected):
    assert first_steps(num_nodes, num_clusters) == expected


def test_arcs_inside_a_cluster_are_counted():
    """Row 0 reads 1 and 3, row 1 nothing, row 2 itself, 0 and 4; rows 3 and 4 are of other ranks."""
    indptr, indices = np.array([0, 2, 2, 5]), np.array([1, 3, 2, 0, 4], np.int32)
    assert count_inside(indptr, indices, np.array([7, 7, 8, 7, 8])) == 4      # all but that from 2 to 0
    assert count_inside(indptr, indices, np.arange(5)) == 1
    assert count_inside(np.array([0]), np.empty(0, np.int32), np.array([7])) == 0


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("model, steps", [("sage", "4"), ("gcn", "auto"), ("sage", "auto")])
def test_any_number_of_ranks_has_the_losses_of_one_on_shards_as_preprocess_makes_them(shared_path, monkeypatch,
                                                                                         model, steps):
    """Partitions differ, and the order of rows; the clusters are those of the whole graph."""
    monkeypatch.setattr("hpcgnn.steps.clusters.ROWS_A_STEP", 400)
    dataset = easy_graph(1, "synthetic:nodes=2000,mean_degree=8,classes=4,features=12,signal=2")
    settings = {"model": model, "layers": 3, "hidden": 8, "dropout": 0.5, "epochs": 3, "steps": steps, "lr": 0.008}
    shards = on_rank_zero(COMM, lambda: as_preprocessed(dataset, shared_path / "shards", COMM.size))
    summary, metrics, _ = train(COMM, shards, shared_path / "run", **settings)
    alone = on_rank_zero(COMM, lambda: as_preprocessed(dataset, shared_path / "alone", 1, "none"))
    expected = on_rank_zero(COMM, lambda: train(MPI.COMM_SELF, alone, shared_path / "serial", **settings)[:2])
    np.testing.assert_allclose(losses(metrics), losses(expected[1]), rtol=1e-5)
    dealt = [[(line["num_steps"], line["by_row"]) for line in lines] for lines in (metrics, expected[1])]
    assert dealt[0] == dealt[1] and dealt[0][0][0] > 1
    assert summary["val_score"] == pytest.approx(expected[0]["val_score"], abs=0.006)      # two nodes of 400


def as_preprocessed(dataset, folder, parts, reorder="nested"):
    """Shards by the defaults of hpcgnn preprocess, clusters included."""
    make_shards(dataset, folder, Making(parts, reorder=reorder), "test", {})
    return folder


def test_shards_without_clusters_are_said_to_have_other_steps_on_other_numbers_of_ranks(tmp_path):
    with_clusters = as_preprocessed(easy_graph(), tmp_path / "with", 1)
    without = write(easy_graph(), np.zeros(240, np.int32), 1, tmp_path / "without")

    def remarks(shards, steps):
        return Session.open(MPI.COMM_SELF, shards, TrainConfig.of(**{**SMALL, "steps": steps})).remarks

    assert OWN_CLUSTERS in remarks(without, "2") and OWN_CLUSTERS in remarks(without, "auto")
    assert OWN_CLUSTERS not in (*remarks(without, "rows:2"), *remarks(without, "1"), *remarks(with_clusters, "2"))
