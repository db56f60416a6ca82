"""Sums that travel in the place of their rows: every arc is counted once, and no other choice sends fewer rows."""

from collections import Counter

import numpy as np
import pytest
import scipy.sparse
from mpi4py import MPI
from scipy.sparse.csgraph import maximum_bipartite_matching
from training_setup import arcs_where

from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.pre_aggregation import PreAggregation
from hpcgnn.exchange.reach import Reach
from hpcgnn.partition.build import build_partition

NUM_HOPS = 3
SEVERAL = pytest.mark.parallel([1, 2, 3, 4])


def open_sums(comm, part, has_reach=False):
    """Collective: a part's plan, its reach, and what is summed before it is sent."""
    plan = ExchangePlan.build(part)
    reach = Reach.measure(comm, part, plan, NUM_HOPS) if has_reach else None
    return plan, reach, PreAggregation.build(comm, part, plan, reach)


def rows_sent(part, sums):
    """Of each row that is sent: by receiver and id, the global ids of what it sums."""
    return {(peer, node_id): part.inner_id[sums.source[sums.begin[row]:sums.begin[row + 1]]].tolist()
            for peer, rows in zip(sums.plan.peers, sums.plan.boundary, strict=True)
            for row, node_id in zip(rows.index.tolist(), rows.node_id.tolist(), strict=True)}


@SEVERAL
@pytest.mark.parametrize("has_reach", [False, True], ids=["all rows", "within reach"])
def test_every_arc_is_summed_once(cut, shape, has_reach):
    comm = MPI.COMM_WORLD
    part = cut(shape, comm.size).parts[comm.rank]
    _, _, sums = open_sums(comm, part, has_reach)
    sent = {(rank, *place): ids for rank, of_rank in enumerate(comm.allgather(rows_sent(part, sums)))
            for place, ids in of_rank.items()}
    come = [sent[peer, comm.rank, node_id]
            for peer, rows in zip(sums.plan.peers, sums.plan.halo, strict=True) for node_id in rows.node_id.tolist()]
    assert len(come) == sums.arcs.num_halo == sums.plan.num_halo
    known = part.node_id
    for row in range(part.num_inner):
        expected = Counter(known[part.indices[part.indptr[row]:part.indptr[row + 1]]].tolist())
        found = Counter()
        for column in sums.arcs.indices[sums.arcs.indptr[row]:sums.arcs.indptr[row + 1]].tolist():
            found.update([known[column]] if column < part.num_inner else come[column - part.num_inner])
        assert found == expected
    plain = sums.arcs.halo_row
    assert [part.halo_id[row] for row in plain[plain >= 0]] == [
        ids[0] for ids, row in zip(come, plain, strict=True) if row >= 0]


@SEVERAL
def test_no_pair_can_do_with_fewer_rows(cut, shape):
    comm = MPI.COMM_WORLD
    pieces = cut(shape, comm.size)
    plan, _, sums = open_sums(comm, pieces.parts[comm.rank])
    arcs = scipy.sparse.csr_matrix((np.ones(pieces.dataset.num_edges, bool), pieces.dataset.indices,
                                    pieces.dataset.indptr), shape=2 * [pieces.dataset.num_nodes]).T.tocsr()
    for peer, rows, before in zip(sums.plan.peers, sums.plan.boundary, plan.boundary, strict=True):
        between = arcs[pieces.owner == comm.rank][:, pieces.owner == peer]
        largest = 0 if peer == comm.rank or not between.nnz else int((maximum_bipartite_matching(between) >= 0).sum())
        assert len(rows) == largest <= len(before)
        assert np.all(np.diff(rows.node_id) > 0)      # both sides list them so


@SEVERAL
def test_fewer_rows_are_sent_where_many_go_to_few(cut):
    comm = MPI.COMM_WORLD
    pieces = cut("directed", comm.size)
    kept = {"few": lambda source, target: target % 5 == 0, "all": lambda source, target: target >= 0}
    sent = {}
    for name, keeps in kept.items():
        part = build_partition(arcs_where(pieces.dataset, keeps), pieces.owner, comm.rank, comm.size)
        plan, _, sums = open_sums(comm, part)
        sent[name] = comm.allreduce(np.array([sum(map(len, sums.plan.boundary)), sum(map(len, plan.boundary))]))
    assert comm.size == 1 or sent["few"][0] < sent["few"][1]
    assert sent["all"][0] <= sent["all"][1]


@SEVERAL
def test_what_a_pass_sends_are_the_first_rows_and_all_that_they_sum_is_computed(cut, shape):
    comm = MPI.COMM_WORLD
    part = cut(shape, comm.size).parts[comm.rank]
    _, reach, sums = open_sums(comm, part, has_reach=True)
    assert np.all(np.diff(sums.hops) >= 0)
    for hops in range(NUM_HOPS + 1):
        within = sums.num_within(hops)
        restricted = sums.reach.plan_within(sums.plan, hops)
        sent = np.unique(np.concatenate([rows.index for rows in restricted.boundary]))
        assert sent.tolist() == list(range(within))
        assert np.all(reach.inner[sums.source[:sums.begin[within]]] <= hops)
    assert sums.num_within(None) == sums.num_sent


@SEVERAL
def test_a_sum_is_as_important_as_the_most_important_of_its_rows_on_both_sides(cut, shape):
    comm = MPI.COMM_WORLD
    part = cut(shape, comm.size).parts[comm.rank]
    _, _, sums = open_sums(comm, part)
    sent = sums.importance[:sums.num_sent]
    sources = np.split(sums.source, sums.begin[1:-1]) if sums.num_sent else []
    assert sent.tolist() == [part.importance[rows].max() for rows in sources]
    told = comm.alltoall([sent[dict(zip(sums.plan.peers, sums.plan.boundary, strict=True))[peer].index]
                          if peer in sums.plan.peers else np.empty(0) for peer in range(comm.size)])
    for peer, rows in zip(sums.plan.peers, sums.plan.halo, strict=True):
        np.testing.assert_array_equal(sums.importance[sums.num_sent + rows.index], told[peer])
