"""Rows, arcs and pairs of parts, against sets in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from reference_partition import random_dataset

from hpcgnn.partition.work import hops_to_loss
from hpcgnn.planning import loads as counting
from hpcgnn.planning.loads import count_loads

HOPS = 3


def arcs_of(dataset):
    target = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    return list(zip(dataset.indices.tolist(), target.tolist(), strict=True))


def slow_hops(dataset, num_hops):
    hops = [0 if trains else num_hops + 1 for trains in dataset.train_mask]
    for _ in range(num_hops):
        for source, target in arcs_of(dataset):
            hops[source] = min(hops[source], hops[target] + 1)
    return [min(number, num_hops + 1) for number in hops]


@pytest.fixture(params=[1 << 23, 7], ids=["one block", "many blocks"])
def graph(request, monkeypatch):
    monkeypatch.setattr(counting, "ARCS_AT_ONCE", request.param)
    dataset = random_dataset(40, 90, seed=3, directed=True)
    dataset.train_mask[:] = np.arange(40) % 9 == 0
    return dataset


def test_hops_are_those_of_a_walk_against_the_arcs(graph):
    hops = hops_to_loss(graph.indptr, graph.indices, graph.train_mask, HOPS)
    assert hops.tolist() == slow_hops(graph, HOPS)
    assert len(set(hops.tolist())) == HOPS + 2


@pytest.mark.parametrize("num_parts", [1, 3, 40])
def test_loads_are_those_of_a_count_by_hand(graph, num_parts):
    owner = np.random.default_rng(1).permutation(40) % num_parts
    hops, arcs = slow_hops(graph, HOPS), arcs_of(graph)
    found = count_loads(graph.indptr, graph.indices, graph.train_mask, owner.astype(np.int32), num_parts, HOPS)
    has_halo = {target for source, target in arcs if owner[source] != owner[target]}
    rows = {(pair, number): 0 for pair in zip(found.pairs.source.tolist(), found.pairs.destination.tolist(),
                                              strict=True) for number in range(HOPS + 1)}
    for part in range(num_parts):
        inner = [node for node in range(40) if owner[node] == part]
        halo = {source for source, target in arcs if owner[target] == part != owner[source]}
        assert (found.num_inner[part], found.num_halo[part]) == (len(inner), len(halo))
        for number in range(HOPS + 1):
            into = [(source, target) for source, target in arcs if owner[target] == part and hops[target] <= number]
            assert found.rows_within[part, number] == sum(hops[node] <= number for node in inner)
            assert found.arcs_within[part, number] == len(into)
            assert found.far_arcs_within[part, number] == sum(owner[source] != part for source, _ in into)
            assert found.central_arcs_within[part, number] == sum(target not in has_halo for _, target in into)
            for source in {source for source, target in into if owner[source] != part and hops[target] < number}:
                rows[(owner[source], part), number] += 1
    expected = [[rows[pair, number] for number in range(HOPS + 1)]
                for pair in zip(found.pairs.source.tolist(), found.pairs.destination.tolist(), strict=True)]
    assert found.pairs.rows_within.tolist() == expected
    assert found.pairs.rows.sum() == found.num_halo.sum()
    assert found.num_edges.sum() == graph.num_edges


def test_nodes_of_nobody_are_sources_only(graph):
    owner = np.where(np.arange(40) < 30, np.arange(40) % 2, -1).astype(np.int32)
    found = count_loads(graph.indptr, graph.indices, graph.train_mask, owner, 2, HOPS)
    assert found.num_inner.tolist() == [15, 15]
    needed = {(source, owner[target]) for source, target in arcs_of(graph) if owner[target] >= 0 > owner[source]}
    assert found.pairs.rows[found.pairs.source == 2].sum() == len(needed) > 0
