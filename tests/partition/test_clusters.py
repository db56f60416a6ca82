"""cluster_nodes: clusters of the whole graph are of about the size asked for, seeded, and cut few arcs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from reference_partition import random_dataset

from hpcgnn.errors import ConfigError
from hpcgnn.partition import clusters
from hpcgnn.partition.clusters import cluster_nodes


@pytest.mark.parametrize("few", [0, 128])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("cluster_rows", [16, 50, 100])
def test_clusters_have_about_as_many_nodes_as_asked_for(monkeypatch, directed, cluster_rows, few):
    monkeypatch.setattr(clusters, "FEW_CLUSTERS", few)
    dataset = random_dataset(2000, 8000, seed=1, directed=directed)
    cluster = cluster_nodes(dataset, cluster_rows)
    assert cluster.dtype == np.int32 and cluster.shape == (2000,)
    size = np.bincount(cluster)
    assert len(size) == -(-2000 // cluster_rows)
    assert 0.8 * cluster_rows <= size.min() <= size.max() <= 1.2 * cluster_rows


@pytest.mark.parametrize("cluster_rows", [1, 2, 3])
def test_the_smallest_clusters_leave_no_number_out(cluster_rows):
    cluster = cluster_nodes(random_dataset(200, 600, seed=2), cluster_rows)
    assert np.bincount(cluster).min() >= 1 and cluster.max() < -(-200 // cluster_rows)


def test_the_seed_alone_decides():
    dataset = random_dataset(2000, 8000, seed=3)
    np.testing.assert_array_equal(cluster_nodes(dataset, 100, seed=4), cluster_nodes(dataset, 100, seed=4))
    assert (cluster_nodes(dataset, 100, seed=4) != cluster_nodes(dataset, 100, seed=5)).any()


def test_a_directed_graph_has_the_clusters_of_its_undirected_one(grid):
    both = grid(12, shuffle_seed=1)
    target = np.repeat(np.arange(both.num_nodes), np.diff(both.indptr))
    is_kept = both.indices < target
    one_way = replace(both, indices=both.indices[is_kept], indptr=np.concatenate(
        [[0], np.cumsum(np.bincount(target[is_kept], minlength=both.num_nodes))]))
    np.testing.assert_array_equal(cluster_nodes(one_way, 12), cluster_nodes(both, 12))


def test_clusters_of_a_shuffled_grid_cut_few_arcs_and_neighbors_have_near_numbers(grid):
    dataset = grid(32, shuffle_seed=5)
    cluster = cluster_nodes(dataset, 16)
    target = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    here, there = cluster[target], cluster[dataset.indices]
    # A square of 16 nodes has 16 of its 64 arcs out; 48 clusters more or less apart is what chance gives two of 64.
    assert (here != there).mean() < 0.4
    shuffled = np.random.default_rng(0).permutation(64)
    assert np.abs(here - there).mean() < 0.7 * np.abs(shuffled[here] - shuffled[there]).mean()


def test_without_arcs_clusters_are_blocks_of_ids():
    cluster = cluster_nodes(random_dataset(50, 0), 8)
    assert (np.diff(cluster) >= 0).all() and sorted(set(np.bincount(cluster))) == [7, 8] and cluster.max() == 6


@pytest.mark.parametrize("num_nodes, cluster_rows", [(1, 1), (1, 100), (40, 40), (40, 1000)])
def test_a_graph_no_larger_than_a_cluster_is_one(num_nodes, cluster_rows):
    assert cluster_nodes(random_dataset(num_nodes, 60), cluster_rows).tolist() == [0] * num_nodes


@pytest.mark.parametrize("cluster_rows", [0, -1])
def test_clusters_of_no_node_are_refused(cluster_rows):
    with pytest.raises(ConfigError, match=f"cluster_rows is {cluster_rows}; expected at least 1, or 0 for no clusters"):
        cluster_nodes(random_dataset(20, 40), cluster_rows)


@pytest.mark.parametrize("few, tool", [(128, "metis_parts"), (3, "kaminpar_parts")])
def test_where_a_tool_gives_up_the_remedy_is_to_do_without(monkeypatch, few, tool):
    def give_up(*arguments, advice, **settings):
        raise ConfigError(f"it could not partition; {advice}")

    monkeypatch.setattr(clusters, "FEW_CLUSTERS", few)
    monkeypatch.setattr(clusters, tool, give_up)
    with pytest.raises(ConfigError, match="use --cluster-rows 0"):
        cluster_nodes(random_dataset(20, 40), 5)
