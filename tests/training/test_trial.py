"""A model that mixes rows outside of convolutions, or reads where they lie, is refused by the name of what does it; a
model that works row by row is not, and is left as it was.
"""

from __future__ import annotations

import copy
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

import hpcgnn
from hpcgnn.errors import ConfigError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.results.plain import graph_of
from hpcgnn.training.trial import try_model

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed; pip install hpcgnn[test]")
NUM_NODES, DIM, OUT = 70, 8, 3
OTHERS = torch.randn(NUM_NODES, DIM, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def graph():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_NODES, DIM, generator=generator)
    graph = graph_of(x, torch.randint(NUM_NODES, (2, 300), generator=generator))
    return LocalGraph(replace(graph.rows, num_nodes=NUM_NODES), graph.exchange)


class Around(torch.nn.Module):
    """A convolution and what is done with its rows."""

    def __init__(self, change, conv=pyg.SAGEConv, **parts):
        super().__init__()
        torch.manual_seed(3)
        self.conv, self.last, self.change = conv(DIM, DIM), torch.nn.Linear(DIM, OUT), change
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x, edge_index):
        return self.last(self.change(self, self.conv(x, edge_index)))


def attention(**named):
    return torch.nn.TransformerEncoderLayer(DIM, 2, 16, dropout=0.0, **named)


MIXING = {
    "mean": lambda: Around(lambda self, h: h - h.mean(0)),
    "mean of all": lambda: Around(lambda self, h: h / h.abs().mean()),
    "softmax": lambda: Around(lambda self, h: self.soft(h), soft=torch.nn.Softmax(dim=0)),
    "normalize": lambda: Around(lambda self, h: functional.normalize(h, dim=0)),
    "sort": lambda: Around(lambda self, h: h + h.sort(dim=0).values),
    "cumsum": lambda: Around(lambda self, h: h.cumsum(0)),
    "flip": lambda: Around(lambda self, h: h + h.flip(0)),
    "roll": lambda: Around(lambda self, h: h.roll(1, 0)),
    "getitem": lambda: Around(lambda self, h: h + h[[5, 2]].mean(0)),
    "max": lambda: Around(lambda self, h: h + h.max(0).values),
    "layer_norm": lambda: Around(lambda self, h: functional.layer_norm(h, h.shape)),
    "group_norm": lambda: Around(lambda self, h: functional.group_norm(h.t()[None], 2)[0].t()),
    "instance_norm": lambda: Around(lambda self, h: functional.instance_norm(h.t()[None])[0].t()),
    "linalg_norm": lambda: Around(lambda self, h: h / torch.linalg.norm(h)),
    "matmul of others": lambda: Around(lambda self, h: torch.softmax(h @ h.t(), 1) @ h),
    "einsum": lambda: Around(lambda self, h: torch.einsum("nd,me->ne", h, h)),
    "scaled_dot_product_attention": lambda: Around(
        lambda self, h: functional.scaled_dot_product_attention(h[None], h[None], h[None])[0]),
    "multi_head_attention_forward": lambda: Around(lambda self, h: self.layer(h), layer=attention()),
    "attention behind a closed gate": lambda: Around(lambda self, h: h + self.gate * self.layer(h[None])[0],
                                                     layer=attention(batch_first=True),
                                                     gate=torch.nn.Parameter(torch.zeros(1))),
    "reshape": lambda: Around(lambda self, h: h.t().reshape(-1, DIM)),
    "number of rows": lambda: Around(lambda self, h: h / len(h)),
    "rows of a constant": lambda: Around(lambda self, h: h + OTHERS[:len(h)]),
    "rising numbers": lambda: Around(lambda self, h: h + torch.linspace(0, 1, len(h))[:, None]),
    "draws of NumPy": lambda: Around(lambda self, h: h + torch.from_numpy(np.random.rand(len(h), 1)).float()),  # noqa: NPY002
    "own GraphNorm": lambda: Around(lambda self, h: (h - h.mean(0)) / h.std(0)),
    "rows of the largest": lambda: Around(
        lambda self, h: h.scatter(0, h[:, 0].topk(20).indices[:, None].expand(-1, DIM), 0.0)),
    "later, by a count": lambda: Around(lambda self, h: h - h.mean(0) * (self.count(h).detach() is None or
                                                                         self.count.calls > 9), count=Counting()),
    "later, by a buffer": lambda: Around(lambda self, h: h - h.mean(0) * bool(
        self.norm(h).shape and self.norm.num_batches_tracked > 9), norm=torch.nn.BatchNorm1d(DIM)),
    "only in training": lambda: Around(lambda self, h: h - h.mean(0) if self.training else h),
    "only in evaluation": lambda: Around(lambda self, h: h if self.training else h - h.mean(0)),
}


@pytest.mark.parametrize("what", MIXING)
def test_what_mixes_rows_is_refused(graph, what):
    with pytest.raises(ConfigError, match="Around's output for a node depends on other rows of its rank") as refused:
        try_model(hpcgnn.distribute(MIXING[what]()), graph, np.arange(40), 1)
    if " " not in what:      # it is the name of a function of torch's
        assert f"by {what}" in str(refused.value)


class MeanDegree(Around):
    """Divides by the number of edges per node, as some papers' code does."""

    def forward(self, x, edge_index):
        return super().forward(x, edge_index) / (edge_index.size(1) / len(x))


def test_a_rank_s_mean_degree_is_refused(graph):
    with pytest.raises(ConfigError, match=r"depends on other rows of its rank, .* by div; "):
        try_model(hpcgnn.distribute(MeanDegree(lambda self, h: h)), graph, np.arange(40), 1)


class Statistics(torch.nn.Module):
    """A mean of all rows of training passes; `reads` says whether evaluation subtracts it."""

    def __init__(self, keep, reads=True):
        super().__init__()
        self.register_buffer("mean", torch.zeros(DIM))
        self.kept, self.keep, self.reads = torch.zeros(DIM), keep, reads

    def forward(self, h):
        if self.training:
            self.keep(self, h)
        return h if self.training or not self.reads else h - self.mean - self.kept


class GradientNorm(torch.autograd.Function):
    """Scales the gradient of all rows to length 1."""

    @staticmethod
    def forward(ctx, h):
        return h.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / gradient.norm()


def hooked(self, h):
    if h.requires_grad:
        h.register_hook(lambda gradient: gradient / gradient.norm())
    return h


def half_changed(self, h):
    h = h.clone()
    h[50] = 0
    return h


BY_RANK = {
    "buffer": (lambda: Around(lambda self, h: self.part(h), part=Statistics(
        lambda part, h: part.mean.add_(h.detach().mean(0)))), "Around keeps in part.mean what it computes from"),
    "attribute": (lambda: Around(lambda self, h: self.part(h), part=Statistics(
        lambda part, h: setattr(part, "kept", 0.5 * part.kept + h.detach().mean(0)))), "Around keeps in part.kept"),
    "term of the loss": (lambda: Around(lambda self, h: setattr(self, "term", h.square().mean()) or h),
                         "Around keeps in term what it computes from the rows of one rank"),
    "gradient": (lambda: Around(lambda self, h: GradientNorm.apply(h)), "is not a sum over nodes, so it would differ"),
    "hook": (lambda: Around(hooked), "the gradient of Around's conv.lin_l.weight is not a sum over nodes"),
    "slice": (lambda: Around(lambda self, h: torch.cat([2 * h[:50], h[50:]])), r"takes rows \[:50\] by their numbers"),
    "row": (lambda: Around(half_changed), "Around reads or writes a row by its number .index 50 is out of bounds"),
    "narrowed": (lambda: Around(lambda self, h: torch.cat([2 * h.narrow(0, 0, 50), h.narrow(0, 50, 20)])),
                 "Around's forward works on 70 rows and not on 25"),
    "table in a list": (lambda: Around(lambda self, h: h + self.rows[0], rows=[OTHERS]),
                        "Around's forward works on 70 rows and not on 25"),
    "mask of all": (lambda: Around(lambda self, h: h * (torch.arange(70.0) < 50)[:, None]),
                    "Around's forward works on 70 rows and not on 25"),
}


@pytest.mark.parametrize("what", BY_RANK)
def test_what_a_rank_would_do_with_its_own_rows_is_refused(graph, what):
    make, complaint = BY_RANK[what]
    with pytest.raises(ConfigError, match=complaint):
        try_model(hpcgnn.distribute(make()), graph, np.arange(40), 2)


def test_a_table_of_all_nodes_that_is_not_the_models_is_named_on_a_rank_with_some_of_them(graph):
    part = LocalGraph(replace(graph.rows, num_nodes=99), graph.exchange)
    with pytest.raises(ConfigError, match="Around's forward needs 99 rows, one per node of the whole graph, and was"):
        try_model(hpcgnn.distribute(Around(lambda self, h: h + torch.ones(99, DIM))), part, np.arange(40), 2)


class Weighted(torch.nn.Module):
    def __init__(self, change):
        super().__init__()
        self.conv, self.change = pyg.GraphConv(DIM, OUT), change

    def forward(self, x, edge_index, edge_weight):
        return self.conv(x, edge_index, self.change(edge_weight))


@pytest.mark.parametrize("change", [lambda weight: weight / weight.max(), lambda weight: weight.sort().values])
def test_weights_changed_by_those_of_all_edges_are_refused(graph, change):
    weighted = graph_of(graph.x, graph.edge_index, torch.rand(graph.edge_index.shape[1]))
    with pytest.raises(ConfigError, match="Weighted's output for a node depends on other rows of its rank, "):
        try_model(hpcgnn.distribute(Weighted(change)), weighted, np.arange(40), 1)


def test_a_branch_on_a_value_of_all_rows_is_remarked(graph):
    model = hpcgnn.distribute(Around(lambda self, h: h if h.abs().max() < 1e9 else -h))
    assert "by max, and takes a number for Python, by __bool__" in try_model(model, graph, np.arange(40), 2).remark
    assert try_model(model, graph, np.arange(40), 1).remark == ""


def test_outputs_that_follow_a_count_that_no_checkpoint_holds_are_remarked(graph):
    def scaled(self, h):
        self.calls += self.training
        return h / self.calls

    tried = try_model(hpcgnn.distribute(Around(scaled, calls=1)), graph, np.arange(40), 1)
    assert "Around's outputs depend on what earlier passes left in calls, which checkpoints" in tried.remark


@pytest.mark.parametrize("conv", [pyg.GCNConv, pyg.GATConv, pyg.TransformerConv, pyg.PNAConv])
def test_the_function_is_named_behind_convolutions_of_every_kind(graph, conv):
    def make(i, o):
        return conv(i, o) if conv is not pyg.PNAConv else conv(i, o, ["mean"], ["identity"], torch.ones(4))

    with pytest.raises(ConfigError, match="position, by softmax in Softmax at model"):
        try_model(hpcgnn.distribute(Around(lambda self, h: self.soft(h), make, soft=torch.nn.Softmax(0))), graph,
                  np.arange(40), 1)


def test_the_place_of_what_mixes_rows_is_told(graph):
    with pytest.raises(ConfigError, match=r"by softmax in Softmax at model\.soft; that would differ with"):
        try_model(hpcgnn.distribute(MIXING["softmax"]()), graph, np.arange(40), 1)


class Counting(torch.nn.Module):
    """Keeps numbers, lists and buffers that every forward changes."""

    def __init__(self):
        super().__init__()
        self.calls, self.seen = 0, []
        self.register_buffer("total", torch.zeros(DIM))
        self.norm = torch.nn.BatchNorm1d(DIM)

    def forward(self, h):
        self.calls += 1
        self.seen.append(len(h))
        self.total += 1
        self.last = h
        return self.norm(h)


class Keeping(torch.nn.Module):
    """Keeps a map of the first rows that it gets."""

    first = None

    def forward(self, h):
        if self.first is None:
            self.first = h.detach().sign()
        return h * self.first


def clamped(self, h):
    if not self.last.weight._backward_hooks:
        self.last.weight.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
    return h


def in_16_bits(self, h):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return self.map(h).float()


RIGHT = {
    "activations": lambda: Around(lambda self, h: functional.elu(h)),
    "row norms": lambda: Around(lambda self, h: functional.normalize(functional.layer_norm(h, (DIM,)), dim=1)),
    "group norm": lambda: Around(lambda self, h: self.norm(h), norm=torch.nn.GroupNorm(4, DIM)),
    "batch norm": lambda: Around(lambda self, h: self.norm(h), norm=torch.nn.BatchNorm1d(DIM)),
    "batch norm without statistics": lambda: Around(lambda self, h: self.norm(h), norm=torch.nn.BatchNorm1d(
        DIM, track_running_stats=False)),
    "dropout": lambda: Around(lambda self, h: functional.dropout(h, 0.5, self.training)),
    "noise": lambda: Around(lambda self, h: h + torch.randn_like(h)),
    "column mask": lambda: Around(lambda self, h: h * (torch.rand(h.shape[1]) > 0.3)),
    "layer drop": lambda: Around(lambda self, h: h if random.random() < 0.5 else 2 * h),
    "attention within a row": lambda: Around(
        lambda self, h: self.layer(h.view(len(h), 2, 4)).flatten(1),
        layer=torch.nn.TransformerEncoderLayer(4, 2, 16, dropout=0.0, batch_first=True)),
    "softmax of columns": lambda: Around(lambda self, h: h.softmax(-1) * h.mean(1, keepdim=True)),
    "embedding": lambda: Around(lambda self, h: h + self.table.weight, table=torch.nn.Embedding(NUM_NODES, DIM)),
    "embedding by a column": lambda: Around(lambda self, h: h + self.table((h[:, 0] > 0).long()),
                                            table=torch.nn.Embedding(2, DIM)),
    "GCN": lambda: Around(lambda self, h: h, conv=pyg.GCNConv),
    "GAT with dropout": lambda: Around(lambda self, h: h, conv=lambda i, o: pyg.GATConv(i, o, dropout=0.5)),
    "PNA": lambda: Around(lambda self, h: h, conv=lambda i, o: pyg.PNAConv(
        i, o, ["mean", "std", "max"], ["identity", "amplification"], torch.tensor([1, 2, 3, 4]))),
    "LSTM over layers": lambda: pyg.GCN(DIM, 16, 3, OUT, jk="lstm", norm="batch_norm", dropout=0.3),
    "edges' maps": lambda: Around(lambda self, h: h, conv=lambda i, o: pyg.EdgeConv(
        torch.nn.Sequential(torch.nn.Linear(2 * i, o), torch.nn.BatchNorm1d(o)))),
    "a count that rows are divided by": lambda: Around(
        lambda self, h: self.count(h) / self.count.total, count=Counting()),
    "spectral norm": lambda: Around(lambda self, h: self.map(h), map=torch.nn.utils.parametrizations.spectral_norm(
        torch.nn.Linear(DIM, DIM))),
    "rows kept from the first pass": lambda: Around(lambda self, h: self.kept(h), kept=Keeping()),
    "a mean for display": lambda: Around(lambda self, h: self.part(h), part=Statistics(
        lambda part, h: setattr(part, "kept", h.detach().mean(0)), reads=False)),
    "a hook of a weight": lambda: Around(clamped),
    "a layer in 16 bits": lambda: Around(in_16_bits, map=torch.nn.Linear(DIM, DIM)),
    "counts": lambda: Around(lambda self, h: self.count(h), count=Counting()),
}


@pytest.mark.parametrize("what", RIGHT)
def test_what_works_row_by_row_is_taken_and_left_as_it_was(graph, what):
    model = RIGHT[what]()
    before, generator = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    tried = try_model(hpcgnn.distribute(model), graph, np.arange(40), 2)
    assert tried.remark == "" and tried.outputs.shape[1] == OUT
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator) and model.training
    if what == "counts":
        assert model.count.calls == 0 and model.count.seen == [] and not hasattr(model.count, "last")


class OnGraph(torch.nn.Module):
    """A model on LocalGraph."""

    def __init__(self, change):
        super().__init__()
        self.lin, self.change = torch.nn.Linear(DIM, OUT), change
        self.table = torch.nn.Embedding(NUM_NODES, DIM)

    def forward(self, graph, x):
        return self.lin(self.change(self, graph, graph.aggregate(graph.halo(x), "mean")))


def test_a_model_on_localgraph_may_mix_rows_on_one_rank_and_not_read_where_they_lie(graph):
    mixing = OnGraph(lambda self, graph, h: h - h.mean(0))
    assert try_model(mixing, graph, np.arange(40), 1).remark == ""
    with pytest.raises(ConfigError, match=r"by mean; .* set mixes_rows = True"):
        try_model(mixing, graph, np.arange(40), 2)
    mixing.mixes_rows = True
    assert try_model(mixing, graph, np.arange(40), 2).remark == ""
    placed = OnGraph(lambda self, graph, h: h + self.table(torch.arange(len(h))))
    with pytest.raises(ConfigError, match=r"depends on its row's position in the graph.* by graph.node_index"):
        try_model(placed, graph, np.arange(40), 1)
    with pytest.raises(ConfigError, match=r"by embedding in Embedding at model.table"):
        try_model(placed, graph, np.arange(40), 2)
    numbered = OnGraph(lambda self, graph, h: h + self.table(graph.node_index))
    assert all(try_model(numbered, graph, np.arange(40), ranks).remark == "" for ranks in (1, 2))


@pytest.mark.parametrize("change, complaint", [
    (lambda out: (), "returns a tuple; its forward must return a tensor, .* or a tuple or dict of tensors"),
    (lambda out: (out, None), "returns a NoneType as its entry 1; each must be a tensor"),
    (lambda out: (out, out[:-1]), r"tensor of shape \(24, 3\) as its entry 1 for 25 nodes"),
    (lambda out: {"h": out, "logits": out[:, 0]}, r"tensor of shape \(25,\) as its entry 'logits' for 25 nodes"),
    (lambda out: {"loss": out.mean()}, "returns a dict without logits"),
    (lambda out: {"out": out, "loss": out}, r"tensor of shape \(25, 3\) as its entry 'loss'; a term of the loss is"),
    (lambda out: out[:, 0], r"\(25,\) for 25 nodes; it must have one row per node, \(25, outputs\), also for one"),
    (lambda out: out[:-1], r"tensor of shape \(24, 3\)"), (lambda out: out[None], r"tensor of shape \(1, 25, 3\)"),
    (lambda out: out.mean(0, keepdim=True), r"tensor of shape \(1, 3\)"),
    (lambda out: out.argmax(1, keepdim=True), "numbers of type int64, and no gradient passes through them"),
    (lambda out: out.detach(), "outputs depend on none of its weights that are trained"),
])
def test_answers_that_are_no_row_a_node_are_refused(graph, change, complaint):
    model = OnGraph(lambda self, graph, h: h)
    model.lin.register_forward_hook(lambda module, inputs, out: change(out))
    with pytest.raises(ConfigError, match=f"OnGraph.* {complaint}"):
        try_model(model, graph, np.arange(40), 1)


@pytest.mark.parametrize("end, ending", [
    (torch.sigmoid, "sigmoid"), (lambda h: functional.softmax(h, 1), "softmax"),
    (lambda h: functional.log_softmax(h, dim=-1), "log_softmax"), (lambda h: h.log_softmax(1).exp(), "softmax"),
    (lambda h: torch.sigmoid(h).clamp(1e-6, 1 - 1e-6)[:, :2], "sigmoid"), (functional.relu, "")])
def test_the_last_function_is_told(graph, end, ending):
    model = OnGraph(lambda self, graph, h: h)
    model.lin.register_forward_hook(lambda module, inputs, out: end(out))
    assert try_model(model, graph, np.arange(40), 1).endings == (ending, ending)


def test_a_model_that_can_be_tried_on_few_nodes_of_all_alone_is_remarked_and_refused_on_ranks(graph):
    def few(self, h):
        if len(h) in too_few:
            raise ValueError("too few nodes")
        return h

    too_few = range(20)      # a trial on more nodes follows
    assert try_model(hpcgnn.distribute(Around(few)), graph, np.arange(40), 2).remark == ""
    too_few = range(0, 80, 2)      # one of two parts
    with pytest.raises(ConfigError, match=r"Around works on \d+ nodes and not on \d+ of them \(ValueError: too few"):
        try_model(hpcgnn.distribute(Around(few)), graph, np.arange(40), 2)
    tried = try_model(hpcgnn.distribute(Around(few)), graph, np.arange(40), 1)
    assert "ValueError: too few nodes), so it was not checked whether it mixes rows" in tried.remark


class OfEdges(torch.nn.Module):
    """Convolutions that read relations, and attributes as `change` makes them."""

    def __init__(self, change):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last, self.change = pyg.RGCNConv(DIM, DIM, 3), pyg.GATv2Conv(DIM, OUT, edge_dim=4), change
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x, edge_index, edge_attr, edge_type):
        return self.last(self.first(x, edge_index, edge_type).relu(), edge_index, self.change(self, edge_attr))


class OfChosenEdges(Around):
    def forward(self, x, edge_index, edge_type):
        return super().forward(x, edge_index[:, edge_type == 1])


class OfHeavyEdges(Around):
    def forward(self, x, edge_index, edge_weight):
        return super().forward(x, edge_index[:, edge_weight > edge_weight.mean()])


def test_a_threshold_of_one_rank_s_edge_weights_is_refused(graph):
    weights = torch.rand(graph.edge_index.shape[1], generator=torch.Generator().manual_seed(0))
    with pytest.raises(ConfigError, match="OfHeavyEdges's output for a node depends on other rows of its rank"):
        try_model(hpcgnn.distribute(OfHeavyEdges(lambda self, h: h)), graph_of(graph.x, graph.edge_index, weights),
                  np.arange(40), 2)


@pytest.fixture
def typed_graph(graph):
    generator = torch.Generator().manual_seed(0)
    return graph_of(graph.x, graph.edge_index, None, torch.randn(graph.edge_index.shape[1], 4, generator=generator),
                    torch.randint(3, graph.edge_index.shape[1:], generator=generator))


def test_a_model_that_reads_edges_is_tried_on_edges_with_relations_and_attributes(typed_graph):
    for change in (lambda self, attr: attr, lambda self, attr: functional.dropout(self.norm(attr), 0.5, self.training)):
        tried = try_model(hpcgnn.distribute(OfEdges(change)), typed_graph, np.arange(40), 1)
        assert tried is not None and not tried.remark
    assert not try_model(hpcgnn.distribute(OfChosenEdges(lambda self, h: h)), typed_graph, np.arange(40), 2).remark
    with pytest.raises(ConfigError, match=r"OfEdges's output for a node depends on other rows of its rank, .* by mean"):
        try_model(hpcgnn.distribute(OfEdges(lambda self, attr: attr - attr.mean(0))), typed_graph, np.arange(40), 1)
    with pytest.raises(ConfigError, match=r"GATv2Conv at model\.last is made for 4 columns of edge_attr, and is g"):
        try_model(hpcgnn.distribute(OfEdges(lambda self, attr: attr[:, 1:])), typed_graph, np.arange(40), 1)
