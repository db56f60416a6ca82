"""Tables of a row a node, of which each rank has its own nodes' rows, train as `nn.Embedding` does in plain PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mpi4py import MPI
from reference import philox4x32, stream_of
from torch.nn import functional as F
from training_setup import easy_graph, losses, on_rank_zero, without_seconds, write_once

import hpcgnn
from hpcgnn.errors import CollectiveError, ConfigError, Interrupted
from hpcgnn.results.export import exported
from hpcgnn.training.checkpoint import read_checkpoint

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed; pip install hpcgnn[test]")
COMM = MPI.COMM_WORLD
DIM, EPOCHS, SEED = 6, 4, 11
SPEC = "synthetic:nodes=120,mean_degree=6,classes=3,features=5,signal=2"
RUN = {"epochs": EPOCHS, "eval_every": 2, "lr": 0.05, "weight_decay": 0.01}
INITIAL = 10


@pytest.fixture
def graph(shared_path):
    return hpcgnn.open(write_once(COMM, easy_graph(spec=SPEC), shared_path / "shards"), COMM)


def first_values(num_nodes: int) -> torch.Tensor:
    """Normal draws by node and column: four words of 32 bits a Philox block."""
    blocks = -(-DIM // 4)
    counter = np.zeros((num_nodes, blocks, 4), np.uint32)
    counter[..., 0], counter[..., 1] = np.arange(blocks), stream_of(INITIAL, 0)
    counter[..., 2] = np.arange(num_nodes)[:, None]
    words = philox4x32(counter, np.array([SEED, 0])).reshape(num_nodes, -1)[:, :DIM]
    return torch.special.ndtri((torch.from_numpy(words.astype(np.float64)) + 0.5) / 2 ** 32).float()


class Plain(torch.nn.Module):
    """A model of PyTorch Geometric on a graph without features."""

    def __init__(self, table, num_classes):
        super().__init__()
        torch.manual_seed(3)
        self.embedding = table
        self.first, self.last = pyg.SAGEConv(DIM, 8), pyg.SAGEConv(8, num_classes)

    def forward(self, x, edge_index, n_id):
        return self.last(torch.relu(self.first(self.embedding(n_id), edge_index)), edge_index)


class OnGraph(Plain):
    """The same on a LocalGraph."""

    def layer(self, conv, graph, h):
        h_all = graph.halo(h)
        return conv((h_all, h_all[:graph.num_inner]), graph.edge_index)

    def forward(self, graph, x):
        h = self.layer(self.first, graph, self.embedding(graph.node_index))
        return self.layer(self.last, graph, torch.relu(h))


class InEveryWay(Plain):
    """Reads its rows as models read an `nn.Embedding`."""

    def forward(self, x, edge_index, n_id):
        table = self.embedding.weight
        rows = (self.embedding(n_id) + self.embedding(torch.arange(len(x))) + table + table[:len(x)] + table[n_id]
                + table.index_select(0, n_id) + F.embedding(n_id, table)) / 7
        return self.last(torch.relu(self.first(rows, edge_index)), edge_index)


class Centered(Plain):
    def forward(self, x, edge_index, n_id):
        return self.last(self.first(self.embedding(n_id) - self.embedding.weight.mean(0), edge_index), edge_index)


class OfAll(Plain):
    def forward(self, x, edge_index, n_id):
        return self.last(self.first(self.embedding(torch.arange(x.shape[0] + 1)), edge_index), edge_index)


def own(graph, kind=Plain):
    return kind(hpcgnn.NodeEmbedding(graph, DIM, seed=SEED), graph.num_classes)


def plain_of(graph, kind=Plain):
    table = torch.nn.Embedding(graph.num_nodes, DIM)
    table.weight.data = first_values(graph.num_nodes)
    return kind(table, graph.num_classes)


def plain_losses(model, optimizer, clip: float = 0.0) -> list[float]:
    data, found = easy_graph(spec=SPEC), []
    target = np.repeat(np.arange(data.num_nodes), np.diff(data.indptr))
    edges = torch.from_numpy(np.stack([data.indices, target]).astype(np.int64))
    labels, mask = torch.from_numpy(data.labels), torch.from_numpy(data.train_mask)
    features, number = torch.from_numpy(data.features), torch.arange(data.num_nodes)
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(features, edges, number)[mask], labels[mask])
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("kind, clip, make", [
    (Plain, 0.0, None), (OnGraph, 0.05, None),
    (InEveryWay, 0.05, lambda them: torch.optim.SGD(them, lr=0.3, momentum=0.9, weight_decay=0.01))])
def test_a_table_trains_as_in_plain_torch_on_any_number_of_ranks(graph, shared_path, kind, clip, make):
    reference = plain_of(graph, Plain if kind is OnGraph else kind)
    optimizer = (make or (lambda them: torch.optim.Adam(them, lr=0.05, weight_decay=0.01)))(reference.parameters())
    expected = plain_losses(reference, optimizer, clip)
    model = own(graph, kind)
    settings = {**RUN, "eval_every": EPOCHS}
    if make is not None:
        del settings["lr"], settings["weight_decay"]
    run = hpcgnn.fit(model, graph, out=shared_path / "run", clip_norm=clip, optimizer=make, **settings)
    np.testing.assert_allclose(losses(run.metrics), expected, rtol=1e-4)
    torch.testing.assert_close(model.embedding.weight.detach(),
                               reference.embedding.weight.detach()[model.embedding.node_index], rtol=1e-3, atol=1e-4)
    run.save(shared_path / "weights.pt")
    plain = plain_of(graph)      # with an nn.Embedding of all nodes
    plain.load_state_dict(on_rank_zero(COMM, lambda: torch.load(shared_path / "weights.pt")))
    for (name, found), one in zip(plain.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(found, one, rtol=1e-3, atol=1e-4, msg=name)
    stored = on_rank_zero(COMM, lambda: read_checkpoint(run.path / "checkpoint.h5"))
    assert torch.equal(stored.best_model["embedding.weight"], plain.embedding.weight)


@pytest.mark.parallel([1, 3])
def test_steps_and_averages_train_a_table_as_one_that_all_ranks_hold(graph, shared_path):
    settings = {**RUN, "steps": "2", "average": 0.5, "clip_norm": 0.2}
    run = hpcgnn.fit(own(graph, OnGraph), graph, out=shared_path / "own", **settings)
    expected = hpcgnn.fit(plain_of(graph, OnGraph), graph, out=shared_path / "whole", **settings)
    np.testing.assert_allclose(losses(run.metrics), losses(expected.metrics), rtol=1e-4)
    assert run.test_score == pytest.approx(expected.test_score)


@pytest.mark.parallel([1, 3])
def test_memory_of_a_rank_and_bytes_of_an_epoch_fall_with_the_number_of_ranks(graph, shared_path):
    held = {}

    class Look(hpcgnn.Callback):
        def on_epoch_end(self, run, record):
            learner = run.learner
            held[run.folder.path.name] = (learner.gradients.flat.numel(), record["sent_bytes_sums"], sum(
                moment.numel() for kept in learner.optimizer.state().values() for moment in kept.values()),
                sum(one.numel() for one in learner.best_model.values()))

    for name, model in (("own", own(graph)), ("whole", plain_of(graph)), ("none", plain_of(graph))):
        if name == "none":
            model.embedding.weight.requires_grad_(False)
        hpcgnn.fit(model, graph, out=shared_path / name, callbacks=[Look()], epochs=1)
    table, mine = DIM * graph.num_nodes, DIM * len(graph.node_index)
    assert COMM.allreduce(mine) == table
    # Of the whole table a rank keeps its share: gradients (with 16 floats of alignment), moments and best weights.
    for place, copies in ((0, 1), (2, 2), (3, 1)):
        assert abs(held["whole"][place] - held["own"][place] - copies * (table - mine)) <= 16
    ranks = COMM.size if COMM.size > 1 else 0
    assert held["whole"][1] - held["none"][1] >= 4 * table * ranks
    assert abs(held["own"][1] - held["none"][1]) <= 4 * 16 * ranks


class Stop(hpcgnn.Callback):
    def on_epoch_end(self, run, record):
        if record["epoch"] == 2:
            run._stop()


@pytest.mark.parallel([1, 2])
def test_a_stopped_run_goes_on_bit_for_bit_and_on_another_number_of_ranks(graph, shared_path):
    def fit(out, kind=Plain, graph=graph, **more):
        return hpcgnn.fit(own(graph, kind), graph, out=shared_path / out, **{**RUN, **more})

    steps = {"kind": OnGraph, "steps": "2", "average": 0.5}
    whole, expected = fit("whole"), fit("steps", **steps)
    for name, more in (("stopped", {}), ("stopped-steps", steps)):
        with pytest.raises(Interrupted):
            fit(name, callbacks=[Stop()], **more)
    found = fit("stopped-steps", resume=True, **steps)
    assert without_seconds(found.metrics) == without_seconds(expected.metrics)
    assert torch.equal(found.model.embedding.weight, expected.model.embedding.weight)
    if COMM.rank == 0:
        one = hpcgnn.open(write_once(MPI.COMM_SELF, easy_graph(spec=SPEC), shared_path / "one"), MPI.COMM_SELF)
        found = fit("stopped", graph=one, resume=True)
        np.testing.assert_allclose(losses(found.metrics), losses(whole.metrics), rtol=1e-4)
    COMM.Barrier()


@pytest.mark.parallel([1, 2, 3])
def test_a_run_is_opened_and_exported_with_rows_in_the_order_of_the_source(graph, shared_path):
    run = hpcgnn.fit(own(graph), graph, out=shared_path / "run", **RUN)
    expected = run.predict()
    opened = hpcgnn.open_run(run.path, graph, model=lambda: own(graph))
    found = opened.predict()
    if COMM.rank == 0:
        np.testing.assert_allclose(found.logits, expected.logits, atol=1e-5)
        _, weights = exported(run.path)
        table = weights["embedding.weight"][run.model.module.embedding.node_index]
        assert torch.equal(table, run.model.module.embedding.weight)
        plain_of(graph).load_state_dict(weights)
    larger = easy_graph(spec=SPEC.replace("nodes=120", "nodes=123"))
    other = hpcgnn.open(write_once(COMM, larger, shared_path / "other"), COMM)
    with pytest.raises(CollectiveError, match="for each of 120 nodes, and this graph has 123"):
        hpcgnn.open_run(run.path, other, model=lambda: own(other), other_graph=True)
    with pytest.raises(CollectiveError, match="embedding is a NodeEmbedding of 120 nodes, made for another graph"):
        hpcgnn.fit(own(graph), other, out=shared_path / "mixed", **RUN)


@pytest.mark.parallel([1, 2])
def test_what_is_of_all_rows_or_of_other_ranks_is_refused(graph, shared_path):
    for kind, complaint in ((Centered, "mean of all rows of embedding.weight"), (OfAll, "was asked for node")):
        if kind is OfAll and COMM.size == 1:
            continue
        with pytest.raises((CollectiveError, ConfigError), match=complaint):
            hpcgnn.fit(own(graph, kind), graph, out=shared_path / kind.__name__, epochs=1)
    strange = (torch.arange(graph.num_nodes + 1) if COMM.size == 1 else torch.arange(graph.num_nodes))
    with pytest.raises(ConfigError, match="NodeEmbedding was asked for node"):
        own(graph).embedding(strange)
    if COMM.size > 1:
        strange = Plain(hpcgnn.NodeEmbedding(graph, DIM, seed=COMM.rank), graph.num_classes)
        with pytest.raises(CollectiveError, match="settings differ between the ranks: the program's model"):
            hpcgnn.fit(strange, graph, out=shared_path / "seeds", epochs=1)
        with pytest.raises(CollectiveError, match=r"the optimizer keeps .* for a NodeEmbedding"):
            hpcgnn.fit(own(graph), graph, out=shared_path / "sums", optimizer=torch.optim.Adafactor, epochs=1)
    for arguments, complaint in (((None, 4), "a NoneType for its graph"), ((graph, 0), "0 columns"),
                                 ((graph, 4, -1), "the seed -1")):
        with pytest.raises(ConfigError, match=complaint):
            hpcgnn.NodeEmbedding(*arguments)
    with pytest.raises(CollectiveError, match="is a NodeEmbedding's, and this model has none"):
        hpcgnn.fit(own(graph), graph, out=shared_path / "run", **RUN)
        hpcgnn.fit(plain_of(graph), graph, out=shared_path / "run", resume=True, **{**RUN, "epochs": EPOCHS + 1})
