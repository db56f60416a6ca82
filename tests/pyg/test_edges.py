"""Convolutions that read attributes and relations of edges equal the unmodified model on the whole graph, in answers and
in the gradient of every weight.
"""

from __future__ import annotations

import pytest
import torch

import hpcgnn

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed; pip install hpcgnn[test]")

NUM_NODES, COLUMNS, RELATIONS = 60, 3, 4
DEGREES = torch.tensor([2, 5, 10, 14, 12, 9, 5, 3])


def mlp(i, o):
    return torch.nn.Sequential(torch.nn.Linear(i, 7), torch.nn.BatchNorm1d(7), torch.nn.ReLU(), torch.nn.Linear(7, o))


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
        self.end = torch.nn.LazyLinear(5)

    def forward(self, x, edge_index, edge_attr=None, edge_type=None):
        given = {"edge_attr": edge_attr, "edge_type": edge_type}
        more = {name: given[name] for name in self.takes}
        return self.end(self.last(torch.tanh(self.first(x, edge_index, **more)), edge_index, **more))


def two_layers(make, takes):
    model = TwoLayers(make, takes)
    model.end = torch.nn.Linear(8 if getattr(model.last, "out_channels", 5) == 8 else 5, 5)
    return model


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("name, takes, make", CASES, ids=[f"{name}-{'-'.join(takes)}" for name, takes, _ in CASES])
def test_answers_and_gradients_equal_those_of_one_process(typed_graph, assert_equals_pyg, name, takes, make):
    whole, model = typed_graph(), hpcgnn.distribute(two_layers(make, takes))
    assert_equals_pyg(whole, model, edge_attr=whole.edge_attr, edge_type=whole.edge_type)
    assert whole.graph.current_pass.num_halo_calls <= 2      # one exchange for each convolution
