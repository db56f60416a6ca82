"""A distributed model drops, copies, saves and counts as one process does."""

from __future__ import annotations

import copy
import sys

import numpy as np
import pytest
import torch
from mpi4py import MPI
from pyg.conftest import gathered

import hpcgnn
from hpcgnn.errors import ConfigError
from hpcgnn.pyg.fitting import is_pyg

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed; pip install hpcgnn[test]")
COMM = MPI.COMM_WORLD


def assert_close(found, expected):
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


class Dropping(torch.nn.Module):
    """Drops input rows, hidden rows and coefficients of attention."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = pyg.GATConv(6, 8, dropout=0.4), pyg.TransformerConv(8, 5, dropout=0.3)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x, edge_index):
        h = self.first(self.dropout(x), edge_index)
        h = torch.nn.functional.dropout(h, 0.2, self.training, inplace=True)
        return self.last(h, edge_index)


@pytest.mark.parallel([1, 2, 3])
def test_what_is_dropped_is_the_same_on_any_number_of_ranks(whole_graph):
    whole, alone, model = whole_graph(), whole_graph(comm=MPI.COMM_SELF), hpcgnn.distribute(Dropping())
    found = gathered(model(whole.graph, whole.graph.x), whole.graph)
    other = hpcgnn.distribute(Dropping())
    assert_close(found, gathered(other(alone.graph, alone.graph.x), alone.graph, MPI.COMM_SELF))
    plain = model.module.double().eval()(whole.x, whole.edge_index).detach().numpy()
    assert np.abs(found - plain).max() > 0.1 * np.abs(plain).max()
    model.float().eval()
    assert_close(gathered(model(whole.graph, whole.graph.x), whole.graph), plain)


@pytest.mark.parallel([1, 2])
def test_the_share_of_coefficients_that_attention_drops_is_as_asked(whole_graph):
    whole = whole_graph()
    seen = []

    class Watched(pyg.SAGEConv):
        def message(self, x_j):
            dropped = torch.nn.functional.dropout(torch.ones_like(x_j), 0.25, self.training)
            seen.append(dropped)
            return x_j

    hpcgnn.distribute(Watched(6, 5))(whole.graph, whole.graph.x)
    values, counts = np.unique(np.concatenate(COMM.allgather(seen[0].numpy())), return_counts=True)
    assert np.allclose(values, [0, 4 / 3])
    # Binomial with 0.25: five standard deviations.
    total = counts.sum()
    assert abs(counts[0] - 0.25 * total) < 5 * np.sqrt(0.25 * 0.75 * total)


@pytest.mark.parallel([2])
def test_rows_cross_once_a_layer_and_the_input_never(whole_graph):
    whole = whole_graph()
    for make, expected in [(lambda: pyg.GraphSAGE(6, 8, 3, 5), 2), (lambda: pyg.GCN(6, 8, 2, 5, dropout=0.5), 1),
                           (lambda: pyg.GAT(6, 8, 2, 5, dropout=0.5), 1), (lambda: pyg.SGConv(6, 5, K=3), 2),
                           (lambda: pyg.PNA(6, 8, 1, 5, aggregators=["mean"], scalers=["identity"],
                                            deg=torch.tensor([1, 1])), 0)]:
        model = hpcgnn.distribute(make())
        whole.graph.begin_forward(seed=0, epoch=0, is_training=True)
        model(whole.graph, whole.graph.x)
        assert whole.graph.current_pass.num_halo_calls == expected, type(model.module).__name__
        assert expected <= model.num_exchanges


@pytest.mark.parallel([2])
def test_a_copy_is_a_model_of_its_own_and_files_hold_no_graph(whole_graph, tmp_path):
    whole, model = whole_graph(), hpcgnn.distribute(pyg.GCN(6, 8, 2, 5, norm="batch_norm"))
    model(whole.graph, whole.graph.x)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert model(whole.graph, whole.graph.x).abs().max() > 0 == other(whole.graph, whole.graph.x).abs().max()
    torch.save(model, tmp_path / "model.pt")
    assert (tmp_path / "model.pt").stat().st_size < 30_000
    read = torch.load(tmp_path / "model.pt", weights_only=False).eval()
    assert torch.equal(read(whole.graph, whole.graph.x), model.eval()(whole.graph, whole.graph.x))


def test_the_state_is_that_of_the_plain_model_and_the_model_stays_as_it_was(whole_graph):
    whole, plain = whole_graph(comm=MPI.COMM_SELF), pyg.GAT(6, 8, 2, 5)
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    model = hpcgnn.distribute(plain)
    model(whole.graph, whole.graph.x).sum().backward()
    assert list(model.state_dict()) == list(before)
    other = pyg.GAT(6, 8, 2, 5)
    other.load_state_dict(model.state_dict())
    model.load_state_dict(other.state_dict())
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert not any(module._forward_pre_hooks for module in plain.modules())
    assert not any(conv._propagate_forward_pre_hooks for conv in plain.convs)
    x, edges = whole.x.float(), whole.edge_index
    assert torch.equal(plain.eval()(x, edges), other.eval()(x, edges))


@pytest.mark.parametrize("make, reduction, attends", [
    (lambda: pyg.GCN(6, 8, 2, 5), "gcn", False), (lambda: pyg.GraphSAGE(6, 8, 2, 5), "mean", False),
    (lambda: pyg.GIN(6, 8, 2, 5), "sum", False), (lambda: pyg.GAT(6, 8, 2, 5), "sum", True),
])
def test_methods_are_told_how_a_model_sums(make, reduction, attends):
    model = hpcgnn.distribute(make())
    assert (model.reduction, model.attends, model.num_exchanges) == (reduction, attends, 2)


def test_models_of_pyg_are_told_from_those_of_hpcgnn():
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.SAGEConv(6, 5)

        def forward(self, graph, x):
            return self.conv((graph.halo(x), x), graph.edge_index)

    assert is_pyg(pyg.GCN(6, 8, 2, 5)) and is_pyg(pyg.SAGEConv(6, 5))
    assert is_pyg(pyg.MLP([6, 8, 5])) and is_pyg(torch.nn.Linear(2, 2))      # of rows alone
    assert not is_pyg(Own()) and not is_pyg(hpcgnn.distribute(pyg.GCN(6, 8, 2, 5)))


class NoEdges(torch.nn.Module):
    """The baseline without a graph, with the arguments of the model that it stands beside."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.lin = torch.nn.Linear(6, 5)

    def forward(self, x, edge_index):
        return self.lin(x)


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("make, num_arguments", [(NoEdges, 2), (lambda: pyg.MLP([6, 8, 5]), 1)])
def test_a_model_without_convolutions_is_trained_by_rows(whole_graph, make, num_arguments):
    whole, model = whole_graph(), hpcgnn.distribute(make())
    plain = copy.deepcopy(model.module).double()(*(whole.x, whole.edge_index)[:num_arguments])
    assert_close(gathered(model(whole.graph, whole.graph.x), whole.graph), plain.detach().numpy())


class OfData(torch.nn.Module):
    """The form of PyTorch Geometric's first example."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.conv = pyg.GraphConv(6, 5)

    def forward(self, data):
        return self.conv(data.x, data.edge_index, data.edge_weight)


class OfGraph(OfData):
    def forward(self, graph):
        return super().forward(graph)


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("make", [OfData, OfGraph])
def test_a_forward_may_take_data(whole_graph, make):
    whole, model = whole_graph(is_weighted=True), hpcgnn.distribute(make())
    found = gathered(model(whole.graph, whole.graph.x), whole.graph)
    data = sys.modules["torch_geometric.data"].Data(x=whole.x, edge_index=whole.edge_index,
                                                    edge_weight=whole.edge_weight)
    assert_close(found, model.module.double()(data).detach().numpy())


class Difference(pyg.MessagePassing):
    """A user's own convolution: what it passes on is computed a node, and taken by both ends."""

    def __init__(self, i, o, aggr="max"):
        super().__init__(aggr=aggr)
        self.map, self.bias = torch.nn.Linear(i, o), torch.nn.Parameter(torch.zeros(o))

    def forward(self, x, edge_index, edge_weight=None):
        h = self.map(x)
        return self.propagate(edge_index, h=h, edge_weight=edge_weight, size=(len(x), len(x))) + self.bias

    def message(self, h_i, h_j, edge_weight):
        return h_j - 0.5 * h_i if edge_weight is None else edge_weight[:, None] * (h_j - h_i)


class TwoDifferences(torch.nn.Module):
    def __init__(self, aggr="max"):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = Difference(6, 8, aggr), Difference(8, 5, aggr)

    def forward(self, x, edge_index, edge_weight=None):
        return self.last(torch.tanh(self.first(x, edge_index, edge_weight)), edge_index, edge_weight)


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_a_convolution_of_the_users_gets_halo_rows_where_it_passes_them_on(whole_graph, assert_equals_pyg, is_weighted):
    whole = whole_graph(is_weighted)
    more = {"edge_weight": whole.edge_weight} if is_weighted else {}
    assert_equals_pyg(whole, hpcgnn.distribute(TwoDifferences()), **more)


@pytest.mark.parallel([2])
def test_weights_of_the_graph_can_be_left_out(whole_graph, assert_equals_pyg):
    whole = whole_graph(is_weighted=True)
    model = pyg.GraphSAGE(6, 8, 2, 5)
    with pytest.raises(ConfigError, match="the graph has edge weights and GraphSAGE takes none; let its forward"):
        hpcgnn.distribute(model)(whole.graph, whole.graph.x)
    torch.manual_seed(0)
    assert_equals_pyg(whole, hpcgnn.distribute(pyg.GCN(6, 8, 2, 5), ignore_edge_weights=True))
