"""Linear attention to all nodes is that of one process on any number of ranks; softmax attention is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mpi4py import MPI
from pyg.conftest import gathered

import hpcgnn
from hpcgnn.errors import ConfigError

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed; pip install hpcgnn[test]")
COMM = MPI.COMM_WORLD


class Transformer(torch.nn.Module):
    """Layers of GPSConv; `batch_of` makes the number of each node's graph."""

    def __init__(self, batch_of=lambda x: None, **named):
        super().__init__()
        torch.manual_seed(6)
        named = {"heads": 2, "attn_type": "performer", "attn_kwargs": {"head_channels": 5, "qkv_bias": True}} | named
        self.first, self.last, self.batch_of = torch.nn.Linear(6, 8), torch.nn.Linear(8, 5), batch_of
        self.layers = torch.nn.ModuleList([pyg.GPSConv(8, pyg.SAGEConv(8, 8), **named), pyg.GPSConv(8, None, **named)])

    def forward(self, x, edge_index):
        h = self.first(x)
        for layer in self.layers:
            h = layer(h, edge_index, self.batch_of(h))
        return self.last(h)


SETTINGS = {
    "batch norm": {}, "layer norm": {"norm": "layer_norm", "norm_kwargs": {"mode": "node"}},
    "a batch of one graph": {"batch_of": lambda x: x.new_zeros(len(x), dtype=torch.int64)},
    "no norm, another kernel": {"norm": None, "attn_kwargs": {"head_channels": 4, "kernel": torch.nn.Softplus()}}}


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("name", SETTINGS)
def test_linear_attention_is_over_the_nodes_of_all_ranks(whole_graph, assert_equals_pyg, name):
    assert_equals_pyg(whole_graph(), hpcgnn.distribute(Transformer(**SETTINGS[name])))


@pytest.mark.parallel([1, 2, 3])
def test_dropout_of_attention_is_the_same_on_any_number_of_ranks(whole_graph):
    named = {"dropout": 0.3, "attn_kwargs": {"head_channels": 5, "dropout": 0.4}, "norm": None}
    found = []
    for comm in (COMM, MPI.COMM_SELF):
        whole, model = whole_graph(comm=comm), hpcgnn.distribute(Transformer(**named))
        found.append(gathered(model(whole.graph, whole.graph.x), whole.graph, comm))
    assert np.abs(found[0] - found[1]).max() <= 1e-5 * np.abs(found[1]).max()
    assert np.abs(found[0] - rows_without_dropout(named)).max() > 0.1 * np.abs(found[1]).max()


def rows_without_dropout(named):
    rng = np.random.default_rng(6)
    x = torch.from_numpy(rng.normal(size=(60, 6)).astype(np.float32))
    return Transformer(**named).eval()(x, torch.empty(2, 0, dtype=torch.int64)).detach().numpy()


class Own(torch.nn.Module):
    """A user's linear attention on LocalGraph, by `graph.sum_over_ranks`."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.q, self.k, self.v = (torch.nn.Linear(6, width) for width in (4, 4, 5))

    def forward(self, graph, x, sum_over_ranks=None):
        q, k, v = torch.exp(self.q(x)), torch.exp(self.k(x)), self.v(x)
        sums = (sum_over_ranks or graph.sum_over_ranks)(k.t() @ torch.cat([v, v.new_ones(len(v), 1)], dim=1))
        return (q @ sums[:, :-1]) / (q @ sums[:, -1:])


@pytest.mark.parallel([1, 2, 3])
def test_a_users_linear_attention_has_the_answers_and_gradients_of_one_process(whole_graph):
    whole, model, plain = whole_graph(), Own(), Own().double()
    cotangent = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 5)))
    (model(whole.graph, whole.graph.x) * cotangent[whole.inner_id]).sum().backward()
    (plain(None, whole.x, lambda values: values) * cotangent).sum().backward()
    largest = max(parameter.grad.abs().max() for parameter in plain.parameters())
    for (name, parameter), expected in zip(model.named_parameters(), plain.parameters(), strict=True):
        found = torch.from_numpy(COMM.allreduce(parameter.grad.double().numpy()))
        assert (found - expected.grad).abs().max() <= 1e-5 * largest, name


@pytest.mark.parametrize("named, complaint", [
    ({"attn_type": "multihead", "attn_kwargs": {}},
     r"GPSConv at model.layers.0 can't be distributed with attn_type='multihead': its softmax .* use attn_type='perf"),
    ({"norm": "layer_norm"}, "LayerNorm at model.layers.0.norm1 can't be distributed with mode='graph'")])
def test_what_needs_the_rows_of_all_nodes_is_refused(named, complaint):
    with pytest.raises(ConfigError, match=complaint):
        hpcgnn.distribute(Transformer(**named))


def test_a_batch_of_several_graphs_is_refused(whole_graph):
    whole = whole_graph(comm=MPI.COMM_SELF)
    model = hpcgnn.distribute(Transformer(batch_of=lambda x: torch.arange(len(x)) // 30))
    with pytest.raises(ConfigError, match="a batch of several graphs, and shards hold one"):
        model(whole.graph, whole.graph.x)
