"""Weights of edges through cleaning, against dictionaries of plain Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcgnn.data.cleaning import build_csr
from hpcgnn.errors import DatasetError

NUM_NODES = 6
NODES = st.integers(0, NUM_NODES - 1)
# Multiples of 1/4, so that sums are exact in any order.
ARCS = st.lists(st.tuples(NODES, NODES, st.integers(1, 40).map(lambda quarter: quarter / 4)), max_size=50)


def clean(arcs, symmetrize=False):
    u, v, weight = (np.array(column) for column in zip(*arcs, strict=True)) if arcs else [np.empty(0, int)] * 3
    return build_csr(u, v, NUM_NODES, symmetrize, "g", weight=weight.astype(float))


@settings(max_examples=150, deadline=None)
@given(arcs=ARCS, symmetrize=st.booleans())
def test_weights_of_duplicates_add_loops_go_and_reverses_take_the_weight_of_their_arc(arcs, symmetrize):
    expected = {}
    for u, v, weight in arcs:
        if u != v:
            expected[u, v] = expected.get((u, v), 0) + weight
    if symmetrize:
        expected = {(v, u): weight for (u, v), weight in expected.items()} | expected
    if all(weight == 1 for _, _, weight in arcs):
        expected = dict.fromkeys(expected, 1)
    indptr, indices, report, found = clean(arcs, symmetrize)[:4]
    target = np.repeat(np.arange(NUM_NODES), np.diff(indptr))
    found = np.ones(len(indices), np.float32) if found is None else found
    assert found.dtype == np.float32
    assert dict(zip(zip(indices.tolist(), target.tolist(), strict=True), found.tolist(), strict=True)) == expected
    assert report.self_loops_removed == sum(u == v for u, v, _ in arcs)
    assert report.is_symmetric == all((v, u) in expected for u, v in expected)


@settings(max_examples=50, deadline=None)
@given(arcs=ARCS, symmetrize=st.booleans())
def test_structure_and_report_are_those_of_the_graph_without_weights(arcs, symmetrize):
    u, v = (np.array([arc[end] for arc in arcs], dtype=np.int64) for end in (0, 1))
    indptr, indices, report, _ = build_csr(u, v, NUM_NODES, symmetrize, "g")[:4]
    other_indptr, other_indices, other, _ = clean(arcs, symmetrize)[:4]
    np.testing.assert_array_equal(indptr, other_indptr)
    np.testing.assert_array_equal(indices, other_indices)
    assert (report.duplicate_edges_removed, report.reverse_edges_added) == (
        other.duplicate_edges_removed, other.reverse_edges_added)


def test_what_was_done_is_reported():
    report = clean([(0, 1, 2.0), (0, 1, 3.0)]).report
    assert report.remarks == ("weights of duplicate edges were added",)
    _, _, report, weight = clean([(0, 1, 1.0), (0, 1, 1.0)])[:4]
    assert report.remarks == ("all edges weigh 1, so weights were left out",) and weight is None


@pytest.mark.parametrize("bad", [0, -1, np.nan, np.inf, 1e39, 1e-60])
def test_a_weight_that_is_not_positive_and_finite_in_float32_is_refused(bad):
    held = ", as float32 holds them" if np.isfinite(bad) and bad > 0 else ""
    with pytest.raises(DatasetError, match="g has an edge of weight .* from node 3 to 1; expected positive, finite "
                                           f"weights{held}: leave out"):
        clean([(0, 1, 2.0), (3, 1, bad)])


@pytest.mark.parametrize("weight", [np.ones(3), np.ones((2, 1)), np.array(["a", "b"])])
def test_weights_of_another_shape_or_type_are_refused(weight):
    with pytest.raises(DatasetError, match=r"g has edge weights of .* expected a number for each of 2 edges"):
        build_csr(np.array([0, 1]), np.array([1, 2]), 3, False, "g", weight=weight)
