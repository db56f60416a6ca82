"""Files as people have them, by `load_source` and shards: ids, weights, splits and targets come back or are refused."""

from __future__ import annotations

import csv
import gzip
import sys

import numpy as np
import pytest
import scipy.sparse
from known_graph import assert_same, graph_in_shards, make_known_graph

from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.errors import DatasetError
from hpcgnn.shards.reader import read_graph_info
from hpcgnn.shards.writer import Making, make_shards

CLASSES = ["art", "bio", "law"]


@pytest.fixture
def known():
    return make_known_graph()


@pytest.fixture
def plain(known):
    numbered = known.numbered()
    numbered.labels = {node: CLASSES.index(label) for node, label in numbered.labels.items()}
    return numbered


@pytest.fixture
def shards(tmp_path):
    """Load a source and write it as one part."""
    def make(spec, **options):
        dataset = load_source(spec, SourceOptions(**options))
        make_shards(dataset, tmp_path / "shards", Making(parts=1, overwrite=True), spec, {})
        return tmp_path / "shards"
    return make


def write(path, rows):
    with (gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w")) as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return path


def edge_rows(known, has_weight=True):
    return [[u, v, weight] if has_weight else [u, v] for (u, v), weight in known.arcs.items()]


def feature_rows(known, *header):
    return [*([list(header)] if header else []), *([node, *row] for node, row in known.features.items())]


def label_rows(known, *header):
    return [*([list(header)] if header else []), *([node, label] for node, label in known.labels.items())]


def split_rows(known):
    return [[node, word] for node, word in known.split.items() if word]


def arrays_of(plain):
    """The archive's arrays; rows are destinations."""
    place = {arc: number for number, arc in enumerate(plain.arcs)}
    arcs = sorted(plain.arcs, key=lambda arc: (arc[1], arc[0]))
    indptr = np.searchsorted([v for _, v in arcs], np.arange(15))
    masks = {f"{word}_mask": plain.mask(word) for word in ("train", "val", "test")}
    return {"indptr": indptr, "indices": np.array([u for u, _ in arcs]), "features": plain.matrix(),
            "edge_weight": np.array(plain.weights())[[place[arc] for arc in arcs]],
            "labels": np.array(list(plain.labels.values())), **masks}


@pytest.mark.parametrize("key", ["edge_weight", "data"])
def test_npz_keeps_weights_and_ids(shards, plain, known, tmp_path, key):
    arrays = arrays_of(plain)
    arrays[key] = arrays.pop("edge_weight")
    np.savez(tmp_path / "g.npz", **arrays)
    assert_same(shards(f"npz:{tmp_path}/g.npz"), plain)
    np.savez(tmp_path / "h.npz", **{**arrays, "labels": list(known.labels.values())}, node_ids=known.ids)
    assert_same(shards(f"npz:{tmp_path}/h.npz"), known)


@pytest.mark.parametrize("names", [("x", "y", "{}_mask"), ("feat", "label", "{}_idx"), ("features", "y", "idx_{}"),
                                   ("feat", "labels", "{}_masks")])
def test_arrays_of_a_csr_have_several_names(shards, plain, tmp_path, names):
    arrays = arrays_of(plain)
    arrays[names[0]], arrays[names[1]] = arrays.pop("features"), arrays.pop("labels")
    for word in ("train", "val", "test"):
        mask = arrays.pop(f"{word}_mask")
        arrays[names[2].format(word)] = mask if "mask" in names[2] else np.flatnonzero(mask)
    np.savez(tmp_path / "g.npz", **arrays)
    assert_same(shards(f"npz:{tmp_path}/g.npz"), plain)


@pytest.mark.parametrize("key", ["targets", "target"])
def test_npz_targets_are_a_regression_also_if_whole(shards, plain, tmp_path, key):
    arrays = arrays_of(plain)
    arrays[key] = arrays.pop("labels")
    np.savez(tmp_path / "g.npz", **arrays)
    folder = shards(f"npz:{tmp_path}/g.npz")
    assert read_graph_info(folder).task == "regression"
    assert graph_in_shards(folder).labels == {node: [float(label)] for node, label in plain.labels.items()}


@pytest.mark.parametrize("rows", ["sources", "destinations"])
@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_a_matrix_of_save_npz_is_read_in_the_direction_that_is_said(shards, plain, tmp_path, rows, form):
    u, v = np.array(plain.ends()).T
    matrix = scipy.sparse.coo_matrix((plain.weights(), (u, v) if rows == "sources" else (v, u)), shape=(14, 14))
    scipy.sparse.save_npz(tmp_path / "a,b.npz", matrix.asformat(form))
    np.save(tmp_path / "x.npy", plain.matrix())
    write(tmp_path / "labels.csv", [["label"], *([label] for label in plain.labels.values())])
    write(tmp_path / "split.csv", [["split"], *([word or "none"] for word in plain.split.values())])
    beside = f"labels={tmp_path}/labels.csv,features={tmp_path}/x.npy,splits={tmp_path}/split.csv"
    assert_same(shards(f"npz:{tmp_path}/a,b.npz,rows={rows},{beside}"), plain)


def test_files_beside_a_matrix_may_name_its_rows(shards, plain, tmp_path):
    u, v = np.array(plain.ends()).T
    scipy.sparse.save_npz(tmp_path / "a.npz", scipy.sparse.csr_matrix((plain.weights(), (u, v)), shape=(14, 14)))
    columns = {"labels": ("label", [[label] for label in plain.labels.values()]), "features": ("f,g,h", plain.matrix()),
               "splits": ("split", [[word or "none"] for word in plain.split.values()])}
    for name, (header, values) in columns.items():
        rows = [[row, *found] for row, found in enumerate(values)]
        write(tmp_path / f"{name}.csv", [["id", *header.split(",")], *rows[9:], *rows[:9]])
    beside = ",".join(f"{name}={tmp_path}/{name}.csv" for name in columns)
    assert_same(shards(f"npz:{tmp_path}/a.npz,rows=sources,{beside}"), plain)
    write(tmp_path / "labels.csv", [["id", "label"], [14, 0]])
    with pytest.raises(DatasetError, match=r"has a row of labels\.csv that refers to node 14, which does not exist"):
        load_source(f"npz:{tmp_path}/a.npz,rows=sources,labels={tmp_path}/labels.csv", SourceOptions())


def test_a_matrix_that_is_not_symmetric_needs_a_direction(plain, tmp_path):
    u, v = np.array(plain.ends()).T
    matrix = scipy.sparse.csr_matrix((plain.weights(), (u, v)), shape=(14, 14))
    scipy.sparse.save_npz(tmp_path / "a.npz", matrix)
    with pytest.raises(DatasetError, match=r"a\.npz holds a SciPy matrix A that is not symmetric.*,rows=sources"):
        load_source(f"npz:{tmp_path}/a.npz", SourceOptions(make_labels=2))
    scipy.sparse.save_npz(tmp_path / "b.npz", matrix + matrix.T)
    assert load_source(f"npz:{tmp_path}/b.npz", SourceOptions(make_labels=2, feature_kind="auto")).cleaning.is_symmetric


def test_a_damaged_matrix_is_a_sentence(tmp_path):
    matrix = scipy.sparse.eye(4, format="csr")
    matrix.indices[1] = 99
    scipy.sparse.save_npz(tmp_path / "a.npz", matrix)
    with pytest.raises(DatasetError, match=r"a\.npz can't be read as a matrix of scipy\.sparse\.save_npz"):
        load_source(f"npz:{tmp_path}/a.npz,rows=sources", SourceOptions(make_labels=2))


@pytest.mark.parametrize("suffix", ["csv", "csv.gz"])
@pytest.mark.parametrize("has_header", [True, False])
def test_an_edge_list_between_texts_comes_back(shards, known, tmp_path, suffix, has_header):
    header = [[["from", "to", "weight"]], [["id", "f", "g", "h"]], [["id", "label"]], [["id", "split"]]]
    bodies = [edge_rows(known), feature_rows(known),
              [[node, known.labels[node]] for node in reversed(known.ids)], split_rows(known)]
    edges, features, labels, splits = (
        write(tmp_path / f"{name}.{suffix}", (head if has_header else []) + body)
        for name, head, body in zip(("web", "x", "y", "s"), header, bodies, strict=True))
    folder = shards(f"edges:{edges},labels={labels},features={features},splits={splits}")
    assert_same(folder, known)
    said = " ".join(read_graph_info(folder).cleaning.remarks)
    if has_header:
        assert "column id holds the nodes' ids" in said
        assert f"the first line of web.{suffix} is its header: from,to,weight" in said
    else:
        assert f"web.{suffix} has no header" in said
    assert f"the third column of web.{suffix} holds weights" in said


def test_integer_ids_with_gaps_come_back(shards, known, tmp_path):
    known = known.renamed({node: 5_000_000_000 + 3 * number for number, node in enumerate(known.ids)})
    edges = write(tmp_path / "web.csv", edge_rows(known, has_weight=False))
    nodes = write(tmp_path / "x.csv", feature_rows(known, "node_id", "a", "b", "c"))
    labels = write(tmp_path / "y.csv", label_rows(known, "node_id", "topic"))
    splits = write(tmp_path / "s.csv", [["paper", "split"], *split_rows(known)])
    assert_same(shards(f"edges:{edges},labels={labels},features={nodes},splits={splits}"), known, has_weights=False)


def test_a_first_column_that_counts_the_rows_is_asked_about(plain, tmp_path):
    edges = write(tmp_path / "web.csv", edge_rows(plain, has_weight=False))
    labels = write(tmp_path / "y.csv", [[label] for label in plain.labels.values()])
    features = write(tmp_path / "x.csv", feature_rows(plain))
    spec = f"edges:{edges},labels={labels},features={features}"
    with pytest.raises(DatasetError, match=r"x\.csv counts its rows in the first column.*append ,ids=true"):
        load_source(spec, SourceOptions())
    assert load_source(f"{spec},ids=false", SourceOptions()).num_features == 4
    labels = write(tmp_path / "y.csv", label_rows(plain))
    found = load_source(f"{spec},ids=true", SourceOptions())
    assert found.num_features == 3 and found.node_name is None
    np.testing.assert_array_equal(found.features, plain.matrix())


def test_a_third_column_of_something_is_asked_about(known, tmp_path):
    edges = write(tmp_path / "web.csv", [["from", "to", "year"], [0, 1, 1999]])
    with pytest.raises(DatasetError, match="calls its third column 'year'"):
        load_source(f"edges:{edges}", SourceOptions(feature_kind="auto"))


@pytest.mark.parametrize("header", ["", "paper,topic\n"])
def test_two_columns_of_which_the_first_may_be_ids_are_asked_about(plain, tmp_path, header):
    edges = write(tmp_path / "web.csv", edge_rows(plain))
    (tmp_path / "y.csv").write_text(header + "".join(f"{node},{plain.labels[node]}\n" for node in plain.ids[::-1]))
    with pytest.raises(DatasetError, match="begins each row with another whole number, as ids are; append ,ids=true"):
        load_source(f"edges:{edges},labels={tmp_path / 'y.csv'}", SourceOptions(feature_kind="auto"))
    found = load_source(f"edges:{edges},labels={tmp_path / 'y.csv'},ids=true", SourceOptions(feature_kind="auto"))
    assert found.labels.tolist() == list(plain.labels.values())[::-1]


@pytest.mark.parametrize("header", ["topic,node_id", "size,id"])
def test_ids_that_are_not_the_first_column_are_refused(plain, tmp_path, header):
    edges = write(tmp_path / "web.csv", edge_rows(plain))
    (tmp_path / "y.csv").write_text(f"{header}\n" + "".join(f"{node / 4},{node}\n" for node in plain.ids))
    with pytest.raises(DatasetError, match=f"calls a column '{header.split(',')[1]}', as ids are called, .* ids first"):
        load_source(f"edges:{edges},labels={tmp_path / 'y.csv'}", SourceOptions(feature_kind="auto"))
    found = load_source(f"edges:{edges},labels={tmp_path / 'y.csv'},ids=false", SourceOptions(feature_kind="auto"))
    assert found.labels.shape == (14, 2)


def test_labels_and_weights_are_found_by_their_places(shards, known, tmp_path):
    edges, nodes = (write(tmp_path / f"{name}.csv", rows) for name, rows in zip("en", table_rows(known), strict=True))
    spec = f"csv:{edges},nodes={nodes},source=0,target=1,weight=2,id=0,label=4,split=part"
    assert_same(shards(spec, feature_kind="auto"), known)


def test_numbers_as_names_of_features_are_a_header(shards, known, tmp_path):
    edges, (_, *rows) = table_rows(known)
    e, n = write(tmp_path / "e.csv", edges), write(tmp_path / "n.csv", [["id", "0", "1", "2", "label", "split"], *rows])
    assert_same(shards(f"csv:{e},nodes={n},source=a,target=b,weight=strength", feature_kind="auto"), known)


def test_arrays_of_objects_are_no_damaged_files(tmp_path):
    np.savez(tmp_path / "g.npz", edge_index=[[0], [1]], labels=np.array(["a", "b"], object))
    np.save(tmp_path / "y.npy", np.array([0, 1], object))
    edges = write(tmp_path / "e.csv", [[0, 1]])
    for spec in (f"npz:{tmp_path}/g.npz", f"edges:{edges},labels={tmp_path}/y.npy"):
        with pytest.raises(DatasetError, match="holds objects of Python, which are pickles"):
            load_source(spec, SourceOptions(feature_kind="auto"))


def test_rows_that_can_not_be_matched_are_refused(known, tmp_path):
    edges = write(tmp_path / "web.csv", edge_rows(known))
    labels = write(tmp_path / "y.csv", [[label] for label in known.labels.values()])
    features = write(tmp_path / "x.csv", feature_rows(known, "id", "a", "b", "c"))
    with pytest.raises(DatasetError, match=r"x\.csv has ids and .*y\.csv has none"):
        load_source(f"edges:{edges},labels={labels},features={features}", SourceOptions())
    write(labels, label_rows(known, "id", "label"))
    write(features, [["id", "a"], *([node, 1] for node in known.ids[1:])])
    with pytest.raises(DatasetError, match=f"a row of y.csv that refers to node '{known.ids[0]}', which does not"):
        load_source(f"edges:{edges},labels={labels},features={features}", SourceOptions())


def table_rows(known):
    nodes = [["who", "f", "g", "h", "topic", "part"],
             *([node, *known.features[node], known.labels[node], known.split[node]] for node in known.ids)]
    return [["a", "b", "strength"], *edge_rows(known)], nodes


COLUMNS = "source=a,target=1,weight=strength,id=who,label=topic,split=part"


def test_csv_tables_come_back(shards, known, tmp_path):
    edges, nodes = (write(tmp_path / name, rows) for name, rows in zip(("web.csv", "n.csv.gz"), table_rows(known),
                                                                      strict=True))
    folder = shards(f"csv:{edges},nodes={nodes},{COLUMNS}")
    assert_same(folder, known)
    assert "the first line of web.csv is its header: a,b,strength" in read_graph_info(folder).cleaning.remarks
    assert_same(shards(f"csv:{edges},nodes={nodes},{COLUMNS.replace('=strength', '=none')},features=f;g;h"), known,
                has_weights=False)


def test_parquet_tables_come_back(shards, known, tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    for name, (header, *rows) in zip(("web", "n"), table_rows(known), strict=True):
        columns = dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))
        parquet.write_table(pyarrow.table(columns), tmp_path / f"{name}.parquet")
    assert_same(shards(f"parquet:{tmp_path}/web.parquet,nodes={tmp_path}/n.parquet,{COLUMNS}"), known)
    (tmp_path / "web.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DatasetError, match=r"web\.parquet can't be read as Parquet"):
        load_source(f"parquet:{tmp_path}/web.parquet", SourceOptions())


@pytest.mark.parametrize("spec, complaint", [
    ("csv:{0}/web.csv,source=a,target=b,nodes={0}/n.csv,label=topic", "without ids in any of .*id=COLUMN"),
    ("csv:{0}/web.csv,source=a,target=b,nodes={0}/n.csv,id=who,label=subject", "no column 'subject'; they have who"),
    ("csv:{0}/web.csv,nodes={0}/n.csv,id=who,label=topic", "the edges have columns a, b, strength, and none goes by"),
    ("csv:{0}/web.csv,edges=x", "no setting 'edges=x'"),
    ("csv:{0}/none.csv", "none.csv does not exist"),
    ("csv:{0}/bare.csv", "bare.csv has no header, and csv: finds columns by name; put their names in the first line, "
                         "or use"),
    ("csv:{0}/web.csv,source=a,target=b,nodes={0}/empty.csv", "empty.csv has neither header nor rows, and csv: finds"),
    ("csv:{0}/words.csv", "if its first line names them, say which is which, as by source=citing"),
])
def test_columns_that_can_not_be_found_are_asked_for(known, tmp_path, spec, complaint):
    for name, rows in zip(("web.csv", "n.csv"), table_rows(known), strict=True):
        write(tmp_path / name, rows)
    write(tmp_path / "bare.csv", [[0, 1]])
    write(tmp_path / "empty.csv", [])
    write(tmp_path / "words.csv", [["citing", "cited"], ["a", "b"]])
    with pytest.raises(DatasetError, match=complaint):
        load_source(spec.format(tmp_path), SourceOptions())


def test_a_first_line_of_words_above_words_is_a_header_if_its_names_are_said(shards, known, tmp_path):
    rows = edge_rows(known, has_weight=False)
    write(tmp_path / "web.csv", [[":START_ID", ":END_ID"], *rows])
    write(tmp_path / "n.csv", [["paper", "topic"], *known.labels.items()])
    found = graph_in_shards(shards(f"csv:{tmp_path}/web.csv,nodes={tmp_path}/n.csv,source=:START_ID,target=:END_ID,"
                                   "id=paper,label=topic", feature_kind="structural"))
    assert set(found.arcs) == set(known.arcs) and found.labels == known.labels


def test_pyg_tensors_come_back_and_pickles_are_not_loaded(shards, plain, tmp_path):
    torch = pytest.importorskip("torch")
    from torch_geometric.data import Data

    data = Data(x=torch.from_numpy(plain.matrix()), edge_index=torch.tensor(plain.ends()).T,
                y=torch.tensor(list(plain.labels.values())), edge_weight=torch.tensor(plain.weights()),
                **{f"{word}_mask": torch.from_numpy(plain.mask(word)) for word in ("train", "val", "test")})
    torch.save(data.to_dict(), tmp_path / "cora.pt")
    assert_same(shards(f"pyg:{tmp_path}/cora.pt"), plain)
    torch.save(data, tmp_path / "object.pt")
    with pytest.raises(DatasetError, match=r"object\.pt is a pickle of objects.*save its tensors by torch\.save\(data"):
        load_source(f"pyg:{tmp_path}/object.pt", SourceOptions())
    torch.save(torch.ones(3), tmp_path / "tensor.pt")
    with pytest.raises(DatasetError, match=r"tensor\.pt holds a Tensor without edge_index"):
        load_source(f"pyg:{tmp_path}/tensor.pt", SourceOptions())


def test_a_public_dataset_of_pyg_is_read_by_its_class(monkeypatch, tmp_path):
    datasets = pytest.importorskip("torch_geometric.datasets")
    import torch
    from torch_geometric.data import Data

    karate = load_source("pyg:KarateClub", SourceOptions())     # the class holds the graph itself
    assert (karate.name, karate.num_nodes, int(karate.train_mask.sum())) == ("karateclub", 34, 4)
    asked = []

    class Planetoid(list):
        def __init__(self, root, name):
            asked.append((root, name))
            super().__init__([Data(x=torch.eye(5), edge_index=torch.tensor([[0, 1], [1, 4]]), y=torch.arange(5) % 2)])

    monkeypatch.setattr(datasets, "Planetoid", Planetoid)
    found = load_source("pyg:Planetoid/Cora", SourceOptions(root=tmp_path))
    assert (found.name, found.num_nodes, asked) == ("cora", 5, [(f"{tmp_path}/Planetoid", "Cora")])
    monkeypatch.chdir(tmp_path)
    torch.save({"x": torch.eye(7), "edge_index": torch.tensor([[0], [6]]), "y": torch.arange(7) % 2}, "Planetoid")
    assert load_source("pyg:Planetoid", SourceOptions()).num_nodes == 7      # a file comes first


def test_a_public_dataset_that_cannot_be_had_is_one_sentence(monkeypatch, tmp_path):
    datasets = pytest.importorskip("torch_geometric.datasets")

    class Planetoid:
        def __init__(self, root, name):
            raise ConnectionError("Cannot connect to host\nand more")

    monkeypatch.setattr(datasets, "Planetoid", Planetoid)
    for source, sentence in {
            "Planetoid/Cora": r"^pyg:Planetoid/Cora can't be made by torch_geometric\.datasets\.Planetoid "
                              r"\(Cannot connect to host\); without a network, "
                              rf"copy {tmp_path}/Planetoid from a machine where this command has run$",
            "Planetoid": "expected pyg:Planetoid/NAME, the name of one of its datasets$",
            "KarateClub/Cora": "expected pyg:KarateClub$", "Cora": "names neither a file nor a class of"}.items():
        with pytest.raises(DatasetError, match=sentence):
            load_source(f"pyg:{source}", SourceOptions(root=tmp_path))
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    with pytest.raises(DatasetError, match=r"names no file, .*; pip install torch-geometric, or name a file"):
        load_source("pyg:Planetoid/Cora", SourceOptions(root=tmp_path))


@pytest.mark.parametrize("name, source", [("cora", "pyg:Planetoid/Cora"), ("Planetoid/PubMed", "pyg:Planetoid/PubMed"),
                                          ("ogbn-arxiv", "ogb:ogbn-arxiv")])
def test_the_name_of_a_public_dataset_without_a_kind_is_told_its_kind(name, source):
    with pytest.raises(DatasetError, match=f"has no known kind; .*; write {source}$"):
        load_source(name, SourceOptions())


def test_a_kind_without_a_colon_is_told_what_lacks():
    with pytest.raises(DatasetError, match=r"has no known kind; .*; after csv come a colon and what to read"):
        load_source("csv", SourceOptions())


def test_the_home_folder_may_be_short_in_every_path_of_a_source(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "edges.csv").write_text("source,target\n0,1\n1,2\n2,0\n")
    (tmp_path / "nodes.csv").write_text("id,age,label\n0,1.5,a\n1,2.5,b\n2,3.5,a\n")
    dataset = load_source("csv:~/edges.csv,nodes=~/nodes.csv,label=label", SourceOptions())
    assert (dataset.num_nodes, dataset.num_classes) == (3, 2)
    (tmp_path / "a~").mkdir()
    with pytest.raises(DatasetError, match=r"a~/edges\.csv does not exist"):
        load_source("csv:a~/edges.csv", SourceOptions())


def test_a_task_is_not_asked_of_a_source_that_says_it_itself():
    with pytest.raises(DatasetError, match="itself defines what its labels are; leave out --task"):
        load_source("synthetic:nodes=100", SourceOptions(task="regression"))
