"""A source is found by its kind; a user's function is one: what it returns passes the same gate as any object."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from hpcgnn.data.options import SourceOptions, split_path
from hpcgnn.data.source import LOADERS, load_source
from hpcgnn.errors import DatasetError


@pytest.mark.parametrize("spec", ["neo4j:graph.db", "cora", "", ":x"])
def test_unknown_kind_is_refused_with_the_list_of_kinds(spec):
    with pytest.raises(DatasetError) as error:
        load_source(spec, SourceOptions())
    assert all(kind in str(error.value) for kind in LOADERS)


def test_a_file_without_its_kind_is_told_what_was_meant():
    with pytest.raises(DatasetError, match=r"; write npz:some/graph\.npz$"):
        load_source("some/graph.npz", SourceOptions())


@pytest.mark.parametrize("kind", ["npz", "pyg", "shards"])
def test_an_unknown_setting_is_no_part_of_the_path(kind, tmp_path):
    (tmp_path / "g").write_text("")
    with pytest.raises(DatasetError, match=r"source has no setting 'edge=[^']*'; expected NAME=VALUE"):
        split_path(f"{tmp_path}/g,edge=more.csv", ("edges", "features"), f"a {kind}: source")
    (tmp_path / "a,b=1").write_text("")
    assert split_path(f"{tmp_path}/a,b=1,edges=c", ("edges",), "s") == (f"{tmp_path}/a,b=1", {"edges": "c"})


@pytest.mark.parametrize("kind", ["npz", "planetoid", "ogb", "graphsaint", "edges"])
def test_every_kind_refuses_what_is_not_there_in_one_sentence(kind, tmp_path):
    missing = tmp_path / "none"
    rest = {"ogb": "ogbn-arxiv", "edges": f"{missing}.csv,labels={missing}.npy"}.get(kind, missing)
    with pytest.raises(DatasetError, match=r"none|ogbn_arxiv") as error:
        load_source(f"{kind}:{rest}", SourceOptions(root=tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("setting", "value"), [
    ("non_finite", "ignore"), ("feature_kind", "none"), ("normalize_features", "column"), ("seed", -1),
    ("split", (0.9, 0.2)), ("split", (0.0, 0.2)),
])
def test_options_outside_their_choices_are_refused(setting, value):
    with pytest.raises(DatasetError, match=r"expected"):
        SourceOptions(**{setting: value})


MODULE = """
import numpy as np
from hpcgnn.data.given import GivenGraph
from hpcgnn.errors import DatasetError

SOURCE, TARGET = ["a", "b", "c"], ["b", "c", "a"]
NODES = {"id": ["a", "b", "c"], "topic": ["x", "y", "x"], "age": [1.0, 2.0, 3.0]}

def load():
    return {"edge_index": np.array([[0, 1, 2], [1, 2, 0]]), "x": np.eye(3), "y": [0, 1, 0]}

def tables():
    return {"source": SOURCE, "target": TARGET}, {"nodes": NODES, "labels": "topic", "name": "three"}

def given():
    return GivenGraph("three", SOURCE, TARGET, node_id=NODES["id"], features=np.eye(3), labels=NODES["topic"])

def nothing():
    pass

def unknown():
    return tables()[0], {"label": "topic"}

def dates():
    return {**load(), "x": np.array(["2020-01-01"] * 3, "datetime64[D]")[:, None]}

def refuses():
    raise DatasetError("the database is empty")

def fails():
    return {}["no such key"]
"""


@pytest.fixture(params=["my_graphs.py", "my_graphs", "folder/my_graphs.py"])
def module(request, tmp_path, monkeypatch):
    """The name of MODULE, as a file or a module."""
    file = tmp_path / f"{request.param.removesuffix('.py')}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_graphs", raising=False)
    yield request.param
    sys.modules.pop("my_graphs", None)


@pytest.mark.parametrize("function, name", [("load", "my_graphs"), ("tables", "three"), ("given", "three")])
def test_a_function_returns_a_graph_in_any_form(module, function, name):
    dataset = load_source(f"{module}:{function}", SourceOptions(seed=1))
    assert (dataset.name, dataset.num_nodes, dataset.num_edges, dataset.labels.tolist()) == (name, 3, 3, [0, 1, 0])
    assert dataset.indices.tolist() == [2, 0, 1]      # node 0 is told by node 2, and so on
    assert dataset.num_features == (1 if function == "tables" else 3)
    if function == "load":
        np.testing.assert_array_equal(dataset.features, np.eye(3, dtype=np.float32))
    else:
        assert dataset.node_name.tolist() == ["a", "b", "c"]


def test_a_file_may_be_called_as_a_module_that_python_has(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "neighbor.py").write_text("ENDS = [[0, 1, 2], [1, 2, 0]]")
    (tmp_path / "random.py").write_text("from neighbor import ENDS\ndef load():\n    return ENDS, {'name': 'ring'}\n")
    dataset = load_source(f"{tmp_path}/random.py:load", SourceOptions(feature_kind="auto"))
    assert (dataset.name, dataset.num_edges, dataset.is_labeled) == ("ring", 3, False)
    assert hasattr(sys.modules["random"], "randrange")


def test_the_options_of_the_command_hold(module):
    assert load_source(f"{module}:load", SourceOptions(symmetrize=True)).num_edges == 6
    made = load_source(f"{module}:given", SourceOptions(feature_kind="structural"))
    assert made.num_features == 128


@pytest.mark.parametrize("function, message", [
    ("lod", "source {}:lod can't be imported: module 'my_graphs' has no attribute 'lod'; a source is KIND:REST with "),
    ("SOURCE", "source {}:SOURCE is a list; expected a function that returns a graph"),
    ("nothing", "{}:nothing returned a NoneType, which is no graph; return a PyG Data or HeteroData or a dict with "),
    ("unknown", "{}:unknown returned a graph with 'label'; what lies where is told by name, features, labels, "),
    ("refuses", "the database is empty"),
    ("fails", "{}:fails raised KeyError: 'no such key' (line 31 of "),
    ("dates", "features are times (datetime64[D]); expected "),
])
def test_what_is_no_graph_is_refused_in_one_sentence(module, function, message):
    with pytest.raises(DatasetError) as refused:
        load_source(f"{module}:{function}", SourceOptions())
    assert str(refused.value).startswith(message.format(module)) and "\n" not in str(refused.value)


@pytest.mark.parametrize("spec, message", [
    ("no_such_module:load", "source no_such_module:load can't be imported: No module named 'no_such_module'; a "),
    ("no_such_file.py:load", "source no_such_file.py:load can't be imported: FileNotFoundError: "),
    ("wrong.py:load", "source wrong.py:load can't be imported: NameError: name 'undefined' is not defined; a source "),
])
def test_a_function_that_is_not_there_is_refused(tmp_path, monkeypatch, spec, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "wrong.py").write_text("undefined")
    with pytest.raises(DatasetError) as refused:
        load_source(spec, SourceOptions())
    assert str(refused.value).startswith(message)
