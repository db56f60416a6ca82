"""refine_owners: volumes are counted exactly, never rise, and limits of load hold."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from reference_partition import random_dataset

from hpcgnn.partition import refinement
from hpcgnn.partition.metis import symmetric_adjacency
from hpcgnn.partition.refinement import load_limits, refine_owners


def counted(indptr, indices, owner):
    """Volume and cut edges, from their definition."""
    volume = sum(len(set(owner[indices[indptr[v]:indptr[v + 1]]]) - {owner[v]}) for v in range(len(owner)))
    row = np.repeat(np.arange(len(owner)), np.diff(indptr))
    return volume, int((owner[row] != owner[indices]).sum()) // 2


def star_with_ring(num_leaves=60):
    """A hub that everyone touches, its leaves in a ring."""
    near = [set() for _ in range(num_leaves + 1)]
    for v in range(1, num_leaves + 1):
        for u in (0, 1 + v % num_leaves):
            near[v].add(u)
            near[u].add(v)
    return (np.concatenate([[0], np.cumsum([len(row) for row in near])]),
            np.array([u for row in near for u in sorted(row)], np.int32))


GRAPHS = {
    "random": lambda: symmetric_adjacency(random_dataset(300, 1500, seed=1)),
    "sparse": lambda: symmetric_adjacency(random_dataset(400, 300, seed=2)),
    "dense": lambda: symmetric_adjacency(random_dataset(80, 2500, seed=3)),
    "directed": lambda: symmetric_adjacency(random_dataset(200, 900, seed=4, directed=True)),
    "hub": star_with_ring,
    "no edges": lambda: (np.zeros(31, np.int64), np.empty(0, np.int32)),
    "one node": lambda: (np.zeros(2, np.int64), np.empty(0, np.int32)),
}


def start(num_nodes, num_parts, seed=0):
    return np.random.default_rng(seed).permutation(np.arange(num_nodes) % num_parts).astype(np.int32)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("num_parts", [1, 2, 3, 8, 40, 400])
@pytest.mark.parametrize("slack", [(1.03,), (1.03, 1.10), (2.0, 1.5)])
def test_volume_is_exact_and_never_rises_under_limits_that_hold(name, num_parts, slack):
    indptr, indices = GRAPHS[name]()
    num_nodes = len(indptr) - 1
    owner = start(num_nodes, num_parts)
    weight = np.stack([np.ones(num_nodes, np.int64), np.diff(indptr)], axis=1)[:, :len(slack)].copy()
    limit = load_limits(weight, num_parts, slack)
    refined, found = refine_owners(indptr, indices, owner, num_parts, weight, limit)
    assert (found.before.volume, found.before.num_cut_edges) == counted(indptr, indices, owner)
    assert (found.after.volume, found.after.num_cut_edges) == counted(indptr, indices, refined)
    before, after = excess(owner, weight, limit, num_parts), excess(refined, weight, limit, num_parts)
    assert after <= before
    assert after < before or found.after.volume <= found.before.volume
    assert set(np.unique(refined)) == set(np.unique(owner))


def excess(owner, weight, limit, num_parts):
    """Sum of load / limit - 1 of overfull parts; a node heavier than the limit counts as much as the limit."""
    load = np.stack([np.bincount(owner, weights=kind, minlength=num_parts) for kind in np.minimum(weight, limit).T],
                    axis=1)
    return np.maximum(load / limit - 1, 0).sum()


def test_counts_of_balance_are_largest_parts_over_the_mean():
    indptr, indices = GRAPHS["hub"]()
    owner = (np.arange(61) >= 30).astype(np.int32)
    weight = np.ones((61, 1), np.int64)
    before = refine_owners(indptr, indices, owner, 2, weight, load_limits(weight, 2, (1.0,)))[1].before
    assert before.node_imbalance == 31 * 2 / 61
    assert before.edge_imbalance == (60 + 3 * 29) * 2 / len(indices)


def test_volume_of_a_random_start_falls_by_far():
    indptr, indices = GRAPHS["sparse"]()
    weight = np.ones((400, 1), np.int64)
    found = refine_owners(indptr, indices, start(400, 8), 8, weight, load_limits(weight, 8, (1.03,)))[1]
    assert found.after.volume < 0.6 * found.before.volume


@pytest.mark.parametrize("num_parts", [2, 5])
def test_parts_beyond_their_limit_are_relieved(num_parts):
    indptr, indices = GRAPHS["random"]()
    owner = np.zeros(300, np.int32)
    owner[:num_parts] = np.arange(num_parts)
    weight = np.ones((300, 1), np.int64)
    limit = load_limits(weight, num_parts, (1.03,))
    refined, _ = refine_owners(indptr, indices, owner, num_parts, weight, limit)
    assert np.bincount(refined, minlength=num_parts).max() <= limit[0]


def test_two_communities_that_swapped_nodes_are_found_again():
    one, other = (symmetric_adjacency(random_dataset(100, 1500, seed=seed)) for seed in (1, 2))
    indptr = np.concatenate([one[0], len(one[1]) + other[0][1:]])
    indices = np.concatenate([one[1], other[1] + 100]).astype(np.int32)
    owner = np.repeat([0, 1], 100).astype(np.int32)
    owner[[3, 7, 103, 107]] = [1, 1, 0, 0]
    weight = np.ones((200, 1), np.int64)
    refined, found = refine_owners(indptr, indices, owner, 2, weight, load_limits(weight, 2, (1.03,)))
    assert found.after.volume == 0
    np.testing.assert_array_equal(refined, np.repeat([0, 1], 100))


def test_owners_given_are_not_changed():
    indptr, indices = GRAPHS["random"]()
    owner = start(300, 4)
    kept = owner.copy()
    weight = np.ones((300, 1), np.int64)
    refined, _ = refine_owners(indptr, indices, owner, 4, weight, load_limits(weight, 4, (1.03,)))
    np.testing.assert_array_equal(owner, kept)
    assert not np.shares_memory(owner, refined)


def test_volume_that_moves_keep_up_is_that_of_a_new_count():
    indptr, indices = GRAPHS["random"]()
    for freedom in (1.0, 1.5):
        owner, weight = start(300, 7), np.diff(indptr)[:, None].copy()
        limit = (load_limits(weight, 7, (1.05,)) * freedom).astype(np.int64)
        state = refinement._count(indptr, indices, owner, 7, weight, limit)
        for step in (state.lower_volume, state.relieve_parts, state.lower_volume):
            step(5)
            assert (state.volume, state.num_cut_edges) == counted(indptr, indices, owner)


OWNERS = """
import numpy as np
from reference_partition import random_dataset
from hpcgnn.partition.owner import assign_owners
print(assign_owners(random_dataset(2000, 9000, seed=5), 6, "kaminpar", seed=3).tobytes().hex())
"""


@pytest.mark.long
def test_owners_are_the_same_for_any_number_of_threads():
    found = {subprocess.run([sys.executable, "-c", OWNERS], check=True, capture_output=True, text=True,
                            env={**os.environ, "OMP_NUM_THREADS": threads, "PYTHONPATH": os.path.dirname(
                                os.path.dirname(os.path.abspath(__file__)))}).stdout for threads in ("1", "2", "4")}
    assert len(found) == 1 and len(found.pop()) == 2 * 4 * 2000 + 1


def test_limits_leave_room_for_what_does_not_divide_and_none_for_a_heavy_node():
    weight = np.array([[1, 50], [1, 1], [1, 1], [1, 0], [1, 0]])
    np.testing.assert_array_equal(load_limits(weight, 2, (1.0, 1.0)), [3, 26])
    np.testing.assert_array_equal(load_limits(np.zeros((3, 1), np.int64), 2, (1.1,)), [1])


def loads(owner, weight, num_parts):
    return np.bincount(owner, weights=weight, minlength=num_parts)


def test_a_node_heavier_than_a_part_raises_the_load_of_its_own_part_only():
    indptr, indices = star_with_ring(600)
    weight, owner = np.diff(indptr)[:, None].copy(), start(601, 8)     # the hub weighs 600, and a part 300 on average
    refined, _ = refine_owners(indptr, indices, owner, 8, weight, load_limits(weight, 8, (1.03,)))
    load = loads(refined, weight[:, 0], 8)
    assert load[refined[0]] == 600 and (refined == refined[0]).sum() == 1
    assert np.delete(load, refined[0]).max() <= 1.03 * 300


def test_large_nodes_of_one_part_are_spread_where_no_single_move_helps():
    weight = np.array([80, 80] + [1] * 390)[:, None]     # parts weigh 160, 130, 130 and 130, on average 137.5
    owner = np.concatenate([[0, 0], np.arange(390) % 3 + 1]).astype(np.int32)
    refined, _ = refine_owners(np.zeros(393, np.int64), np.empty(0, np.int32), owner, 4, weight,
                               load_limits(weight, 4, (1.03,)))
    assert refined[0] != refined[1]
    assert loads(refined, weight[:, 0], 4).max() <= 1.03 * 137.5


@pytest.mark.parametrize("seed", range(12))
def test_no_part_outweighs_both_the_limit_and_its_heaviest_node(seed):
    random = np.random.default_rng(seed)
    num_nodes, num_parts = int(random.integers(200, 500)), int(random.integers(2, 12))
    weight = random.integers(1, 5, (num_nodes, 1))
    large = random.permutation(num_nodes)[:num_parts // 2]
    weight[large, 0] = (weight.mean() * num_nodes / num_parts * random.uniform(0.3, 4.0, len(large))).astype(np.int64)
    owner = start(num_nodes, num_parts, seed)
    owner[large] = 0
    graph = symmetric_adjacency(random_dataset(num_nodes, int(random.integers(1, 6)) * num_nodes, seed))
    refined, _ = refine_owners(*graph, owner, num_parts, weight, load_limits(weight, num_parts, (1.05,)))
    load, heaviest = loads(refined, weight[:, 0], num_parts), np.zeros(num_parts, np.int64)
    np.maximum.at(heaviest, refined, weight[:, 0])
    assert refined.shape == owner.shape and set(refined) == set(range(num_parts))     # so loads add up to all weights
    assert (load <= np.maximum(heaviest, 1.05 * weight.sum() / num_parts)).all()
