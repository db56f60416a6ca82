"""Batches cut out of a part: rows, what they read, and the arcs into them, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from hpcgnn.graph.batch import BatchCutter, order_rows


def part(num_inner=30, num_rows=44, num_arcs=200, seed=0):
    rng = np.random.default_rng(seed)
    pairs = sorted(set(zip(rng.integers(0, num_inner, num_arcs).tolist(), rng.integers(0, num_rows, num_arcs).tolist(),
                           strict=True)))
    degree = np.bincount([target for target, _ in pairs], minlength=num_inner)
    indptr = np.concatenate([[0], np.cumsum(degree)]).astype(np.int64)
    return indptr, np.array([source for _, source in pairs], np.int32)


@pytest.mark.parametrize("rows, fresh", [(range(0, 30, 3), (31, 40)), (range(30), range(30, 44)), ((), (35,)),
                                         ((7,), ()), ((), ())])
@pytest.mark.parametrize("reads_only", [False, True])
def test_a_batch_has_the_arcs_into_its_rows(rows, fresh, reads_only):
    indptr, indices = part()
    rows, fresh = np.array(rows, np.int64), np.array(fresh, np.int64)
    batch = BatchCutter(indptr, indices, 44).cut(rows, fresh, reads_only=reads_only)
    local = np.concatenate([batch.rows, batch.far])
    assert np.array_equal(batch.rows, rows) and np.array_equal(batch.fresh_halo, fresh)
    for number, row in enumerate(rows):
        arcs = slice(batch.indptr[number], batch.indptr[number + 1])
        assert np.array_equal(local[batch.indices[arcs]], indices[indptr[row]:indptr[row + 1]])
        assert np.array_equal(batch.arc[arcs], np.arange(indptr[row], indptr[row + 1]))
    read = set(indices[batch.arc].tolist()) - set(fresh.tolist())
    if reads_only:
        assert (batch.indices >= len(rows)).all()
    else:
        read -= set(rows.tolist())
    assert sorted(batch.far[batch.num_fresh:]) == sorted(read)
    assert batch.indices.dtype == np.int32 and batch.indptr.dtype == np.int64


def test_one_cutter_cuts_many_batches():
    indptr, indices = part()
    cutter, nothing = BatchCutter(indptr, indices, 44), np.empty(0, np.int64)
    for seed in range(5):
        rows = np.flatnonzero(np.random.default_rng(seed).random(30) < 0.4)
        again = BatchCutter(indptr, indices, 44).cut(rows, nothing)
        batch = cutter.cut(rows, nothing)
        assert np.array_equal(batch.indices, again.indices) and np.array_equal(batch.far, again.far)


def hops_inside(indptr, indices, rows, sources, num_hops):
    """Fewest arcs inside the batch from each row to one of `sources`, by a plain walk; at most num_hops + 1."""
    readers = {row: [] for row in rows}
    for target in rows:
        for source in indices[indptr[target]:indptr[target + 1]]:
            if source in readers:
                readers[source].append(target)
    found = {}
    for row in rows:
        seen, front, length = {row}, {row}, 0
        while front and not front & sources and length <= num_hops:
            front = {reader for near in front for reader in readers[near]} - seen
            seen, length = seen | front, length + 1
        found[row] = length if front & sources else num_hops + 1
    return found


@pytest.mark.parametrize("few_arcs", [False, True])
@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.4, 1.0])
def test_rows_come_first_that_a_gradient_can_reach(share, is_shared, few_arcs):
    """A row that other ranks read may get a gradient from one of theirs, one arc from the loss where that can be."""
    num_hops = 3
    for seed in range(20):
        indptr, indices = part(num_arcs=70, seed=seed)
        rng = np.random.default_rng(seed)
        rows = np.flatnonzero(rng.random(30) < share)
        whole = hops_inside(indptr, indices, range(30), set(range(8)), num_hops)
        hops = np.array([whole[row] for row in range(30)])
        order = np.argsort(hops, kind="stable")          # hops ascend in a part
        place = np.append(np.argsort(order), np.arange(30, 44))
        degree = np.diff(indptr)[order]
        sources = [place[indices[indptr[row]:indptr[row + 1]]] for row in order]
        indptr, indices, hops = np.append(0, np.cumsum(degree)), np.concatenate(sources).astype(np.int32), hops[order]
        shared = rng.random(30) < 0.2
        within = [int((hops <= reach).sum()) for reach in range(num_hops + 1)]
        cutter = BatchCutter(indptr, indices, 44, within, shared if is_shared else None)
        batch = cutter.cut(rows, np.empty(0, np.int64), few_arcs)

        assert sorted(batch.rows) == rows.tolist()
        inside = hops_inside(indptr, indices, rows.tolist(), set(range(8)), num_hops)
        level = {row: hops_of for row, hops_of in inside.items()}
        if is_shared:
            for reader in rows[shared[rows]]:
                to_reader = hops_inside(indptr, indices, rows.tolist(), {reader}, num_hops)
                for row in rows.tolist():
                    level[row] = min(level[row], max(1, hops[reader]) + to_reader[row])
        for reach in range(num_hops + 1):
            reached = {row for row in rows.tolist() if level[row] <= reach}
            needed = set(rows[hops[rows] <= reach].tolist())
            computed = batch.rows[:batch.prefixes.num_within[reach]].tolist()
            for counts, wanted, is_exact in ((batch.prefixes.num_back, reached, few_arcs),
                                             (batch.prefixes.num_within, needed, not few_arcs)):
                first = set(batch.rows[:counts[reach]].tolist())
                assert first == wanted if is_exact else first >= wanted
                assert first <= set(computed)
                if reach:
                    read = batch.indices[:batch.indptr[counts[reach - 1]]]
                    assert (read[read < len(rows)] < counts[reach]).all()
        assert batch.prefixes.num_within[0] == batch.prefixes.num_back[0] == int((rows < 8).sum())


def test_what_a_row_reads_is_computed_where_the_row_is():
    """0 reads 1, 1 reads 2, and 2 reads 3 and 4. Row 3 reaches the loss in one hop, by a row outside the batch, and
    lies behind 2, which is computed for it; so 4 is computed too.
    """
    hops, source, target = np.array([0, 1, 2, 1, 3]), np.array([1, 2, 3, 4]), np.array([0, 1, 2, 2])
    order, prefixes = order_rows(hops, source, target, None, 3, few_arcs=True)
    assert order.tolist() == [0, 1, 2, 3, 4] and prefixes.num_back == [1, 2, 3, 5]
    assert prefixes.num_within == [1, 4, 5, 5]


def test_all_rows_are_as_they_lie_where_no_reach_is_known():
    indptr, indices = part()
    batch = BatchCutter(indptr, indices, 44).cut(np.arange(5, 20), np.empty(0, np.int64))
    assert batch.rows.tolist() == list(range(5, 20)) and batch.prefixes is None
