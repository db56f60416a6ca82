"""Batches cut out of a part: rows, what they read, and the arcs into them, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from hpcgnn.graph.batch import BatchCutter


def part(num_inner=30, num_rows=44, num_arcs=200, seed=0):
    rng = np.random.default_rng(seed)
    pairs = sorted(set(zip(rng.integers(0, num_inner, num_arcs).tolist(), rng.integers(0, num_rows, num_arcs).tolist(),
                           strict=True)))
    degree = np.bincount([target for target, _ in pairs], minlength=num_inner)
    indptr = np.concatenate([[0], np.cumsum(degree)]).astype(np.int64)
    return indptr, np.array([source for _, source in pairs], np.int32)


@pytest.mark.parametrize("rows, fresh", [(range(0, 30, 3), (31, 40)), (range(30), range(30, 44)), ((), (35,)),
                                         ((7,), ()), ((), ())])
def test_a_batch_has_the_arcs_into_its_rows(rows, fresh):
    indptr, indices = part()
    rows, fresh = np.array(rows, np.int64), np.array(fresh, np.int64)
    batch = BatchCutter(indptr, indices, 44).cut(rows, fresh)
    local = np.concatenate([batch.rows, batch.far])
    assert np.array_equal(batch.rows, rows) and np.array_equal(batch.fresh_halo, fresh)
    for number, row in enumerate(rows):
        arcs = slice(batch.indptr[number], batch.indptr[number + 1])
        assert np.array_equal(local[batch.indices[arcs]], indices[indptr[row]:indptr[row + 1]])
        assert np.array_equal(batch.arc[arcs], np.arange(indptr[row], indptr[row + 1]))
    read = set(indices[batch.arc].tolist()) - set(rows.tolist()) - set(fresh.tolist())
    assert batch.far[batch.num_fresh:].tolist() == sorted(read)
    assert batch.indices.dtype == np.int32 and batch.indptr.dtype == np.int64


def test_one_cutter_cuts_many_batches():
    indptr, indices = part()
    cutter, nothing = BatchCutter(indptr, indices, 44), np.empty(0, np.int64)
    for seed in range(5):
        rows = np.flatnonzero(np.random.default_rng(seed).random(30) < 0.4)
        again = BatchCutter(indptr, indices, 44).cut(rows, nothing)
        batch = cutter.cut(rows, nothing)
        assert np.array_equal(batch.indices, again.indices) and np.array_equal(batch.far, again.far)
