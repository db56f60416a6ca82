"""Subgraphs are those of the reordering, and METIS runs once for each."""

from collections import OrderedDict

import numpy as np
import pytest

from hpcgnn.accelerators import subgraphs as module
from hpcgnn.accelerators.subgraphs import arcs_of, blocks_of, subgraphs_of
from hpcgnn.errors import ConfigError
from hpcgnn.partition.condense import lay_out
from hpcgnn.partition.order import cluster_rows


def random_graph(num_nodes, num_arcs, seed=0):
    rng = np.random.default_rng(seed)
    pairs = np.unique(rng.integers(0, num_nodes, (num_arcs, 2)), axis=0)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(pairs[:, 0], minlength=num_nodes))])
    return indptr.astype(np.int64), pairs[:, 1].astype(np.int32)


def test_subgraphs_are_those_of_the_reordering():
    indptr, indices = random_graph(300, 1200)
    found = subgraphs_of(indptr, indices, 40, seed=3)
    arcs = arcs_of(indptr, indices)
    order, rows = lay_out(arcs, cluster_rows(arcs, 40, 3, "graph"))
    assert np.array_equal(found.order, order)
    for name in ("start", "indptr", "indices"):
        assert np.array_equal(getattr(found.rows, name), getattr(rows, name))


@pytest.mark.parametrize("cut", [subgraphs_of, blocks_of])
def test_every_arc_is_found_again_between_the_nodes_it_came_from(cut):
    indptr, indices = random_graph(200, 900)
    found = cut(indptr, indices, 30)
    node = np.repeat(np.arange(200), np.diff(indptr))
    row = np.repeat(np.arange(200), np.diff(found.rows.indptr))
    before, after = node * 200 + indices, found.order[row] * 200 + found.order[found.rows.indices]
    assert np.array_equal(np.sort(before), np.sort(after))
    assert found.rows.start[0] == 0 and found.rows.start[-1] == 200


def test_a_partition_is_made_once(monkeypatch):
    calls = []
    monkeypatch.setattr(module, "cluster_rows", lambda *asked: calls.append(asked) or cluster_rows(*asked))
    monkeypatch.setattr(module, "KEPT", OrderedDict())
    monkeypatch.setattr(module, "MOST_KEPT", 2)
    graph, other = random_graph(100, 300), random_graph(100, 300, seed=1)
    asked = [(graph, 20), (graph, 20), (other, 20), (graph, 20), (graph, 30), (graph, 20), (other, 20)]
    num_calls = [subgraphs_of(*of, num_rows) and len(calls) for of, num_rows in asked]
    assert num_calls == [1, 1, 2, 2, 3, 3, 4] and len(module.KEPT) == 2


@pytest.mark.parametrize("cut", [subgraphs_of, blocks_of])
def test_one_node_without_arcs_is_one_subgraph_of_a_row_at_least(cut):
    found = cut(np.zeros(2, np.int64), np.empty(0, np.int32), 5)
    assert found.rows.num_clusters == 1 and found.rows.start.tolist() == [0, 1]
    with pytest.raises(ConfigError, match="at least one"):
        cut(np.zeros(2, np.int64), np.empty(0, np.int32), 0)
