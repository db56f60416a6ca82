"""Draws of a row a node are the same on any number of ranks, distributed as torch's; others are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mpi4py import MPI
from pyg.conftest import gathered
from scipy import stats

import hpcgnn
from hpcgnn.errors import ConfigError

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed; pip install hpcgnn[test]")
COMM = MPI.COMM_WORLD


class Drawing(torch.nn.Module):
    """Answers with what `draw(x)` gives."""

    def __init__(self, draw):
        super().__init__()
        self.conv, self.draw = pyg.SAGEConv(6, 5), draw

    def forward(self, x, edge_index):
        return self.draw(x) + 0 * self.conv(x, edge_index)[:, :1]


def drawn(draw, whole, comm):
    """What a model draws, by global id."""
    return gathered(hpcgnn.distribute(Drawing(draw))(whole.graph, whole.graph.x), whole.graph, comm)


WIDE = 40
NORMAL, UNIFORM = stats.norm().cdf, stats.uniform().cdf
DRAWS = {
    "randn_like": (lambda x: torch.randn_like(x), NORMAL),
    "randn": (lambda x: torch.randn(len(x), WIDE), NORMAL),
    "rand of a size": (lambda x: torch.rand((x.shape[0], WIDE)), UNIFORM),
    "rand_like": (lambda x: torch.rand_like(x.repeat(1, 9)), UNIFORM),
    "normal_": (lambda x: torch.empty(len(x), WIDE).normal_(2.0, 3.0), stats.norm(2, 3).cdf),
    "normal": (lambda x: torch.normal(torch.ones(len(x), WIDE), 2.0), stats.norm(1, 2).cdf),
    "normal of a size": (lambda x: torch.normal(0.0, 0.5, (len(x), WIDE)), stats.norm(0, 0.5).cdf),
    "uniform_": (lambda x: x.new_empty(len(x), WIDE).uniform_(-1, 3), stats.uniform(-1, 4).cdf),
    "init.normal_": (lambda x: torch.nn.init.normal_(x.new_empty(len(x), WIDE), 2.0, std=3.0), stats.norm(2, 3).cdf),
    "init.uniform_": (lambda x: torch.nn.init.uniform_(x.new_empty(len(x), WIDE), -1, 3), stats.uniform(-1, 4).cdf),
    "exponential_": (lambda x: x.new_empty(len(x), WIDE).exponential_(), stats.expon().cdf),
    "a distribution": (lambda x: torch.distributions.Normal(torch.zeros(len(x), WIDE), 1.0).rsample(), NORMAL),
    "three dimensions": (lambda x: torch.rand(len(x), 4, 10).flatten(1), UNIFORM),
}


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_those_of_one_rank_and_as_torch_distributes_them(whole_graph, name):
    draw, distribution = DRAWS[name]
    found = drawn(draw, whole_graph(), COMM)
    assert np.array_equal(found, drawn(draw, whole_graph(comm=MPI.COMM_SELF), MPI.COMM_SELF))
    # Sixty rows are all different, and a fair draw is this far from its distribution once in 10^6 seeds.
    assert len(np.unique(found, axis=0)) == len(found)
    assert stats.kstest(found.ravel(), distribution).pvalue > 1e-6


def test_a_layer_may_be_made_in_a_forward(whole_graph):
    """Its first weights are drawn by functions that name all their arguments."""
    graph = whole_graph(comm=MPI.COMM_SELF).graph
    made = hpcgnn.distribute(Drawing(lambda x: torch.nn.Linear(x.shape[1], 7)(x)))
    assert made(graph, graph.x).shape == (graph.num_inner, 7)


@pytest.mark.parallel([1, 2])
def test_masks_keep_the_share_that_was_asked_for(whole_graph):
    for draw in (lambda x: torch.bernoulli(torch.full((len(x), WIDE), 0.7)), lambda x: torch.dropout(
            torch.full((len(x), WIDE), 0.7), 0.3, True), lambda x: x.new_empty(len(x), WIDE).bernoulli_(0.7)):
        found = drawn(draw, whole_graph(), COMM)
        assert np.array_equal(found, drawn(draw, whole_graph(comm=MPI.COMM_SELF), MPI.COMM_SELF))
        assert np.allclose(np.unique(found), [0, 1]) and abs(found.mean() - 0.7) < 0.05      # 5 standard deviations


@pytest.mark.parallel([1, 2])
def test_two_draws_differ_and_those_of_columns_are_torchs(whole_graph):
    found = drawn(lambda x: torch.rand(len(x), WIDE) - torch.rand(len(x), WIDE), whole_graph(), COMM)
    assert np.abs(found).mean() > 0.2      # 1/3 of two that are independent
    model, graph = Drawing(lambda x: torch.rand_like(x)[:, :1] * 0 + torch.rand(7)), whole_graph().graph
    torch.manual_seed(3)
    columns = hpcgnn.distribute(model)(graph, graph.x)[0].detach()
    torch.manual_seed(3)
    assert torch.equal(columns, torch.rand(7))      # a rank's draws for its nodes have left the generator alone


@pytest.mark.parametrize("draw, name", [
    (lambda x: x[torch.randperm(len(x))], "randperm"), (lambda x: x[torch.randint(len(x), (len(x),))], "randint"),
    (lambda x: torch.multinomial(x.abs(), 2).float(), "multinomial"), (lambda x: torch.poisson(x.abs()), "poisson"),
    (lambda x: torch.nn.functional.rrelu(x, training=True), "rrelu")])
def test_other_draws_of_nodes_are_refused(whole_graph, draw, name):
    graph = whole_graph(comm=MPI.COMM_SELF).graph
    with pytest.raises(ConfigError, match=f"the model calls {name}.* draws would differ with the number of ranks"):
        hpcgnn.distribute(Drawing(draw))(graph, graph.x)
