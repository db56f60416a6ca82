"""A cleaned graph, sorted in many buckets, from chunks and from a file, is the one of Python's sets and dicts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcgnn.data import arcs as sorting
from hpcgnn.data.arcs import RowsOfEntries, sort_arcs
from hpcgnn.data.cleaning import build_csr
from hpcgnn.data.options import ProgressTask
from hpcgnn.errors import DatasetError

NUM_NODES = 6
NODES = st.integers(0, NUM_NODES - 1)
# Weights are multiples of 1/4, so that sums are exact in any order.
ARCS = st.lists(st.tuples(NODES, NODES, st.integers(1, 40).map(lambda quarter: quarter / 4)), max_size=60)


@pytest.fixture(scope="module")
def in_small_pieces():
    """Chunks of 3 arcs, buckets of about 2, groups of 2 rows, and more than 16 bytes go to a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorting, "ARCS_A_CHUNK", 3)
        patch.setattr(sorting, "ARCS_A_BUCKET", 2)
        patch.setattr(sorting, "MAX_GROUPS", 4)
        patch.setattr(sorting, "KEPT_BYTES", 16)
        yield


def clean(arcs, symmetrize=False, is_weighted=False, dtype=np.int64, num_nodes=NUM_NODES, **how):
    source, target = (np.array([arc[end] for arc in arcs], dtype) for end in (0, 1))
    weight = np.array([weight for *_, weight in arcs], float) if is_weighted else None
    return build_csr(source, target, num_nodes, symmetrize, "g", weight=weight, **how)


def expected_weights(arcs, symmetrize):
    """Sums of weights by arc; an added reverse has the weight of its arc."""
    found = {}
    for u, v, weight in arcs:
        if u != v:
            found[u, v] = found.get((u, v), 0) + weight
    return {(v, u): weight for (u, v), weight in found.items()} | found if symmetrize else found


@settings(max_examples=60, deadline=None)
@given(arcs=ARCS, symmetrize=st.booleans(), dtype=st.sampled_from([np.int32, np.int64, np.uint64, np.uint8]))
def test_csr_and_report_equal_those_of_python_sets(arcs, symmetrize, dtype, in_small_pieces, tmp_path_factory):
    graph = clean(arcs, symmetrize, dtype=dtype, scratch=tmp_path_factory.getbasetemp())
    indptr, indices, report = graph[:3]
    num_loops, unique = sum(u == v for u, v, _ in arcs), {(u, v) for u, v, _ in arcs if u != v}
    expected = unique | {(v, u) for u, v in unique} if symmetrize else unique
    rows = [sorted(u for u, v in expected if v == row) for row in range(NUM_NODES)]
    assert [indices[indptr[v]:indptr[v + 1]].tolist() for v in range(NUM_NODES)] == rows
    assert (indptr.dtype, indices.dtype) == (np.int64, np.int32)
    assert (report.source_edges, report.self_loops_removed) == (len(arcs), num_loops)
    assert report.duplicate_edges_removed == len(arcs) - num_loops - len(unique)
    assert report.reverse_edges_added == len(expected) - len(unique)
    assert report.isolated_nodes == NUM_NODES - len({node for arc in expected for node in arc})
    assert report.is_symmetric == all((v, u) in expected for u, v in expected)


@settings(max_examples=40, deadline=None)
@given(arcs=ARCS, symmetrize=st.booleans())
def test_weights_change_neither_structure_nor_report_and_those_of_duplicates_add(arcs, symmetrize):
    expected = expected_weights(arcs, symmetrize)
    if all(weight == 1 for *_, weight in arcs):
        expected = dict.fromkeys(expected, 1)
    plain, graph = clean(arcs, symmetrize), clean(arcs, symmetrize, is_weighted=True)
    np.testing.assert_array_equal(graph.indptr, plain.indptr)
    np.testing.assert_array_equal(graph.indices, plain.indices)
    assert graph.report == plain.report.__class__(**vars(plain.report) | {"remarks": graph.report.remarks})
    target = np.repeat(np.arange(NUM_NODES), np.diff(graph.indptr))
    found = np.ones(len(target), np.float32) if graph.edge_weight is None else graph.edge_weight
    assert found.dtype == np.float32
    assert dict(zip(zip(graph.indices.tolist(), target.tolist(), strict=True), found.tolist(), strict=True)) == expected


def test_what_was_done_with_weights_is_reported():
    assert clean([(0, 1, 2.0), (0, 1, 3.0)], is_weighted=True).report.remarks == (
        "weights of duplicate edges were added",)
    ones = clean([(0, 1, 1.0), (0, 1, 1.0)], is_weighted=True)
    assert ones.report.remarks == ("all edges weigh 1, so weights were left out",) and ones.edge_weight is None


def test_more_than_127_copies_of_an_arc_count_as_duplicates():
    graph = clean([(0, 1, 1.0)] * 512, True, num_nodes=2)
    assert (graph.indptr.tolist(), graph.indices.tolist()) == ([0, 1, 2], [1, 0])
    assert (graph.report.duplicate_edges_removed, graph.report.reverse_edges_added) == (511, 1)


@pytest.mark.parametrize(("arc", "bad"), [((0, 6, 1), 6), ((6, 0, 1), 6), ((-1, 2, 1), -1)])
def test_an_arc_to_a_missing_node_is_refused_with_the_node(arc, bad):
    with pytest.raises(DatasetError, match=rf"g has an edge to node {bad}, .* run from 0 to 5"):
        clean([(0, 1, 1), arc])


@pytest.mark.parametrize("bad", [0, -1, np.nan, np.inf, 1e39, 1e-60])
def test_a_weight_that_is_not_positive_and_finite_in_float32_is_refused(bad):
    held = ", as float32 holds them" if np.isfinite(bad) and bad > 0 else ""
    with pytest.raises(DatasetError, match="g has an edge of weight .* from node 3 to 1; expected positive, finite "
                                           f"weights{held}: leave out"):
        clean([(0, 1, 2.0), (3, 1, bad)], is_weighted=True)


@pytest.mark.parametrize("weight", [np.ones(3), np.ones((2, 1)), np.array(["a", "b"])])
def test_weights_of_another_shape_or_type_are_refused(weight):
    with pytest.raises(DatasetError, match=r"g has edge weights of .* expected a number for each of 2 edges"):
        build_csr(np.array([0, 1]), np.array([1, 2]), 3, False, "g", weight=weight)


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


@pytest.mark.parametrize("indptr", [[0, 2, 1, 4], [1, 2, 3, 4], [0, 1, 2, 3], [0]])
def test_an_indptr_that_does_not_rise_to_the_number_of_indices_is_refused(indptr):
    with pytest.raises(DatasetError, match="indptr does not rise"):
        RowsOfEntries(np.array(indptr), 4, "g")
