"""One process has the whole graph as tensors, in the order of the source, from shards of any number of parts."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import ToUndirected
from torch_geometric.utils import coalesce
from training_setup import easy_graph, write_once

import hpcgnn
from hpcgnn.errors import CollectiveError, ConfigError

COMM = MPI.COMM_WORLD
NUM_NODES = 50


@pytest.fixture
def data():
    """A directed graph without self-loops or repeated edges, with weights and masks that leave nodes out."""
    draw = torch.Generator().manual_seed(0)
    ends = torch.randint(NUM_NODES, (2, 300), generator=draw)
    ends = coalesce(ends[:, ends[0] != ends[1]])
    ends = ends[:, torch.randperm(ends.shape[1], generator=draw)]
    split = torch.randint(4, (NUM_NODES,), generator=draw)
    return Data(x=torch.rand(NUM_NODES, 5, generator=draw), edge_index=ends,
                y=torch.arange(NUM_NODES) % 3, edge_weight=torch.rand(ends.shape[1], generator=draw) + 0.1,
                train_mask=split == 0, val_mask=split == 1, test_mask=split == 2)


def assert_same(found, data):
    assert set(found.keys()) == set(data.keys())
    edges, weights = coalesce(data.edge_index, data.edge_weight)
    assert torch.equal(found.edge_index, edges) and torch.equal(found.edge_weight, weights)
    for name in ("x", "y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(found[name], data[name]) and found[name].dtype == data[name].dtype, name


@pytest.mark.parametrize("num_parts", [1, 3])
def test_a_graph_of_pyg_comes_back(data, tmp_path, num_parts):
    hpcgnn.preprocess(data, parts=num_parts, partitioner="contiguous", out=tmp_path / "g")
    graph = hpcgnn.open(tmp_path / "g")
    assert_same(graph.to_pyg(), data)
    edges, weights = coalesce(data.edge_index, data.edge_weight)
    assert torch.equal(graph.edge_index, edges) and torch.equal(graph.edge_weight, weights)
    for name in ("x", "y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(getattr(graph, name), data[name])
    assert graph.node_index.tolist() == list(range(NUM_NODES))
    hpcgnn.preprocess(graph.to_pyg(), parts=2, partitioner="contiguous", out=tmp_path / "again")
    assert_same(hpcgnn.open(tmp_path / "again").to_pyg(), data)


def test_a_graph_with_types_is_that_of_to_homogeneous(tmp_path):
    draw = torch.Generator().manual_seed(0)
    data = HeteroData()
    for name, count in (("paper", 20), ("author", 12), ("venue", 3)):
        data[name].x = torch.rand(count, 4, generator=draw)
    for kind in (("author", "writes", "paper"), ("paper", "in", "venue"), ("venue", "of", "author")):
        counts = [data[kind[0]].num_nodes, data[kind[2]].num_nodes]
        data[kind].edge_index = coalesce(torch.stack([torch.randint(count, (30,), generator=draw) for count in counts]))
    data["paper"].y = torch.arange(20) % 3
    hpcgnn.preprocess(data, parts=3, out=tmp_path / "g")
    graph, expected = hpcgnn.open(tmp_path / "g"), data.to_homogeneous()
    found = graph.to_pyg()
    edges, kinds = coalesce(expected.edge_index, expected.edge_type)
    assert torch.equal(found.edge_index, edges) and torch.equal(found.edge_type, kinds)
    assert torch.equal(found.node_type, expected.node_type) and torch.equal(graph.node_type, expected.node_type)
    assert graph.node_types == (("paper", 20), ("author", 12), ("venue", 3))
    assert graph.metadata() == data.metadata()
    assert found.node_ids[19:21] == ["paper:19", "author:0"]
    hpcgnn.preprocess(data, symmetrize=True, out=tmp_path / "both")
    _, kinds = hpcgnn.open(tmp_path / "both").metadata()
    assert kinds == [*data.edge_types, ("paper", "rev_writes", "author"), ("venue", "rev_in", "paper"),
                     ("author", "rev_of", "venue")]
    hpcgnn.preprocess(ToUndirected()(data), symmetrize=True, out=tmp_path / "twice")
    with pytest.raises(ConfigError, match=r"relations 'paper__rev_writes__author' and 'author__writes__paper reverse' "
                                          "are both edges .*; if the graph has the reverses already"):
        hpcgnn.open(tmp_path / "twice").metadata()
    assert found.y.tolist() == [*data["paper"].y.tolist(), *[-1] * 15]


@pytest.mark.parametrize("ids", [[f"n{node}" for node in range(NUM_NODES)], list(range(100, 100 + NUM_NODES))],
                         ids=["texts", "numbers"])
def test_names_of_nodes_come_along_and_go_back(data, tmp_path, ids):
    del data.edge_weight
    hpcgnn.preprocess(data, parts=2, partitioner="contiguous", out=tmp_path / "g", node_ids=np.array(ids))
    graph = hpcgnn.open(tmp_path / "g")
    found = graph.to_pyg()
    assert list(found.node_ids) == ids and graph.edge_weight is None and "edge_weight" not in found
    assert torch.equal(found.x, data.x)
    hpcgnn.preprocess(found, out=tmp_path / "again", node_ids="node_ids")
    assert list(hpcgnn.open(tmp_path / "again").to_pyg().node_ids) == ids


@pytest.mark.parametrize("task, labels", [
    ("multi-label", torch.tensor([[1.0, 0.0], [0.0, float("nan")]])), ("regression", torch.tensor([[0.5], [-2.25]]))])
def test_several_labels_and_targets_are_floats(data, tmp_path, task, labels):
    data.y = labels.repeat(NUM_NODES // 2, 1)
    hpcgnn.preprocess(data, parts=2, partitioner="contiguous", out=tmp_path / "g", task=task)
    found = hpcgnn.open(tmp_path / "g").y
    assert found.dtype == torch.float32 and torch.equal(found.isnan(), data.y.isnan())
    assert torch.equal(found.nan_to_num(9), data.y.nan_to_num(9))


def test_unknown_classes_are_minus_one(data, tmp_path):
    data.y[data.train_mask.logical_not() & data.val_mask.logical_not() & data.test_mask.logical_not()] = -1
    hpcgnn.preprocess(data, out=tmp_path / "g")
    assert (data.y == -1).any() and torch.equal(hpcgnn.open(tmp_path / "g").y, data.y)


def test_one_process_looks_at_parts_but_does_not_train_them(data, tmp_path):
    hpcgnn.preprocess(data, parts=2, partitioner="contiguous", out=tmp_path / "g")
    graph = hpcgnn.open(tmp_path / "g")
    assert repr(graph).endswith("3 classes; all 2 parts)")
    words = (r"was partitioned into 2 parts but 1 rank was started; use mpirun -n 2, from a notebook "
             r"hpcgnn\.launch\(\.\., ranks=2\), or preprocess it with parts=1")
    with pytest.raises(CollectiveError, match=words):
        hpcgnn.fit("gcn", graph, out=tmp_path / "run")
    with pytest.raises(CollectiveError, match=words):
        hpcgnn.open_run(tmp_path / "run", graph)
    assert not (tmp_path / "run").exists()


@pytest.mark.parallel(2)
def test_ranks_that_share_a_graph_are_told_where_to_get_it_whole(shared_path):
    graph = hpcgnn.open(write_once(COMM, easy_graph(), shared_path / "shards"), COMM)
    for wanted in (lambda: graph.x, graph.to_pyg):
        with pytest.raises(ConfigError, match=r"is spread over 2 ranks; .* open its shards in one process"):
            wanted()
    assert repr(graph).endswith(f"part {COMM.rank} of 2)")


def test_a_missing_library_is_named(data, tmp_path, monkeypatch):
    hpcgnn.preprocess(data, out=tmp_path / "g")
    graph = hpcgnn.open(tmp_path / "g")
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    with pytest.raises(ConfigError, match="pip install torch_geometric"):
        graph.to_pyg()


@pytest.mark.parametrize("num_parts", [1, 3])
def test_relations_and_attributes_come_back_edge_by_edge(data, tmp_path, num_parts):
    draw = torch.Generator().manual_seed(1)
    num_edges = data.edge_index.shape[1]
    del data.edge_weight
    # Each edge comes twice, by two relations.
    data.edge_index = torch.cat([data.edge_index, data.edge_index], dim=1)
    data.edge_type = torch.arange(2).repeat_interleave(num_edges)
    data.edge_attr = torch.rand(2 * num_edges, 3, generator=draw)
    data.relation_names = ["cites", "likes"]
    hpcgnn.preprocess(data, parts=num_parts, out=tmp_path / "g")
    graph = hpcgnn.open(tmp_path / "g")
    assert (graph.relation_names, graph.num_edge_features) == (("cites", "likes"), 3)
    order = np.lexsort((data.edge_type, data.edge_index[1], data.edge_index[0]))
    for found in (graph, graph.to_pyg()):
        assert torch.equal(found.edge_index, data.edge_index[:, order])
        assert torch.equal(found.edge_type, data.edge_type[order]) and found.edge_type.dtype == torch.int64
        assert torch.equal(found.edge_attr, data.edge_attr[order])
    hpcgnn.preprocess(graph.to_pyg(), parts=2, out=tmp_path / "again")
    assert hpcgnn.open(tmp_path / "again").info.fingerprint == graph.info.fingerprint
    assert hpcgnn.open(tmp_path / "again").relation_names == ("cites", "likes")
