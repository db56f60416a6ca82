"""Gradient checkpointing changes no gradient and no statistic, whatever it runs again, on any number of ranks."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import hpcgnn
from hpcgnn.errors import ConfigError
from hpcgnn.pyg.recomputation import checkpoints_on

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed; pip install hpcgnn[test]")


class Layers(torch.nn.Module):
    """Runs what `run(model, x, edge_index)` says, with `self.call` as checkpoint or not."""

    def __init__(self, run, dropout, call=lambda function, *args: function(*args), conv=pyg.SAGEConv):
        super().__init__()
        torch.manual_seed(2)
        self.run, self.call = run, call
        self.first, self.second, self.last = conv(6, 8), conv(8, 8), conv(8, 5)
        self.norm, self.dropout = torch.nn.BatchNorm1d(8), torch.nn.Dropout(dropout)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(8, 8), self.norm, torch.nn.ReLU(), self.dropout,
                                       torch.nn.Linear(8, 8))
        self.table = torch.nn.Embedding(60, 8)

    def hidden(self, x, edge_index):
        return self.dropout(self.second(self.norm(self.first(x, edge_index)), edge_index).relu())

    def forward(self, x, edge_index):
        return self.run(self, x, edge_index) + 0 * sum(parameter.sum() for parameter in self.parameters())


RUNS = {
    "rows": lambda s, x, e: s.last(s.call(s.mlp, s.first(x, e)), e),
    "a convolution": lambda s, x, e: s.call(s.last, s.first(x, e).relu(), e),
    "two convolutions": lambda s, x, e: s.last(s.call(s.hidden, x.clone().requires_grad_(), e), e),
    "the constant input": lambda s, x, e: s.last(s.dropout(s.call(s.first, s.dropout(x), e)), e),
    "a closure": lambda s, x, e: s.last(s.call(lambda h: s.second(h, e) + s.dropout(h), s.first(x, e)), e),
    "several": lambda s, x, e: s.call(s.last, s.call(s.mlp, s.call(s.second, s.first(x, e), e)), e),
    "a table": lambda s, x, e: s.call(s.last, s.table.weight, e),
}
FORMS = {"reentrant": lambda function, *args: checkpoint(function, *args, use_reentrant=True),
         "other": lambda function, *args: checkpoint(function, *args, use_reentrant=False)}


def gradients_of(whole, model):
    out = model(whole.graph, whole.graph.x)
    (out * torch.linspace(-1, 1, out.shape[1])).square().sum().backward()
    return {name: parameter.grad for name, parameter in model.module.named_parameters()}, out.detach()


@pytest.mark.parallel([1, 2, 3])
# Torch's reentrant form passes no gradient to weights where none of its inputs takes one, and warns of it.
@pytest.mark.parametrize("what, form", [(what, form) for what in RUNS for form in FORMS
                                        if (what, form) != ("the constant input", "reentrant")])
def test_gradients_and_statistics_are_those_without_checkpoints(whole_graph, what, form):
    found = []
    for call in (lambda function, *args: function(*args), FORMS[form]):
        whole, model = whole_graph(), Layers(RUNS[what], 0.4, call)
        distributed = hpcgnn.distribute(model)
        found.append((*gradients_of(whole, distributed), dict(model.named_buffers()), whole.graph.current_pass))
    (plain, rows, buffers, stands), (again, same_rows, same_buffers, still_stands) = found
    assert torch.equal(rows, same_rows) and stands == still_stands
    assert any(gradient.abs().max() > 0 for gradient in plain.values())
    for name, gradient in plain.items():
        assert torch.allclose(again[name], gradient, rtol=1e-5, atol=1e-6 * float(gradient.abs().max())), name
    assert all(torch.equal(same_buffers[name], buffer) for name, buffer in buffers.items())


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("conv", [pyg.GCNConv, pyg.GATConv, pyg.TAGConv])
def test_gradients_of_convolutions_are_those_of_plain_pyg(whole_graph, assert_equals_pyg, conv):
    for call in FORMS.values():
        assert_equals_pyg(whole_graph(), hpcgnn.distribute(Layers(RUNS["several"], 0.0, call, conv)),
                          Layers(RUNS["several"], 0.0, conv=conv).double())


def test_a_sequence_of_segments_is_taken(whole_graph, assert_equals_pyg):
    def run(s, x, e):
        h = s.first(x, e)
        return s.last(checkpoint_sequential(s.mlp, 2, h, use_reentrant=False) if s.mlp[0].weight.dtype == torch.float32
                      else s.mlp(h), e)

    assert_equals_pyg(whole_graph(), hpcgnn.distribute(Layers(run, 0.0)), Layers(run, 0.0).double())


def test_a_checkpoint_within_another_is_refused(whole_graph):
    whole = whole_graph()
    for call in FORMS.values():
        def run(s, x, e, call=call):
            return s.last(call(lambda h: call(s.mlp, h), s.first(x, e)), e)

        with pytest.raises(ConfigError, match=r"checkpoint within a function that is checkpointed itself"):
            hpcgnn.distribute(Layers(run, 0.0))(whole.graph, whole.graph.x)


class OnGraph(torch.nn.Module):
    """A model on LocalGraph that drops out in a checkpointed function."""

    def __init__(self, call):
        super().__init__()
        torch.manual_seed(1)
        self.call, self.lin, self.last = call, torch.nn.Linear(6, 8), torch.nn.Linear(8, 5)

    def forward(self, graph, x):
        h = graph.aggregate(graph.halo(x), "mean")
        h = self.call(lambda rows: functional.relu(graph.dropout(self.lin(rows), 0.5)), h.requires_grad_())
        return self.last(graph.dropout(h, 0.5))


@pytest.mark.parametrize("form", FORMS)
def test_dropout_of_a_model_on_localgraph_is_the_same_again(whole_graph, form):
    found = []
    for call in (lambda function, *args: function(*args), FORMS[form]):
        graph, model = whole_graph().graph, OnGraph(call)
        with checkpoints_on(model, graph):
            out = model(graph, graph.x.clone())
        out.square().sum().backward()
        found.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.allclose(a, b) for a, b in zip(*found, strict=True))


def test_halo_rows_of_a_model_on_localgraph_are_not_sent_again(whole_graph):
    graph = whole_graph().graph
    model = OnGraph(lambda function, h: checkpoint(lambda rows: function(graph.halo(rows)[:len(rows)]), h,
                                                   use_reentrant=False))
    with checkpoints_on(model, graph), pytest.raises(ConfigError, match=r"checkpoint can't run graph\.halo again"):
        model(graph, graph.x.clone())
