"""A model of PyTorch Geometric trains by `hpcgnn.fit` as it is, by every method, and ends as one process does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from covering import long_but
from made_steps import share_clusters
from mpi4py import MPI
from training_setup import easy_graph, losses, on_rank_zero, write_once

import hpcgnn

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed; pip install hpcgnn[test]")
COMM = MPI.COMM_WORLD
EPOCHS = 3


def losses_of_pyg(model, dataset, lr, make_optimizer=torch.optim.Adam, **named):
    """The losses of plain full-graph training in float64; `named` are arguments of the forward."""
    model = model.double().train()
    x, labels = torch.from_numpy(dataset.features).double(), torch.from_numpy(dataset.labels)
    train = torch.from_numpy(dataset.train_mask)
    target = np.repeat(np.arange(dataset.num_nodes), dataset.in_degree())
    edge_index = torch.from_numpy(np.stack([dataset.indices.astype(np.int64), target]))
    optimizer, found = make_optimizer(model.parameters(), lr), []
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x, edge_index, **named)[train], labels[train])
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def gcn():
    torch.manual_seed(5)
    return pyg.GCN(12, 8, 2, 4, norm="batch_norm")


@pytest.mark.parallel([1, 2, 3])
def test_losses_of_fit_are_those_of_plain_training(shared_path):
    dataset = easy_graph()
    graph = hpcgnn.open(write_once(COMM, dataset, shared_path / "shards"))
    model = gcn()
    run = hpcgnn.fit(model, graph, out=shared_path / "run", method="vanilla", precision="fp32", epochs=EPOCHS, lr=0.01,
                     weight_decay=0.0)
    found = [row["loss"] for row in run.metrics]
    assert np.allclose(found, losses_of_pyg(gcn(), dataset, 0.01), rtol=1e-4, atol=0)
    assert list(model.state_dict()) == list(gcn().state_dict())      # and holds the trained weights
    assert not torch.equal(model.convs[0].lin.weight, gcn().convs[0].lin.weight)


@pytest.mark.parallel([1, 2, 3])
def test_hooks_of_weights_get_the_gradients_of_all_ranks(shared_path):
    dataset = easy_graph()

    def hooked():
        model = gcn()
        model.convs[0].lin.weight.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
        model.convs[1].lin.weight.register_post_accumulate_grad_hook(normalize)
        return model

    def normalize(weight):
        weight.grad /= weight.grad.norm()

    model = hooked()
    run = hpcgnn.fit(model, hpcgnn.open(write_once(COMM, dataset, shared_path / "shards")), out=shared_path / "run",
                     epochs=EPOCHS, optimizer=lambda parameters: torch.optim.SGD(parameters, 0.1))
    expected = losses_of_pyg(hooked(), dataset, 0.1, torch.optim.SGD)
    assert np.allclose([row["loss"] for row in run.metrics], expected, rtol=1e-4, atol=0)
    assert len(model.convs[0].lin.weight._backward_hooks) == 1


def test_weights_that_a_model_can_not_load_again_are_refused_before_training(shared_path):
    model = pyg.GraphSAGE(12, 8, 2, 4)
    torch.nn.utils.parametrizations.weight_norm(model.convs[0].lin_l)
    with pytest.raises(hpcgnn.HpcgnnError, match=r"GraphSAGE can't load its own state_dict .* so its best weights"):
        hpcgnn.fit(model, hpcgnn.open(write_once(COMM, easy_graph(), shared_path / "shards")), out=shared_path / "run")


class Attending(torch.nn.Module):
    """Attention, which must not read rows that a method leaves out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.first, self.last = pyg.GATv2Conv(12, 8), pyg.PNAConv(8, 4, ["mean", "max"], ["identity"], torch.ones(9))

    def forward(self, x, edge_index):
        h = torch.nn.functional.dropout(torch.relu(self.first(x, edge_index)), 0.2, self.training)
        return self.last(h, edge_index)


@pytest.mark.parallel([2])
def test_rows_may_be_kept_in_16_bits(shared_path):
    graph = hpcgnn.open(write_once(COMM, easy_graph(), shared_path / "shards"))
    runs = [hpcgnn.fit(Attending(), graph, out=shared_path / precision, epochs=4, lr=0.02, precision=precision)
            for precision in ("fp32", "bf16")]
    losses = [run.metrics[-1]["loss"] for run in runs]
    assert abs(losses[0] - losses[1]) < 0.05 * losses[0]
    assert runs[0].metrics[0]["sent_bytes_payload"] > 1.8 * runs[1].metrics[0]["sent_bytes_payload"]


class Relational(torch.nn.Module):
    """Reads relations and attributes of edges, also through learned rows of relations."""

    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(7)
        self.relation, self.dropout = torch.nn.Embedding(4, 5), dropout
        self.first, self.last = pyg.RGCNConv(12, 8, 4, num_bases=3), pyg.GATv2Conv(8, 4, edge_dim=3 + 5)

    def forward(self, x, edge_index, edge_attr, edge_type):
        h = torch.nn.functional.dropout(self.first(x, edge_index, edge_type).relu(), self.dropout, self.training)
        return self.last(h, edge_index, torch.cat([edge_attr, self.relation(edge_type)], 1))


@pytest.mark.parallel([1, 2, 3])
def test_losses_of_a_model_that_reads_edges_are_those_of_plain_training(shared_path, easy_typed_graph):
    dataset = easy_typed_graph
    graph = hpcgnn.open(write_once(COMM, dataset, shared_path / "shards"))
    run = hpcgnn.fit(Relational(), graph, out=shared_path / "run", method="vanilla", precision="fp32", epochs=EPOCHS,
                     lr=0.01, weight_decay=0.0)
    expected = losses_of_pyg(Relational(), dataset, 0.01, edge_attr=torch.from_numpy(dataset.edge_attr).double(),
                             edge_type=torch.from_numpy(dataset.edge_type).long())
    assert np.allclose(losses(run.metrics), expected, rtol=1e-4, atol=0)


@pytest.mark.parallel([2])
@pytest.mark.parametrize("make, method, settings", long_but((1, 4, 8, 9), [
    *((Relational, *case) for case in (
        ("uniform", {"bits": 4}), ("sylvie", {}), ("adaqp", {"period": 4, "group_size": 20}), ("pipegcn", {}),
        ("bns", {}), ("sancus", {}))),
    *((Attending, *case) for case in (
        ("bns", {}), ("sylvie", {}), ("adaqp", {"period": 4, "group_size": 20}), ("pipegcn", {})))]))
def test_every_method_trains_it(shared_path, easy_typed_graph, make, method, settings):
    dataset = easy_typed_graph if make is Relational else easy_graph()
    graph = hpcgnn.open(write_once(COMM, dataset, shared_path / "shards"))
    run = hpcgnn.fit(make(), graph, out=shared_path / "run", method=method, epochs=10, lr=0.04, **settings)
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"] / 2
    assert run.test_score > 0.5      # chance is 0.25


@pytest.mark.parallel([2, 3])
def test_ranks_have_the_losses_of_one_in_steps_which_have_some_of_the_edges(shared_path, monkeypatch, easy_typed_graph):
    share_clusters(monkeypatch)
    shards = write_once(COMM, easy_typed_graph, shared_path / "shards")
    alone = write_once(MPI.COMM_SELF, easy_typed_graph, shared_path / "alone") if COMM.rank == 0 else None

    def trained(comm, folder, out):
        return losses(hpcgnn.fit(Relational(0.4), hpcgnn.open(folder, comm), out=out, epochs=2, eval_every=2, lr=0.003,
                                 timeout=120.0, steps="4").metrics)

    found = trained(COMM, shards, shared_path / "run")
    expected = on_rank_zero(COMM, lambda: trained(MPI.COMM_SELF, alone, shared_path / "serial"))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
