"""Edges with relations and attributes through cleaning, against sets and dictionaries of plain Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcgnn.data.cleaning import TypedEdges, build_typed_csr
from hpcgnn.data.given import read_attributes, read_relations
from hpcgnn.errors import DatasetError

NUM_NODES = 5
NODES = st.integers(0, NUM_NODES - 1)
RELATIONS = ("cites", "likes", "reads")
# Source, target, relation, attribute, weight; weights are multiples of 1/4, so that sums are exact in any order.
EDGES = st.lists(st.tuples(NODES, NODES, st.integers(0, 2), st.sampled_from([-0.0, 0.0, 1.5]),
                           st.integers(1, 40).map(lambda quarter: quarter / 4)), max_size=40)


def clean(edges, names=RELATIONS, has_attr=True, is_weighted=False, both_ways=False, symmetrize=False):
    columns = list(zip(*edges, strict=True)) if edges else [()] * 5
    source, target = (np.array(column, np.int64) for column in columns[:2])
    relation = np.array(columns[2], np.int32) if names else None
    attr = np.array(columns[3], np.float32)[:, None] if has_attr else None
    weight = np.array(columns[4], float) if is_weighted else None
    return build_typed_csr(TypedEdges(source, target, weight, relation, attr), NUM_NODES, both_ways, symmetrize, "g",
                           names)


def listed(graph):
    """Edges of a CSR in its order: target, source, relation, attribute."""
    target = np.repeat(np.arange(NUM_NODES), np.diff(graph.indptr)).tolist()
    relation = [0] * len(target) if graph.edge_type is None else graph.edge_type.tolist()
    attr = [0.0] * len(target) if graph.edge_attr is None else graph.edge_attr[:, 0].tolist()
    return list(zip(target, graph.indices.tolist(), relation, attr, strict=True))


def distinct(edges, names, has_attr):
    """The edges as in `listed`, without loops, each once, in the order of CSR and source."""
    found = dict.fromkeys((v, u, r if names else 0, a if has_attr else 0.0) for u, v, r, a, _ in edges if u != v)
    return sorted(found, key=lambda edge: edge[:3])


KINDS = pytest.mark.parametrize("names, has_attr", [(RELATIONS, True), (RELATIONS, False), ((), True)])


@KINDS
@settings(max_examples=25, deadline=None)
@given(edges=EDGES)
def test_an_edge_is_a_duplicate_if_ends_relation_and_attributes_are_equal(edges, names, has_attr):
    graph = clean(edges, names, has_attr)
    expected = distinct(edges, names, has_attr)
    assert listed(graph) == expected      # -0.0 equals 0.0
    loops = sum(u == v for u, v, *_ in edges)
    assert (graph.report.source_edges, graph.report.self_loops_removed) == (len(edges), loops)
    assert graph.report.duplicate_edges_removed == len(edges) - loops - len(expected)
    parallel = len(expected) - len({edge[:3] for edge in expected})
    assert [remark for remark in graph.report.remarks if remark.endswith(f"parallel edges: {parallel}")] == [
        remark for remark in graph.report.remarks if "parallel" in remark] and bool(parallel) == bool(
        graph.report.remarks)
    assert graph.report.is_symmetric == ({(u, v, r, a) for v, u, r, a in expected} == set(expected))
    assert graph.report.reverse_edges_added == 0


@KINDS
@settings(max_examples=25, deadline=None)
@given(edges=EDGES)
def test_symmetrize_adds_reverses_of_relations_of_their_own_unless_all_edges_hold_both_ways(edges, names, has_attr):
    graph, expected = clean(edges, names, has_attr, symmetrize=True), distinct(edges, names, has_attr)
    back = [(u, v, r, a) for v, u, r, a in expected]
    if set(back) == set(expected):
        wanted, num_relations = set(expected), len(names)
    elif names:
        wanted, num_relations = {*expected, *((v, u, r + len(names), a) for v, u, r, a in back)}, 2 * len(names)
        assert graph.relation_names == (*names, *(f"{name} reverse" for name in names))
    else:
        wanted, num_relations = {*expected, *back}, 0
    assert set(listed(graph)) == wanted and len(listed(graph)) == len(wanted)
    assert [edge[:3] for edge in listed(graph)] == sorted(edge[:3] for edge in wanted)
    assert len(graph.relation_names) == num_relations
    assert graph.report.is_symmetric
    assert graph.report.reverse_edges_added == len(wanted) - len(expected)


@settings(max_examples=20, deadline=None)
@given(edges=EDGES, symmetrize=st.booleans())
def test_edges_listed_once_for_both_ways_keep_their_relation(edges, symmetrize):
    graph, expected = clean(edges, both_ways=True, symmetrize=symmetrize), distinct(edges, RELATIONS, True)
    assert set(listed(graph)) == {*expected, *((u, v, r, a) for v, u, r, a in expected)}
    assert graph.relation_names == RELATIONS and graph.report.is_symmetric


@pytest.mark.parametrize("names", [RELATIONS, ()])
@settings(max_examples=25, deadline=None)
@given(edges=EDGES)
def test_weights_of_duplicates_add_and_a_reverse_has_the_weight_of_its_edge(edges, names):
    expected = {}
    for u, v, relation, attr, weight in edges:
        if u != v:
            edge = v, u, relation if names else 0, attr
            expected[edge] = expected.get(edge, 0) + weight
    if all(weight == 1 for *_, weight in edges):
        expected = dict.fromkeys(expected, 1)
    graph = clean(edges, names, is_weighted=True)
    found = np.ones(len(graph.indices), np.float32) if graph.edge_weight is None else graph.edge_weight
    assert found.dtype == np.float32
    assert dict(zip(listed(graph), found.tolist(), strict=True)) == expected
    both = clean(edges, names, is_weighted=True, symmetrize=True)
    found = np.ones(len(both.indices), np.float32) if both.edge_weight is None else both.edge_weight
    of_edge = dict(zip(listed(both), found.tolist(), strict=True))
    assert expected.items() <= of_edge.items()      # an edge that is there keeps its weight
    num_relations = len(both.relation_names) // 2 if len(both.relation_names) > len(names) else 0
    assert all(of_edge[u, v, r + num_relations, a] == weight for (v, u, r, a), weight in expected.items()
               if (u, v, r, a) not in expected or num_relations)


def test_types_of_the_arrays_are_those_of_shards():
    graph = clean([(0, 1, 2, 1.5, 2.0), (1, 0, 1, 0.0, 1.0)], is_weighted=True)
    assert [array.dtype for array in (graph.indptr, graph.indices, graph.edge_type, graph.edge_attr)] == [
        np.int64, np.int32, np.int32, np.float32]


@pytest.mark.parametrize("given, expected, names", [
    (["likes", "cites", "likes"], [1, 0, 1], ("cites", "likes")),
    (np.array([0, 2, 0]), [0, 2, 0], ("0", "1", "2")),
    (np.array([[1.0], [0.0], [1.0]]), [1, 0, 1], ("0", "1")),
    ([True, False, True], [1, 0, 1], ("0", "1")),
    ([31, 279, 31], [0, 1, 0], ("31", "279")),      # ids of a database
    (np.array([2**40, 7, 2**40]), [1, 0, 1], ("7", str(2**40))),
])
def test_relations_are_numbered_by_text_or_keep_their_numbers(given, expected, names):
    relation, found = read_relations(given, (), 3, "g")
    assert relation.tolist() == expected and relation.dtype == np.int32 and found == names


def test_given_names_number_texts_and_name_numbers():
    names = ("b", "a", "unused")
    assert read_relations(["a", "b", "a"], names, 3, "g")[0].tolist() == [1, 0, 1]
    relation, found = read_relations([1, 0, 1], names, 3, "g")
    assert relation.tolist() == [1, 0, 1] and found == names


@pytest.mark.parametrize("given, names, complaint", [
    ([0, -1, 2], (), "are -1 at place 1; expected whole numbers from 0"),
    ([0.0, 0.5, 2.0], (), "are 0.5 at place 1; expected whole"),
    ([0.0, float("nan"), 2.0], (), "are nan at place 1; expected whole"),
    ([float("inf"), 0.0, 2.0], (), "are inf at place 0; expected whole"),
    (["a", None, "b"], (), "lack a name at place 1"),
    (["a", "b", ""], (), "lack a name at place 2"),
    ([0, 1], (), r"have shape \(2,\); expected one for each of 3 edges"),
    ([[0, 1], [1, 1], [2, 2]], (), r"have shape \(3, 2\); expected one for each of 3 edges"),
    ([0, 1, 2], ("a", "b"), "go up to 2, and there are 2 relation names"),
    (["a", "c", "b"], ("a", "b"), "hold 'c', which is none of 2 relation names"),
])
def test_relations_that_can_not_be_are_refused_in_one_sentence(given, names, complaint):
    with pytest.raises(DatasetError, match=f"^g: the relations of edges {complaint}"):
        read_relations(given, names, 3, "g")


@pytest.mark.parametrize("given, complaint", [
    ([[1.0, 2.0], [3.0, float("nan")]], "hold nan in column 1 of edge 1; expected finite numbers"),
    ([1.0, float("inf")], "hold inf in column 0 of edge 1"),
    ([1.0, 1e39], r"hold 1e\+39 in column 0 of edge 1"),
    ([1.0, 2.0, 3.0], r"have shape \(3, 1\); expected a row for each of 2 edges"),
    (np.empty((2, 0)), r"have shape \(2, 0\); expected a row"),
    (["a", "b"], "hold texts such as 'a'"),
])
def test_attributes_that_can_not_be_are_refused_in_one_sentence(given, complaint):
    with pytest.raises(DatasetError, match=f"^g: the attributes of edges {complaint}"):
        read_attributes(given, 2, "g")


def test_whole_numbers_that_float32_rounds_are_told():
    for times in (1_600_000_000 + np.arange(6).reshape(3, 2), np.array([[2**24 + 1.0, 3], [1, 2], [0.1, 1e-9]])):
        _, (text,) = read_attributes(times, 3, "g")
        assert "edges have attributes that float32 rounds, such as 16" in text
    for fine in (np.array([[2**24, 0.1], [1e-9, 1e30]]), np.float32([[1e9 + 1, 7]] * 2), np.array([[2**40, 3]] * 2)):
        assert read_attributes(fine, 2, "g")[1] == ()


def test_attributes_of_any_number_are_float32():
    assert read_attributes(np.array([True, False]), 2, "g")[0].tolist() == [[1.0], [0.0]]
    found, _ = read_attributes(np.array([[1, 2], [3, 4]], np.uint8), 2, "g")
    assert found.tolist() == [[1.0, 2.0], [3.0, 4.0]] and found.dtype == np.float32
