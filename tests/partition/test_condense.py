"""Condense-Edge: regions are those of Algorithm 1, serve every sparse connection, and guide the order of rows."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_partition import random_dataset

from hpcgnn.errors import KernelError
from hpcgnn.partition.build import build_partition
from hpcgnn.partition.condense import ClusteredRows, condensed_order, condensed_regions, lay_out


def clustered(sources, sizes):
    """Rows with these lists of sources, in clusters of these sizes."""
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in sources])]).astype(np.int64)
    indices = np.array([u for row in sources for u in row], np.int32)
    return ClusteredRows(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), indptr, indices)


@st.composite
def graphs(draw):
    """Small clustered graphs, with empty clusters, isolated rows and repeated sources."""
    sizes = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    num_rows = sum(sizes)
    row = st.lists(st.integers(0, max(num_rows - 1, 0)), max_size=8)
    return clustered([draw(row) for _ in range(num_rows)], sizes)


def entries(rows):
    """(row, source, cluster of the row, cluster of the source) of every entry."""
    cluster = [c for c in range(rows.num_clusters) for _ in range(rows.start[c], rows.start[c + 1])]
    return [(v, int(u), cluster[v], cluster[u]) for v in range(rows.num_rows)
            for u in rows.indices[rows.indptr[v]:rows.indptr[v + 1]]]


def algorithm_1(rows):
    """MEGA's Algorithm 1, line by line: what each region holds after all rows were produced."""
    waiting = [sorted({u for _, u, reader, owner in entries(rows) if reader == c != owner})
               for c in range(rows.num_clusters)]
    written = [[] for _ in waiting]
    for row in range(rows.num_rows):
        for ids, region in zip(waiting, written, strict=True):
            if ids and ids[0] == row:
                region.append(ids.pop(0))
    assert not any(waiting)
    return written


def regions_of(regions):
    return [regions.copied_row[a:b].tolist() for a, b in zip(regions.start, regions.start[1:], strict=False)]


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_regions_are_what_algorithm_1_writes(rows):
    assert regions_of(condensed_regions(rows)) == algorithm_1(rows)


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_each_sparse_connection_is_served_from_its_clusters_region_and_no_other_entry_is(rows):
    regions = condensed_regions(rows)
    for place, (_, source, reader, owner) in zip(regions.place, entries(rows), strict=True):
        if reader == owner:
            assert place == -1
        else:
            assert regions.copied_row[place] == source and regions.start[reader] <= place < regions.start[reader + 1]


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_without_sparse_connections_each_cluster_stands_alone(rows):
    alone = rows.without(rows.is_sparse())
    kept = [(v, u) for v, u, reader, owner in entries(rows) if reader == owner]
    assert [(v, u) for v, u, *_ in entries(alone)] == kept
    assert condensed_regions(alone).num_copies == 0


def test_a_row_that_several_rows_of_a_cluster_need_is_copied_once_for_it():
    rows = clustered([[5], [5, 4], [0], [], [0, 1, 0], [2]], [2, 2, 2])
    regions = condensed_regions(rows)
    assert regions_of(regions) == [[4, 5], [0], [0, 1, 2]]
    assert regions.place.tolist() == [1, 1, 0, 2, 3, 4, 3, 5]


@pytest.mark.parametrize("rows", [clustered([], [0]), clustered([[], [], []], [1, 0, 2]), clustered([[1], [0]], [2])],
                         ids=["no row", "isolated rows", "one cluster"])
def test_where_no_cluster_needs_another_there_is_no_copy(rows):
    regions = condensed_regions(rows)
    assert regions.num_copies == 0 and regions.start.tolist() == [0] * (rows.num_clusters + 1)
    assert regions.place.tolist() == [-1] * len(rows.indices)


def test_more_entries_than_positions_are_refused():
    endless = ClusteredRows(np.array([0, 1]), np.array([0, 2**31]), np.broadcast_to(np.int32(0), 2**31))
    with pytest.raises(KernelError, match="at most 2147483647 entries, found 2147483648; use more --parts"):
        condensed_regions(endless)


@pytest.mark.parametrize("num_parts", [1, 2, 3, 4])
def test_halo_rows_of_parts_are_the_condensed_regions_of_the_parts(num_parts):
    dataset = random_dataset(60, 150, seed=3, directed=True)
    owner = np.random.default_rng(num_parts).integers(0, num_parts, 60).astype(np.int32)
    owner[:num_parts] = np.arange(num_parts)
    arcs = scipy.sparse.csr_matrix((np.ones(dataset.num_edges), dataset.indices, dataset.indptr), shape=(60, 60))
    order, rows = lay_out(arcs, owner)
    for part, region in enumerate(regions_of(condensed_regions(rows))):
        assert order[region].tolist() == build_partition(dataset, owner, part, num_parts).halo_id.tolist()


def csr(sources):
    rows = clustered(sources, [len(sources)])
    return scipy.sparse.csr_matrix((np.ones(len(rows.indices)), rows.indices, rows.indptr), shape=2 * (len(sources),))


def test_rows_that_most_clusters_need_come_first_in_theirs_then_those_of_the_same_reader():
    arcs = csr([[], [0], [3, 1], [], [1, 2], [1, 4], [1, 0], [6]])
    assert condensed_order(arcs, np.array([0, 0, 0, 0, 1, 1, 2, 2])).tolist() == [1, 2, 0, 3, 4, 5, 6, 7]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_rows_are_ordered_by_cluster_number_of_readers_first_reader_and_number(data):
    num_rows = data.draw(st.integers(1, 15))
    row = st.lists(st.integers(0, num_rows - 1), max_size=6, unique=True)
    sources = [data.draw(row) for _ in range(num_rows)]
    cluster = data.draw(st.lists(st.integers(0, 4), min_size=num_rows, max_size=num_rows))
    readers = [sorted({cluster[v] for v in range(num_rows) if u in sources[v]} - {cluster[u]}) for u in range(num_rows)]
    expected = sorted(range(num_rows), key=lambda u: (cluster[u], -len(readers[u]), readers[u][:1], u))
    assert condensed_order(csr(sources), np.array(cluster)).tolist() == expected
