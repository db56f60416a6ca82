"""Relations and attributes of edges come from every source that can hold them, or are refused in one sentence."""

import networkx
import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data

from hpcgnn.data.given import finish_dataset
from hpcgnn.data.objects import given_graph
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.data.tables import Choices
from hpcgnn.errors import DatasetError

# Parallel edges, a duplicate, a loop, and two relations between the same ends.
SOURCE = np.array([0, 0, 0, 0, 1, 2, 3, 3])
TARGET = np.array([1, 1, 1, 1, 2, 0, 3, 2])
RELATION = np.array([1, 0, 1, 1, 2, 0, 0, 2])
ATTR = np.array([[2, 5], [2, 5], [2, 5], [3, -1], [0, 0], [1, 0], [9, 9], [0, 7]])
NAMES = ("born in", "cites", "likes")
WORDS = np.array(NAMES)[RELATION]
NUM_NODES = 4


def oracle(has_relation=True, has_attr=True):
    """Edges as (source, target, relation, attributes), each once."""
    found = {(int(u), int(v), int(r) if has_relation else 0, tuple(map(float, a)) if has_attr else ())
             for u, v, r, a in zip(SOURCE, TARGET, RELATION, ATTR, strict=True) if u != v}
    return sorted(found)


def edges_of(dataset):
    target = np.repeat(np.arange(dataset.num_nodes), dataset.in_degree())
    relation = np.zeros(dataset.num_edges, int) if dataset.edge_type is None else dataset.edge_type
    attr = np.empty((dataset.num_edges, 0)) if dataset.edge_attr is None else dataset.edge_attr
    return sorted((u, v, r, tuple(a)) for u, v, r, a in zip(
        dataset.indices.tolist(), target.tolist(), relation.tolist(), attr.tolist(), strict=True))


OPTIONS = SourceOptions(feature_kind="auto", make_labels=2)


def read(data, **choices):
    return finish_dataset(given_graph(data, Choices(**choices)), OPTIONS)


def load(spec):
    return load_source(spec, OPTIONS)


def data_of(**more):
    return Data(edge_index=torch.tensor(np.stack([SOURCE, TARGET])), num_nodes=NUM_NODES, **more)


class StandInDGLGraph:
    """What hpcgnn asks of a DGL graph; DGL itself can't be installed beside a recent torch."""

    is_homogeneous = True

    def __init__(self, **edata):
        self.ndata, self.edata = {}, edata

    def edges(self):
        return torch.tensor(SOURCE), torch.tensor(TARGET)

    def num_nodes(self):
        return NUM_NODES


def multigraph():
    graph = networkx.MultiDiGraph()
    graph.add_nodes_from(range(NUM_NODES))
    for u, v, word, attr in zip(SOURCE.tolist(), TARGET.tolist(), WORDS.tolist(), ATTR.tolist(), strict=True):
        graph.add_edge(u, v, relation=word, a=attr[0], b=attr[1])
    return graph


def frame():
    return pandas.DataFrame({"src": SOURCE, "dst": TARGET, "relation": WORDS, "a": ATTR[:, 0], "b": ATTR[:, 1]})


ENDS = np.stack([SOURCE, TARGET])
OBJECTS = {
    "pyg": (lambda: data_of(edge_type=torch.tensor(RELATION), edge_attr=torch.tensor(ATTR)), {}, ("0", "1", "2")),
    "pyg with names": (lambda: data_of(edge_type=torch.tensor(RELATION), edge_attr=torch.tensor(ATTR),
                                       relation_names=list(NAMES)), {}, NAMES),
    "a dict by other keys": (lambda: {"edge_index": ENDS, "kind": RELATION, "f": ATTR, "num_nodes": NUM_NODES},
                             {"relation": "kind", "edge_attr": "f"}, ("0", "1", "2")),
    "pyg and arrays": (data_of, {"relation": WORDS, "edge_attr": ATTR}, NAMES),
    "dgl": (lambda: StandInDGLGraph(_TYPE=torch.tensor(RELATION), feat=torch.tensor(ATTR)), {}, ("0", "1", "2")),
    "networkx": (multigraph, {"edge_attr": ["a", "b"]}, NAMES),
    "pandas": (frame, {"edge_attr": ["a", "b"]}, NAMES),
    "arrow": (lambda: pyarrow.Table.from_pandas(frame().rename(columns={"relation": "how"})),
              {"edge_attr": ["a", "b"], "relation": "how"}, NAMES),
    "ends": (lambda: ENDS, {"relation": WORDS, "edge_attr": ATTR}, NAMES),
}


@pytest.mark.parametrize("form", OBJECTS)
def test_an_object_gives_its_relations_and_attributes(form):
    make, choices, names = OBJECTS[form]
    dataset = read(make(), **choices)
    assert edges_of(dataset) == oracle() and dataset.relation_names == names
    text = str(dataset.cleaning.read)
    assert "relations 3 of " in text and "edge_attr 2 per edge from " in text and "unused" not in text


@pytest.mark.parametrize("form", OBJECTS)
def test_relations_and_attributes_can_be_left_out(form):
    make, choices, _ = OBJECTS[form]
    dataset = read(make(), **choices | {"relation": False, "edge_attr": False})
    assert edges_of(dataset) == sorted({(u, v, 0, ()) for u, v, *_ in oracle()})
    assert (dataset.edge_type, dataset.edge_attr, dataset.relation_names) == (None, None, ())


@pytest.mark.parametrize("more, choices, is_weight", [
    ({}, {}, True), ({}, {"edge_attr": "edge_attr"}, False), ({}, {"edge_weight": "edge_attr"}, True),
    ({"edge_weight": torch.arange(8.0) + 1}, {}, False),
])
def test_edge_attr_of_one_column_is_the_weight_unless_it_is_asked_for(more, choices, is_weight):
    column = torch.arange(8.0) * 2 + 1
    for attr in (column, column[:, None]):
        dataset = read(data_of(edge_attr=attr, **more), **choices)
        assert (dataset.edge_attr is None) == is_weight
        assert (dataset.edge_weight is None) == (not is_weight and not more)
    assert read(data_of(edge_attr=column), edge_weight=False).edge_attr is None


def test_one_column_that_can_be_no_weight_says_how_to_take_it():
    with pytest.raises(DatasetError, match=r"edge of weight 0\.0 from node 0 to 1; expected positive"):
        read(data_of(edge_attr=torch.arange(8.0)))


def test_several_graphs_of_pyg_keep_what_their_edges_carry():
    one = data_of(edge_type=torch.tensor(RELATION), edge_attr=torch.tensor(ATTR), relation_names=list(NAMES))
    dataset = read([one, one])
    twice = [(u + shift, v + shift, r, a) for u, v, r, a in oracle() for shift in (0, NUM_NODES)]
    assert edges_of(dataset) == sorted(twice) and dataset.relation_names == NAMES
    other = data_of(edge_type=torch.tensor(RELATION), edge_attr=torch.tensor(ATTR), relation_names=["a", "b", "c"])
    with pytest.raises(DatasetError, match="different relation_names"):
        read([one, other])
    with pytest.raises(DatasetError, match="graphs with 'edge_type', and graph 1 has none"):
        read([data_of(edge_type=torch.tensor(RELATION)), data_of()])


def test_an_undirected_networkx_graph_holds_both_ways_under_one_relation():
    graph = networkx.MultiGraph()
    graph.add_edge("u", "v", relation="knows")
    graph.add_edge("v", "w", relation="owns")
    dataset = finish_dataset(given_graph(graph, Choices()), SourceOptions(feature_kind="auto", symmetrize=True))
    assert edges_of(dataset) == [(0, 1, 0, ()), (1, 0, 0, ()), (1, 2, 1, ()), (2, 1, 1, ())]
    assert dataset.relation_names == ("knows", "owns") and dataset.cleaning.is_symmetric
    graph.add_edge("u", "w")
    with pytest.raises(DatasetError, match="no 'relation' at the edge from 'u' to 'w'; expected this attribute"):
        read(graph)


@pytest.fixture
def files(tmp_path):
    """Folder with one file for each source."""
    order = np.argsort(TARGET, kind="stable")
    arrays = {"indptr": np.concatenate([[0], np.cumsum(np.bincount(TARGET, minlength=NUM_NODES))]),
              "indices": SOURCE[order], "edge_type": RELATION[order], "edge_attr": ATTR[order]}
    np.savez(tmp_path / "named.npz", **arrays, relation_names=np.array(NAMES))
    np.savez(tmp_path / "numbers.npz", **arrays)
    np.savez(tmp_path / "words.npz", indptr=arrays["indptr"], indices=arrays["indices"], how=WORDS[order],
             f=ATTR[order])
    frame().to_csv(tmp_path / "edges.csv", index=False)
    frame().to_parquet(tmp_path / "edges.parquet", index=False)
    lines = [f"{u}\t{word}\t{v}" for u, word, v in zip(SOURCE, WORDS, TARGET, strict=True)]
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "texts.txt").write_text("a\tlikes\tb\n")
    (tmp_path / "head.tsv").write_text("\n".join(["source\trelation\ttarget\tweight", *(
        f"{line}\t2.5" for line in lines)]))
    torch.save(data_of(edge_type=torch.tensor(RELATION), edge_attr=torch.tensor(ATTR)).to_dict(), tmp_path / "g.pt")
    return tmp_path


@pytest.mark.parametrize("spec, names, has_attr", [
    ("npz:{}/named.npz", NAMES, True), ("npz:{}/numbers.npz", ("0", "1", "2"), True),
    ("npz:{}/words.npz,relation=how,edge_features=f", NAMES, True),
    ("csv:{}/edges.csv,edge_features=a;b", NAMES, True), ("csv:{}/edges.csv", NAMES, False),
    ("parquet:{}/edges.parquet,relation=relation,edge_features=a;b", NAMES, True),
    ("edges:{}/train.txt,relation=1", NAMES, False), ("edges:{}/head.tsv,relation=relation", NAMES, False),
    ("pyg:{}/g.pt", ("0", "1", "2"), True), ("pyg:{}/g.pt,edge_features=none", ("0", "1", "2"), False),
])
def test_a_file_gives_its_relations_and_attributes(files, spec, names, has_attr):
    dataset = load(spec.format(files))
    assert edges_of(dataset) == oracle(has_attr=has_attr) and dataset.relation_names == names


@pytest.mark.parametrize("spec", ["npz:{}/named.npz,relation=none,edge_features=none", "edges:{}/train.txt,relation=1",
                                  "csv:{}/edges.csv,relation=none", "pyg:{}/g.pt,relation=none"])
def test_a_file_without_relations_has_none(files, spec):
    dataset = load(spec.format(files))
    assert (dataset.edge_type is None) == ("relation=none" in spec)


def test_a_knowledge_graph_has_texts_or_numbers_and_weights(files):
    dataset = load(f"edges:{files}/head.tsv,relation=1")
    # 0 cites 1 three times.
    assert sorted(dataset.edge_weight.tolist()) == [2.5, 2.5, 2.5, 2.5, 7.5]
    assert load(f"edges:{files}/head.tsv,relation=1,weight=none").edge_weight is None
    (files / "numbers.txt").write_text("/m/a 31 /m/b\n/m/b 279 /m/a\n")
    dataset = load(f"edges:{files}/numbers.txt,relation=1")
    assert dataset.relation_names == ("31", "279") and dataset.node_name.tolist() == ["/m/a", "/m/b"]


@pytest.mark.parametrize("spec, complaint", [
    ("edges:{}/texts.txt", "'b' in its third column; expected weights, which are numbers, or relation=1 in the source"),
    ("edges:{}/train.txt,relation=3", "3 columns and no header, and relation=3 was given; expected the place"),
    ("edges:{}/head.tsv,relation=how", "the columns source, relation, target, weight, and relation=how was given"),
    ("npz:{}/words.npz,relation=why", "has no array 'why'"),
    ("csv:{}/edges.csv,edge_features=a;c", "the edges have no column 'c'"),
    ("csv:{}/edges.csv,edge_features=relation", "the values of column 'relation' of edges hold texts"),
    ("pyg:{}/g.pt,relation=rel", "has no 'rel'"),
])
def test_a_source_without_what_was_named_is_refused(files, spec, complaint):
    with pytest.raises(DatasetError, match=complaint):
        load(spec.format(files))


def test_a_file_of_a_known_collection_has_no_relations(files):
    (files / "out.g").write_text("% sym unweighted\n1 2\n2 3\n")
    with pytest.raises(DatasetError, match="is a file of KONECT, which has no column of relations"):
        load(f"edges:{files}/out.g,relation=1")


def test_a_matrix_holds_no_relations():
    matrix = scipy.sparse.csr_matrix((np.ones(8), (SOURCE, TARGET)), shape=(4, 4))
    with pytest.raises(DatasetError, match=r"is a matrix, which holds one number for each edge; .* to give relation"):
        read(matrix, relation=RELATION)


def test_many_relations_and_attributes_are_told_by_number(files):
    rows = [f"{place}\tr{place:03}\t{place + 1}" for place in range(40)]
    (files / "many.txt").write_text("\n".join(rows))
    text = str(load(f"edges:{files}/many.txt,relation=1").cleaning.read)
    assert "relations 40 of column 1 of many.txt: r000 (1), r001 (1)," in text and "and 28 more" in text
