"""`shards:FOLDER` gives back the graph of any parts; with more edges and nodes it is the grown source's graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas
import pytest
import scipy.sparse
from training_setup import easy_graph, random_owner, write

import hpcgnn
from hpcgnn.data.options import SourceOptions
from hpcgnn.errors import ConfigError, DatasetError
from hpcgnn.shards.reader import read_graph_info, read_owner
from hpcgnn.shards.source import load_shards, owner_in_shards, whole_graph

NUM_OLD, NUM_NEW = 60, 7


@pytest.fixture
def edges():
    """Edges of old nodes, and others that touch nodes NUM_OLD and above, without loops or repeats."""
    draw = np.random.default_rng(1)
    both = np.unique(draw.integers(0, NUM_OLD + NUM_NEW, (600, 2)), axis=0)
    both = both[both[:, 0] != both[:, 1]]
    is_old = (both < NUM_OLD).all(axis=1)
    return both[is_old][20:], np.concatenate([both[is_old][:20], both[~is_old]])


def of_nodes(count):
    draw = np.random.default_rng(2)
    return draw.standard_normal((NUM_OLD + NUM_NEW, 4)).astype(np.float32)[:count], np.arange(count) % 3


def preprocess(edges, count, out, name=lambda node: node, partitioner="contiguous", **options):
    x, y = of_nodes(count)
    splits = tuple([name(node) for node in range(first, NUM_OLD, 3)] for first in range(3))
    ends = np.array([[name(node) for node in row] for row in edges])
    y = np.where(np.arange(count) < NUM_OLD, y, -1)
    ids = np.array([name(node) for node in range(count)])
    return hpcgnn.preprocess(ends, features=x, labels=y, splits=splits, node_ids=ids, name="grown", out=out,
                             partitioner=partitioner, **options)


def same_graphs(found, expected):
    for name in ("indptr", "indices", "features", "labels", "train_mask", "val_mask", "test_mask", "edge_weight",
                 "node_name", "edge_type", "edge_attr"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    for name in ("num_classes", "class_names", "relation_names", "node_types", "type_columns",
                 "relation_columns", "feature_names"):
        assert getattr(found, name) == getattr(expected, name)


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("kind", ["plain", "weights", "names", "typed"])
def test_the_graph_of_shards_is_the_one_that_was_cut(tmp_path, num_parts, kind):
    graph = easy_graph()
    if kind == "weights":
        graph = replace(graph, edge_weight=np.random.default_rng(0).random(graph.num_edges).astype(np.float32) + 1)
    if kind == "typed":
        draw = np.random.default_rng(0)
        graph = replace(graph, edge_type=draw.integers(0, 3, graph.num_edges).astype(np.int32),
                        edge_attr=draw.random((graph.num_edges, 2), np.float32), relation_names=("a", "b", "c"),
                        node_types=(("x", 100), ("y", 140)), type_columns=(4, graph.num_features - 4),
                        relation_columns=(1, 0, 1))
    if kind == "names":
        graph = replace(graph, node_name=np.array([f"n{node}" for node in range(graph.num_nodes)], object),
                        feature_names=tuple(f"größe {place}" for place in range(graph.num_features)))
    folder = write(graph, random_owner(graph, num_parts), num_parts, tmp_path / "g")
    info = read_graph_info(folder)
    same_graphs(whole_graph(folder, info), graph)
    again = hpcgnn.preprocess(f"shards:{folder}", parts=2, out=tmp_path / "again")
    assert (again.fingerprint, again.cleaning, again.num_parts) == (info.fingerprint, info.cleaning, 2)


@pytest.mark.parametrize("name, symmetrize", [
    (int, False), ("paper {}".format, True), pytest.param(int, True, marks=pytest.mark.long),
    pytest.param("paper {}".format, False, marks=pytest.mark.long)],
    ids=["numbers-one way", "texts-both ways", "numbers-both ways", "texts-one way"])
def test_shards_that_grow_are_those_of_the_grown_source(tmp_path, edges, name, symmetrize):
    """The same fingerprint, so a run on the one may be resumed on the other; old nodes stay where they are."""
    old, new = edges
    preprocess(old, NUM_OLD, tmp_path / "old", name, symmetrize=symmetrize, parts=3)
    expected = preprocess(np.concatenate([old, new]), NUM_OLD + NUM_NEW, tmp_path / "whole", name,
                          symmetrize=symmetrize, parts=3)
    (tmp_path / "more.csv").write_text("".join(f"{name(u)},{name(v)}\n" for u, v in new))
    rows = of_nodes(NUM_OLD + NUM_NEW)[0]
    (tmp_path / "x.csv").write_text("id,a,b,c,d\n" + "".join(
        f"{name(node)},{','.join(map(str, rows[node].tolist()))}\n" for node in range(NUM_OLD, NUM_OLD + NUM_NEW)))
    found = hpcgnn.preprocess(f"shards:{tmp_path / 'old'},edges={tmp_path / 'more.csv'},features={tmp_path / 'x.csv'}",
                              parts=3, partitioner=tmp_path / "old", out=tmp_path / "grown")
    assert found.fingerprint == expected.fingerprint
    same_graphs(whole_graph(tmp_path / "grown", found), whole_graph(tmp_path / "whole", expected))
    owner, before = (read_owner(tmp_path / one, read_graph_info(tmp_path / one)) for one in ("grown", "old"))
    np.testing.assert_array_equal(owner[:NUM_OLD], before)
    assert f"{NUM_NEW} nodes" in found.cleaning.remarks[-1]


def test_a_new_weight_counts_both_ways_where_old_ones_do(tmp_path):
    old, new = [(0, 1, 2.0), (1, 2, 3.0), (3, 0, 1.5)], [(0, 1, 5.0), (2, 3, 1.0), (0, 3, 0.5), (3, 0, 0.5)]
    pandas.DataFrame(new).to_csv(tmp_path / "new.csv", index=False, header=False)
    source, target, weight = map(np.array, zip(*old, strict=True))
    hpcgnn.preprocess((source, target), edge_weight=weight, features=np.eye(4), symmetrize=True, out=tmp_path / "old")
    found = load_shards(f"{tmp_path}/old,edges={tmp_path}/new.csv", SourceOptions())
    weights = scipy.sparse.csr_matrix((found.edge_weight, found.indices, found.indptr)).toarray()
    assert weights[0, 1] == weights[1, 0] == 7 and weights[2, 3] == weights[3, 2] == 1
    assert (weights[0, 3], weights[3, 0]) == (2, 2)


def test_columns_of_new_nodes_are_found_by_their_names(tmp_path):
    nodes = pandas.DataFrame({"id": ["a", "b", "c"], "age": [1.0, 2, 3], "income": [4.0, 5, 6]})
    hpcgnn.preprocess(pandas.DataFrame({"source": ["a", "b"], "target": ["b", "c"]}), nodes=nodes, parts=1,
                      out=tmp_path / "old")
    (tmp_path / "more.csv").write_text("c,d\n")
    for header, features in (("age,income", [7, 8]), ("income,age", [8, 7])):
        (tmp_path / "x.csv").write_text(f"id,{header}\nd,7,8\n")
        grown = load_shards(f"{tmp_path / 'old'},edges={tmp_path / 'more.csv'},features={tmp_path / 'x.csv'}",
                            SourceOptions())
        np.testing.assert_array_equal(grown.features, [[1, 4], [2, 5], [3, 6], features])
    (tmp_path / "x.csv").write_text("id,age,wage\nd,7,8\n")
    with pytest.raises(DatasetError, match=r"x.csv has no column 'income', which is a feature of"):
        load_shards(f"{tmp_path / 'old'},edges={tmp_path / 'more.csv'},features={tmp_path / 'x.csv'}", SourceOptions())


def test_held_out_links_among_new_edges_stay_out(tmp_path):
    ends, features = np.array([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]]), np.eye(5, dtype=np.float32)
    hpcgnn.preprocess(ends, features=features, symmetrize=True, val_links=([0], [1]), test_links=([3], [2]),
                      out=tmp_path / "old")
    (tmp_path / "more.csv").write_text("1,0\n2,3\n1,3\n")
    found = hpcgnn.preprocess(f"shards:{tmp_path / 'old'},edges={tmp_path / 'more.csv'}", out=tmp_path / "grown")
    grown = whole_graph(tmp_path / "grown", found)
    target = np.repeat(np.arange(5), grown.in_degree())
    assert grown.held_out.tolist() == [[0, 1, 1], [3, 2, 2]]
    expected = {(1, 2), (3, 4), (4, 0), (0, 2), (1, 3)}
    assert set(zip(grown.indices.tolist(), target.tolist(), strict=True)) == expected | {(v, u) for u, v in expected}


def test_a_new_node_joins_the_part_of_its_neighbors(tmp_path):
    graph = easy_graph()
    owner = np.arange(graph.num_nodes, dtype=np.int32) % 3
    folder = write(graph, owner, 3, tmp_path / "g")
    # Node 240 hangs on five nodes of part 2 and one of part 0.
    near = np.concatenate([np.flatnonzero(owner == 2)[:5], np.flatnonzero(owner == 0)[:1]])
    indptr = np.append(graph.indptr, graph.num_edges + len(near))
    rows = {name: np.concatenate([getattr(graph, name), getattr(graph, name)[:1]])
            for name in ("features", "labels", "train_mask", "val_mask", "test_mask")}
    grown = replace(graph, indptr=indptr, indices=np.concatenate([graph.indices, near]).astype(np.int32), **rows)
    found = owner_in_shards(folder, grown, 3)
    assert found[-1] == 2 and (found[:-1] == owner).all()


def test_what_does_not_fit_is_one_sentence(tmp_path, edges):
    old, new = edges
    preprocess(old, NUM_OLD, tmp_path / "old", parts=2)
    (tmp_path / "more.csv").write_text("".join(f"{u},{v}\n" for u, v in new))
    (tmp_path / "x.csv").write_text("id,a\n60,1\n")
    (tmp_path / "known.csv").write_text("id,a,b,c,d\n3,1,1,1,1\n")

    def load(rest, **options):
        return load_shards(f"{tmp_path / 'old'}{rest}", SourceOptions(**options))

    more = f",edges={tmp_path / 'more.csv'}"
    for words, call in [
            (r"7 nodes that shards:.* lacks, such as 60; give their features", lambda: load(more)),
            ("has no features of node 61", lambda: load(f"{more},features={tmp_path / 'x.csv'}")),
            ("has features of node 3, which", lambda: load(f"{more},features={tmp_path / 'known.csv'}")),
            ("--symmetrize is decided when a source is read", lambda: load("", symmetrize=True)),
            ("--features is decided", lambda: load("", feature_kind="structural")),
            ("no edges; add edges=FILE", lambda: load(f",features={tmp_path / 'x.csv'}"))]:
        with pytest.raises(DatasetError, match=words):
            call()
    for words, graph, parts in [("has 2 parts and --parts is 3", load(""), 3),
                                ("has no node that", replace(load(""), node_name=np.arange(900, 960)), 2)]:
        with pytest.raises(ConfigError, match=words):
            owner_in_shards(tmp_path / "old", graph, parts)


def test_features_that_depend_on_the_graph_are_not_made_up_for_new_nodes(tmp_path, edges):
    old, new = edges
    (tmp_path / "more.csv").write_text("".join(f"{u},{v}\n" for u, v in new))
    (tmp_path / "x.csv").write_text("id,a,b,c,d\n" + "".join(f"{node},1,2,3,2\n" for node in range(60, 67)))
    rest = f",edges={tmp_path / 'more.csv'},features={tmp_path / 'x.csv'}"
    for scaling in ("standard", "row"):
        preprocess(old, NUM_OLD, tmp_path / scaling, parts=1, normalize_features=scaling)
    with pytest.raises(DatasetError, match="were standardized on its training nodes"):
        load_shards(f"{tmp_path / 'standard'}{rest}", SourceOptions())
    np.testing.assert_array_equal(load_shards(f"{tmp_path / 'row'}{rest}", SourceOptions()).features[-1],
                                  np.array([1, 2, 3, 2], np.float32) / 8)
