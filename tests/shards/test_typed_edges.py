"""Relations and attributes of edges in shards: each part holds exactly its edges, and faulty ones are refused."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from resealing import attribute, put, reseal

from hpcgnn.data.cleaning import TypedEdges, build_typed_csr
from hpcgnn.data.dataset import GraphDataset
from hpcgnn.errors import DatasetError, ShardError
from hpcgnn.partition.choices import PARTITIONERS
from hpcgnn.shards.features import FeatureStorage, fingerprint_of
from hpcgnn.shards.reader import read_partition, verify_shards
from hpcgnn.shards.schema import Provenance
from hpcgnn.shards.writer import Making, make_shards, write_shards

ORIGIN = Provenance("a:b", "random", 0)
NUM_NODES, NUM_RELATIONS = 12, 3


def drawn(has_relation=True, has_attr=True):
    """Edges of few nodes, so that many are parallel and some have more of them than there are nodes."""
    rng = np.random.default_rng(5)
    source, target = rng.integers(0, NUM_NODES, (2, 900)) % (1 + np.arange(900) % NUM_NODES)
    relation = rng.integers(0, NUM_RELATIONS, 900).astype(np.int32)
    attr = rng.integers(-2, 3, (900, 2)).astype(np.float32)
    return source, target, relation if has_relation else None, attr if has_attr else None


def dataset_of(has_relation=True, has_attr=True):
    source, target, relation, attr = drawn(has_relation, has_attr)
    names = ("cites", "likes", "reads") if has_relation else ()
    graph = build_typed_csr(TypedEdges(source, target, None, relation, attr), NUM_NODES, False, False, "g", names)
    every, none = np.ones(NUM_NODES, bool), np.zeros(NUM_NODES, bool)
    return GraphDataset("g", graph.indptr, graph.indices, np.eye(NUM_NODES, dtype=np.float32),
                        np.arange(NUM_NODES) % 4, 4, every, none, none, graph.report, edge_type=graph.edge_type,
                        edge_attr=graph.edge_attr, relation_names=names).check()


def oracle(has_relation=True, has_attr=True):
    """The drawn edges without loops, each once."""
    source, target, relation, attr = drawn(has_relation, has_attr)
    return {(u, v, int(relation[edge]) if has_relation else 0, tuple(attr[edge].tolist()) if has_attr else ())
            for edge, (u, v) in enumerate(zip(source.tolist(), target.tolist(), strict=True)) if u != v}


def edges_in(part):
    target = np.repeat(part.inner_id, np.diff(part.indptr)).tolist()
    relation = np.zeros(part.num_edges, int) if part.edge_type is None else part.edge_type
    attr = np.empty((part.num_edges, 0)) if part.edge_attr is None else part.edge_attr
    return list(zip(part.node_id[part.indices].tolist(), target, relation.tolist(), map(tuple, attr.tolist()),
                    strict=True))


KINDS = pytest.mark.parametrize("kind", [(True, True), (True, False), (False, True)])


@KINDS
@pytest.mark.parametrize("num_parts", [1, 2, 3])
def test_the_parts_hold_the_edges_of_the_source_each_once(tmp_path, kind, num_parts):
    expected = oracle(*kind)
    how = Making(num_parts, partitioner="contiguous", cluster_rows=3 if num_parts == 2 else 0)
    info = make_shards(dataset_of(*kind), tmp_path, how, "a:b", {})
    assert verify_shards(tmp_path) == info and info.num_edges == len(expected)
    assert (tmp_path / "graph.h5").read_bytes().startswith(b"hpcgnn graph\nformat 5\n")
    assert (info.relation_names, info.num_edge_features) == (
        ("cites", "likes", "reads") if kind[0] else (), 2 if kind[1] else 0)
    found = []
    in_degree = Counter(v for _, v, *_ in expected)
    assert max(in_degree.values()) > NUM_NODES      # each parallel edge counts
    for number in range(num_parts):
        part = read_partition(tmp_path, number, num_parts, info)
        edges = edges_in(part)
        assert set(edges) == {edge for edge in expected if edge[1] in set(part.inner_id.tolist())}
        assert part.in_degree.tolist() == [in_degree[node] for node in part.node_id.tolist()]
        found += edges
    assert len(found) == len(expected) and set(found) == expected


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_every_partitioner_cuts_a_graph_of_parallel_edges(tmp_path, partitioner):
    info = make_shards(dataset_of(), tmp_path, Making(2, partitioner=partitioner, cluster_rows=0), "a:b", {})
    assert verify_shards(tmp_path) == info and all(row.num_inner for row in info.statistics)


def changed(array, place, value):
    array = array.copy()
    array[place] = value
    return array


def test_one_changed_relation_or_attribute_changes_the_digest_of_the_graph():
    dataset, storage = dataset_of(), FeatureStorage("float32")
    before = fingerprint_of(dataset, storage)
    others = {
        "a relation": replace(dataset, edge_type=changed(dataset.edge_type, 9, (dataset.edge_type[9] + 1) % 3)),
        "an attribute": replace(dataset, edge_attr=changed(dataset.edge_attr, (9, 1), 7.0)),
        "a relation more": replace(dataset, relation_names=(*dataset.relation_names, "writes")),
        "no relations": replace(dataset, edge_type=None, relation_names=()),
        "no attributes": replace(dataset, edge_attr=None),
    }
    found = {name: before.differences(fingerprint_of(other, storage)) for name, other in others.items()}
    assert found == dict.fromkeys(others, ("graph",))
    named = replace(dataset, relation_names=("a", "b", "c"))
    assert fingerprint_of(named, storage) == before
    # The bytes of weights and of relations are alike here, and they say different things.
    ones = np.ones(dataset.num_edges, np.float32)
    weighted = replace(dataset, edge_type=None, edge_attr=None, relation_names=(), edge_weight=ones)
    typed = replace(weighted, edge_weight=None, edge_type=ones.view(np.int32), relation_names=("a",))
    assert fingerprint_of(weighted, storage).graph != fingerprint_of(typed, storage).graph


@pytest.mark.parametrize("change, complaint", [
    ({"relation_names": ("a", "b")}, "has relations from 0 to 2; expected 0 to 1"),
    ({"relation_names": ()}, "has 0 relation names, and edges with relations"),
    ({"edge_type": None}, "has 3 relation names, and edges without relations"),
    ({"edge_type": np.zeros(3, np.int32)}, r"has relations of int32 and shape \(3,\); expected int32, one for each"),
    ({"edge_attr": np.zeros((3, 2), np.float32)}, r"edge attributes of float32 and shape \(3, 2\); expected float32"),
])
def test_a_dataset_with_relations_that_do_not_fit_is_refused(change, complaint):
    with pytest.raises(DatasetError, match=complaint):
        replace(dataset_of(), **change).check()
    bad = dataset_of()
    bad.edge_attr[3, 1] = np.nan
    with pytest.raises(DatasetError, match="has edge attributes that are NaN or infinite"):
        bad.check()


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("typed")
    owner = (np.arange(NUM_NODES) % 3).astype(np.int32)
    write_shards(dataset_of(), owner, folder, Making(3, reorder="none"), ORIGIN)
    return folder


FAULTS = {
    "a relation past the last": ("part-0001.h5", put("edge_type", lambda a: changed(a, 0, 3)), "edge_type from 0 to 3"),
    "a relation of -1": ("part-0001.h5", put("edge_type", lambda a: changed(a, 0, -1)), "edge_type from -1"),
    "relations of int64": ("part-0001.h5", put("edge_type", lambda a: a.astype(np.int64)), "edge_type of int64"),
    "a relation less": ("part-0001.h5", put("edge_type", lambda a: a[1:]), "edge_type of int32 and shape"),
    "no relations": ("part-0001.h5", lambda file: file.pop("edge_type"), "has no edge_type"),
    "an attribute of NaN": ("part-0001.h5", put("edge_attr", lambda a: changed(a, (3, 1), np.nan)),
                            "has edge_attr that is NaN or infinite"),
    "a column less": ("part-0001.h5", put("edge_attr", lambda a: a[:, 1:]), "edge_attr of float32 and shape"),
    "no attributes": ("part-0001.h5", lambda file: file.pop("edge_attr"), "has no edge_attr"),
    "-1 columns": ("graph.h5", attribute("num_edge_features", np.int64(-1)), "num_edge_features = -1, expected 0 to"),
    "half a column": ("graph.h5", attribute("num_edge_features", 0.5), "num_edge_features of type float64"),
    "no number of columns": ("graph.h5", lambda file: file.attrs.pop("num_edge_features"), "no num_edge_features"),
    "no number of relations": ("graph.h5", lambda file: file.attrs.pop("num_relations"), "has no num_relations"),
    "a name more": ("graph.h5", attribute("num_relations", np.int64(4)), "relation_names/offset of int64 and shape"),
    "-1 names": ("graph.h5", attribute("num_relations", np.int64(-1)), "relation_names/offset of int64 and shape"),
    "no names": ("graph.h5", lambda file: file.pop("relation_names"), "has no relation_names"),
    "one name twice": ("graph.h5", put("relation_names/bytes", lambda a: np.frombuffer(b"likeslikesreads", np.uint8)),
                       "relation_names that are not"),
}


@pytest.mark.parametrize("how", FAULTS)
def test_faulty_relations_and_attributes_are_refused_by_name(original, tmp_path, how):
    folder = shutil.copytree(original, tmp_path / "g")
    name, change, complaint = FAULTS[how]
    if how == "one name twice":
        reseal(folder / name, put("relation_names/offset", np.array([0, 5, 10, 15])))
    reseal(folder / name, change)
    with pytest.raises(ShardError, match=complaint) as refused:
        verify_shards(folder)
    sentence = str(refused.value)
    assert sentence.startswith(str(folder / name)) and sentence.endswith("; run hpcgnn preprocess again")


def test_relations_out_of_order_are_found_by_verify(original, tmp_path):
    for has_attr in (True, False):
        folder = tmp_path / str(has_attr)
        write_shards(dataset_of(True, has_attr), np.zeros(NUM_NODES, np.int32), folder, Making(reorder="none"), ORIGIN)
        part = read_partition(folder, 0, 1)
        is_next = (part.indices[1:] == part.indices[:-1]) & (part.edge_type[1:] > part.edge_type[:-1])
        place = int(np.flatnonzero(is_next)[0])

        def swapped(relation, place=place):
            return changed(relation, [place, place + 1], relation[[place + 1, place]])

        reseal(folder / "part-0000.h5", put("edge_type", swapped))
        with pytest.raises(ShardError, match="has a row of indices with sources that do not ascend"):
            verify_shards(folder)
