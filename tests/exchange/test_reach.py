"""Hops to the loss on 1 to 4 ranks against a walk over the whole graph, and the order that follows from them."""

from dataclasses import replace

import numpy as np
import pytest
from exchange.peers import by_rank
from mpi4py import MPI

from hpcgnn.exchange import reach as reach_of_rows
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.reach import Reach, edge_blocks, nearest_first, reorder

NUM_HOPS = 3


@pytest.fixture(autouse=True)
def few_edges_at_once(monkeypatch):
    """Blocks of one and of several rows."""
    monkeypatch.setattr(reach_of_rows, "EDGES_AT_ONCE", 7)


def test_blocks_of_edges_are_whole_rows_in_order():
    found = list(edge_blocks(np.array([0, 3, 3, 7, 20, 20, 22])))      # degrees 3, 0, 4, 13, 0, 2
    assert [(rows.start, rows.stop, edges.start, edges.stop) for rows, edges in found] == [
        (0, 3, 0, 7), (3, 4, 7, 20), (4, 6, 20, 22)]
    assert not list(edge_blocks(np.zeros(1, np.int64)))


def hops_to_loss(dataset):
    """(num_nodes,) fewest arcs from each node to a training node, NUM_HOPS + 1 where more."""
    hops = np.where(dataset.train_mask, 0, NUM_HOPS + 1)
    target = np.repeat(np.arange(dataset.num_nodes), dataset.in_degree())
    for _ in range(NUM_HOPS):
        np.minimum.at(hops, dataset.indices, hops[target] + 1)
    return np.minimum(hops, NUM_HOPS + 1)


def few_training_nodes(pieces):
    """Nodes 0 and 7 train, whatever the dataset says."""
    pieces.dataset.train_mask[:] = False
    pieces.dataset.train_mask[[0, 7]] = True
    for part in pieces.parts:
        part.train_mask[:] = pieces.dataset.train_mask[part.inner_id]
    return pieces


@pytest.mark.parallel([1, 2, 3, 4])
def test_hops_equal_those_of_a_walk_over_the_whole_graph(cut, shape):
    comm = MPI.COMM_WORLD
    pieces = few_training_nodes(cut(shape, comm.size))
    part = pieces.parts[comm.rank]
    plan, expected = ExchangePlan.build(part), hops_to_loss(pieces.dataset)
    reach = Reach.measure(comm, part, plan, NUM_HOPS)
    np.testing.assert_array_equal(reach.inner, expected[part.inner_id])
    assert len(set(expected)) > 2
    target = part.inner_id[np.repeat(np.arange(part.num_inner), np.diff(part.indptr))]
    for row, hops in enumerate(reach.halo):
        through = expected[target[part.indices == part.num_inner + row]]
        assert hops == min(through.min() + 1, NUM_HOPS + 1)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("hops", [1, 2, 3])
def test_sender_and_receiver_leave_out_the_same_rows(cut, shape, hops):
    comm = MPI.COMM_WORLD
    pieces = few_training_nodes(cut(shape, comm.size))
    plan = ExchangePlan.build(pieces.parts[comm.rank])
    reach = Reach.measure(comm, pieces.parts[comm.rank], plan, NUM_HOPS)
    fewer = reach.plan_within(plan, hops)
    everywhere = comm.allgather([[rows.node_id for rows in by_rank(plan, lists)]
                                 for lists in (fewer.boundary, fewer.halo)])
    for sender, (boundary, _) in enumerate(everywhere):
        for receiver, (_, halo) in enumerate(everywhere):
            np.testing.assert_array_equal(boundary[receiver], halo[sender])
    needed = np.concatenate([rows.index for rows in fewer.halo])
    np.testing.assert_array_equal(np.sort(needed), np.flatnonzero(reach.halo <= hops))


@pytest.mark.parametrize("num_parts", [1, 3])
def test_reordered_rows_are_the_same_graph(cut, shape, num_parts):
    for part in cut(shape, num_parts).parts:
        order = np.random.default_rng(0).permutation(part.num_inner)
        assert reorder(part, order).cluster is None
        part = replace(part, cluster=part.inner_id.astype(np.int32) // 3)
        moved = reorder(part, order)
        np.testing.assert_array_equal(moved.cluster, part.cluster[order])
        np.testing.assert_array_equal(moved.inner_id, part.inner_id[order])
        np.testing.assert_array_equal(moved.features, part.features[order])
        np.testing.assert_array_equal(moved.in_degree[part.num_inner:], part.in_degree[part.num_inner:])
        np.testing.assert_array_equal(moved.importance[:part.num_inner], part.importance[:part.num_inner][order])
        np.testing.assert_array_equal(moved.importance[part.num_inner:], part.importance[part.num_inner:])
        np.testing.assert_array_equal(moved.inner_id[moved.boundary_index], part.inner_id[part.boundary_index])
        ids, moved_ids = (piece.node_id for piece in (part, moved))
        for new, old in enumerate(order):
            found = moved_ids[moved.indices[moved.indptr[new]:moved.indptr[new + 1]]]
            np.testing.assert_array_equal(found, ids[part.indices[part.indptr[old]:part.indptr[old + 1]]])


@pytest.mark.parallel([1, 2, 3])
def test_rows_within_each_reach_come_first(cut):
    comm = MPI.COMM_WORLD
    pieces = few_training_nodes(cut("directed", comm.size))
    part = pieces.parts[comm.rank]
    part, reach = nearest_first(part, Reach.measure(comm, part, ExchangePlan.build(part), NUM_HOPS))
    assert (np.diff(reach.inner) >= 0).all()
    assert part.train_mask[:reach.num_within[0]].all() and not part.train_mask[reach.num_within[0]:].any()
    for hops, count in enumerate(reach.num_within):
        assert (reach.inner[:count] <= hops).all() and (reach.inner[count:] > hops).all()
