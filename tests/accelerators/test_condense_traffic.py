"""DRAM traffic: the simulated buffer does what a list of lines does, and each scheme counts what it says."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcgnn.accelerators.condense_traffic import Buffer, fetched_lines
from hpcgnn.errors import ConfigError
from hpcgnn.partition.condense import ClusteredRows, condensed_regions

sys.path.insert(0, str(Path(__file__).parents[2] / "jobs"))

from measurements.dram import condensed_traffic, direct_traffic, gather_traffic, pruned_traffic, source_traffic


def random_rows(sizes, num_entries, seed=0):
    """Clusters of these sizes with uniformly drawn entries."""
    rng = np.random.default_rng(seed)
    num_rows = sum(sizes)
    degree = np.bincount(rng.integers(0, num_rows, num_entries), minlength=num_rows)
    return ClusteredRows(np.concatenate([[0], np.cumsum(sizes)]), np.concatenate([[0], np.cumsum(degree)]),
                         rng.integers(0, num_rows, num_entries).astype(np.int32))


def fetched_by_list(rows, row_bytes, line_bytes, capacity, policy, keep=lambda is_sparse: True):
    """Per cluster, lines fetched for its own sources and for others, with the held lines in a plain list."""
    held, fetched = [], [[0, 0] for _ in range(rows.num_clusters)]
    cluster = rows.cluster_of_rows()
    for v in range(rows.num_rows):
        for u in rows.indices[rows.indptr[v]:rows.indptr[v + 1]].tolist():
            is_sparse = bool(cluster[u] != cluster[v])
            if not keep(is_sparse):
                continue
            for line in sorted({byte // line_bytes for byte in range(u * row_bytes, (u + 1) * row_bytes)}):
                fetched[cluster[v]][is_sparse] += line not in held
                if line in held and policy == "lru":
                    held.remove(line)
                if line not in held:
                    held.append(line)
                del held[:-capacity]
    return fetched


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 12), min_size=1, max_size=4).filter(sum), num_entries=st.integers(0, 80),
       row_bytes=st.integers(1, 20), line_bytes=st.sampled_from([1, 3, 8, 16]), capacity=st.integers(1, 12),
       policy=st.sampled_from(["lru", "fifo"]), entries_a_run=st.sampled_from([1, 20, 1000]), seed=st.integers(0, 9))
def test_lines_are_fetched_as_from_a_plain_list(sizes, num_entries, row_bytes, line_bytes, capacity, policy,
                                                entries_a_run, seed):
    rows, buffer = random_rows(sizes, num_entries, seed), Buffer(capacity * line_bytes, line_bytes, policy)
    expected, fetched = fetched_by_list(rows, row_bytes, line_bytes, capacity, policy), []
    for run in fetched_lines(rows, row_bytes, buffer, entries_a_run):
        assert run.start[-1] == len(run.line) == len(run.is_sparse) and run.first_cluster == len(fetched)
        for first, last in pairwise(run.start):
            num_sparse = int(run.is_sparse[first:last].sum())
            fetched.append([last - first - num_sparse, num_sparse])
    assert fetched == expected
    traffic = gather_traffic(rows, row_bytes, buffer)
    assert [traffic.dense_bytes, traffic.sparse_bytes] == [
        sum(numbers) * line_bytes for numbers in zip(*expected, strict=True)]
    assert traffic.total_bytes == traffic.dense_bytes + traffic.sparse_bytes


def test_the_papers_example_needs_one_access_in_place_of_two():
    """MEGA, Fig. 12: a line holds two rows; subgraph 2 needs nodes 1 and 6 (here 0 and 5) of other subgraphs."""
    rows = ClusteredRows(np.array([0, 2, 4, 6]), np.array([0, 1, 2, 4, 6, 7, 8]),
                         np.array([1, 0, 3, 0, 2, 5, 5, 4], np.int32))
    buffer = Buffer(2048, 128)
    assert direct_traffic(rows, 64, buffer).sparse_bytes == 2 * 128
    condensed = condensed_traffic(rows, 64, buffer)
    assert (condensed.sparse_bytes, condensed.copy_bytes, condensed.list_bytes) == (128, 128, 8)
    assert condensed.dense_bytes == 3 * 128


@pytest.mark.parametrize("sizes, row_bytes", [([20, 20, 20], 16), ([7, 0, 13, 1], 24), ([40], 64), ([1] * 12, 5)])
def test_condensed_regions_are_written_and_read_once_line_by_line(sizes, row_bytes):
    rows, buffer = random_rows(sizes, 300), Buffer(2048, 32)
    traffic = condensed_traffic(rows, row_bytes, buffer)
    lines = sum(-(-int(number) * row_bytes // 32) for number in np.diff(condensed_regions(rows).start))
    assert traffic.sparse_bytes == traffic.copy_bytes == lines * 32
    assert traffic.list_bytes == 4 * condensed_regions(rows).num_copies
    fetched = fetched_by_list(rows, row_bytes, 32, 1536 // 32, "lru", keep=lambda is_sparse: not is_sparse)
    assert traffic.dense_bytes == sum(dense for dense, _ in fetched) * 32


def test_regions_whose_share_of_the_sparse_buffer_is_less_than_a_line_are_written_in_pieces():
    rows, buffer = random_rows([4] * 10, 400), Buffer(1024, 64)     # 25 bytes a region: two rows of 10 at once
    num_copies = np.diff(condensed_regions(rows).start)
    assert condensed_traffic(rows, 10, buffer).copy_bytes == 64 * sum(-(-int(number) // 2) for number in num_copies)


def test_connections_of_the_least_connected_clusters_are_pruned_first():
    sources = [[1, 2, 4], [0, 2, 3], [3], [2, 0], [5], [4]]
    rows = ClusteredRows(np.array([0, 2, 4, 6]), np.concatenate([[0], np.cumsum([len(row) for row in sources])]),
                         np.array([u for row in sources for u in row], np.int32))
    buffer = Buffer(16 * 64, 16)    # a row a line; from cluster 1 to 0 come 3 arcs, 1 from 2 to 0, 1 from 0 to 1
    by_share = {share: pruned_traffic(rows, 16, buffer, share) for share in (0, 2 / 11, 1)}
    assert [traffic.dropped_arcs for traffic in by_share.values()] == [0, 2, 5]
    assert by_share[0] == gather_traffic(rows, 16, buffer)
    assert by_share[2 / 11].sparse_bytes == 2 * 16 and by_share[1].sparse_bytes == 0


@pytest.mark.parametrize("count", [gather_traffic, direct_traffic, condensed_traffic,
                                   lambda *given: pruned_traffic(*given, 0.5)])
def test_isolated_rows_move_nothing(count):
    rows = ClusteredRows(np.array([0, 3, 3, 5]), np.zeros(6, np.int64), np.empty(0, np.int32))
    assert count(rows, 8, Buffer(1024, 32)).total_bytes == 0


@pytest.mark.parametrize("change, complaint", [
    ({"policy": "mru"}, "unknown policy 'mru'; choose one of lru, fifo"),
    ({"sparse_share": 1.0}, "share of the Sparse Buffer is 1.0; expected it between 0 and 1"),
    ({"num_bytes": 100}, "a buffer of 100 bytes holds no line of 128 bytes"),
    ({"line_bytes": 0}, "holds no line of 0 bytes"),
    ({"num_bytes": 256}, "a Sparse Buffer of 64 bytes holds no line of 128 bytes"),
])
def test_a_buffer_that_can_not_be_is_refused(change, complaint):
    with pytest.raises(ConfigError, match=complaint):
        condensed_traffic(random_rows([4, 4], 20), 8, replace(Buffer(), **change))


def test_more_lines_than_numbers_are_refused():
    with pytest.raises(ConfigError, match="choose wider lines"):
        gather_traffic(random_rows([4, 4], 20), 1 << 29, Buffer(64, 1))


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 12), min_size=1, max_size=4).filter(sum), num_entries=st.integers(0, 80),
       row_bytes=st.integers(1, 20), line_bytes=st.sampled_from([1, 3, 8, 16]), seed=st.integers(0, 9))
def test_rows_of_other_clusters_are_read_once_a_cluster_line_by_line(sizes, num_entries, row_bytes, line_bytes, seed):
    rows, buffer = random_rows(sizes, num_entries, seed), Buffer(20 * line_bytes, line_bytes)
    cluster, lines = rows.cluster_of_rows(), 0
    for c in range(len(sizes)):
        entries = rows.indices[rows.indptr[rows.start[c]]:rows.indptr[rows.start[c + 1]]]
        others = {int(u) for u in entries if cluster[u] != c}
        lines += len({byte // line_bytes for u in others for byte in range(u * row_bytes, (u + 1) * row_bytes)})
    traffic = source_traffic(rows, row_bytes, buffer)
    assert traffic.sparse_bytes == lines * line_bytes
    assert traffic.dense_bytes == gather_traffic(rows.without(rows.is_sparse()), row_bytes, buffer).dense_bytes
    assert (traffic.copy_bytes, traffic.list_bytes, traffic.dropped_arcs) == (0, 0, 0)
