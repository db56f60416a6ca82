"""What can't be distributed is refused by its name and place, with a reason and a way out, before a row travels."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from mpi4py import MPI

import hpcgnn
from hpcgnn.errors import ConfigError

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed; pip install hpcgnn[test]")


class Around(torch.nn.Module):
    """A convolution and something beside it."""

    def __init__(self, conv=None, beside=None):
        super().__init__()
        self.conv, self.beside = conv or pyg.GraphConv(6, 5), beside

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


def around(name, forward):
    """A subclass with another forward."""
    return type(name, (Around,), {"forward": forward})


NeedsTime = around("NeedsTime", lambda self, x, edge_index, edge_time: self.conv(x, edge_index))
NeedsRelations = around("NeedsRelations", lambda self, x, edge_index, edge_type: self.conv(x, edge_index, edge_type))
OnlyRows = around("OnlyRows", lambda self, x: x)
ByKeyword = around("ByKeyword", lambda self, *, x, edge_index: self.conv(x, edge_index))
NeedsWeights = around("NeedsWeights", lambda self, x, edge_index, edge_weight: self.conv(x, edge_index, edge_weight))
TakesAttributes = around(
    "TakesAttributes", lambda self, x, edge_index, edge_attr=None: self.conv(x, edge_index, edge_attr=edge_attr))
TakesSome = around(
    "TakesSome", lambda self, x, edge_index, edge_attr=None: self.conv(x, edge_index, edge_attr=edge_attr[:, :3]))
TakesRelations = around(
    "TakesRelations", lambda self, x, edge_index, edge_type=None: self.conv(x, edge_index, edge_type))
OtherWeights = around(
    "OtherWeights", lambda self, x, edge_index: self.conv(x, edge_index, torch.ones(edge_index.size(1))))
InPlace = around("InPlace", lambda self, x, edge_index: self.conv(x.relu_(), edge_index))
Pools = around("Pools", lambda self, x, edge_index: self.conv(x, edge_index).mean(0))
Gumbel = around("Gumbel", lambda self, x, edge_index: torch.nn.functional.gumbel_softmax(self.conv(x, edge_index)))
ReadsMask = around("ReadsMask", lambda self, data: self.conv(data.x, data.edge_index) * data.train_mask[:, None])
Selects = around("Selects", lambda self, x, edge_index, edge_type: self.conv(x, edge_index[:, edge_type == 0]))
Columns = around("Columns", lambda self, x, edge_index, edge_type: self.conv(x, edge_index[[1, 0]]))
Numbers = around("Numbers", lambda self, x, edge_index, edge_type: self.conv(None, edge_index, edge_type))


class InAList(Around):
    """Its second convolution is none of its modules."""

    def __init__(self):
        super().__init__()
        self.more = [pyg.GCNConv(5, 5)]

    def forward(self, x, edge_index):
        return self.more[0](self.conv(x, edge_index), edge_index)


def compiled(module):
    module.compile(backend="eager")
    return module


class OwnEdges(pyg.MessagePassing):
    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j, edge_index_j):
        return x_j * edge_index_j[:, None]


class Twice(pyg.MessagePassing):
    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j, x):
        return x_j + x[:len(x_j)]


class OwnEdgeUpdate(pyg.GATConv):
    def edge_update(self, alpha_j, alpha_i, edge_attr, index, ptr, dim_size):
        return super().edge_update(alpha_j, alpha_i, edge_attr, index, ptr, dim_size)


class OnLocalGraph(torch.nn.Module):
    def forward(self, graph, x):
        return graph.aggregate(graph.halo(x), "mean")


def graph_with(has_edge_weights=False, num_edge_features=0, num_relations=0):
    """What a model's check reads of a graph."""
    return SimpleNamespace(num_features=6, num_classes=5, info=SimpleNamespace(
        num_nodes=60, num_features=6, has_edge_weights=has_edge_weights, num_edge_features=num_edge_features,
        relation_names=tuple(f"r{number}" for number in range(num_relations))))


LINEAR = torch.nn.Linear(6, 5)


def dynamic():
    """Make a DynamicEdgeConv, which can't be made without a library of PyTorch Geometric's that is not needed here."""
    conv = pyg.EdgeConv(LINEAR)
    conv.__class__ = pyg.DynamicEdgeConv
    return conv


@pytest.mark.parametrize("make, complaint", [
    (lambda: Around(pyg.ChebConv(6, 5, K=2)), "ChebConv at model.conv can't be distributed: its Laplacian needs"),
    (lambda: Around(dynamic()), "DynamicEdgeConv at model.conv can't be distributed: it looks for neighbors"),
    (lambda: Around(pyg.SuperGATConv(6, 5)), "SuperGATConv at model.conv can't be distributed: it draws negative"),
    (lambda: Around(pyg.FeaStConv(6, 5)), "FeaStConv at model.conv can't be distributed: hpcgnn does not know it"),
    (lambda: pyg.GCNConv(6, 5, flow="target_to_source"), "GCNConv at model can't be distributed with flow="),
    (lambda: pyg.SAGEConv(6, 5, aggr="lstm"), "SAGEConv at model can't be distributed with LSTMAggregation"),
    (lambda: pyg.APPNP(2, 0.1, dropout=0.5), "APPNP at model can't be distributed with dropout"),
    (lambda: pyg.SAGEConv(-1, 5), "lin_l.weight of the model has no size yet"),
    (lambda: Around(beside=pyg.GraphNorm(6)), "GraphNorm at model.beside can't be distributed: it is computed over"),
    (lambda: Around(beside=pyg.PairNorm()), "PairNorm at model.beside can't be distributed: it is computed over"),
    (lambda: Around(beside=pyg.LayerNorm(6)), "LayerNorm at model.beside can't be distributed with mode='graph'"),
    (lambda: Around(beside=pyg.TopKPooling(6)), "TopKPooling at model.beside can't be distributed: pooling"),
    (lambda: Around(beside=pyg.SumAggregation()), "SumAggregation at model.beside can't be distributed: pooling"),
    (lambda: Around(beside=torch.nn.AlphaDropout()), "AlphaDropout at model.beside can't be distributed: its draws"),
    (lambda: torch.nn.DataParallel(Around()), "DataParallel can't be distributed: hpcgnn shares the graph out itself"),
    (lambda: compiled(Around()), "Around can't be distributed: hpcgnn must reach the convolutions; give the model"),
    (lambda: Around(compiled(pyg.GraphConv(6, 5))), "GraphConv at model.conv can't be distributed: hpcgnn must reach"),
    (lambda: OwnEdges(), "OwnEdges at model can't be distributed: its message or update takes edge_index_j"),
    (lambda: Twice(), "Twice at model can't be distributed: its message takes both x and x_j"),
    (lambda: OwnEdgeUpdate(6, 5), "OwnEdgeUpdate at model can't be distributed: it has an edge_update of its own"),
    (lambda: NeedsTime(), "NeedsTime.forward needs edge_time, which shards don't hold"),
    (lambda: Around(pyg.HGTConv(6, 5, (["a"], [("a", "to", "a")]))), "HGTConv at model.conv can't be distributed in a"),
    (lambda: OnlyRows(), "OnlyRows.forward takes (x), which can't be distributed"),
    (lambda: ByKeyword(), "ByKeyword.forward takes x by keyword only"),
    (lambda: OnLocalGraph(), "OnLocalGraph has no convolution of PyTorch Geometric to distribute"),
])
def test_a_part_that_would_differ_is_refused_by_name(make, complaint):
    with pytest.raises(ConfigError) as refused:
        hpcgnn.distribute(make())
    assert str(refused.value).startswith(complaint)


class AddsLoops(Around):
    def forward(self, x, edge_index):
        from torch_geometric.utils import add_self_loops

        return self.conv(x, add_self_loops(edge_index, num_nodes=len(x))[0])


class Degrees(pyg.MessagePassing):
    """The convolution of PyTorch Geometric's tutorial, which normalizes by itself."""

    def forward(self, x, edge_index):
        from torch_geometric.utils import degree

        row, col = edge_index
        return self.propagate(edge_index, x=x, norm=degree(col, x.size(0))[row])

    def message(self, x_j, norm):
        return norm[:, None] * x_j


class OwnMatrix(Around):
    def forward(self, x, edge_index):
        ones = torch.ones(edge_index.size(1))
        return self.conv(torch.sparse_coo_tensor(edge_index, ones, (len(x), len(x))) @ x, edge_index)


class DropsInside(Around):
    """A layer that draws by itself, over two tables of rows."""

    def forward(self, x, edge_index):
        rows = torch.stack([x, 2 * x], dim=1)
        found = self.beside(rows, rows, rows) if isinstance(self.beside, torch.nn.MultiheadAttention) else (
            self.beside(rows))
        return self.conv((found if isinstance(found, torch.Tensor) else found[0])[:, 0], edge_index)


def dropping_attention(rows):
    return torch.nn.functional.scaled_dot_product_attention(rows, rows, rows, dropout_p=0.5)


DROP_INSIDE = {
    "gru": lambda: torch.nn.GRU(6, 6, 2, batch_first=True, dropout=0.5),
    "lstm": lambda: torch.nn.LSTM(6, 6, 2, batch_first=True, dropout=0.5),
    "multi_head_attention_forward": lambda: torch.nn.MultiheadAttention(6, 2, dropout=0.5, batch_first=True),
    "scaled_dot_product_attention": lambda: dropping_attention}


@pytest.mark.parametrize("name", DROP_INSIDE)
def test_a_layer_with_dropout_inside_is_refused_by_its_dropout(whole_graph, name):
    graph = whole_graph(comm=MPI.COMM_SELF).graph
    model = hpcgnn.distribute(DropsInside(beside=DROP_INSIDE[name]()))
    with pytest.raises(ConfigError, match=f"the model calls {name} with dropout, whose draws would differ"):
        model(graph, graph.x)
    if name != "scaled_dot_product_attention":      # this one is told its probability in evaluation, too
        model.eval()(graph, graph.x)


@pytest.mark.parametrize("make, complaint", [
    (ReadsMask, "ReadsMask's forward reads data.train_mask, which shards do not give it; it gets x, edge_index, n_id"),
    (AddsLoops, "the model reads or changes edge_index itself, by "),
    (Degrees, "the model reads or changes edge_index itself, by "),
    (OwnMatrix, "the model reads or changes edge_index itself, by sparse_coo_tensor"),
    (InAList, "the model calls a GCNConv that is none of its modules, so it would get no rows of other ranks"),
    (lambda: OtherWeights(pyg.GCNConv(6, 5)), "GCNConv was given edge weights that are not the graph's"),
    (InPlace, "InPlace changes its input in place"),
    (Pools, "Pools returns a tensor of shape (5,) for 60 nodes; it must have one row per node, (60, outputs)"),
    (Gumbel, "the model calls gumbel_softmax; its draws would differ"),
])
def test_a_forward_that_would_differ_is_refused_where_it_does(whole_graph, make, complaint):
    graph = whole_graph(comm=MPI.COMM_SELF).graph
    with pytest.raises(ConfigError) as refused:
        hpcgnn.distribute(make())(graph, graph.x)
    assert str(refused.value).startswith(complaint)


class Moves(Around):
    """Edges moved to a device, or made long or contiguous, are the same edges where they were so already."""

    def forward(self, x, edge_index):
        edges = edge_index.to(x.device).to(torch.long).contiguous().detach().clone().cpu()
        assert edges is edge_index
        return self.conv(x, torch.clone(edges).long())


def test_edges_that_are_moved_to_where_they_lie_stay_the_same(whole_graph):
    graph = whole_graph(comm=MPI.COMM_SELF).graph
    model = Moves()
    with torch.no_grad():
        assert torch.equal(hpcgnn.distribute(model)(graph, graph.x), hpcgnn.distribute(Around(model.conv))(
            graph, graph.x))
    model.forward = lambda x, edge_index: model.conv(x, edge_index.to(torch.int32))
    with pytest.raises(ConfigError, match="the model reads or changes edge_index itself, by to"):
        hpcgnn.distribute(model)(graph, graph.x)


def test_a_model_that_does_not_fit_the_graph_is_refused():
    graph = graph_with(has_edge_weights=True)
    hpcgnn.distribute(pyg.GCN(6, 8, 2, 5), graph)
    hpcgnn.distribute(pyg.GAT(6, 8, 2, 5, edge_dim=1), graph)
    for model, complaint in [(pyg.GCN(7, 8, 2, 5), "GCN has in_channels=7, and the graph has 6 features"),
                             (pyg.GCN(6, 8, 2, 4), "GCN has out_channels=4, and the graph has 5 outputs"),
                             (pyg.GAT(6, 8, 2, 5), "the graph has edge weights and GAT takes none")]:
        with pytest.raises(ConfigError) as refused:
            hpcgnn.distribute(model, graph)
        assert str(refused.value).startswith(complaint)
    hpcgnn.distribute(pyg.GAT(6, 8, 2, 5), graph, ignore_edge_weights=True)


def test_columns_of_edges_that_the_graph_does_not_have_are_named():
    weighted, unweighted = graph_with(has_edge_weights=True), graph_with()
    for conv in (pyg.GATv2Conv(6, 5, edge_dim=3), pyg.GENConv(6, 5, edge_dim=3), pyg.GeneralConv(
            6, 5, in_edge_channels=3)):
        name = type(conv).__name__
        with pytest.raises(ConfigError, match=f"{name} at model.conv is made for 3 columns of edge_attr, and the graph "
                                              "has one weight per edge"):
            hpcgnn.distribute(TakesAttributes(conv), weighted)
        remark, = hpcgnn.distribute(TakesAttributes(conv), unweighted).remarks(unweighted.info)
        assert remark.startswith(f"{name} at model.conv is made for edge_attr of 3 columns")
    with pytest.raises(ConfigError, match=r"NeedsWeights\.forward needs edge_weight, and the graph has no"):
        hpcgnn.distribute(NeedsWeights(), unweighted)
    hpcgnn.distribute(NeedsWeights(), weighted)


@pytest.mark.parametrize("make, graph, complaint", [
    (lambda: TakesAttributes(pyg.GATv2Conv(6, 5, edge_dim=3)), graph_with(num_edge_features=5),
     "GATv2Conv at model.conv is made for 3 columns of edge_attr, and is given 5; make it for 5 columns"),
    (lambda: TakesAttributes(pyg.GINEConv(LINEAR)), graph_with(num_edge_features=5),
     "GINEConv at model.conv is made for 6 columns of edge_attr, and is given 5"),
    (lambda: TakesAttributes(pyg.NNConv(6, 5, torch.nn.Linear(3, 30))), graph_with(num_edge_features=2),
     "NNConv at model.conv is made for 3 columns of edge_attr, and is given 2"),
    (lambda: pyg.GAT(6, 8, 2, 5, edge_dim=3), graph_with(num_edge_features=4),
     "GATConv at model.convs.0 is made for 3 columns of edge_attr, and is given 4"),
    (lambda: TakesAttributes(pyg.CGConv(6, dim=3)), graph_with(),
     "CGConv at model.conv needs edge_attr, and the graph has no attributes of edges; preprocess it"),
    (lambda: Around(pyg.GINEConv(LINEAR, edge_dim=3)), graph_with(num_edge_features=3),
     "GINEConv at model.conv needs edge_attr, and was given none; let the model's forward take edge_attr"),
    (lambda: TakesRelations(pyg.RGCNConv(6, 5, 4)), graph_with(),
     "RGCNConv at model.conv needs edge_type, and the graph has no relations of edges; preprocess it with them"),
    (lambda: Around(pyg.FiLMConv(6, 5, num_relations=2)), graph_with(num_relations=2),
     "FiLMConv at model.conv needs edge_type, and was given none; let the model's forward take edge_type"),
    (lambda: TakesRelations(pyg.RGCNConv(6, 5, 3)), graph_with(num_relations=4),
     "RGCNConv at model.conv is made for 3 relations, and the graph has more"),
    (lambda: NeedsRelations(pyg.RGCNConv(6, 5, 3)), graph_with(),
     "NeedsRelations.forward needs edge_type, and the graph has no relations"),
    (lambda: TakesAttributes(pyg.GATv2Conv(6, 5, edge_dim=3)), graph_with(True, num_edge_features=3),
     "the graph has edge weights and TakesAttributes takes none"),
])
def test_edges_that_do_not_fit_a_convolution_are_refused_before_training(make, graph, complaint):
    model = make()
    with pytest.raises(ConfigError) as refused:
        hpcgnn.distribute(model, graph)
    assert str(refused.value).startswith(complaint)
    assert model.training      # nothing of the model has changed


def test_edges_that_fit_are_taken_and_unused_ones_are_named():
    typed = graph_with(num_edge_features=5, num_relations=4)
    for model in (TakesSome(pyg.GATv2Conv(6, 5, edge_dim=3)), TakesAttributes(pyg.GINEConv(LINEAR, edge_dim=5))):
        remark, = hpcgnn.distribute(model, typed).remarks(typed.info)
        assert remark == ("the graph's edges have edge_type (4 relations), and "
                          f"{type(model).__name__}.forward does not take it: it trains without")
    remark, = hpcgnn.distribute(pyg.GCN(6, 8, 2, 5), typed).remarks(typed.info)
    assert remark.startswith("the graph's edges have edge_attr (5 columns) and edge_type (4 relations), and GCN.for")
    both = graph_with(True, num_edge_features=5)
    assert not hpcgnn.distribute(TakesAttributes(pyg.GATv2Conv(6, 5, edge_dim=5)), both,
                                 ignore_edge_weights=True).remarks(both.info)


@pytest.mark.parametrize("make, complaint", [
    (lambda: Selects(pyg.GCNConv(6, 5)), "GCNConv at model.conv can't be distributed on a selection of edges"),
    (Columns, "the model reads or changes edge_index itself, by "),
    (lambda: Numbers(pyg.FastRGCNConv(60, 5, 4)), "FastRGCNConv at model.conv was given no rows, and would count"),
])
def test_a_forward_that_uses_relations_as_one_rank_can_not_is_refused(typed_graph, make, complaint):
    graph = typed_graph(comm=MPI.COMM_SELF).graph
    with pytest.raises(ConfigError) as refused:
        hpcgnn.distribute(make())(graph, graph.x)
    assert str(refused.value).startswith(complaint)
