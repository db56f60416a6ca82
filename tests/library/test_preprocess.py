"""hpcgnn.preprocess: each form in which people have a graph goes to shards and comes back under its own ids."""

from __future__ import annotations

from dataclasses import fields

import networkx
import numpy as np
import pytest
import scipy.sparse
import torch
from known_graph import assert_same, graph_in_shards, make_known_graph
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.transforms import ToSparseTensor
from training_setup import shared_path  # noqa: F401

import hpcgnn
from hpcgnn.errors import CollectiveError, ConfigError, DatasetError
from hpcgnn.library.options import Options, PreprocessOptions
from hpcgnn.shards.reader import read_graph_info

CLASSES = ["art", "bio", "law"]


def plain_graph():
    """The known graph with nodes called 0, 1, ... and classes by number."""
    numbered = make_known_graph().numbered()
    numbered.labels = {node: CLASSES.index(label) for node, label in numbered.labels.items()}
    return numbered


@pytest.fixture
def known():
    return make_known_graph()


@pytest.fixture
def plain():
    return plain_graph()


@pytest.fixture
def made(tmp_path):
    def preprocess(data, **options):
        hpcgnn.preprocess(data, parts=2, out=tmp_path / "g", **{"partitioner": "contiguous", **options})
        return tmp_path / "g"
    return preprocess


def data_of(plain, **more):
    masks = {f"{word}_mask": torch.from_numpy(plain.mask(word)) for word in ("train", "val", "test")}
    return Data(x=torch.from_numpy(plain.matrix()), edge_index=torch.tensor(plain.ends()).T,
                y=torch.tensor(list(plain.labels.values())), **masks, **more)


@pytest.mark.parametrize("key", ["edge_weight", "edge_attr"])
def test_pyg_data_comes_back(made, plain, key):
    weights = torch.tensor(plain.weights())
    data = data_of(plain, **{key: weights if key == "edge_weight" else weights[:, None]})
    assert_same(made(data), plain)
    assert_same(made(data, edge_weight=False, overwrite=True), plain, has_weights=False)


def test_pyg_data_with_ids_comes_back_under_them(made, known, plain):
    known.labels = dict(zip(known.ids, plain.labels.values(), strict=True))
    folder = made(data_of(plain), node_ids=known.ids)
    assert_same(folder, known, has_weights=False)
    assert read_graph_info(folder).node_names == "texts"


def several_graphs(form="edge_index"):
    generator = torch.Generator().manual_seed(0)
    graphs = []
    for num_nodes in (30, 20, 25):
        ends = torch.unique(torch.randint(num_nodes, (2, 4 * num_nodes), generator=generator), dim=1)
        ends = ends[:, torch.randperm(ends.shape[1], generator=generator)]
        graphs.append(Data(x=torch.rand(num_nodes, 4, generator=generator), edge_index=ends,
                           y=torch.randint(3, (num_nodes,), generator=generator)))
    return [ToSparseTensor()(graph) for graph in graphs] if form == "adj_t" else graphs


def as_dicts(collated):
    data, slices = collated
    return data.to_dict(), slices


class GraphsInMemory(InMemoryDataset):
    def __init__(self, graphs):
        super().__init__(None)
        self.data, self.slices = self.collate(graphs)


SEVERAL = {
    "a list": lambda: several_graphs(), "a batch": lambda: Batch.from_data_list(several_graphs()),
    "a dataset": lambda: GraphsInMemory(several_graphs()),
    "tensors and slices": lambda: InMemoryDataset.collate(several_graphs()),
    "adj_t": lambda: InMemoryDataset.collate(several_graphs("adj_t")),
    "a file of a dataset": lambda path: GraphsInMemory.save(several_graphs(), path),
    "a file of tensors and slices": lambda path: torch.save(as_dicts(InMemoryDataset.collate(several_graphs())), path),
    "a file of dicts": lambda path: torch.save([graph.to_dict() for graph in several_graphs()], path),
}


@pytest.mark.parametrize("form", SEVERAL)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_several_graphs_of_pyg_become_one(made, tmp_path, form):
    if form.startswith("a file"):
        SEVERAL[form](tmp_path / "graphs.pt")
        folder = made(f"pyg:{tmp_path}/graphs.pt")
    else:
        folder = made(SEVERAL[form]())
    batch = Batch.from_data_list(several_graphs())
    found = graph_in_shards(folder)
    assert set(found.arcs) == {(u, v) for u, v in batch.edge_index.T.tolist() if u != v}
    np.testing.assert_array_equal([found.features[node] for node in range(75)], batch.x)
    assert [found.labels[node] for node in range(75)] == batch.y.tolist()


def lose(graphs, place, key):
    del graphs[place][key]
    return graphs


@pytest.mark.parametrize("data, complaint", [
    (lambda: InMemoryDataset.collate(several_graphs())[0], "without their slices .*Batch.from_data_list"),
    (lambda: InMemoryDataset.collate(several_graphs("adj_t"))[0], "without their slices; pass Batch"),
    (lambda: InMemoryDataset.collate([Data(num_nodes=3, edge_index=torch.tensor([[0], [1]])) for _ in range(2)])[0],
     "without their slices"),
    (lambda: lose(several_graphs(), 1, "y"), "graphs with 'y', and graph 1 has none"),
    (lambda: [Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([1]))] * 2, "whole graphs"),
    (lambda: [*several_graphs(), 3], "a int at place 3 of a list of graphs"),
    (lambda: {"edge_index": [[0], [1]], "num_nodes": [2, 3]}, r"num_nodes \[2, 3\]; expected one whole number"),
    (lambda: {"adj": scipy.sparse.eye(3)}, "edges have the column 'adj', a dia_matrix; expected an array or a list"),
    (lambda: {0: [1, 2], 1: [0]}, r"of unequal length; .* becomes a graph by networkx.DiGraph\(data\)"),
    (lambda: [Data(edge_index=torch.tensor([[0], [1]]), x=torch.ones(width, width)) for width in (2, 3)],
     "of different widths"),
])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_graphs_that_can_not_be_joined_are_refused(made, data, complaint):
    with pytest.raises(DatasetError, match=complaint):
        made(data())


def test_nodes_without_edges_at_the_end_are_no_second_graph(made):
    ends = torch.unique(several_graphs()[0].edge_index, dim=1)
    y = torch.arange(75) % 3
    for data in (Data(x=torch.rand(75, 4), edge_index=ends, y=y), Data(edge_index=ends.flip(1), y=y),
                 Data(x=torch.rand(75, 4), edge_index=ends[:, torch.randperm(ends.shape[1])], y=y, num_nodes=75)):
        assert read_graph_info(made(data, overwrite=True)).num_nodes == 75


class StandInTensor:
    """What DGL's tensors have, of torch's."""

    def __init__(self, values):
        self.values = torch.as_tensor(np.asarray(values))

    def __getattr__(self, name):
        return getattr(self.values, name)


class StandInDGLGraph:
    """What hpcgnn asks of a DGL graph; DGL itself can't be installed beside a recent torch."""

    is_homogeneous = True

    def __init__(self, ends, ndata, edata, num_nodes):
        self._ends, self.ndata, self.edata, self._num_nodes = ends, ndata, edata, num_nodes

    def edges(self):
        return tuple(StandInTensor(end) for end in zip(*self._ends, strict=True))

    def num_nodes(self):
        return self._num_nodes


def test_what_is_not_used_is_said_from_python_too(made, plain, capsys):
    data = data_of(plain)
    data.edge_time = torch.zeros(data.edge_index.shape[1], dtype=torch.int64)
    data.pos = torch.ones(len(plain.ids), 3)
    made(data)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("hpcgnn: unused in ")]
    assert len(said) == 1 and "edge_time" in said[0] and "pos" in said[0]


def test_a_stand_in_of_a_dgl_graph_comes_back(made, plain):
    ndata = {"feat": torch.from_numpy(plain.matrix()), "label": torch.tensor(list(plain.labels.values())),
             **{f"{word}_mask": torch.from_numpy(plain.mask(word)) for word in ("train", "val", "test")}}
    graph = StandInDGLGraph(plain.ends(), ndata, {"w": torch.tensor(plain.weights())[:, None]}, len(plain.ids))
    assert_same(made(graph), plain)


@pytest.mark.parametrize("rows", ["sources", "destinations"])
@pytest.mark.parametrize("form", [scipy.sparse.csr_matrix, scipy.sparse.coo_array, scipy.sparse.csc_matrix])
def test_a_scipy_matrix_comes_back_in_the_direction_that_is_said(made, known, plain, rows, form):
    u, v = np.array(plain.ends()).T
    place = (u, v) if rows == "sources" else (v, u)
    matrix = form(scipy.sparse.coo_matrix((plain.weights(), place), shape=(14, 14)))
    folder = made(matrix, rows=rows, features=plain.matrix(), labels=list(known.labels.values()), node_ids=known.ids,
                  splits=[known.split[node] for node in known.ids])
    assert_same(folder, known)


@pytest.mark.parametrize("directed", [True, False])
def test_a_networkx_graph_comes_back(made, known, directed):
    graph = networkx.DiGraph() if directed else networkx.Graph()
    for node in known.ids:
        graph.add_node(node, x=known.features[node], topic=known.labels[node], split=known.split[node])
    arcs = known.arcs if directed else {(u, v): weight for (u, v), weight in known.arcs.items()
                                        if (v, u) not in known.arcs or u < v}
    graph.add_edges_from((u, v, {"weight": weight}) for (u, v), weight in arcs.items())
    known.arcs = dict(arcs)
    assert_same(made(graph, labels="topic"), known if directed else known.both_ways())


def test_networkx_nodes_of_numpy_and_attributes_that_some_lack(made):
    graph = networkx.MultiDiGraph()
    graph.add_edges_from(np.array([[0, 1], [0, 1], [1, 2], [2, 3], [3, 4]]), weight=2.0)
    networkx.set_node_attributes(graph, {1: "b", 2: "c", 4: "b"}, "label")
    networkx.set_node_attributes(graph, {node: np.full(2, node / 2) for node in graph}, "x")
    found = graph_in_shards(made(graph))
    assert found.arcs == {(0, 1): 4, (1, 2): 2, (2, 3): 2, (3, 4): 2}
    assert [found.labels[node] for node in range(5)] == [None, "b", "c", None, "b"]


@pytest.mark.parametrize("attributes, complaint", [
    ({"weight": "2.0"}, "weights of edges in attribute 'weight' hold texts such as '2.0'"),
    ({"weight": [1, 2]}, r"edge weights of int64 and shape \(3, 2\)")])
def test_networkx_weights_that_are_no_numbers_are_refused(made, attributes, complaint):
    graph = networkx.DiGraph()
    graph.add_edges_from([(0, 1), (1, 2), (2, 0)], **attributes)
    with pytest.raises(DatasetError, match=complaint):
        made(graph, make_labels=2)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32, torch.bfloat16])
def test_masks_of_numbers_are_masks(made, plain, dtype):
    data = data_of(plain)
    for key in ("train_mask", "val_mask", "test_mask"):
        data[key] = data[key].to(dtype)
    assert_same(made(data), plain, has_weights=False)


@pytest.mark.parametrize("form", ["adjacency", "adj_t", "records"])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_and_records_hold_edges(made, plain, form):
    u, v = np.array(plain.ends()).T
    options = {} if form == "adj_t" else {"features": plain.matrix(), "labels": list(plain.labels.values()),
                                          "splits": [plain.split[node] for node in plain.ids]}
    tensor = torch.sparse_coo_tensor(np.stack([u, v]), torch.tensor(plain.weights()), (14, 14))
    data = {"adjacency": lambda: tensor, "records": lambda: np.rec.fromarrays(
        [u, v, plain.weights()], names="source,target,weight"), "adj_t": lambda: data_of(plain)}[form]()
    if form == "adj_t":
        del data["edge_index"]
        data.adj_t = tensor.t().to_sparse_csr()
    assert_same(made(data, **options), plain)


def pandas_tables(known):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    return [pandas.DataFrame(table) for table in columns_of(known)]


def arrow_tables(known):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    return [pyarrow.table(table) for table in columns_of(known)]


def columns_of(known):
    """A table of edges and one of nodes as dicts of columns."""
    u, v = zip(*known.ends(), strict=True)
    f, g, h = known.matrix().T.tolist()
    return ({"src": u, "dst": v, "weight": known.weights()},
            {"id": known.ids, "f": f, "g": g, "h": h, "label": [known.labels[node] for node in known.ids],
             "split": [known.split[node] for node in known.ids]})


@pytest.mark.parametrize("tables", [pandas_tables, arrow_tables, columns_of])
@pytest.mark.parametrize("ids", ["texts", "integers"])
def test_tables_come_back(made, known, tables, ids):
    if ids == "integers":
        known = known.renamed({node: 10**12 + 13 * number for number, node in enumerate(known.ids)})
    edges, nodes = tables(known)
    folder = made(edges, nodes=nodes)
    assert_same(folder, known)
    info = read_graph_info(folder)
    assert (info.node_names, info.class_names, info.task) == (ids, ("art", "bio", "law"), "classes")


def test_columns_can_be_named_or_placed_and_the_rest_left_out(made, known):
    edges, nodes = pandas_tables(known)
    edges = edges.rename(columns={"src": "citing paper", "weight": "strength"})
    nodes = nodes.rename(columns={"id": "who", "label": "topic", "split": "part"}).assign(town="Rome")
    folder = made(edges, source="citing paper", target=1, edge_weight="strength", nodes=nodes, node_ids="who",
                  labels="topic", splits="part", features=["f", "g", "h"])
    assert_same(folder, known)


@pytest.mark.parametrize("names", ["src_id dst_id", "source_node target_node", ":START_ID :END_ID", "citing cited",
                                   "Sender Receiver", "SourceID TargetID", "origin dest", "start end", "a b"])
def test_ends_are_found_by_their_names_in_either_order(made, known, names):
    """Two columns whose names do not tell lead from the first to the second, which is doubted. Words in names tell it
    in a table of two columns only.
    """
    edges, nodes = pandas_tables(known)
    source, target = names.split()
    edges = edges.rename(columns={"src": source, "dst": target})
    folder = made(edges[[source, target]], nodes=nodes)
    assert_same(folder, known, has_weights=False)
    read = read_graph_info(folder).what_was_read
    assert any("as no name tells more" in text for text in read.dubious) == (names == "a b")
    if names == "a b":
        return
    assert_same(made(edges[[target, source]], nodes=nodes, overwrite=True), known, has_weights=False)
    if names not in ("SourceID TargetID", "origin dest", "start end"):
        assert_same(made(edges[["weight", target, source]], nodes=nodes, overwrite=True), known)


def test_pandas_missing_values_and_categories_are_read(made, known):
    edges, nodes = pandas_tables(known)
    nodes["label"] = nodes["label"].astype("category")
    nodes.loc[4, "label"] = None            # which is in no split
    known.labels[known.ids[4]] = None
    assert known.split[known.ids[4]] == ""
    nodes["f"] = nodes["f"].astype("Int64")
    assert_same(made(edges, nodes=nodes), known)


@pytest.mark.parametrize("shape", ["pair", "rows", "columns", "tensor"])
def test_edge_arrays_come_back(made, plain, shape):
    ends = np.array(plain.ends())
    data = {"pair": tuple(ends.T), "rows": ends, "columns": ends.T, "tensor": torch.from_numpy(ends.T)}[shape]
    folder = made(data, edge_weight=np.array(plain.weights()), features=plain.matrix(),
                  labels=np.array(list(plain.labels.values())),
                  splits={word: np.flatnonzero(plain.mask(word)) for word in ("train", "val", "test")})
    assert_same(folder, plain)


def test_edge_arrays_between_texts_take_the_ids_of_rows(made, known):
    splits = [[node for node in known.ids if known.split[node] == word] for word in ("train", "val", "test")]
    folder = made(np.array(known.ends()), node_ids=known.ids, features=known.matrix(), edge_weight=known.weights(),
                  labels=list(known.labels.values()), splits=splits)
    assert_same(folder, known)


@pytest.mark.parametrize("num_targets", [1, 2])
def test_targets_of_a_regression_come_back(made, plain, num_targets):
    targets = np.linspace(-1, 1, 14 * num_targets, dtype=np.float32).reshape(14, num_targets)
    targets[4] = np.nan
    data = data_of(plain)
    data.y = torch.from_numpy(targets[:, 0] if num_targets == 1 else targets)
    folder = made(data)
    info, found = read_graph_info(folder), graph_in_shards(folder)
    assert (info.task, info.num_classes, info.is_multi_label) == ("regression", num_targets, False)
    np.testing.assert_array_equal([found.labels[node] for node in range(14)], targets)
    assert "targets of a regression" in " ".join(info.what_was_read.dubious)


def test_whole_targets_are_a_regression_when_it_is_said(made, plain):
    folder = made(data_of(plain), task="regression")
    assert read_graph_info(folder).task == "regression"
    assert graph_in_shards(folder).labels == {node: [float(label)] for node, label in plain.labels.items()}


def test_several_columns_of_labels_are_indicators_with_names(made, known):
    edges, nodes = columns_of(known)
    nodes["art"], nodes["law"] = ([int(label == name) for label in nodes["label"]] for name in ("art", "law"))
    folder = made(edges, nodes=nodes, labels=["art", "law"], features=["f"])
    info = read_graph_info(folder)
    assert (info.task, info.class_names) == ("multi-label", ("art", "law"))
    assert graph_in_shards(folder).labels == {
        node: [int(known.labels[node] == "art"), int(known.labels[node] == "law")] for node in known.ids}


def test_a_source_by_name_is_read_as_the_command_reads_it(tmp_path):
    source = "synthetic:nodes=60,mean_degree=6,features=5,classes=3"
    info = hpcgnn.preprocess(source, out=tmp_path / "g", parts=2, seed=3)
    assert (info.num_nodes, info.num_features) == (60, 5)
    assert read_graph_info(tmp_path / "g") == info
    assert repr(info).startswith("GraphInfo(synthetic: 60 nodes") and " 5 features, 3 classes; " in repr(info)
    assert repr(info).endswith(" 12 test; 2 parts)")
    assert info.provenance.settings["seed"] == 3


@pytest.mark.parametrize("form", ["arrays", "table", "file"])
def test_edges_between_numbers_with_gaps_name_the_nodes(tmp_path, form):
    ends = np.array([[10**12, 10**12 + 7, 5], [10**12 + 7, 5, 10**12]])
    (tmp_path / "e.txt").write_text("".join(f"{u} {v}\n" for u, v in ends.T))
    data = {"arrays": tuple(ends), "table": {"source": ends[0], "target": ends[1]}, "file": f"edges:{tmp_path}/e.txt"}
    info = hpcgnn.preprocess(data[form], make_labels=2, out=tmp_path / "g")
    assert (info.num_nodes, info.num_edges, info.node_names) == (3, 3, "integers")
    assert set(graph_in_shards(tmp_path / "g").arcs) == set(map(tuple, ends.T.tolist()))
    assert any("edges name 3 of the numbers 0 to 1,000,000,000,007" in remark for remark in info.cleaning.remarks)


def test_features_are_made_where_there_are_none_or_when_asked(made, plain):
    folder = made(data_of(plain), features="structural")
    assert read_graph_info(folder).num_features == 128


def test_an_unknown_option_is_refused_with_the_nearest_name(made, plain):
    with pytest.raises(TypeError, match="unexpected keyword argument 'symetrize'; did you mean 'symmetrize'"):
        made(data_of(plain), symetrize=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'scratch'"):
        made(data_of(plain), scratch="/tmp")


@pytest.mark.parametrize("out", [None, ""])
def test_shards_need_a_folder(plain, out):
    """An empty path would be this folder."""
    with pytest.raises(ConfigError, match="no folder to write to; pass out=FOLDER"):
        hpcgnn.preprocess(data_of(plain), out=out)


def test_editors_know_each_option_with_the_type_that_is_checked():
    taken = {item.name: item.type for item in fields(PreprocessOptions)}
    assert {name: taken.pop(name) for name in Options.__annotations__} == {
        name: kind.__forward_arg__ for name, kind in Options.__annotations__.items()}
    assert set(taken) == {"parts", "measured", "feature_kind", "is_public", "progress", "scratch"}
    assert all(f"{name}" in hpcgnn.preprocess.__doc__ for name in Options.__annotations__)


def refused(plain, known):
    """Object, options, and the sentence."""
    edges, nodes = columns_of(known)
    lost = {**edges, "dst": ["zed", *edges["dst"][1:]]}
    hetero = HeteroData()
    hetero["paper"].x = torch.ones(2, 3)
    hetero["paper", "cites", "paper"].edge_index = torch.tensor([[0], [1]])
    return {
        "an unknown id": ((lost, {"nodes": nodes}), "has an edge to node 'zed', which does not exist"),
        "an id twice": ((edges, {"nodes": {**nodes, "id": [known.ids[1], *known.ids[1:]]}}), "twice"),
        "a column that is not there": ((edges, {"nodes": nodes, "labels": "topic"}), "no column 'topic'; they have id"),
        "texts as features": ((edges, {"nodes": {**nodes, "town": ["Rome"] * 14}}),
                              "values of column 'town' hold texts such as 'Rome'"),
        "several columns of texts": ((edges, {"nodes": {**nodes, "town": ["Rome"] * 14, "job": ["cook"] * 14}}),
                                     "'town' hold texts.*; columns 'job' hold no numbers either; .*get_dummies"),
        "a negative weight": (({**edges, "weight": [-1.0, *edges["weight"][1:]]}, {"nodes": nodes}),
                              f"weight -1.0 from node {edges['src'][0]}"),
        "another split word": ((edges, {"nodes": {**nodes, "split": ["holdout"] * 14}}), "split called 'holdout'"),
        "several types": (([hetero, hetero], {}), "several graphs with types of nodes"),
        "no graph": ((3.5, {}), "a graph can't be made of a builtins.float"),
        "rows of a table": ((edges, {"nodes": nodes, "rows": "destinations"}), "rows= has no effect on a table"),
        "nodes beside a Data": ((data_of(plain), {"nodes": nodes}), "nodes= has no effect on a PyG Data"),
        "a mask of another length": ((data_of(plain), {"splits": [np.ones(3, bool)] * 3}), "mask of shape"),
        "ten splits": ((data_of(plain), {"splits": [np.ones((14, 10), bool)] * 3}),
                       "has 10 splits, the columns of its training mask, and none is chosen; choose one from 0 to 9"),
        "features of another length": ((data_of(plain), {"features": np.ones((3, 2))}), "3 feature rows and 14 labels"),
        "features of three axes": ((data_of(plain), {"features": np.ones((14, 2, 2))}), "shape .14, 2, 2.; expected a"),
        "features that are no array": ((data_of(plain), {"features": {"x": 1}}),
                                       "features are a dict; expected an array"),
        "ids of another number": ((data_of(plain), {"node_ids": ["a", "b"]}), "has 2 ids for 14 nodes"),
        "nodes that are pairs": ((networkx.grid_2d_graph(2, 2), {"labels": [0, 1, 0, 1]}), "node .0, 0., a tuple"),
        "one column for both ends": ((edges, {"nodes": nodes, "source": "dst"}), "from column 'dst' to itself"),
        "a Series as nodes": ((edges, {"nodes": pandas_tables(known)[1]["label"]}), "nodes are a Series; expected a"),
        "a wide edge list": ((np.ones((5, 4), int), {"labels": [0, 1]}), "edges have shape .5, 4."),
    }


REFUSED = refused(plain_graph(), make_known_graph())


@pytest.mark.parametrize("how", REFUSED)
def test_what_can_not_be_read_is_a_sentence_and_leaves_no_folder(made, tmp_path, how):
    (data, options), complaint = REFUSED[how]
    with pytest.raises(DatasetError, match=complaint) as caught:
        made(data, **options)
    assert "\n" not in str(caught.value) and not (tmp_path / "g").exists()


def test_a_graph_without_labels_is_kept_for_answers_and_says_so(made, plain):
    folder = made(data_of(plain), labels=False)
    info = read_graph_info(folder)
    assert (info.num_train, info.num_val, info.num_test, info.num_classes) == (0, 0, 0, 1)
    (sentence,) = [line for line in info.cleaning.read.dubious if "no labels" in line]
    assert "only a trained model can predict for it" in sentence and "data.y, labels=KEY or labels=ARRAY" in sentence


@pytest.mark.parametrize("options, complaint", [({}, "no folder"), ({"out": "x", "parts": 0}, "parts is 0"),
                                                ({"out": "x", "cluster_rows": -1}, "cluster_rows is -1; expected"),
                                                ({"out": "x", "cluster_rows": 2.5}, "cluster_rows is 2.5; expected"),
                                                ({"out": "x", "features": [[1]]}, "says itself"),
                                                ({"symmetrize": "no"}, "symmetrize is 'no'; expected True or False"),
                                                ({"seed": "1"}, "seed is '1'; expected a wh"),
                                                ({"parts": True}, "parts is True"),
                                                ({"owner": [0] * 60, "partitioner": "metis"},
                                                 "partitioner='metis' has no")])
def test_options_that_can_not_be_are_refused(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        hpcgnn.preprocess("synthetic:nodes=60", **options)


@pytest.mark.parallel(2)
def test_several_ranks_share_the_work_of_one_and_its_error(shared_path):  # noqa: F811
    plain = plain_graph()
    info = hpcgnn.preprocess(data_of(plain), parts=2, out=shared_path / "g")
    assert read_graph_info(shared_path / "g") == info
    with pytest.raises(CollectiveError, match=r"rank 0: .*already holds shards"):
        hpcgnn.preprocess(data_of(plain), parts=2, out=shared_path / "g")
    assert hpcgnn.open(shared_path / "g").num_nodes == 14


@pytest.mark.parametrize("names", ["{}_mask", "{}_Mask", "is_{}", "{}", "{}_idx"])
@pytest.mark.parametrize("form", ["table", "networkx"])
def test_masks_by_any_of_their_names_are_splits_and_no_features(made, known, names, form):
    edges, nodes = pandas_tables(known)
    words = {"train": "train", "dev": "val", "test": "test"}
    masks = {names.format(word): known.mask(split) for word, split in words.items()}
    nodes = nodes.drop(columns="split").assign(**masks)
    if form == "table":
        return assert_same(made(edges, nodes=nodes), known)
    graph = networkx.from_pandas_edgelist(edges, "src", "dst", ["weight"], networkx.DiGraph)
    graph.add_nodes_from((row.pop("id"), row) for row in nodes.to_dict("records"))
    found = graph_in_shards(made(graph, features=["f", "g", "h"]))
    assert {node: word for node, word in found.split.items() if word} == {
        node: word for node, word in known.split.items() if word}


@pytest.mark.parametrize("more, complaint", [
    ({"val_mask": [0] * 13 + [1]}, "there is val_mask, and no mask of the training nodes"),
    ({"train_mask": [1] * 14, "val_mask": [0] * 14, "valid_mask": [0] * 14}, "val_mask and valid_mask are masks of")])
def test_masks_without_training_nodes_or_twice_are_refused(made, known, plain, more, complaint):
    edges, nodes = pandas_tables(known)
    with pytest.raises(DatasetError, match=complaint):
        made(edges, nodes=nodes.drop(columns="split").assign(**more))
    data = data_of(plain)
    del data.train_mask, data.val_mask, data.test_mask
    with pytest.raises(DatasetError, match=complaint):
        made(data.update({key: torch.tensor(values) for key, values in more.items()}))


def test_masks_next_to_a_column_of_splits_are_no_features(made, known):
    edges, nodes = pandas_tables(known)
    folder = made(edges, nodes=nodes.assign(train_mask=1))
    assert_same(folder, known)
    assert "train_mask of nodes" in str(read_graph_info(folder).cleaning.read)


@pytest.mark.parametrize("names", ["{}_idx", "{}_index", "{}_id", "{}_nodes", "idx_{}", "id_{}"])
def test_lists_of_rows_in_pyg_data_are_splits(made, plain, names):
    assert_same(made(with_lists(plain, names)), plain, has_weights=False)


def with_lists(plain, names):
    data = data_of(plain)
    for word in ("train", "val", "test"):
        data[names.format(word)] = torch.from_numpy(np.flatnonzero(plain.mask(word)))
        del data[f"{word}_mask"]
    return data


@pytest.mark.parametrize("names", ["{}_masks", "mask_{}", "{}mask"])
def test_masks_features_and_labels_of_pyg_data_have_several_names(made, plain, names):
    data = data_of(plain)
    for word in ("train", "val", "test"):
        data[names.format(word)] = data.pop(f"{word}_mask")
    data.feat, data.label = data.pop("x"), data.pop("y")
    assert_same(made(data), plain, has_weights=False)


def test_one_dict_of_rows_and_words_in_pyg_data_are_splits(made, plain):
    data = with_lists(plain, "{}_idx")
    rows = {"train": data.pop("train_idx"), "valid": data.pop("val_idx"), "test": data.pop("test_idx")}
    assert_same(made(data.update({"split_idx": rows})), plain, has_weights=False)
    words = [plain.split[node] for node in sorted(plain.split)]
    data = data_of(plain).update({"split": words})
    del data.train_mask, data.val_mask, data.test_mask, data.split_idx
    assert_same(made(data, overwrite=True), plain, has_weights=False)
    with pytest.raises(DatasetError, match="the splits are integers; expected texts"):
        made(data.update({"split": torch.zeros(14, dtype=torch.long)}), overwrite=True)
    folds = [(np.arange(9), np.arange(9, 14))] * 3      # as KFold of scikit-learn gives them
    with pytest.raises(DatasetError, match="nodes of the training split hold vectors of several lengths"):
        made(data_of(plain), splits=folds, overwrite=True)


def test_lists_of_rows_of_several_graphs_are_of_each_graph(made, capsys):
    """Batch of PyG adds nothing to the rows that train_idx lists, so that it names rows of the first graph alone."""
    graphs = several_graphs()
    for graph in graphs:
        graph.train_idx, graph.test_idx = torch.tensor([0, 2]), torch.tensor([1])
        graph.note = torch.zeros(3)
    split = graph_in_shards(made(graphs)).split
    first = np.cumsum([0, *(graph.num_nodes for graph in graphs)])[:-1]
    assert sorted(node for node, word in split.items() if word == "train") == sorted([*first, *(first + 2)])
    assert sorted(node for node, word in split.items() if word == "test") == sorted(first + 1)
    assert "unused in graph: note" in capsys.readouterr().err
    with pytest.raises(DatasetError, match="lists node 0 twice in its training split"):
        made(Batch.from_data_list(graphs), overwrite=True)
    graphs[1].train_idx = torch.tensor([graphs[1].num_nodes])
    with pytest.raises(DatasetError, match="train_idx of graph 1 lists no rows of its"):
        made(graphs, overwrite=True)


@pytest.mark.parametrize("what", ["labels", "features", "splits", "edge_weight", "by id", "networkx"])
def test_rows_of_pandas_in_another_order_are_refused_and_in_the_same_are_read(made, known, plain, what):
    edges, nodes = pandas_tables(plain)
    data, options = (edges[["src", "dst"]].to_numpy().T, {"labels": nodes["label"], "features": nodes[["f", "g", "h"]]})
    options["splits"] = tuple(nodes["split"] == word for word in ("train", "val", "test"))
    key = what if what in options or what == "edge_weight" else "labels"
    options["edge_weight"] = edges["weight"]
    if what == "by id":
        data, options["node_ids"] = np.array(known.ends(), object).T, known.ids
        options["labels"] = nodes["label"].set_axis(known.ids)
    elif what == "networkx":
        data, options = networkx.path_graph(known.ids, networkx.DiGraph), {"labels": nodes["label"].set_axis(known.ids)}
    made(data, **options)
    turned = [mask[::-1] for mask in options[key]] if key == "splits" else options[key][::-1]
    with pytest.raises(DatasetError, match=f"the index of {key} has the rows in another order"):
        made(data, **options | {key: turned}, overwrite=True)


@pytest.mark.parametrize("form", ["Weight", "array"])
def test_networkx_weights_are_found_in_any_case_and_taken_from_an_array(made, form):
    graph = networkx.DiGraph()
    graph.add_edges_from([(0, 1, {"Weight": 2.0}), (1, 2, {"Weight": 3.0})])
    options = {"edge_weight": [2.0, 3.0]} if form == "array" else {}
    assert graph_in_shards(made(graph, labels=[0, 1, 0], **options)).arcs == {(0, 1): 2, (1, 2): 3}


def test_rows_of_json_are_tables(made, known):
    edges, nodes = (table.to_dict("records") for table in pandas_tables(known))
    assert_same(made(edges, nodes=nodes), known)


def test_views_of_one_graph_are_not_joined(made, plain):
    data = data_of(plain, edge_label_index=torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(DatasetError, match="3 views of one graph with held-out links, as RandomLinkSplit makes them"):
        made((data, data, data))


@pytest.mark.parametrize("values, complaint", [
    ([np.ones((2, 2))] * 14, r"'m' are a \w+ of shape \(14, 2, 2\)"),
    ([[1.0]] * 13 + [None], "lack a vector at place 13")])
def test_columns_of_matrices_and_rows_without_a_vector_are_refused(made, known, values, complaint):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    edges, nodes = arrow_tables(known)
    column = pyarrow.array([None if value is None else np.asarray(value).tolist() for value in values])
    with pytest.raises(DatasetError, match=complaint):
        made(edges, nodes=nodes.append_column("m", column))
    with pytest.raises(DatasetError, match=complaint.replace("'m'", "column 'm' of a")):
        made({"a": nodes.append_column("m", column), ("a", "r", "a"): edges})


def test_an_id_that_became_a_feature_is_said(made, known):
    edges, nodes = pandas_tables(known)
    info = read_graph_info(made(edges, nodes=nodes.assign(index=np.arange(14)[::-1] * 3)))
    assert "feature index has another whole number for every node" in " ".join(info.cleaning.read.dubious)


def test_a_number_of_numpy_is_a_whole_number(tmp_path):
    source = "synthetic:nodes=60,classes=2,mean_degree=4"
    assert hpcgnn.preprocess(source, out=tmp_path / "g", parts=np.int64(2)).num_parts == 2
