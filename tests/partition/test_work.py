"""What a node costs a training: the layers that compute it, with its edges; and parts that have equally much of it."""

from dataclasses import replace

import numpy as np
import pytest
from reference_partition import random_dataset

from hpcgnn.partition.choices import EDGES_A_NODE, EPOCHS_AN_EVALUATION
from hpcgnn.partition.owner import assign_owners, choose_owners
from hpcgnn.partition.work import (
    MOST_WEIGHT,
    PASSES,
    TrainingWork,
    hops_to_loss,
    layers_of_rows,
    training_weight,
    work_of_parts,
)
from hpcgnn.planning.loads import count_loads

NUM_PARTS = 4


def few_trained(share=0.3, num_nodes=1200, seed=2):
    """A graph of which only nodes of the first few ids are trained on, which lie close."""
    dataset = random_dataset(num_nodes, 4000, seed=seed)
    mask = np.zeros(num_nodes, bool)
    mask[:int(share * num_nodes)] = True
    return replace(dataset, train_mask=mask, val_mask=~mask, test_mask=np.zeros(num_nodes, bool)).check()


def test_the_last_layer_computes_the_rows_of_the_loss_and_the_one_before_those_beside_them():
    assert layers_of_rows(np.array([0, 1, 2, 3, 4]), 3).tolist() == [3, 2, 1, 0, 0]


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_work_is_what_a_plan_counts_layer_by_layer(num_layers):
    dataset = few_trained(share=0.02)
    hops = hops_to_loss(dataset.indptr, dataset.indices, dataset.train_mask, num_layers)
    owner = np.random.default_rng(0).integers(0, NUM_PARTS, dataset.num_nodes).astype(np.int32)
    loads = count_loads(dataset.indptr, dataset.indices, dataset.train_mask, owner, NUM_PARTS, num_layers)
    expected = (EDGES_A_NODE * loads.rows_within + loads.arcs_within)[:, :num_layers].sum(axis=1)
    found = work_of_parts(dataset.in_degree(), hops, num_layers, owner, NUM_PARTS)
    np.testing.assert_array_equal(found, expected)
    assert np.ptp(found) > 0


def test_rows_that_no_layer_of_training_computes_cost_their_evaluations():
    in_degree = np.array([6, 6, 6, 16])
    weight = training_weight(in_degree, np.array([0, 1, 2, 2]), 2)
    work = EDGES_A_NODE + 6
    once = PASSES * EPOCHS_AN_EVALUATION
    assert weight.tolist() == [(2 * once + 2) * work, (once + 2) * work, 2 * work, 2 * (EDGES_A_NODE + 16)]
    np.testing.assert_array_equal(training_weight(in_degree, np.array([0, 1, 2, 2]), 2, np.array([2, 1, 1, 1])),
                                  weight * [2, 1, 1, 1])


def test_weights_of_a_huge_graph_fit_a_partitioner():
    weight = training_weight(np.full(3_000_000, 100, np.int64), np.zeros(3_000_000, np.int32), 3)
    assert 0.9 * MOST_WEIGHT < weight.sum() <= MOST_WEIGHT and weight.min() >= 1


@pytest.mark.parametrize("partitioner", ["kaminpar", "metis"])
def test_parts_have_equally_much_of_the_training(grid, partitioner):
    dataset, uneven = grid(36), {}
    dataset = replace(dataset, train_mask=np.arange(dataset.num_nodes) < 400)      # the first rows of the grid
    hops = hops_to_loss(dataset.indptr, dataset.indices, dataset.train_mask, 1)
    weight = training_weight(dataset.in_degree(), hops, 1)
    for balance in ("both", "training"):
        owner, _ = choose_owners(dataset, NUM_PARTS, partitioner, balance=balance, work=TrainingWork(1))
        work = work_of_parts(dataset.in_degree(), hops, 1, owner, NUM_PARTS)
        uneven[balance] = work.max() / work.mean()
    assert uneven["training"] < 1.25 and uneven["both"] > 1.5
    load = np.bincount(owner, weight, minlength=NUM_PARTS)
    assert load.max() < 1.06 * load.mean()      # with its evaluations


def test_three_layers_are_meant_where_nobody_says():
    dataset = few_trained(share=0.02)
    np.testing.assert_array_equal(assign_owners(dataset, NUM_PARTS, balance="training"),
                                  choose_owners(dataset, NUM_PARTS, balance="training", work=TrainingWork(3))[0])


def test_nodes_of_a_part_that_took_twice_as_long_for_its_work_weigh_twice_as_much():
    dataset = few_trained()
    owner = (np.arange(dataset.num_nodes) % 4 > 0).astype(np.int32)      # part 1 has three times the work of part 0
    plain = TrainingWork(2).weight(dataset)
    work = work_of_parts(dataset.in_degree(), hops_to_loss(dataset.indptr, dataset.indices, dataset.train_mask, 2), 2,
                         owner, 2)
    weight = TrainingWork(2, owner, tuple(work * [0.5, 1.0])).weight(dataset)
    ratio = weight / plain
    np.testing.assert_allclose(ratio[owner == 1] / ratio[owner == 0][0], 2.0, rtol=0.01)
    np.testing.assert_allclose(TrainingWork(2, owner, tuple(work)).weight(dataset), plain, rtol=0.01)


def test_a_part_without_work_says_nothing_of_its_nodes():
    dataset = few_trained(share=0.1)
    dataset = replace(dataset, indptr=np.zeros_like(dataset.indptr), indices=dataset.indices[:0])
    owner = (np.arange(dataset.num_nodes) >= 600).astype(np.int32)      # part 1 has no node to train on
    weight = TrainingWork(1, owner, (1.0, 0.001)).weight(dataset)
    assert set(weight[owner == 1]) == {EDGES_A_NODE}
