"""Adjacency with stored self-loops: every entry by destination and by source, once."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from hpcgnn.graph.reductions import build_adjacency, store_self_loops


def random_part(num_inner, num_rows, seed=0, density=0.3):
    """CSR of inner rows, some with a self-loop already, some empty."""
    arcs = scipy.sparse.csr_matrix(np.random.default_rng(seed).random((num_inner, num_rows)) < density)
    return arcs.indptr.astype(np.int64), arcs.indices.astype(np.int32)


def entries_of(matrix):
    """Set of (row, column), and whether none is there twice."""
    rows = np.repeat(np.arange(matrix.num_rows), matrix.end - matrix.begin)
    found = set(zip(rows.tolist(), matrix.indices.tolist(), strict=True))
    assert len(found) == len(matrix.indices)
    return found


@pytest.mark.parametrize("with_self", [True, False])
@pytest.mark.parametrize("num_inner, num_rows", [(0, 0), (0, 4), (1, 1), (7, 7), (12, 20), (300, 450)])
def test_both_orders_hold_the_same_entries(num_inner, num_rows, with_self):
    indptr, indices = random_part(num_inner, num_rows)
    matrix, transposed, entry_index = build_adjacency(indptr, indices, num_rows, with_self)
    target = np.repeat(np.arange(num_inner), np.diff(indptr)).tolist()
    expected = set(zip(target, indices.tolist(), strict=True)) | {(v, v) for v in range(num_inner) if with_self}
    assert entries_of(matrix) == expected
    assert entries_of(transposed) == {(u, v) for v, u in expected}
    assert (matrix.num_rows, matrix.num_columns) == (transposed.num_columns, transposed.num_rows)
    assert (matrix.num_rows, matrix.num_columns) == (num_inner, num_rows)

    assert entry_index.dtype == np.int64
    row_of_entry = np.repeat(np.arange(num_inner), matrix.end - matrix.begin)
    source = np.repeat(np.arange(num_rows), transposed.end - transposed.begin)
    np.testing.assert_array_equal(row_of_entry[entry_index], transposed.indices)
    np.testing.assert_array_equal(matrix.indices[entry_index], source)


def test_destinations_ascend_within_a_source():
    _, transposed, _ = build_adjacency(*random_part(50, 80), 80)
    for begin, end in zip(transposed.begin, transposed.end, strict=True):
        assert (np.diff(transposed.indices[begin:end]) > 0).all()


def test_a_self_loop_comes_first_and_others_keep_their_order():
    indptr, indices = store_self_loops(np.array([0, 3, 3, 5]), np.array([2, 0, 1, 4, 2], np.int32))
    assert indptr.tolist() == [0, 3, 4, 6]
    assert indices.tolist() == [0, 2, 1, 1, 2, 4]
    assert indptr.dtype == np.int64 and indices.dtype == np.int32
