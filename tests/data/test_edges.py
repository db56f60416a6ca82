import gzip

import numpy as np
import pytest

from hpcgnn.data.edges import read_links
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.errors import DatasetError


@pytest.fixture
def files(small_graph, tmp_path):
    rows = [f"{u},{v}" for u, v in zip(small_graph.source, small_graph.target, strict=True)]
    (tmp_path / "web.csv.gz").write_bytes(gzip.compress("\n".join(["source,target", *rows]).encode()))
    (tmp_path / "web.tsv").write_text("# u v\n" + "\n".join(rows).replace(",", "\t"))
    np.save(tmp_path / "features.npy", small_graph.features)
    np.savetxt(tmp_path / "features.tsv.gz", small_graph.features, delimiter="\t", fmt="%.9g")
    (tmp_path / "labels.csv").write_text("label\n" + "\n".join(map(str, small_graph.labels)))
    np.save(tmp_path / "labels.npy", small_graph.labels)
    return tmp_path


def load(files, edges="web.csv.gz", labels="labels.csv", features="features.npy", **options):
    settings = f",labels={files / labels}" + (f",features={files / features}" if features else "")
    return load_source(f"edges:{files / edges}{settings}", SourceOptions(**options))


@pytest.mark.parametrize("edges", ["web.csv.gz", "web.tsv"])
@pytest.mark.parametrize("labels", ["labels.csv", "labels.npy"])
@pytest.mark.parametrize("features", ["features.npy", "features.tsv.gz"])
def test_text_and_binary_files_give_the_same_dataset(files, small_graph, arcs_of, edges, labels, features):
    dataset = load(files, edges, labels, features)
    assert dataset.name == "web"
    assert arcs_of(dataset) == small_graph.arcs()
    np.testing.assert_array_equal(dataset.labels, small_graph.labels)
    np.testing.assert_allclose(dataset.features, small_graph.features, rtol=1e-6)
    assert [int(mask.sum()) for mask in (dataset.train_mask, dataset.val_mask, dataset.test_mask)] == [18, 6, 6]


def test_features_are_made_from_the_graph_only_when_asked(files):
    with pytest.raises(DatasetError, match="web has no features; pass --features structural"):
        load(files, features=None)
    spec = f"edges:{files}/web.tsv,labels={files}/labels.csv"
    assert load_source(spec, SourceOptions(feature_kind="structural")).num_features == 128


@pytest.mark.parametrize(("file", "text", "match"), [
    ("web.tsv", "0\t1\n2\t30\n", "edge to node 30, which does not exist; node ids run from 0 to 29"),
    ("web.tsv", "0\t1\t2\t3\n", "4 columns; expected two"),
    ("web.tsv", "", "holds nothing; expected two"),
    ("web.tsv", "0\t1\n2\tx\n", "expected whole numbers only"),
    ("labels.csv", "\n".join(["-2"] * 30), "label -2"),
    ("labels.csv", "\n".join(["0,2"] * 30), "multi-label value 2"),
    ("labels.csv", "", "expected a number or a row of numbers per node"),
])
def test_malformed_files_are_refused(files, file, text, match):
    (files / file).write_text(text)
    with pytest.raises(DatasetError, match=match):
        load(files, "web.tsv")


def test_a_sign_between_two_nodes_is_no_node(tmp_path):
    path = tmp_path / "drawn.txt"
    path.write_text("0 -> 1\n1 -> 2\n")
    with pytest.raises(DatasetError, match="has '->' in its second column, in every row"):
        load_source(f"edges:{path}", SourceOptions(feature_kind="structural"))


def test_an_array_of_one_number_is_refused(files):
    np.save(files / "features.npy", np.array(1.0))
    with pytest.raises(DatasetError, match=r"features\.npy holds float64 of shape \(\)"):
        load(files, "web.tsv")


@pytest.mark.parametrize("header, rows", [
    ("target,source", [(1, 0), (2, 1), (3, 2), (0, 3)]),
    ("dst,src", [("b", "a"), ("c", "b"), ("d", "c"), ("a", "d")]),
    ("tail,relation,head", [("b", "likes", "a"), ("c", "owns", "b"), ("d", "likes", "c"), ("a", "likes", "d")]),
    ("head,relation,tail", [("a", "likes", "b"), ("b", "owns", "c"), ("c", "likes", "d"), ("d", "likes", "a")]),
])
def test_a_header_says_where_edges_begin(header, rows, tmp_path):
    text = "".join(",".join(map(str, row)) + "\n" for row in rows)
    (tmp_path / "e.csv").write_text(f"{header}\n{text}")
    (tmp_path / "v.csv").write_text(f"{header}\n{','.join(map(str, rows[1]))}\n")
    has_relations = len(rows[0]) == 3
    dataset = load_source(f"edges:{tmp_path}/e.csv{',relation=relation' if has_relations else ''}", SourceOptions(
        feature_kind="structural", val_links=read_links(tmp_path / "v.csv", SourceOptions())))
    assert dataset.num_nodes == 4
    target = np.repeat(np.arange(4), np.diff(dataset.indptr))
    assert sorted(zip(dataset.indices.tolist(), target.tolist(), strict=True)) == [(0, 1), (2, 3), (3, 0)]
    assert dataset.held_out[:, :2].tolist() == [[1, 2]]
    assert not has_relations or (dataset.held_out[0, 3] == 1 and dataset.relation_names == ("likes", "owns"))
