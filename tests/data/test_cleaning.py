import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcgnn.data.arcs import RowsOfEntries
from hpcgnn.data.cleaning import build_csr
from hpcgnn.errors import DatasetError

NUM_NODES = 6
ARCS = st.lists(st.tuples(st.integers(0, NUM_NODES - 1), st.integers(0, NUM_NODES - 1)), max_size=60)


def as_arrays(arcs):
    table = np.array(arcs, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


@settings(max_examples=150, deadline=None)
@given(arcs=ARCS, symmetrize=st.booleans())
def test_csr_and_report_equal_those_of_python_sets(arcs, symmetrize):
    indptr, indices, report, _ = build_csr(*as_arrays(arcs), NUM_NODES, symmetrize, "g")[:4]
    loops = [arc for arc in arcs if arc[0] == arc[1]]
    unique = set(arcs) - set(loops)
    expected = unique | {(v, u) for u, v in unique} if symmetrize else unique
    rows = [sorted(u for u, v in expected if v == row) for row in range(NUM_NODES)]
    assert [indices[indptr[v]:indptr[v + 1]].tolist() for v in range(NUM_NODES)] == rows
    assert report.source_edges == len(arcs)
    assert report.self_loops_removed == len(loops)
    assert report.duplicate_edges_removed == len(arcs) - len(loops) - len(unique)
    assert report.reverse_edges_added == len(expected) - len(unique)
    assert report.isolated_nodes == NUM_NODES - len({node for arc in expected for node in arc})
    assert report.is_symmetric == all((v, u) in expected for u, v in expected)


def test_indices_are_int32_and_indptr_int64():
    indptr, indices, _, _ = build_csr(*as_arrays([(0, 1), (1, 2)]), 3, False, "g")[:4]
    assert (indptr.dtype, indices.dtype) == (np.int64, np.int32)


def test_more_than_127_copies_of_an_arc_count_as_duplicates():
    indptr, indices, report, _ = build_csr(*as_arrays([(0, 1)] * 512), 2, True, "g")[:4]
    assert (indptr.tolist(), indices.tolist()) == ([0, 1, 2], [1, 0])
    assert (report.duplicate_edges_removed, report.reverse_edges_added) == (511, 1)


def test_a_graph_without_arcs_is_all_isolated_nodes():
    indptr, indices, report, _ = build_csr(*as_arrays([]), 4, True, "g")[:4]
    assert indptr.tolist() == [0] * 5
    assert len(indices) == 0
    assert report.isolated_nodes == 4


@pytest.mark.parametrize(("arc", "bad"), [((0, 6), 6), ((6, 0), 6), ((-1, 2), -1)])
def test_an_arc_to_a_missing_node_is_refused_with_the_node(arc, bad):
    with pytest.raises(DatasetError, match=rf"g has an edge to node {bad}, .* run from 0 to 5"):
        build_csr(*as_arrays([(0, 1), arc]), NUM_NODES, False, "g")


@pytest.mark.parametrize("indptr", [[0, 2, 1, 4], [1, 2, 3, 4], [0, 1, 2, 3], [0]])
def test_an_indptr_that_does_not_rise_to_the_number_of_indices_is_refused(indptr):
    with pytest.raises(DatasetError, match="indptr does not rise"):
        RowsOfEntries(np.array(indptr), 4, "g")
