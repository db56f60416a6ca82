"""Every supported convolution over several ranks equals the unmodified model on the whole graph, in answers and in the
gradient of every weight.
"""

from __future__ import annotations

import pytest
import torch

import hpcgnn

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed; pip install hpcgnn[test]")
softmax = pytest.importorskip("torch_geometric.utils").softmax

SCALERS = ["identity", "amplification", "attenuation", "linear"]
DEGREES = torch.tensor([2, 5, 10, 14, 12, 9, 5, 3])


def mlp(i, o):
    return torch.nn.Sequential(torch.nn.Linear(i, 7), torch.nn.BatchNorm1d(7), torch.nn.ReLU(), torch.nn.Linear(7, o))


CONVOLUTIONS = {
    "SAGEConv": pyg.SAGEConv,
    "SAGEConv max": lambda i, o: pyg.SAGEConv(i, o, aggr="max", normalize=True),
    "SAGEConv project": lambda i, o: pyg.SAGEConv(i, o, project=True, root_weight=False),
    "SAGEConv several": lambda i, o: pyg.SAGEConv(i, o, aggr=["mean", "std", "softmax"]),
    "GraphConv": pyg.GraphConv,
    "GCNConv": pyg.GCNConv,
    "GCNConv improved": lambda i, o: pyg.GCNConv(i, o, improved=True, bias=False),
    "GCNConv no loops": lambda i, o: pyg.GCNConv(i, o, add_self_loops=False),
    "GCNConv cached": lambda i, o: pyg.GCNConv(i, o, cached=True),
    "GCNConv no norm": lambda i, o: pyg.GCNConv(i, o, normalize=False),
    "GATConv": lambda i, o: pyg.GATConv(i, o, heads=2, concat=False, residual=True),
    "GATConv no loops": lambda i, o: pyg.GATConv(i, o, add_self_loops=False),
    "GATv2Conv": lambda i, o: pyg.GATv2Conv(i, o, heads=2, concat=False, share_weights=True),
    "TransformerConv": lambda i, o: pyg.TransformerConv(i, o, heads=2, concat=False, beta=True),
    "GINConv": lambda i, o: pyg.GINConv(mlp(i, o), train_eps=True),
    "PNAConv": lambda i, o: pyg.PNAConv(i, o, ["mean", "min", "max", "std"], SCALERS, DEGREES),
    "ResGatedGraphConv": pyg.ResGatedGraphConv,
    "LEConv": pyg.LEConv,
    "GeneralConv": lambda i, o: pyg.GeneralConv(i, o, heads=2, attention=True, directed_msg=False),
    "ClusterGCNConv": lambda i, o: pyg.ClusterGCNConv(i, o, diag_lambda=0.3),
    "EdgeConv": lambda i, o: pyg.EdgeConv(mlp(2 * i, o)),
    "GENConv": lambda i, o: pyg.GENConv(i, o, learn_t=True, norm="batch"),
    "FiLMConv": pyg.FiLMConv,
    "AntiSymmetricConv": lambda i, o: pyg.Sequential("x, edge_index", [
        (torch.nn.Linear(i, o), "x -> h"), (pyg.AntiSymmetricConv(o, num_iters=2), "h, edge_index -> h")]),
    "SGConv cached": lambda i, o: pyg.SGConv(i, o, K=2, cached=True),
    "SGConv": lambda i, o: pyg.SGConv(i, o, K=2),
    "TAGConv": lambda i, o: pyg.TAGConv(i, o, K=2),
    "SSGConv": lambda i, o: pyg.SSGConv(i, o, alpha=0.2, K=2),
    "MixHopConv": lambda i, o: pyg.MixHopConv(i, o, powers=[0, 2]),
}


class TwoLayers(torch.nn.Module):
    """What a user of PyTorch Geometric writes; widening first, then narrowing."""

    def __init__(self, make, hidden=8, out=5):
        super().__init__()
        torch.manual_seed(4)
        self.first = make(6, hidden)
        times = 2 if isinstance(self.first, pyg.MixHopConv) else 1       # its powers, side by side
        self.middle, self.last = torch.nn.Linear(times * hidden, 8), make(8, out)
        self.end = torch.nn.Linear(times * out, out)

    def forward(self, x, edge_index, edge_weight=None):
        more = () if edge_weight is None else (edge_weight,)
        h = torch.tanh(self.middle(self.first(x, edge_index, *more)))
        return self.end(self.last(h, edge_index, *more))


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("name", list(CONVOLUTIONS))
def test_answers_and_gradients_equal_those_of_one_process(whole_graph, assert_equals_pyg, name):
    model = hpcgnn.distribute(TwoLayers(CONVOLUTIONS[name]))
    assert_equals_pyg(whole_graph(), model)


class Deep(torch.nn.Module):
    """Convolutions without a width of their own, between two maps."""

    def __init__(self, make, takes_first=False):
        super().__init__()
        torch.manual_seed(5)
        self.first, self.last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 5)
        self.convolutions = torch.nn.ModuleList([make(), make()])
        self.takes_first = takes_first

    def forward(self, x, edge_index):
        h = first = torch.tanh(self.first(x))
        for convolution in self.convolutions:
            h = torch.tanh(convolution(h, first, edge_index) if self.takes_first else convolution(h, edge_index))
        return self.last(h)


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("name, make, takes_first", [
    ("APPNP", lambda: pyg.APPNP(K=3, alpha=0.1), False),
    ("GCN2Conv", lambda: pyg.GCN2Conv(8, alpha=0.1, theta=0.5, layer=1, shared_weights=False), True),
    ("LGConv", pyg.LGConv, False),
    ("DeepGCNLayer", lambda: pyg.DeepGCNLayer(pyg.GENConv(8, 8), pyg.BatchNorm(8), torch.nn.ReLU()), False),
    ("GatedGraphConv", lambda: pyg.GatedGraphConv(8, num_layers=2), False),
    ("CGConv", lambda: pyg.CGConv(8, batch_norm=True), False),
    ("SimpleConv", lambda: pyg.SimpleConv("mean", combine_root="sum"), False),
    ("PNAConv towers", lambda: pyg.PNAConv(8, 8, ["mean", "sum"], SCALERS, DEGREES, towers=2), False),
    ("PNAConv divided", lambda: pyg.PNAConv(8, 8, ["mean", "max"], SCALERS, DEGREES, towers=2, divide_input=True),
     False),
])
def test_convolutions_within_a_deep_model_equal_those_of_one_process(whole_graph, assert_equals_pyg, name, make,
                                                                     takes_first):
    assert_equals_pyg(whole_graph(), hpcgnn.distribute(Deep(make, takes_first)))


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("name", ["GCNConv", "GCNConv improved", "GCNConv no norm", "GraphConv", "LEConv", "TAGConv",
                                  "SGConv"])
def test_edge_weights_reach_the_convolutions(whole_graph, assert_equals_pyg, name):
    whole = whole_graph(is_weighted=True)
    assert_equals_pyg(whole, hpcgnn.distribute(TwoLayers(CONVOLUTIONS[name])), edge_weight=whole.edge_weight)


SUMMING = ["SAGEConv", "GraphConv", "GCNConv", "GCNConv improved", "GCNConv no loops", "GCNConv no norm", "GINConv",
           "SGConv", "TAGConv", "SSGConv", "MixHopConv"]


@pytest.mark.parametrize("name", SUMMING)
def test_a_convolution_that_sums_its_neighbors_makes_no_row_for_each_edge(whole_graph, monkeypatch, name):
    model = TwoLayers(CONVOLUTIONS[name])

    def message(*_, **__):
        raise AssertionError("rows for edges")

    monkeypatch.setattr(type(model.first), "message", message)
    graph = whole_graph().graph
    assert hpcgnn.distribute(model)(graph, graph.x).isfinite().all()
    assert "propagate" not in vars(model.first)      # the model is the user's again


class Branches(torch.nn.Module):
    """Two convolutions read the same rows, of which one or both only sum them."""

    def __init__(self, first, second):
        super().__init__()
        torch.manual_seed(8)
        self.map, self.first, self.second = torch.nn.Linear(6, 8), first(8, 5), second(8, 5)

    def forward(self, x, edge_index):
        h = torch.tanh(self.map(x))
        return self.first(h, edge_index) + self.second(h, edge_index)


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("first, second", [(pyg.SAGEConv, pyg.GraphConv), (pyg.SAGEConv, pyg.ClusterGCNConv),
                                           (pyg.ClusterGCNConv, pyg.SAGEConv)])
def test_rows_that_two_convolutions_read_come_once_after_the_first_pass(whole_graph, assert_equals_pyg, first, second):
    whole, model = whole_graph(), hpcgnn.distribute(Branches(first, second))
    assert_equals_pyg(whole, model)
    whole.graph.begin_forward(seed=3, epoch=2, is_training=True)
    model.zero_grad()
    assert_equals_pyg(whole, model)
    assert whole.graph.current_pass.num_halo_calls == 1


class Doubling(pyg.SAGEConv):
    """A user's SAGEConv with messages of its own."""

    def message(self, x_j):
        return 2 * x_j


@pytest.mark.parallel([1, 2, 3])
def test_a_message_of_the_users_own_is_passed_along_each_edge(whole_graph, assert_equals_pyg):
    assert_equals_pyg(whole_graph(), hpcgnn.distribute(TwoLayers(Doubling)))


class Updating(pyg.MessagePassing):
    """Softmax over neighbors with arguments that have no types, and an update that takes the node's own row."""

    def __init__(self, i, o):
        super().__init__(aggr="sum")
        self.score, self.map = torch.nn.Linear(2 * i, 1), torch.nn.Linear(2 * i, o)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_i, x_j, index, ptr, size_i):
        weight = softmax(self.score(torch.cat([x_i, x_j], dim=1)), index, ptr, size_i)
        return weight * x_j

    def update(self, inputs, x):
        return self.map(torch.cat([inputs, x], dim=1))


@pytest.mark.parallel([1, 2, 3])
def test_an_update_takes_the_nodes_own_rows_and_arguments_need_no_types(whole_graph, assert_equals_pyg):
    assert_equals_pyg(whole_graph(), hpcgnn.distribute(TwoLayers(Updating)))


@pytest.mark.parallel([2])
def test_what_a_convolution_kept_of_the_whole_graph_is_left_as_it_was(whole_graph, assert_equals_pyg):
    whole, model = whole_graph(), pyg.SGConv(6, 5, K=2, cached=True)
    with torch.no_grad():
        model(whole.x.float(), whole.edge_index)
    kept, reference = model._cached_x, pyg.SGConv(6, 5, K=2).double()
    reference.load_state_dict(model.state_dict())
    assert_equals_pyg(whole, hpcgnn.distribute(model), reference)
    assert model.cached and model._cached_x is kept


@pytest.mark.parallel([1, 2])
def test_a_hook_of_the_users_own_sees_the_messages(whole_graph):
    model, seen, graph = TwoLayers(pyg.GCNConv), [], whole_graph().graph
    model.last.register_message_forward_hook(lambda conv, inputs, out: seen.append(len(out)))
    hpcgnn.distribute(model)(graph, graph.x)
    assert seen == [graph.edge_index.shape[1] + graph.num_inner]      # with a loop for each node


class WithAttributes(torch.nn.Module):
    """Edge weights as one attribute of an edge."""

    def __init__(self, make):
        super().__init__()
        torch.manual_seed(6)
        self.first, self.last = make(6, 8), make(8, 5)

    def forward(self, x, edge_index, edge_attr):
        return self.last(torch.tanh(self.first(x, edge_index, edge_attr)), edge_index, edge_attr)


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("make", [lambda i, o: pyg.GATv2Conv(i, o, edge_dim=1),
                                  lambda i, o: pyg.GINEConv(mlp(i, o), edge_dim=1)], ids=["GATv2Conv", "GINEConv"])
def test_edge_weights_reach_convolutions_that_take_attributes(whole_graph, assert_equals_pyg, make):
    whole = whole_graph(is_weighted=True)
    assert_equals_pyg(whole, hpcgnn.distribute(WithAttributes(make)), edge_attr=whole.edge_weight[:, None])


FAMILY = {
    "GCN": lambda: pyg.GCN(6, 8, 3, 5, norm="batch_norm", jk="cat"),
    "GraphSAGE": lambda: pyg.GraphSAGE(6, 8, 3, 5, norm="BatchNorm", jk="max"),
    "GIN": lambda: pyg.GIN(6, 8, 3, 5, jk="lstm"),
    "GAT": lambda: pyg.GAT(6, 8, 3, 5, heads=2, v2=True, norm="layer_norm", norm_kwargs={"mode": "node"}),
    "PNA": lambda: pyg.PNA(6, 8, 2, 5, aggregators=["mean", "std"], scalers=SCALERS, deg=DEGREES),
    "EdgeCNN": lambda: pyg.EdgeCNN(6, 8, 2, 5),
}


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("name", list(FAMILY))
def test_models_of_pyg_equal_those_of_one_process_as_do_batch_statistics(whole_graph, assert_equals_pyg, name):
    torch.manual_seed(7)
    model = hpcgnn.distribute(FAMILY[name]())
    plain = assert_equals_pyg(whole_graph(), model)
    for key, value in plain.named_buffers():
        assert torch.allclose(model.module.get_buffer(key).double(), value.double(), rtol=1e-5, atol=1e-6), key
