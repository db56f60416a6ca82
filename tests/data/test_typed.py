"""Graphs with types of nodes become one range of nodes, with a relation per kind of edge and columns per type."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse

from hpcgnn.data.given import finish_dataset
from hpcgnn.data.labels import read_labels
from hpcgnn.data.objects import given_graph
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.data.tables import Choices
from hpcgnn.errors import DatasetError

torch = pytest.importorskip("torch")
HeteroData = pytest.importorskip("torch_geometric.data").HeteroData

PAPERS = np.array([[1, 2], [0, 3], [4, 0], [5, 6]], np.float32)
AUTHORS = np.array([[7, 0, 9], [1, 1, 1]], np.float32)
CITES, WRITES, APPEARS = [[0, 1, 3], [1, 2, 0]], [[1, 0, 1], [3, 0, 2]], [[0, 3], [2, 0]]


def hetero():
    """4 papers with 2 features and classes, 2 authors with 3, 3 venues without; three kinds of edges."""
    data = HeteroData()
    data["paper"].x, data["paper"].y = torch.from_numpy(PAPERS), torch.tensor([2, 0, 1, 0])
    for split, places in (("train", [0, 1]), ("val", [2]), ("test", [3])):
        data["paper"][f"{split}_mask"] = torch.from_numpy(np.isin(np.arange(4), places))
    data["author"].x, data["venue"].num_nodes = torch.from_numpy(AUTHORS), 3
    data["paper", "cites", "paper"].edge_index = torch.tensor(CITES)
    data["author", "writes", "paper"].edge_index = torch.tensor(WRITES)
    data["paper", "to", "venue"].edge_index = torch.tensor(APPEARS)
    return data


def graph_of(data, **choices):
    return given_graph(data, Choices(**choices))


def labels_of(given):
    return read_labels(given.labels, "auto", "g", ignore=given.ignore).values.tolist()


def test_nodes_and_edges_are_those_of_to_homogeneous():
    data = hetero()
    given, expected = graph_of(data), data.to_homogeneous()
    np.testing.assert_array_equal(np.stack([given.source, given.target]), expected.edge_index)
    np.testing.assert_array_equal(given.relation, expected.edge_type)
    np.testing.assert_array_equal(np.repeat(np.arange(3), [count for _, count in given.node_types]),
                                  expected.node_type)
    assert [name for name, _ in given.node_types] == data.node_types
    assert given.type_columns == (2, 3, 1)
    assert given.relation_names == tuple("__".join(kind) for kind in data.edge_types)


def test_each_type_has_its_own_columns_and_one_of_ones_without_features():
    features = graph_of(hetero()).features
    assert scipy.sparse.issparse(features) and features.dtype == np.float32
    expected = np.zeros((9, 6), np.float32)
    expected[:4, :2], expected[4:6, 2:5], expected[6:, 5] = PAPERS, AUTHORS, 1
    np.testing.assert_array_equal(features.toarray(), expected)


def test_standardized_columns_are_fitted_on_nodes_of_their_type():
    given = graph_of(hetero())
    made = finish_dataset(given, SourceOptions(normalize_features="standard"))
    expected = np.zeros((9, 6), np.float32)
    # Papers 0 and 1 are for training; no author is, so both fit; the ones of venues are constant.
    fit = PAPERS[:2].astype(np.float64)
    expected[:4, :2] = (PAPERS - fit.mean(0)) / fit.std(0)
    expected[4:6, 2:5] = (AUTHORS - AUTHORS.mean(0)) / AUTHORS.std(0)
    expected[6:, 5] = 1
    np.testing.assert_allclose(np.asarray(made.features[:]), expected, rtol=1e-6, atol=1e-6)


def test_other_types_have_no_labels_and_are_in_no_split():
    given = graph_of(hetero())
    assert labels_of(given) == [2, 0, 1, 0, -1, -1, -1, -1, -1]
    assert [np.flatnonzero(mask).tolist() for mask in given.splits] == [[0, 1], [2], [3]]


def test_a_node_is_called_by_its_type_and_its_number_or_id_within_it():
    data = hetero()
    assert graph_of(data).row_name.to_pylist() == [
        *(f"paper:{number}" for number in range(4)), "author:0", "author:1", "venue:0", "venue:1", "venue:2"]
    data["author"].orcid = torch.tensor([70, 50])
    assert graph_of(data, node_ids="orcid").row_name.to_pylist()[3:7] == ["paper:3", "author:70", "author:50",
                                                                            "venue:0"]
    assert graph_of(data, node_ids=False).row_name is None


def saved_as_dict(path):
    torch.save(hetero().to_dict(), path)


def saved_as_dataset(path):
    from torch_geometric.data import InMemoryDataset

    InMemoryDataset.save([hetero()], path)


@pytest.mark.parametrize("save", [saved_as_dict, saved_as_dataset])
def test_a_file_of_a_typed_graph_is_that_graph(tmp_path, save):
    save(tmp_path / "typed.pt")
    dataset = load_source(f"pyg:{tmp_path}/typed.pt", SourceOptions())
    expected = graph_of(hetero())
    np.testing.assert_array_equal(dataset.features.toarray(), expected.features.toarray())
    assert dataset.num_edges == 8 and dataset.labels.tolist() == labels_of(expected)
    assert dataset.node_name.tolist() == expected.row_name.to_pylist()


@pytest.mark.parametrize("values", [[1, 1, 1], [2, 3, 0.5]])
def test_adj_t_of_a_kind_has_its_edges_from_columns_to_rows(values):
    stores, (source, target) = hetero().to_dict(), WRITES
    stores["author", "writes", "paper"] = {"adj_t": scipy.sparse.coo_matrix((values, (target, source)), (4, 2))}
    given, expected = graph_of(stores), graph_of(hetero())
    np.testing.assert_array_equal([given.source, given.target], [expected.source, expected.target])
    assert given.weight is None if values[0] == 1 else given.weight.tolist() == [1, 1, 1, 2, 3, 0.5, 1, 1]


def test_types_are_told_and_a_labeled_type_that_no_edge_leads_to_is_dubious():
    data = hetero()
    read = finish_dataset(graph_of(data), SourceOptions()).cleaning.read
    assert read.of("types") == ("3, numbered one after another: paper (4), author (2), venue (3)",)
    assert read.dubious == ()
    for kind in (("paper", "cites", "paper"), ("author", "writes", "paper")):
        del data[kind]
    given = graph_of(data)
    (sentence,) = finish_dataset(given, SourceOptions()).cleaning.read.dubious
    assert sentence.startswith("no edge leads to a node of the splits")
    assert finish_dataset(given, SourceOptions(symmetrize=True)).cleaning.read.dubious == ()


def test_types_with_another_number_of_nodes_than_the_graph_are_refused():
    given = replace(graph_of(hetero()), node_types=(("paper", 4), ("author", 2)))
    with pytest.raises(DatasetError, match="has 9 nodes, and its types have 6"):
        finish_dataset(given, SourceOptions())


def test_what_was_read_says_which_columns_are_whose_and_what_was_left_out():
    data = hetero()
    data["paper"].year, data["author", "writes", "paper"].edge_label = torch.arange(4), torch.ones(3)
    data.note = "of 2026"
    origins = graph_of(data).origins
    assert origins.features == "paper (2), author (3), venue (1, ones, as it has none)"
    assert (origins.labels, origins.splits, origins.others) == (
        "y of paper", "train_mask, val_mask, test_mask of paper", ("paper.year",))
    assert set(origins.unused) == {"paper.year", "author__writes__paper.edge_label", "note"}


# Labels

def test_several_types_with_labels_need_a_choice():
    data = hetero()
    data["author"].y = torch.tensor([1, 0])
    with pytest.raises(DatasetError, match=r"labels of 2 types, paper.y, author.y, .* choose by labels=paper.y"):
        graph_of(data)
    for choice in ("author", "author.y"):
        given = graph_of(data, labels=choice)
        assert labels_of(given) == [-1, -1, -1, -1, 1, 0, -1, -1, -1] and given.splits is None
    assert labels_of(graph_of(data, labels="paper")) == [2, 0, 1, 0, -1, -1, -1, -1, -1]


def test_labels_may_be_another_column_texts_targets_or_several_per_node():
    data = hetero()
    data["paper"].topic = ["art", "law", "art", "bio"]
    data["author"].genres = torch.tensor([[1, 0, 1], [0, 0, 1]])
    data["venue"].rank = torch.tensor([0.5, 2.0, 1.25])
    assert labels_of(graph_of(data, labels="topic")) == [0, 2, 0, 1, -1, -1, -1, -1, -1]
    assert labels_of(graph_of(data, labels="genres"))[3:7] == [[255] * 3, [1, 0, 1], [0, 0, 1], [255] * 3]
    targets = read_labels(graph_of(data, labels="rank").labels, "auto", "g").values
    np.testing.assert_array_equal(targets[5:, 0], np.array([np.nan, 0.5, 2, 1.25], np.float32))
    assert graph_of(data, labels=False).labels is None


def test_one_of_several_splits_is_taken_of_the_type_with_the_labels():
    data = hetero()
    masks = torch.tensor([[1, 0], [0, 1], [0, 0], [0, 0]], dtype=torch.bool)
    data["paper"].train_mask, data["paper"].val_mask = masks, masks.flip(0)
    assert [np.flatnonzero(mask).tolist() for mask in graph_of(data, splits=1).splits] == [[1], [2], [3]]
    with pytest.raises(DatasetError, match=r"has 2 splits, .* and none is chosen"):
        graph_of(data)


def test_lists_of_rows_of_a_type_are_its_splits_and_not_its_number_of_nodes():
    data = HeteroData()
    data["paper"].train_idx, data["paper"].valid_idx = torch.tensor([2, 0]), torch.tensor([1])      # before x
    data["paper"].x, data["paper"].y = torch.eye(4), torch.tensor([0, 1, 0, 1])
    data["paper", "cites", "paper"].edge_index = torch.tensor([[0, 1], [1, 0]])
    given = graph_of(data)
    assert given.num_nodes == 4 and [np.flatnonzero(mask).tolist() for mask in given.splits] == [[0, 2], [1], []]
    assert given.origins.splits == "train_idx, valid_idx of paper" and not given.origins.unused
    rows = {"train": data["paper"].pop("train_idx"), "valid": data["paper"].pop("valid_idx")}
    for key, splits in (("split_idx", rows), ("split", ["train", "val", "train", ""])):
        data["paper"][key] = splits
        given = graph_of(data)
        assert [np.flatnonzero(mask).tolist() for mask in given.splits] == [[0, 2], [1], []]
        assert given.origins.splits == f"{key} of paper" and not given.origins.unused
        del data["paper"][key]


def test_features_and_labels_of_a_type_have_several_names_and_one_label_of_several_is_doubted():
    data = hetero()
    expected = graph_of(data)
    data["paper"].feat, data["paper"].label = data["paper"].pop("x"), torch.eye(3)[data["paper"].pop("y")]
    given = graph_of(data)
    assert (given.features != expected.features).nnz == 0 and given.type_columns == expected.type_columns
    dubious = finish_dataset(given, SourceOptions()).cleaning.read.dubious
    assert len(dubious) == 1 and "every node has one label of several" in dubious[0]
    data["venue"].embedding = torch.eye(3)
    dubious = finish_dataset(graph_of(data), SourceOptions()).cleaning.read.dubious
    assert any("without features have ones, and venue.embedding may hold some" in text for text in dubious)


# Edges

def test_kinds_without_a_weight_weigh_one():
    data = hetero()
    data["author", "writes", "paper"].edge_weight = torch.tensor([2.0, 3.0, 0.5])
    assert graph_of(data).weight.tolist() == [1, 1, 1, 2, 3, 0.5, 1, 1]
    assert graph_of(data, edge_weight=False).weight is None


def test_attributes_of_one_width_share_columns_and_of_several_widths_have_their_own():
    data = hetero()
    data["paper", "cites", "paper"].edge_attr = torch.arange(6.0).reshape(3, 2)
    data["paper", "to", "venue"].edge_attr = torch.tensor([[7.0, 8], [9, 10]])
    np.testing.assert_array_equal(graph_of(data).edge_attr, [[0, 1], [2, 3], [4, 5], [0, 0], [0, 0], [0, 0], [7, 8],
                                                            [9, 10]])
    assert graph_of(data).relation_columns == (2, 0, 2)      # the second kind has none
    data["author", "writes", "paper"].edge_attr = torch.ones(3, 2)
    assert graph_of(data).relation_columns == ()
    del data["author", "writes", "paper"].edge_attr
    data["paper", "to", "venue"].edge_attr = torch.tensor([[7.0], [9]])
    np.testing.assert_array_equal(graph_of(data).edge_attr, [
        [0, 1, 0], [2, 3, 0], [4, 5, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 7], [0, 0, 9]])
    assert [columns for columns in graph_of(data).relation_columns if columns] == [2, 1]


def test_attributes_of_a_single_number_are_weights_as_in_one_data():
    data = hetero()
    data["paper", "to", "venue"].edge_attr = torch.tensor([[7.0], [9]])
    given = graph_of(data)
    assert given.weight.tolist() == [1, 1, 1, 1, 1, 1, 7, 9] and given.edge_attr is None
    given = graph_of(data, edge_attr="edge_attr")
    assert given.weight is None and given.edge_attr[:, 0].tolist() == [0, 0, 0, 0, 0, 0, 7, 9]
    given = graph_of(data, edge_weight=False)
    assert given.weight is None and given.edge_attr is None


def test_one_kind_of_edge_is_no_relation_and_one_type_keeps_its_features():
    given = graph_of({"user": {"x": PAPERS}, ("user", "follows", "user"): {"edge_index": np.array(CITES)}})
    assert given.relation is None and given.relation_names == () and given.node_types == (("user", 4),)
    np.testing.assert_array_equal(given.features, PAPERS)


def test_a_graph_without_any_features_has_none_here():
    stores = {"a": {"num_nodes": 2}, "b": {"num_nodes": 3}, ("a", "b"): {"edge_index": np.array([[0], [2]])}}
    given = graph_of(stores)
    assert given.features is None and (given.source.tolist(), given.target.tolist()) == ([0], [4])
    assert graph_of(hetero(), features=False).features is None


# Tables

def tables():
    """The graph of `hetero` as tables, whose ids are texts, integers with gaps, and texts."""
    papers, authors, venues = ["p7", "p1", "p3", "p2"], [30, 10], ["v", "w", "u"]
    nodes = {"paper": {"id": papers, "a": PAPERS[:, 0], "b": PAPERS[:, 1], "label": ["law", "art", "bio", "art"],
                       "split": ["train", "train", "val", "test"]},
             "author": {"id": authors, **{f"f{column}": AUTHORS[:, column] for column in range(3)}},
             "venue": {"id": venues}}
    ends = {("paper", "cites", "paper"): (papers, papers, CITES), ("author", "writes", "paper"): (
        authors, papers, WRITES), ("paper", "to", "venue"): (papers, venues, APPEARS)}
    edges = {kind: {"source": [source[row] for row in rows[0]], "target": [target[row] for row in rows[1]]}
             for kind, (source, target, rows) in ends.items()}
    return {key: pa.table(columns) for key, columns in (nodes | edges).items()}


def test_a_dict_of_tables_is_the_same_graph_under_its_own_ids():
    expected, given = graph_of(hetero()), graph_of(tables())
    for name in ("source", "target", "relation", "splits"):
        np.testing.assert_array_equal(getattr(given, name), getattr(expected, name))
    np.testing.assert_array_equal(given.features.toarray(), expected.features.toarray())
    assert (given.node_types, given.relation_names) == (expected.node_types, expected.relation_names)
    assert labels_of(given) == labels_of(expected)
    assert given.row_name.to_pylist() == ["paper:p7", "paper:p1", "paper:p3", "paper:p2", "author:30", "author:10",
                                          "venue:v", "venue:w", "venue:u"]


def test_columns_of_tables_may_be_named_and_left_out():
    held = tables()
    held["author"] = held["author"].append_column("field", [["art", "law"]]).rename_columns(
        ["orcid", "f0", "f1", "f2", "field"])
    with pytest.raises(DatasetError, match=r"table of author without ids .* node_ids=COLUMN"):
        graph_of(held)
    with pytest.raises(DatasetError, match=r"column 'field' of author hold texts .*; ignore=author\.field leaves"):
        graph_of(held, node_ids="orcid")
    assert graph_of(held, node_ids="orcid", ignore="author.field").features.shape == (9, 6)
    given = graph_of(held, node_ids="orcid", ignore="author.field")
    assert given.ignore == () and given.origins.unused == ("author.field",)
    with pytest.raises(DatasetError, match="no table of nodes with 'isni' to take ids from"):
        graph_of(tables(), node_ids="isni")
    given = graph_of(held, node_ids="orcid", labels="author.field")
    assert labels_of(given)[4:6] == [0, 1] and given.row_name.to_pylist()[4] == "author:30"


def test_an_edge_of_a_table_to_an_unknown_id_is_refused():
    held = tables()
    held["author", "writes", "paper"] = pa.table({"source": [30], "target": ["p9"]})
    with pytest.raises(DatasetError, match="an edge author__writes__paper to node 'p9', which does not exist"):
        graph_of(held)


# DGL

class StandInTypedGraph:
    """What hpcgnn asks of a DGL graph with types; DGL itself can't be installed beside a recent torch."""

    is_homogeneous = False

    def __init__(self, data):
        self.ntypes, self.canonical_etypes, self._data = data.node_types, data.edge_types, data
        self.nodes = {known: SimpleNamespace(data=self._renamed(data[known].to_dict())) for known in self.ntypes}
        self.ndata = self.edata = {}

    @staticmethod
    def _renamed(held):
        names = {"x": "feat", "y": "label", "edge_weight": "w"}
        return {names.get(key, key): value for key, value in held.items() if key not in ("num_nodes", "edge_index")}

    def num_nodes(self, known):
        return self._data[known].num_nodes

    @property
    def edges(self):
        graph = self

        class Edges:
            def __call__(self, etype):
                return tuple(graph._data[etype].edge_index)

            def __getitem__(self, etype):
                return SimpleNamespace(data=graph._renamed(graph._data[etype].to_dict()))

        return Edges()


def test_a_stand_in_of_a_typed_dgl_graph_is_the_same_graph():
    data = hetero()
    data["author", "writes", "paper"].edge_weight = torch.tensor([2.0, 3.0, 0.5])
    expected, given = graph_of(data), graph_of(StandInTypedGraph(data))
    for name in ("source", "target", "relation", "weight", "splits"):
        np.testing.assert_array_equal(getattr(given, name), getattr(expected, name))
    np.testing.assert_array_equal(given.features.toarray(), expected.features.toarray())
    assert (given.node_types, given.relation_names, labels_of(given)) == (
        expected.node_types, expected.relation_names, labels_of(expected))


# Archives

@pytest.fixture
def arrays():
    authors = scipy.sparse.csr_matrix(AUTHORS)
    return {"num_paper": np.int64(4), "num_author": np.int64(2), "num_venue": np.int64(3), "target": np.array("paper"),
            "edge_paper__paper": np.array(CITES, np.int32), "edge_author__writes__paper": np.array(WRITES, np.int32),
            "edge_paper__venue": np.array(APPEARS), "feat_paper": PAPERS, "feat_author_indptr": authors.indptr,
            "feat_author_indices": authors.indices, "feat_author_data": authors.data,
            "feat_author_columns": np.int64(3), "labels": np.array([2, 0, 1, 0]),
            "train_1": np.array([0]), "val_1": np.array([2, 1]), "test_1": np.array([3]),
            "train_2": np.array([0, 1]), "val_2": np.array([2]), "test_2": np.array([3])}


@pytest.fixture
def load(tmp_path):
    def save_and_load(arrays, settings="", **options):
        np.savez(tmp_path / "typed.npz", **arrays)
        return load_source(f"npz:{tmp_path}/typed.npz{settings}", SourceOptions(**options))
    return save_and_load


def test_an_archive_with_types_is_the_same_graph(arrays, load, split_of, arcs_of):
    dataset, expected = load(arrays, ",split=2"), graph_of(hetero())
    np.testing.assert_array_equal(dataset.features.toarray(), expected.features.toarray())
    assert arcs_of(dataset) == set(zip(expected.source.tolist(), expected.target.tolist(), strict=True))
    assert dataset.labels.tolist() == labels_of(expected) and split_of(dataset) == [[0, 1], [2], [3]]
    assert dataset.node_name.tolist() == expected.row_name.to_pylist()
    assert split_of(load(arrays, ",split=1")) == [[0], [1, 2], [3]]
    plain = {key: values for key, values in arrays.items() if not key.endswith(("_1", "_2"))}
    rows = {"train": [0, 1], "val": [2], "test": [3]}
    for splits in ({f"{split}_idx": listed for split, listed in rows.items()},
                   {f"{split}_mask": np.isin(np.arange(4), listed) for split, listed in rows.items()}):
        assert split_of(load({**plain, **splits})) == [[0, 1], [2], [3]]


def test_an_archive_with_types_has_weights_attributes_and_held_out_links_by_kind(arrays, load):
    writes = "author__writes__paper"
    of_edges = {f"edge_weight_{writes}": np.array([2.0, 3.0, 0.5]), f"edge_attr_{writes}": np.arange(6.0).reshape(3, 2),
                f"test_links_{writes}": np.array(WRITES)[:, 1:2], "val_links_paper__venue": np.array([[3, 0], [2, 0]])}
    dataset, whole = load({**arrays, **of_edges}, ",split=2"), load(arrays, ",split=2")
    (author, paper), = np.array(WRITES).T[1:2].tolist()
    assert dataset.relation_names == whole.relation_names == ("paper__to__paper", writes, "paper__to__venue")
    # Papers are nodes 0 to 3, authors 4 and 5, venues 6 to 8.
    assert sorted(dataset.held_out.tolist()) == [[0, 6, 1, 2], [3, 8, 1, 2], [4 + author, paper, 2, 1]]
    target = np.repeat(np.arange(9), np.diff(dataset.indptr))
    held = {(source, end): (weight, tuple(attr)) for source, end, kind, weight, attr in zip(
        dataset.indices.tolist(), target.tolist(), dataset.edge_type.tolist(), dataset.edge_weight.tolist(),
        dataset.edge_attr.tolist(), strict=True) if kind == 1}
    assert held == {(4 + u, v): (weight, attr) for (u, v), weight, attr in zip(
        np.array(WRITES).T.tolist(), (2.0, 3.0, 0.5), ((0.0, 1.0), (2.0, 3.0), (4.0, 5.0)), strict=True)
        if (u, v) != (author, paper)}
    assert dataset.edge_weight[dataset.edge_type != 1].tolist() == [1.0] * (dataset.num_edges - 2)
    with pytest.raises(DatasetError, match="val_links has an edge paper__to__venue with venue 3, which does not exist"):
        load({**arrays, "val_links_paper__venue": np.array([[3], [3]])}, ",split=2")


def test_an_archive_whose_types_have_no_features_gets_structural_ones(arrays, load):
    bare = {key: values for key, values in arrays.items() if not key.startswith("feat_")}
    assert load(bare, ",split=1", feature_kind="auto").features.shape == (9, 128)
    with pytest.raises(DatasetError, match="has no features"):
        load(bare, ",split=1")


@pytest.mark.parametrize(("name", "num_nodes", "num_edges", "num_features", "num_classes"), [
    ("acm", 11246, 17426, 3805, 3), ("dblp", 26128, 119783, 4616, 4)])
def test_public_typed_graphs_have_their_published_sizes(name, num_nodes, num_edges, num_features, num_classes):
    path = Path(os.environ.get("HPCGNN_DATASETS", ".")) / "typed" / f"{name}.npz"
    if not path.exists():
        pytest.skip("HPCGNN_DATASETS names no folder with typed graphs")
    dataset = load_source(f"npz:{path},split=40", SourceOptions())
    assert (dataset.num_nodes, dataset.num_edges, dataset.num_features) == (num_nodes, num_edges, num_features)
    assert [int(mask.sum()) for mask in (dataset.train_mask, dataset.val_mask, dataset.test_mask)] == [
        40 * num_classes, 1000, 1000]


# Refusals

def changed(data, known, **columns):
    for key, values in columns.items():
        data[known][key] = values
    return data


@pytest.mark.parametrize(("data", "choices", "sentence"), [
    (lambda: {**hetero().to_dict(), ("author", "of", "club"): {"edge_index": np.zeros((2, 1), int)}}, {},
     "edges author__of__club and no nodes of type 'club'; its types are paper, author, venue"),
    (lambda: changed(hetero(), ("author", "writes", "paper"), edge_index=torch.tensor([[2], [0]])), {},
     "an edge author__writes__paper with author 2, which does not exist; it has 2 nodes of this type"),
    (lambda: changed(hetero(), ("author", "writes", "paper"), edge_index=torch.tensor([[0], [-1]])), {},
     "with paper -1, which does not exist"),
    (lambda: changed(hetero(), "author", x=torch.ones(3, 2), num_nodes=2), {},
     "3 rows of 'x' for 2 nodes of type 'author'"),
    (lambda: changed(hetero(), "paper", y=torch.tensor([1, 0])), {}, "2 rows of 'y' for 4 nodes of type 'paper'"),
    (lambda: changed(hetero(), "author", x=[[1.0, 2.0], [3.0]]), {}, "vectors of several lengths"),
    (lambda: changed(hetero(), ("author", "writes", "paper"), edge_attr=torch.ones(2, 4)), {},
     "2 values of 'edge_attr' for 3 edges author__writes__paper"),
    (lambda: {"a": {}, ("a", "b"): {"edge_index": np.zeros((2, 1), int)}}, {},
     r"doesn't say how many nodes of type 'a' it has; set data\['a'\].num_nodes"),
    (lambda: {"a": {"x": PAPERS}, "a__b": {"x": PAPERS}, ("a", "b__c", "a"): {"edge_index": np.array(CITES)},
              ("a__b", "c", "a"): {"edge_index": np.array(CITES)}}, {}, "two kinds of edges .* called a__b__c__a"),
    (hetero, {"labels": "topic"}, "no labels 'topic'; expected a type of nodes that has y, or a column, one of pap"),
    (hetero, {"features": "embedding"}, "no type of node with 'embedding'"),
    (hetero, {"edge_attr": "times"}, "no kind of edge with 'times' to take attributes from"),
    (hetero, {"relation": "times"}, "has kinds of edges, which are its relations; leave out relation="),
    (hetero, {"edge_weight": "times"}, "no kind of edge with 'times'"),
    (hetero, {"node_ids": "orcid"}, "no type of node with 'orcid'"),
    (hetero, {"splits": "fold"}, "no 'fold' of paper, the type with the labels"),
    (hetero, {"labels": np.zeros(4)}, "labels= is a ndarray; put it into the graph as a column of a type"),
    (lambda: [hetero(), hetero()], {}, "several graphs with types of nodes"),
])
def test_a_typed_graph_that_can_not_be_read_is_a_sentence(data, choices, sentence):
    with pytest.raises(DatasetError, match=sentence) as caught:
        graph_of(data(), **choices)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kinds", [1, 3])
def test_held_out_links_lead_from_and_to_the_types_of_their_relation(kinds):
    data = hetero()
    for kind in [kind for kind in data.edge_types if kind[1] != "writes"][:3 - kinds]:
        del data[kind]
    relation = [["author__writes__paper"]] if kinds > 1 else []
    links = (["author:0"], *relation, ["paper:3"]), (["paper:3"], *relation, ["author:0"])
    given = graph_of(data, labels="paper")
    assert len(finish_dataset(given, SourceOptions(val_links=links[0])).held_out) == 1
    with pytest.raises(DatasetError, match=r"a held-out link.* from paper to author, and its edges go from author to "
                                           "paper; swap the columns"):
        finish_dataset(given, SourceOptions(val_links=links[1]))


def test_events_with_times_are_refused():
    from torch_geometric.data import TemporalData

    ends = torch.tensor([0, 1])
    with pytest.raises(DatasetError, match=r"a list of events with times \(TemporalData\)"):
        graph_of(TemporalData(src=ends, dst=ends, t=ends))


@pytest.mark.parametrize(("change", "settings", "sentence"), [
    ({}, "", "has splits 1, 2, and none is chosen; choose one as in split=1"),
    ({}, ",split=3", "and 3 is none of them"),
    ({"target": np.array("club")}, ",split=1", "labels of 'club'; expected an array 'target' with one of the types"),
    ({"edge_paper__venue": np.zeros(3)}, ",split=1", "edge_paper__venue is float64 of shape .3,.; expected integers"),
    ({"edge_paper__club": np.zeros((2, 1), int)}, ",split=1", "no nodes of type 'club'"),
    ({"val_1": np.array([4])}, ",split=1", "val_1 lists node 4; expected 0 to 3"),
    ({"feat_author_indices": np.array([0, 5, 0, 1, 2], np.int32)}, ",split=1", "features that are inconsistent"),
])
def test_an_archive_that_can_not_be_read_is_a_sentence(arrays, load, change, settings, sentence):
    with pytest.raises(DatasetError, match=sentence) as caught:
        load({**arrays, **change}, settings)
    assert "\n" not in str(caught.value)
