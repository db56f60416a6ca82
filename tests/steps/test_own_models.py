"""Models of PyTorch Geometric in steps: the gradients of a step, and the losses of one rank on any number."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from covering import long_but
from made_steps import NODES_A_CLUSTER, share_clusters
from mpi4py import MPI
from torch.utils.checkpoint import checkpoint
from training_setup import SMALL, easy_graph, losses, on_rank_zero, random_owner, write, write_once

import hpcgnn
from hpcgnn.config import TrainConfig
from hpcgnn.training.learner import Learner
from hpcgnn.training.recipe import Recipe
from hpcgnn.training.session import Session
from hpcgnn.training.trainer import Moment, train_step

pyg = pytest.importorskip("torch_geometric.nn")

COMM = MPI.COMM_WORLD
IN, HIDDEN, OUT = 12, 8, 4


class Difference(pyg.MessagePassing):
    """A convolution of a user's own: the sum of differences to the neighbors, which is not linear in their rows."""

    def __init__(self, in_dim: int, out_dim: int):
        super().__init__(aggr="add")
        self.linear = torch.nn.Linear(in_dim, out_dim)

    def forward(self, x, edge_index):
        return self.linear(x) + self.propagate(edge_index, x=x)

    def message(self, x_i, x_j):
        return torch.tanh(self.linear(x_j) - self.linear(x_i))


class TwoLayers(torch.nn.Module):
    """Two convolutions, with dropout and, if asked for, a batch norm between them, or an embedding and a checkpoint."""

    def __init__(self, make, has_norm: bool = False, dropout: float = 0.0, num_nodes: int = 0):
        super().__init__()
        self.first, self.second, self.dropout = make(IN, HIDDEN), make(HIDDEN, OUT), dropout
        self.norm = torch.nn.BatchNorm1d(HIDDEN) if has_norm else torch.nn.Identity()
        self.table = torch.nn.Embedding(num_nodes, IN) if num_nodes else None

    def forward(self, x, edge_index):
        if self.table is None:
            h = torch.relu(self.norm(self.first(x, edge_index)))
        else:
            h = torch.relu(checkpoint(self.first, x + self.table.weight, edge_index, use_reentrant=False))
        return self.second(torch.nn.functional.dropout(h, self.dropout, self.training), edge_index)


def pna(in_dim, out_dim):
    return pyg.PNAConv(in_dim, out_dim, ["mean", "max", "std"], ["identity", "amplification"],
                       deg=torch.tensor([1, 5, 9, 20, 11, 4]))


CONVOLUTIONS = {"sage": pyg.SAGEConv, "gcn": pyg.GCNConv, "gatv2": lambda i, o: pyg.GATv2Conv(i, o, heads=1),
                "pna": pna, "own": Difference, "gin": lambda i, o: pyg.GINConv(torch.nn.Linear(i, o))}


def made(name: str, **settings) -> TwoLayers:
    torch.manual_seed(1)
    return TwoLayers(CONVOLUTIONS[name], **settings)


def gradients_of_a_step(dataset, model, is_batch, num_steps):
    """Loss and gradients in float64 on the whole graph, where convolutions take rows of other steps for constants."""
    plain = copy.deepcopy(model).double()
    inside = torch.from_numpy(is_batch)[:, None]
    plain.second.register_forward_pre_hook(
        lambda conv, inputs: (torch.where(inside, inputs[0], inputs[0].detach()), *inputs[1:]))
    target = np.repeat(np.arange(dataset.num_nodes), dataset.in_degree())
    out = plain(torch.from_numpy(dataset.features).double(),
                torch.from_numpy(np.stack([dataset.indices.astype(np.int64), target])))
    chosen = is_batch & dataset.train_mask
    loss = torch.nn.functional.cross_entropy(out[chosen], torch.from_numpy(dataset.labels[chosen].astype(np.int64)),
                                             reduction="sum") * num_steps / dataset.train_mask.sum()
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in plain.named_parameters()}


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_step_has_the_gradients_of_its_rows_and_takes_all_others_for_constants(shared_path, monkeypatch, name):
    share_clusters(monkeypatch)
    dataset, num_steps = easy_graph(seed=2), 3
    shards, model = write_once(COMM, dataset, shared_path / "shards"), made(name)
    config = TrainConfig.of(**{**SMALL, "lr": 0.0, "steps": str(num_steps)})
    session = Session.open(COMM, shards, config, recipe=Recipe(model))
    learner = Learner.start(session, 0, None)
    for epoch in range(2):
        step_of = session.steps.clusters.steps(0, epoch, num_steps)[np.arange(dataset.num_nodes) // NODES_A_CLUSTER]
        for number, step in enumerate(session.steps.steps(learner.model, 0, epoch, num_steps)):
            loss, _ = train_step(session, learner, step.graph, session.objective.of_rows(step.rows),
                                 Moment(0, epoch, number, num_steps))
            expected_loss, expected = gradients_of_a_step(dataset, model, step_of == number, num_steps)
            assert COMM.allreduce(loss.item()) == pytest.approx(expected_loss, rel=1e-5)
            for place, parameter in model.named_parameters():
                found, wanted = parameter.grad.double(), expected[place]
                assert (found - wanted).abs().max() < 2e-5 * max(1e-2, wanted.abs().max()), place


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("name, has_norm, steps", long_but((2, 3, 4, 5), [
    ("sage", True, "4"), ("gcn", False, "4"), ("gatv2", False, "rows:4"), ("pna", False, "4"), ("own", True, "rows:4"),
    ("gcn", "table", "4")]))
def test_ranks_have_the_losses_of_one(shared_path, monkeypatch, name, has_norm, steps):
    """The last rank has one cluster, so most of its steps have no row."""
    share_clusters(monkeypatch)
    dataset = easy_graph(seed=4)
    owner = random_owner(dataset, max(1, COMM.size - 1))
    owner[:NODES_A_CLUSTER] = COMM.size - 1
    more = {"num_nodes": dataset.num_nodes} if has_norm == "table" else {"has_norm": has_norm}
    shards = on_rank_zero(COMM, lambda: write(dataset, owner, COMM.size, shared_path / "shards"))
    alone = write_once(MPI.COMM_SELF, dataset, shared_path / "alone") if COMM.rank == 0 else None

    def trained(comm, folder, out):
        return losses(hpcgnn.fit(made(name, dropout=0.4, **more), hpcgnn.open(folder, comm), out=out,
                                 epochs=2, eval_every=2, lr=0.003, steps=steps, timeout=120.0).metrics)

    found = trained(COMM, shards, shared_path / "run")
    expected = on_rank_zero(COMM, lambda: trained(MPI.COMM_SELF, alone, shared_path / "serial"))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert (np.diff(found) != 0).all()      # weights move


@pytest.mark.parallel([1, 2])
def test_batch_statistics_are_of_the_rows_of_a_step(shared_path, monkeypatch):
    share_clusters(monkeypatch)
    dataset, model = easy_graph(seed=2), made("sage", has_norm=True)
    plain = copy.deepcopy(model).double()
    shards = write_once(COMM, dataset, shared_path / "shards")
    session = Session.open(COMM, shards, TrainConfig.of(**{**SMALL, "lr": 0.0, "steps": "4"}), recipe=Recipe(model))
    learner = Learner.start(session, 0, None)
    step_of = session.steps.clusters.steps(0, 0, 4)[np.arange(dataset.num_nodes) // NODES_A_CLUSTER]
    target = np.repeat(np.arange(dataset.num_nodes), dataset.in_degree())
    first = plain.first(torch.from_numpy(dataset.features).double(),
                        torch.from_numpy(np.stack([dataset.indices.astype(np.int64), target])))
    for number, step in enumerate(session.steps.steps(learner.model, 0, 0, 4)):
        train_step(session, learner, step.graph, session.objective.of_rows(step.rows), Moment(0, 0, number, 4))
        plain.norm(first[step_of == number])
        torch.testing.assert_close(model.norm.running_mean.double(), plain.norm.running_mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(model.norm.running_var.double(), plain.norm.running_var, rtol=1e-5, atol=1e-6)
