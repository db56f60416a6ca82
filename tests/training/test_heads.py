"""Losses that read several heads, terms that a model adds, and drawn rows of all ranks: P ranks learn as one does."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch.nn import functional as F
from training_setup import easy_graph, on_rank_zero, random_owner, write

from hpcgnn.config import TrainConfig
from hpcgnn.errors import CollectiveError, TrainingError
from hpcgnn.nn.heads import Heads as JoinedHeads
from hpcgnn.nn.heads import scored
from hpcgnn.nn.node_embedding import NodeEmbedding, Nodes
from hpcgnn.shards.reader import read_graph_info, read_partition
from hpcgnn.training.evaluate import evaluate
from hpcgnn.training.learner import Learner
from hpcgnn.training.own_loss import OwnLoss
from hpcgnn.training.recipe import Recipe
from hpcgnn.training.session import Session
from hpcgnn.training.trainer import train_epoch

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed; pip install hpcgnn[test]")
COMM = MPI.COMM_WORLD
EPOCHS, RATE = 3, 0.3


class Heads(torch.nn.Module):
    """A model of PyTorch Geometric; `form` makes what it returns from logits, hidden rows and the module."""

    def __init__(self, form):
        super().__init__()
        torch.manual_seed(4)
        self.conv, self.last, self.form = pyg.SAGEConv(12, 8), torch.nn.Linear(8, 4), form

    def forward(self, x, edge_index):
        h = torch.tanh(self.conv(x, edge_index))
        return self.form(self.last(h), h, self)


class OnGraph(Heads):
    """The same on LocalGraph."""

    def forward(self, graph, x):
        h_all = graph.halo(x)
        h = torch.tanh(self.conv((h_all, h_all[:graph.num_inner]), graph.edge_index))
        return self.form(self.last(h), h, graph)


@pytest.fixture
def shards(shared_path):
    """Folders of one part, and of one part a rank; all training nodes of several ranks are on the first ones."""
    def make():
        dataset = easy_graph()
        owner = random_owner(dataset, COMM.size)
        owner[dataset.train_mask] %= max(1, COMM.size - 1)
        return (write(dataset, np.zeros_like(owner), 1, shared_path / "one"),
                write(dataset, owner, COMM.size, shared_path / "all"))

    return on_rank_zero(COMM, make)


def trained(comm, folder, model, loss=None, **settings):
    """Collective: losses by epoch, weights after them, and the evaluation and reading of outputs."""
    recipe = Recipe(model, loss=None if loss is None else OwnLoss(loss),
                    optimizer=lambda weights: torch.optim.SGD(weights, RATE))
    config = TrainConfig.of(model="own:Model", loss="auto" if loss is None else "own", precision="fp32",
                            method="vanilla", **settings)
    session = Session.open(comm, folder, config, recipe=recipe)
    learner = Learner.start(session, 0, None)
    controller, losses = config.method.controller(session.method_context()), []
    for epoch in range(EPOCHS):
        session.exchange.begin_epoch(controller.plan(seed=0, epoch=epoch))
        losses.append(train_epoch(session, learner, 0, epoch).loss)
    found = evaluate(comm, learner.model, session.graph, session.objective, session.score)
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return losses, weights, (found.test_score, found.val_loss)


def plain(model, loss):
    """Losses and weights of the plain model on the whole graph; `loss` gets all outputs, labels and training nodes."""
    dataset = easy_graph()
    x, labels = torch.from_numpy(dataset.features), torch.from_numpy(dataset.labels)
    target = np.repeat(np.arange(dataset.num_nodes), dataset.in_degree())
    edges = torch.from_numpy(np.stack([dataset.indices.astype(np.int64), target]))
    train, optimizer, losses = torch.from_numpy(dataset.train_mask), torch.optim.SGD(model.parameters(), RATE), []
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        value = loss(model(x, edges), labels, train)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses, torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def assert_same(found, expected):
    assert np.allclose(found[0], expected[0], rtol=2e-5, atol=0)
    assert (found[1] - expected[1]).abs().max() <= 2e-5 * expected[1].abs().max()


FORMS = {"tuple": lambda out, h, own: (out, h), "dict": lambda out, h, own: {"hidden": h, "logits": out},
         "cube": lambda out, h, own: [out, h.view(-1, 2, 4)]}
# A loss of heads, and the kind that it is.
OF_HEADS = {
    "mean": lambda out, h, y: F.cross_entropy(out, y) + 0.1 * h.square().mean(),
    "rows": lambda out, h, y: F.cross_entropy(out, y, reduction="none") + h.abs().flatten(1).sum(1),
    "whole": lambda out, h, y: F.cross_entropy(out, y) + torch.cdist(h.flatten(1), h.flatten(1)).mean(),
}


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("form, kind", [("tuple", "mean"), ("dict", "rows"), ("cube", "whole")])
def test_a_loss_of_several_heads_is_that_of_one_process(shards, form, kind):
    def loss(heads, labels):
        out, h = (heads["logits"], heads["hidden"]) if form == "dict" else heads
        assert h.shape[1:] == ((2, 4) if form == "cube" else (8,))
        return OF_HEADS[kind](out, h, labels)

    def whole(heads, labels, train):
        chosen = {name: head[train] for name, head in heads.items()} if form == "dict" else [
            head[train] for head in heads]
        return loss(chosen, labels[train]).mean()

    found = trained(COMM, shards[1], Heads(FORMS[form]), loss)
    assert_same(found, plain(Heads(FORMS[form]), whole))
    # The logits are scored, though they come second in the dict.
    assert found[2] == pytest.approx(trained(MPI.COMM_SELF, shards[0], Heads(FORMS[form]), loss)[2], rel=1e-4)


@pytest.mark.parallel([1, 2, 3])
def test_a_term_of_rows_is_averaged_over_all_nodes_and_a_term_of_weights_is_counted_once(shards):
    def of_rows(out, h, own):
        return {"logits": out, "loss": 0.3 * h.square().sum(1)}

    def of_weights(out, h, own):
        return {"logits": out, "loss": 0.3 * own.last.weight.square().sum()}

    def whole(heads, labels, train):
        return F.cross_entropy(heads["logits"][train], labels[train]) + heads["loss"].mean()

    for form in (of_rows, of_weights):
        assert_same(trained(COMM, shards[1], Heads(form)), plain(Heads(form), whole))


@pytest.mark.parallel([2])
def test_a_number_that_depends_on_rows_is_no_term(shards):
    with pytest.raises(CollectiveError, match="Heads's output for a node depends on other rows"):
        trained(COMM, shards[1], Heads(lambda out, h, own: {"logits": out, "loss": h.square().mean()}))


class Table(torch.nn.Module):
    """A model with a learned row for each node; `term` makes the entry "loss" from the own rows and the module."""

    def __init__(self, nodes, term):
        super().__init__()
        self.table, self.last, self.term = NodeEmbedding(nodes, 5, seed=1), torch.nn.Linear(5, 4), term
        torch.nn.init.constant_(self.last.weight, 0.1)
        torch.nn.init.zeros_(self.last.bias)

    def forward(self, graph, x):
        rows = self.table(graph.node_index)
        return {"logits": self.last(rows), "loss": self.term(rows, self)}


@pytest.mark.parallel([1, 2])
def test_a_number_of_a_whole_table_is_refused_on_several_ranks_and_a_value_per_row_is_right(shards):
    def of(comm, folder, term):
        part = read_partition(folder, comm.rank, comm.size, read_graph_info(folder))
        return trained(comm, folder, Table(Nodes(torch.from_numpy(np.sort(part.inner_id)), 240), term))[0]

    alone = of(MPI.COMM_SELF, shards[0], lambda rows, own: 0.1 * own.table.weight.square().sum(1).mean())
    assert np.allclose(of(COMM, shards[1], lambda rows, own: 0.1 * rows.square().sum(1)), alone, rtol=2e-5)
    if COMM.size > 1:
        with pytest.raises(CollectiveError, match="Table returns one number as its entry 'loss' that depends on the "
                                                  "NodeEmbedding table, and each rank holds other rows"):
            of(COMM, shards[1], lambda rows, own: 0.1 * own.table.weight.norm())


def contrasted(h, others, temperature=0.5):
    """Per row, how far its nearest drawn rows are, as InfoNCE has it."""
    return torch.logsumexp(F.normalize(h, dim=1) @ F.normalize(others, dim=1).t() / temperature, dim=1)


@pytest.mark.parallel([1, 2, 3])
def test_drawn_rows_of_a_model_and_of_a_loss_are_the_same_on_any_number_of_ranks(shards):
    def form(out, h, graph):
        return {"logits": out, "loss": contrasted(h, graph.draw_rows(h, 7))}

    def loss(heads, labels, graph):
        out, h = heads
        others = graph.draw_rows(torch.cat([h, labels[:, None].float()], dim=1), 9)
        assert set(others[:, -1].tolist()) <= {0.0, 1.0, 2.0, 3.0}
        return F.cross_entropy(out, labels, reduction="none") + contrasted(h, others[:, :-1])

    for make, own in ((lambda: OnGraph(form), None), (lambda: Heads(FORMS["tuple"]), loss)):
        found, expected = trained(COMM, shards[1], make(), own), trained(MPI.COMM_SELF, shards[0], make(), own)
        assert_same(found, expected)
        assert found[2] == pytest.approx(expected[2], rel=1e-4)
        assert len(set(found[0])) == EPOCHS


@pytest.mark.parallel([1, 2])
def test_a_loss_that_draws_rows_must_give_a_value_a_row(shards):
    def loss(heads, labels, graph):
        graph.draw_rows(heads[1], 3)
        return F.cross_entropy(heads[0], labels)

    with pytest.raises(TrainingError, match="the loss takes graph and gives one number; it must give one"):
        trained(COMM, shards[1], Heads(FORMS["tuple"]), loss)


class Answer(NamedTuple):
    hidden: torch.Tensor
    logits: torch.Tensor


def test_logits_of_a_named_tuple_are_scored_wherever_they_stand():
    hidden, logits = torch.zeros(3, 2), torch.ones(3, 4)
    assert scored(Answer(hidden, logits)) is logits and scored((hidden, logits)) is hidden
    joined, heads = JoinedHeads.joined(Answer(hidden, logits))
    again = heads.split(joined)
    assert isinstance(again, Answer) and torch.equal(again.logits, logits) and scored(again) is again.logits
