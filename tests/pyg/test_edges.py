"""Models that read attributes and relations of edges equal the unmodified model on the whole graph, in answers and in
the gradient of every weight.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mpi4py import MPI
from pyg.conftest import gathered
from pyg.test_convolutions import DEGREES, mlp
from torch.utils.checkpoint import checkpoint

import hpcgnn

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed; pip install hpcgnn[test]")

NUM_NODES, COLUMNS, RELATIONS = 60, 3, 4


class Crystal(torch.nn.Module):
    """CGConv, which keeps its number of columns, behind a map."""

    def __init__(self, i, o):
        super().__init__()
        self.map, self.conv = torch.nn.Linear(i, o), pyg.CGConv(o, dim=COLUMNS)

    def forward(self, x, edge_index, edge_attr):
        return self.conv(self.map(x), edge_index, edge_attr)


class Heated(torch.nn.Module):
    """HEATConv, with types of nodes in a buffer."""

    def __init__(self, i, o):
        super().__init__()
        self.conv = pyg.HEATConv(i, o, 2, RELATIONS, 4, COLUMNS, 6, heads=2, concat=False)
        self.register_buffer("node_type", torch.arange(NUM_NODES) % 2)

    def forward(self, x, edge_index, edge_attr, edge_type):
        return self.conv(x, edge_index, self.node_type, edge_type, edge_attr)


OF_ATTRIBUTES = {
    "GINEConv": lambda i, o: pyg.GINEConv(mlp(i, o), edge_dim=COLUMNS, train_eps=True),
    "GATConv": lambda i, o: pyg.GATConv(i, o, heads=2, concat=False, edge_dim=COLUMNS),
    "GATConv loops of zeros": lambda i, o: pyg.GATConv(i, o, edge_dim=COLUMNS, fill_value=0.0),
    "GATConv loops of the largest": lambda i, o: pyg.GATConv(i, o, edge_dim=COLUMNS, fill_value="max"),
    "GATv2Conv": lambda i, o: pyg.GATv2Conv(i, o, heads=2, concat=False, edge_dim=COLUMNS, residual=True),
    "TransformerConv": lambda i, o: pyg.TransformerConv(i, o, heads=2, concat=False, edge_dim=COLUMNS),
    "NNConv": lambda i, o: pyg.NNConv(i, o, mlp(COLUMNS, i * o), aggr="mean"),
    "NNConv max": lambda i, o: pyg.NNConv(i, o, torch.nn.Linear(COLUMNS, i * o), aggr="max"),
    "PNAConv": lambda i, o: pyg.PNAConv(i, o, ["mean", "max", "std"], ["identity", "amplification"], DEGREES,
                                        edge_dim=COLUMNS),
    "GENConv": lambda i, o: pyg.GENConv(i, o, edge_dim=COLUMNS, learn_t=True),
    "GMMConv": lambda i, o: pyg.GMMConv(i, o, COLUMNS, kernel_size=2),
    "GMMConv separate": lambda i, o: pyg.GMMConv(i, o, COLUMNS, kernel_size=2, separate_gaussians=True),
    "CGConv": Crystal,
    "ResGatedGraphConv": lambda i, o: pyg.ResGatedGraphConv(i, o, edge_dim=COLUMNS),
    "GeneralConv": lambda i, o: pyg.GeneralConv(i, o, in_edge_channels=COLUMNS, attention=True, heads=2),
    "PDNConv": lambda i, o: pyg.PDNConv(i, o, COLUMNS, 6),
    "PDNConv no loops": lambda i, o: pyg.PDNConv(i, o, COLUMNS, 6, add_self_loops=False),
    "PDNConv no norm": lambda i, o: pyg.PDNConv(i, o, COLUMNS, 6, normalize=False),
}
OF_RELATIONS = {
    "RGCNConv": lambda i, o: pyg.RGCNConv(i, o, RELATIONS),
    "RGCNConv bases": lambda i, o: pyg.RGCNConv(i, o, RELATIONS, num_bases=2, aggr="sum"),
    "RGCNConv blocks": lambda i, o: pyg.RGCNConv(i, 8, RELATIONS, num_blocks=2, root_weight=False),
    "RGCNConv max": lambda i, o: pyg.RGCNConv(i, o, RELATIONS, aggr="max"),
    "FastRGCNConv": lambda i, o: pyg.FastRGCNConv(i, o, RELATIONS),
    "FastRGCNConv bases": lambda i, o: pyg.FastRGCNConv(i, o, RELATIONS, num_bases=2),
    "FastRGCNConv blocks": lambda i, o: pyg.FastRGCNConv(i, 8, RELATIONS, num_blocks=2),
    "RGATConv": lambda i, o: pyg.RGATConv(i, o, RELATIONS, heads=2, concat=False),
    "RGATConv bases": lambda i, o: pyg.RGATConv(i, o, RELATIONS, num_bases=2, mod="f-scaled",
                                               attention_mechanism="within-relation"),
    "FiLMConv": lambda i, o: pyg.FiLMConv(i, o, RELATIONS),
}
OF_BOTH = {
    "RGATConv": lambda i, o: pyg.RGATConv(i, o, RELATIONS, edge_dim=COLUMNS, mod="f-additive"),
    "HEATConv": Heated,
}
CASES = [(name, takes, make) for takes, made in ((("edge_attr",), OF_ATTRIBUTES), (("edge_type",), OF_RELATIONS),
                                                 (("edge_attr", "edge_type"), OF_BOTH)) for name, make in made.items()]


class TwoLayers(torch.nn.Module):
    def __init__(self, make, takes):
        super().__init__()
        torch.manual_seed(4)
        self.first, self.last, self.takes = make(6, 8), make(8, 5), takes
        self.end = torch.nn.Linear(getattr(self.last, "out_channels", 5), 5)

    def forward(self, x, edge_index, edge_attr=None, edge_type=None):
        given = {"edge_attr": edge_attr, "edge_type": edge_type}
        more = {name: given[name] for name in self.takes}
        return self.end(self.last(torch.tanh(self.first(x, edge_index, **more)), edge_index, **more))


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("name, takes, make", CASES, ids=[f"{name}-{'-'.join(takes)}" for name, takes, _ in CASES])
def test_answers_and_gradients_equal_those_of_one_process(typed_graph, assert_equals_pyg, name, takes, make):
    whole, model = typed_graph(), hpcgnn.distribute(TwoLayers(make, takes))
    assert_equals_pyg(whole, model, edge_attr=whole.edge_attr, edge_type=whole.edge_type)
    assert whole.graph.current_pass.num_halo_calls <= 2      # one exchange for each convolution


@pytest.mark.filterwarnings("ignore:We do not recommend using the non-optimized CPU version:UserWarning")
@pytest.mark.parallel([1, 2])
def test_spline_convolutions_get_the_attributes_of_their_edges(typed_graph, assert_equals_pyg, monkeypatch):
    from torch_geometric.nn.conv import spline_conv

    # PyTorch Geometric needs a library for splines, so two functions of the same form take its place.
    monkeypatch.setattr(spline_conv, "spline_basis", lambda attr, *_: (attr[:, :1], (attr[:, 1] > 0.5).long()))
    monkeypatch.setattr(spline_conv, "spline_weighting",
                        lambda x, weight, basis, number: basis * torch.einsum("ni,nio->no", x, weight[number]))
    whole = typed_graph()
    assert_equals_pyg(whole, hpcgnn.distribute(TwoLayers(
        lambda i, o: pyg.SplineConv(i, o, COLUMNS, kernel_size=2), ("edge_attr",))), edge_attr=whole.edge_attr)


class ByRelation(torch.nn.Module):
    """A convolution for each relation, on the edges of that relation, which is how many programs write R-GCN."""

    def __init__(self, make):
        super().__init__()
        torch.manual_seed(4)
        self.map = torch.nn.Linear(6, 8)
        # No edge has the last relation.
        self.convolutions = torch.nn.ModuleList([make(8, 5) for _ in range(RELATIONS + 1)])

    def forward(self, x, edge_index, edge_type):
        h = torch.tanh(self.map(x))
        return sum(conv(h, edge_index[:, edge_type == number]) for number, conv in enumerate(self.convolutions))


class OwnRelational(pyg.MessagePassing):
    """A user's relational convolution."""

    def __init__(self, i, o):
        super().__init__(aggr="mean")
        self.weight = torch.nn.Parameter(torch.randn(RELATIONS, i, o) / 3)

    def forward(self, x, edge_index, edge_type):
        out = 0
        for number, weight in enumerate(self.weight):
            places = (edge_type == number).nonzero().view(-1)
            out = out + self.propagate(edge_index[:, places], x=x, size=(len(x), len(x))) @ weight
        return out


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("make", [
    pyg.SAGEConv, pyg.GATConv, lambda i, o: pyg.PNAConv(i, o, ["max"], ["identity"], DEGREES),
], ids=["SAGEConv", "GATConv", "PNAConv"])
def test_edges_of_one_relation_can_be_selected_and_rows_cross_once(typed_graph, assert_equals_pyg, make):
    whole = typed_graph()
    assert_equals_pyg(whole, hpcgnn.distribute(ByRelation(make)), edge_type=whole.edge_type)
    assert whole.graph.current_pass.num_halo_calls == 1


@pytest.mark.parallel([1, 2, 3])
def test_a_relational_convolution_of_the_users_is_taken(typed_graph, assert_equals_pyg):
    whole = typed_graph()
    assert_equals_pyg(whole, hpcgnn.distribute(TwoLayers(OwnRelational, ("edge_type",))), edge_type=whole.edge_type)
    assert whole.graph.current_pass.num_halo_calls == 1


class WithoutRows(torch.nn.Module):
    """R-GCN of a graph without features: a row of weights for each node."""

    def __init__(self, takes_numbers):
        super().__init__()
        torch.manual_seed(4)
        self.takes_numbers = takes_numbers
        self.first, self.last = pyg.RGCNConv(NUM_NODES, 8, RELATIONS, num_bases=2), pyg.RGCNConv(8, 5, RELATIONS)

    def forward(self, x, edge_index, edge_type, n_id=None):
        h = self.first(n_id if self.takes_numbers else None, edge_index, edge_type)
        return self.last(torch.tanh(h), edge_index, edge_type)


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("takes_numbers", [False, True])
def test_a_relational_model_may_have_a_row_of_weights_for_each_node(typed_graph, assert_equals_pyg, takes_numbers):
    whole = typed_graph()
    assert_equals_pyg(whole, hpcgnn.distribute(WithoutRows(takes_numbers)), edge_type=whole.edge_type,
                      n_id=torch.arange(NUM_NODES))
    assert whole.graph.current_pass.num_halo_calls == 1


class Encoded(torch.nn.Module):
    """Attributes of edges that the model itself maps, adds learned rows of relations to, normalizes and drops out."""

    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(4)
        self.relation, self.encoder, self.dropout = torch.nn.Embedding(RELATIONS, 8), mlp(COLUMNS, 8), dropout
        self.map, self.first = torch.nn.Linear(6, 8), pyg.GINEConv(torch.nn.Linear(8, 8))
        self.last = pyg.GATv2Conv(8, 5, edge_dim=8)

    def forward(self, x, edge_index, edge_attr, edge_type):
        e = torch.nn.functional.dropout(self.encoder(edge_attr) + self.relation(edge_type), self.dropout, self.training)
        return self.last(self.first(self.map(x), edge_index, e).tanh(), edge_index, edge_attr=e)


class OfData(Encoded):
    def forward(self, data):
        return super().forward(data.x, data.edge_index, data.edge_attr, data.edge_type)


@pytest.mark.parallel([1, 2, 3])
def test_a_model_may_learn_rows_of_relations_and_map_attributes(typed_graph, assert_equals_pyg):
    named = {name: getattr(typed_graph(), name) for name in ("edge_attr", "edge_type")}
    plain = assert_equals_pyg(typed_graph(), hpcgnn.distribute(Encoded()), **named)
    assert plain.relation.weight.grad.abs().min() > 0      # of every relation
    model = hpcgnn.distribute(OfData())
    assert_equals_pyg(typed_graph(), model, Encoded().double(), **named)
    norm = Encoded().double().encoder[1]
    norm(Encoded().double().encoder[0](named["edge_attr"]))
    torch.testing.assert_close(model.module.encoder[1].running_mean.double(), norm.running_mean, rtol=1e-5, atol=1e-6)


def test_weights_that_are_left_as_memory_was_are_filled():
    model = TwoLayers(OF_RELATIONS["RGATConv"], ("edge_type",))
    torch.nn.init.constant_(model.first.l2, float("nan"))
    hpcgnn.distribute(model)
    assert (model.first.l2 == 1 / model.first.out_channels).all()


@pytest.mark.parallel([2, 3])
def test_what_is_dropped_of_edges_is_the_same_on_any_number_of_ranks(typed_graph):
    whole, alone = typed_graph(), typed_graph(comm=MPI.COMM_SELF)
    found, expected = (gathered(hpcgnn.distribute(Encoded(0.5))(each.graph, each.graph.x), each.graph, comm)
                       for comm, each in ((MPI.COMM_WORLD, whole), (MPI.COMM_SELF, alone)))
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    without = gathered(hpcgnn.distribute(Encoded())(alone.graph, alone.graph.x), alone.graph, MPI.COMM_SELF)
    assert np.abs(found - without).max() > 0.1 * np.abs(without).max()


def test_edges_between_the_same_nodes_are_dropped_on_their_own(typed_graph):
    seen = []

    class Watched(pyg.SAGEConv):
        def message(self, x_j):
            seen.append(torch.nn.functional.dropout(torch.ones_like(x_j), 0.5, self.training))
            return x_j

    graph = typed_graph(comm=MPI.COMM_SELF).graph
    hpcgnn.distribute(Watched(6, 5))(graph, graph.x)
    source, target = graph.edge_index
    again = ((source[1:] == source[:-1]) & (target[1:] == target[:-1])).nonzero().view(-1)
    assert len(again) > 30
    share = (seen[0][again] == seen[0][again + 1]).double().mean()
    assert abs(share - 0.5) < 5 * (0.25 / seen[0][again].numel()) ** 0.5      # five standard deviations of a fair coin


class OfOneRelation(torch.nn.Module):
    def __init__(self, call=lambda function, *args: function(*args)):
        super().__init__()
        torch.manual_seed(4)
        self.map, self.conv, self.call = torch.nn.Linear(6, 8), pyg.SAGEConv(8, 5), call

    def forward(self, x, edge_index, edge_type):
        return self.call(self.conv, torch.tanh(self.map(x)), edge_index[:, edge_type == 1])


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("is_reentrant", [False, True])
def test_a_checkpoint_keeps_a_selection_of_edges(typed_graph, assert_equals_pyg, is_reentrant):
    whole, call = typed_graph(), lambda *args: checkpoint(*args, use_reentrant=is_reentrant)
    assert_equals_pyg(whole, hpcgnn.distribute(OfOneRelation(call)), OfOneRelation().double(),
                      edge_type=whole.edge_type)
