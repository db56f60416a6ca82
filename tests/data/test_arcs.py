"""Arcs that are sorted in many buckets, from chunks and from a file, give the graph that sets of Python give."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcgnn.data import arcs as sorting
from hpcgnn.data.arcs import RowsOfEntries, sort_arcs
from hpcgnn.data.labels import made_labels
from hpcgnn.data.options import ProgressTask
from hpcgnn.errors import DatasetError

NUM_NODES = 6
ARCS = st.lists(st.tuples(st.integers(0, NUM_NODES - 1), st.integers(0, NUM_NODES - 1)), max_size=60)


@pytest.fixture(scope="module")
def in_small_pieces():
    """Chunks of 3 arcs, buckets of about 2, groups of 2 rows, and more than 16 bytes go to a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorting, "ARCS_A_CHUNK", 3)
        patch.setattr(sorting, "ARCS_A_BUCKET", 2)
        patch.setattr(sorting, "MAX_GROUPS", 4)
        patch.setattr(sorting, "KEPT_BYTES", 16)
        yield


@settings(max_examples=150, deadline=None)
@given(arcs=ARCS, with_reverse=st.booleans(), dtype=st.sampled_from([np.int32, np.int64, np.uint64, np.uint8]))
def test_buckets_equal_sets(arcs, with_reverse, dtype, in_small_pieces, tmp_path_factory):
    table = np.array(arcs, dtype).reshape(-1, 2)
    found = sort_arcs(table[:, 0], table[:, 1], NUM_NODES, with_reverse, tmp_path_factory.getbasetemp(), ProgressTask())
    unique = {arc for arc in arcs if arc[0] != arc[1]}
    expected = unique | {(v, u) for u, v in unique} if with_reverse else unique
    rows = [found.indices[found.indptr[v]:found.indptr[v + 1]].tolist() for v in range(NUM_NODES)]
    assert rows == [sorted(u for u, v in expected if v == row) for row in range(NUM_NODES)]
    assert (found.num_loops, found.num_unique) == (sum(u == v for u, v in arcs), len(unique))
    assert (found.indptr.dtype, found.indices.dtype) == (np.int64, np.int32)


def test_ids_at_the_end_of_32_bits_are_kept():
    last = (1 << 31) - 1
    buckets = sorting.Buckets(sorting.RowCut(np.zeros(2, np.uint16), 0, 1), None)
    buckets.add(np.array([last, last, 5]), np.array([1, 1, 0]))
    keys = buckets.distinct(0)
    assert (keys >> 32).tolist() == [0, 1] and (keys & 0xffffffff).tolist() == [5, last]


def test_a_folder_without_room_for_edges_is_one_sentence(in_small_pieces, tmp_path):
    ends = np.arange(40) % NUM_NODES
    with pytest.raises(DatasetError, match=r"the edges that are sorted can't be kept in .*/gone: No such file"):
        sort_arcs(ends, ends[::-1], NUM_NODES, True, tmp_path / "gone", ProgressTask())


@given(degree=st.lists(st.integers(0, 4), min_size=1, max_size=9), data=st.data())
def test_rows_of_entries_equal_their_expansion_in_any_slice(degree, data):
    indptr = np.append(0, np.cumsum(degree))
    rows, expanded = RowsOfEntries(indptr, int(indptr[-1]), "g"), np.repeat(np.arange(len(degree)), degree)
    start, stop = (data.draw(st.integers(0, len(expanded) + 2)) for _ in range(2))
    np.testing.assert_array_equal(rows[start:stop], expanded[start:stop])
    np.testing.assert_array_equal(np.asarray(rows), expanded)
    assert len(rows) == len(expanded) and rows.dtype == np.int32


@pytest.mark.parametrize("chunk", [1, 5, 1 << 20])
def test_made_labels_rank_by_in_degree_then_by_that_of_the_neighbors(chunk, monkeypatch):
    rng = np.random.default_rng(5)
    matrix = np.triu(rng.random((24, 24)) < 0.2, 1)
    matrix |= matrix.T
    matrix[3] = False
    indptr, indices = np.append(0, np.cumsum(matrix.sum(axis=1))), np.nonzero(matrix)[1].astype(np.int32)
    monkeypatch.setattr("hpcgnn.data.labels.ARCS_A_CHUNK", chunk)
    degree = matrix.sum(axis=1)
    mean = [degree[row].sum() / max(1, row.sum()) for row in matrix]
    order = sorted(range(24), key=lambda v: (degree[v], mean[v], v))
    assert made_labels(indptr, indices, 4, "g")[order].tolist() == [k // 6 for k in range(24)]
