"""The screen of what was read: its lines, how they are wrapped, and that every kind of source has it."""

from dataclasses import replace

import networkx
import numpy as np
import pytest

import hpcgnn
from hpcgnn.data.dataset import WhatWasRead
from hpcgnn.data.given import finish_dataset
from hpcgnn.data.objects import given_graph
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.data.tables import Choices
from hpcgnn.errors import DatasetError
from hpcgnn.shards.reader import read_graph_info

TOPICS = ("nodes", "edges", "weights", "features", "labels", "splits")


def test_lines_are_aligned_and_end_before_column_80():
    text = str(WhatWasRead((("nodes", "60, " + "word " * 30), ("dubious", "a class a node"), ("note", "x" * 100))))
    lines = text.splitlines()
    assert lines[0].startswith("  nodes     60, word") and lines[1].startswith(" " * 12 + "word")
    assert all(len(line) <= 80 for line in lines if "x" * 100 not in line)
    assert "! dubious   a class a node" in lines


@pytest.fixture
def files(tmp_path):
    (tmp_path / "e.csv").write_text("source,target,weight,year\na,b,2,1\nb,c,3,1\nc,a,2,1\na,b,1,1\nc,c,1,1\n")
    (tmp_path / "n.csv").write_text("id,age,member,label,split\na,30,True,7,train\n"
                                    "b,40,False,9,val\nc,35,True,7,test\n")
    return tmp_path


def test_weights_of_which_few_outweigh_the_others_are_doubted(files):
    (files / "e.csv").write_text("source,target,weight\na,b,2\nb,c,20000\nc,a,1\n")
    read = load_source(f"csv:{files}/e.csv,nodes={files}/n.csv", SourceOptions()).cleaning.read
    assert any("the largest weight is 10,000 times the median" in text for text in read.dubious)
    read = load_source(f"csv:{files}/e.csv,nodes={files}/n.csv,weight=none", SourceOptions()).cleaning.read
    assert not any("the median" in text for text in read.dubious)


def test_a_table_is_told_with_its_columns(files):
    read = load_source(f"csv:{files}/e.csv,nodes={files}/n.csv", SourceOptions()).cleaning.read
    assert read.of("nodes") == ("3; ids are texts of column id: a, b, c, ...",)
    assert read.of("edges") == ("5 read, 1 duplicates and 1 self-loops removed: 3 kept; edges are directed; 0 isolated "
                                "nodes",)
    assert read.of("weights") == ("column weight, from 2 to 3",)      # 2 + 1, 3 and 2
    assert read.of("features") == ("2 of the nodes' columns: age, member",)
    assert read.of("labels") == ("2 classes of column label: 7 (2), 9 (1); 0 nodes without a label",)
    assert read.of("splits") == ("given by column split: 1 train, 1 val, 1 test; 0 in none",)
    assert read.of("unused") == ("year of edges",)
    assert "1 of these have no node" in read.dubious[0]


def test_edges_of_gephi_without_a_direction_and_features_called_as_labels_are_doubted(files):
    (files / "e.csv").write_text("Source,Target,Type,Weight\na,b,Undirected,2\nb,c,Undirected,1\n")
    (files / "n.csv").write_text("id,class,label\na,30,u\nb,40,v\nc,35,u\n")
    read = load_source(f"csv:{files}/e.csv,nodes={files}/n.csv", SourceOptions()).cleaning.read
    assert [text.split(";")[0].split(", ")[0] for text in read.dubious] == [
        "edges are undirected by their column Type", "feature class is called as labels are"]
    (files / "e.csv").write_text("Source,Target,Type\na,b,Undirected\nb,c,Directed\n")
    read = load_source(f"csv:{files}/e.csv,nodes={files}/n.csv,ignore=class", SourceOptions(feature_kind="auto"))
    assert read.cleaning.read.dubious == ()


def test_a_first_line_that_may_name_columns_and_a_comment_on_directions_are_doubted(tmp_path):
    """Where all cells are words nothing else tells a header from a row."""
    plain = SourceOptions(feature_kind="structural")
    made = replace(plain, make_labels=2)
    (tmp_path / "e.csv").write_text("citing,cited\na,b\nb,c\nc,a\n")
    read = load_source(f"edges:{tmp_path}/e.csv", made).cleaning.read
    assert any("only the first line of e.csv has the nodes citing and cited; header=true if" in text
               for text in read.dubious)
    for said in ("true", "false"):
        read = load_source(f"edges:{tmp_path}/e.csv,header={said}", made).cleaning.read
        assert not any("first line" in text for text in read.dubious)
    (tmp_path / "e.csv").write_text("# Undirected graph: each pair once\na,b\nb,c\nc,a\n")
    (tmp_path / "l.csv").write_text("paper,topic\na,art\nb,art\nc,art\n")
    read = load_source(f"edges:{tmp_path}/e.csv,labels={tmp_path}/l.csv", plain).cleaning.read
    assert any("edges are undirected by a comment in e.csv; --symmetrize" in text for text in read.dubious)
    assert any("the first line of l.csv, paper,topic, names no end of an edge" in text for text in read.dubious)
    (tmp_path / "l.csv").write_text("id,label\na,art\nb,art\nc,bio\n")
    read = load_source(f"edges:{tmp_path}/e.csv,labels={tmp_path}/l.csv", replace(plain, symmetrize=True)).cleaning.read
    assert not any("comment" in text or "first line" in text for text in read.dubious)


RING = {"edge_index": np.stack([np.arange(12), np.roll(np.arange(12), 1)]), "x": np.eye(12), "y": np.arange(12) % 3}


@pytest.mark.parametrize("held, doubted, choice", [
    ({"fold": np.arange(12)}, "the split was drawn at random, and fold may hold one; call", {"splits": False}),
    ({"my_train_nodes": np.arange(3)}, "drawn at random, and my_train_nodes may hold one", {
        "splits": (np.arange(4), np.arange(4, 8), np.arange(8, 12))}),
    ({"weights": np.arange(12) + 1.0}, "edges have no weights, and weights may hold them; weight=weights", {
        "edge_weight": False}),
    ({"w": np.arange(12) + 1.0}, "edges have no weights, and w may hold them", {"edge_weight": "w"}),
    ({"x": None, "embedding": np.eye(12)}, "features were made from the graph and not taken from embedding; call", {
        "features": "embedding"}),
    ({"x": None, "embedding": np.eye(12)}, "features were made from the graph and not", {"features": False}),
    ({"y": np.arange(12) % 3 - 1}, "labels are -1, 0 and 1, and the 4 nodes with -1 were taken as nodes without", {
        "ignore": "none"}),
    ({"edge_index": np.stack([np.arange(1, 12), np.roll(np.arange(1, 12), 1)])}, "no edge has node 0, and some", {
        "symmetrize": True, "edge_weight": False, "data": RING["edge_index"]})])
def test_what_was_made_although_an_attribute_may_hold_it_is_doubted(held, doubted, choice):
    """A choice that says what is meant ends the doubt."""
    data = {key: value for key, value in (RING | held).items() if value is not None}
    options = SourceOptions(feature_kind="auto")
    assert any(doubted in text for text in finish_dataset(given_graph(data, Choices()), options).cleaning.read.dubious)
    if "data" in choice:
        data, choice = data | {"edge_index": choice["data"]}, {}
    read = finish_dataset(given_graph(data, Choices(**choice)), options).cleaning.read
    assert not any(doubted in text for text in read.dubious)


def test_a_column_called_as_splits_are_is_doubted_as_a_feature(files):
    (files / "e.csv").write_text("source,target,count\na,b,2\nb,c,5\n")
    (files / "n.csv").write_text("id,age,fold,label\na,30,0,u\nb,40,1,v\nc,35,0,u\n")
    source = f"csv:{files}/e.csv,nodes={files}/n.csv"
    dubious = load_source(source, SourceOptions()).cleaning.read.dubious
    assert [text.partition(", and ")[2].partition(";")[0] for text in dubious] == ["fold may hold one",
                                                                                  "count may hold them"]
    assert load_source(f"{source},split=none,weight=none", SourceOptions()).cleaning.read.dubious == ()


COUNT = np.arange(1, 16)


@pytest.mark.parametrize("columns, doubted", [
    ((COUNT % 5, COUNT % 7, 1.6e9 + COUNT / 8), "holds numbers from 1600000000 on, which may be times"),
    ((COUNT % 5, COUNT % 7, 2020 - COUNT % 4), "holds 2017 to 2020, as years, which may be times"),
    ((COUNT % 5, COUNT % 7, COUNT ** 2), "holds 1 to 225, rising, which may be times"),
    ((COUNT, COUNT % 7, 1 + COUNT % 4), "the first column of e.txt counts the rows"),
    ((COUNT[::-1], 1 + COUNT % 3, 1 + COUNT * 7 % 15), "relation=1 takes them for head, relation and tail"),
    ((COUNT % 5, COUNT % 7, 1 + COUNT * 7 % 4), None)])
def test_a_third_column_that_may_hold_no_weights_is_doubted(columns, doubted, tmp_path):
    np.savetxt(tmp_path / "e.txt", np.column_stack(columns), fmt="%.12g")
    read = load_source(f"edges:{tmp_path}/e.txt", SourceOptions(feature_kind="structural", make_labels=2)).cleaning.read
    said = [text for text in read.dubious if "column of e.txt" in text]
    assert len(said) == (doubted is not None) and (not said or doubted in said[0])


def test_lists_of_neighbors_in_a_cell_are_doubted(tmp_path):
    (tmp_path / "e.txt").write_text("0\t1,2\n1\t0\n2\t0,1\n")
    read = load_source(f"edges:{tmp_path}/e.txt", SourceOptions(feature_kind="structural", make_labels=2)).cleaning.read
    assert any("2 ids are written as '0,1', which joins other ids" in text for text in read.dubious)


@pytest.mark.parametrize("mark", ";|")
def test_marks_in_cells_are_no_separators_if_the_header_has_none(mark, files):
    (files / "e.csv").write_text("source,target\na,b\nb,c\n")
    (files / "n.csv").write_text(f"id,age,label\na,1,art{mark}law\nb,5,law{mark}art\nc,3,art{mark}tax\n")
    dataset = load_source(f"csv:{files}/e.csv,nodes={files}/n.csv", SourceOptions())
    assert dataset.labels.tolist() == [[1, 1, 0], [1, 1, 0], [1, 0, 1]] and dataset.feature_names == ("age",)


def test_relations_that_differ_in_case_only_are_doubted():
    given = given_graph((np.arange(3), np.array([1, 2, 0])), Choices(relation=["Likes", "likes", "cites"]))
    read = finish_dataset(given, SourceOptions(feature_kind="auto")).cleaning.read
    assert read.dubious[0].startswith("the relations 'Likes' and 'likes' differ in case or blanks only")


def test_weights_that_some_edges_lack_are_told():
    graph = networkx.DiGraph([("a", "b", {"weight": 3}), ("b", "c"), ("c", "a")])
    data = {"a": {"x": np.eye(2)}, "b": {"x": np.eye(3)}, ("a", "to", "b"): {
        "edge_index": np.array([[0, 1], [2, 1]]), "edge_weight": np.array([2.0, 3.0])}, ("b", "of", "a"): {
        "edge_index": np.array([[0], [1]])}}
    for source, told in ((graph, "attribute weight, 1 of 2 edges that lack it, from 1 to 3"),
                         (data, "edge_weight, 1 of each edge b__of__a, from 1 to 3")):
        given = given_graph(source, Choices())
        read = finish_dataset(given, SourceOptions(feature_kind="auto")).cleaning.read
        assert read.of("weights") == (told,) and read.of("unused") == ()


def test_shards_keep_the_screen_and_preprocess_returns_it(files):
    info = hpcgnn.preprocess(f"csv:{files}/e.csv,nodes={files}/n.csv", out=files / "g")
    assert info.what_was_read.of("features") and read_graph_info(files / "g").what_was_read == info.what_was_read


@pytest.mark.parametrize("source", ["synthetic:nodes=40,mean_degree=4,classes=2,features=3", "npz", "networkx", "made"])
def test_every_kind_of_source_has_all_topics(tmp_path, source):
    options, classes = {}, np.arange(12) % 3
    if source == "npz":
        np.savez(tmp_path / "g.npz", indptr=np.arange(13), indices=np.roll(np.arange(12), 1), labels=classes)
        source = f"npz:{tmp_path}/g.npz"
    elif source == "networkx":
        source = networkx.cycle_graph(12)
        networkx.set_node_attributes(source, dict(enumerate(classes.tolist())), "label")
    elif source == "made":
        source, options = np.stack([np.arange(12), np.roll(np.arange(12), 1)]), {"make_labels": 2}
    read = hpcgnn.preprocess(source, out=tmp_path / "g", **options).what_was_read
    assert all(len(read.of(topic)) == 1 for topic in TOPICS)


def test_a_name_attribute_of_a_network_is_refused_with_the_other_attributes(tmp_path):
    graph = networkx.path_graph(30)
    for node in graph:      # as networkx.read_gexf leaves them
        graph.nodes[node].update(label=f"node {node}", y=node % 3)
    with pytest.raises(DatasetError, match=r"30 classes for 30 nodes by the labels of attribute label.* one of y"):
        hpcgnn.preprocess(graph, out=tmp_path / "g")
    info = hpcgnn.preprocess(graph, out=tmp_path / "g", labels="y")
    assert info.num_classes == 3 and info.what_was_read.of("unused") == ("label",)
    for node in graph:
        graph.nodes[node].update(age=float(node), size=1.0)
    read = hpcgnn.preprocess(graph, out=tmp_path / "g", labels="y", features=["age", "size"],
                             overwrite=True).what_was_read
    assert read.of("unused") == ("label",) and "attributes age, size" in read.of("features")[0]


@pytest.mark.parametrize("split, column", [(3, 3), (0, 0)])
def test_one_of_several_splits_is_chosen_by_its_number(tmp_path, split, column):
    role = np.random.default_rng(0).integers(0, 2, (12, 5))
    data = {"edge_index": np.stack([np.arange(12), np.roll(np.arange(12), 1)]), "y": np.arange(12) % 3,
            "train_mask": role == 0, "val_mask": role == 1, "test_mask": np.zeros(12, bool)}
    info = hpcgnn.preprocess(data, out=tmp_path / "g", splits=split)
    assert (info.num_train, info.num_val) == ((role[:, column] == 0).sum(), (role[:, column] == 1).sum())
    with pytest.raises(DatasetError, match=r"has 5 splits, .* and none is chosen; .*split=0 \(splits=0 in Python\)"):
        hpcgnn.preprocess(data, out=tmp_path / "h")


def test_nodes_without_a_label_leave_given_splits_and_it_is_said(tmp_path):
    data = {"edge_index": np.stack([np.arange(12), np.roll(np.arange(12), 1)]), "y": np.r_[255, np.arange(11) % 3],
            "train_mask": np.arange(12) < 6, "val_mask": np.arange(12) >= 6}
    info = hpcgnn.preprocess(data, out=tmp_path / "g")
    assert info.num_train == 5
    assert "1 nodes of the splits have no label, and were left out of the splits" in info.what_was_read.dubious
