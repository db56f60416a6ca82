"""What a program gives is what is trained: its model, its loss's weights, by its own optimizer, as by a plain loop."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from library.conftest import Stop
from mpi4py import MPI
from torch.nn import functional as F
from torch_geometric.nn import GCN, GCNConv, GraphSAGE
from training_setup import easy_graph, losses, on_rank_zero, without_seconds

import hpcgnn
from hpcgnn.errors import CollectiveError, Interrupted
from hpcgnn.exchange.quantized_sums import QuantizedSums
from hpcgnn.training.checkpoint import read_checkpoint

COMM = MPI.COMM_WORLD
EPOCHS = 6
RUN = {"epochs": EPOCHS, "eval_every": 3}


@pytest.fixture
def data():
    """Features, edges, labels and training mask, as plain PyTorch Geometric takes them."""
    found = easy_graph()
    target = np.repeat(np.arange(found.num_nodes), np.diff(found.indptr))
    edges = torch.from_numpy(np.stack([found.indices, target]).astype(np.int64))
    return (torch.from_numpy(np.asarray(found.features, np.float32)), edges, torch.from_numpy(found.labels),
            torch.from_numpy(found.train_mask))


def gcn(graph, seed: int = 0) -> GCN:
    torch.manual_seed(seed)
    return GCN(graph.num_features, 8, 2, graph.num_classes)


def plain_losses(model, data, loss, optimizer, epochs: int = EPOCHS, before=lambda epoch: None) -> list[float]:
    """A loop of plain PyTorch."""
    features, edges, labels, mask = data
    found = []
    for epoch in range(epochs):
        before(epoch)
        model.train()
        optimizer.zero_grad()
        value = loss(model(features, edges)[mask], labels[mask])
        value.backward()
        optimizer.step()
        found.append(value.item())
    return found


class Scaled(torch.nn.Module):
    """Cross-entropy with weights of its own, of which one is never used."""

    def __init__(self, classes: int):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(classes))
        self.idle = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("weight", torch.linspace(0.5, 2, classes))

    def forward(self, outputs, labels):
        return F.cross_entropy(outputs * self.scale, labels, weight=self.weight)


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("make", [None, lambda them: torch.optim.SGD(them, lr=0.3, momentum=0.9, weight_decay=0.01)],
                         ids=["adam", "sgd"])
def test_weights_of_a_loss_are_trained_as_in_a_plain_loop_and_saved(graph, data, shared_path, make):
    model, loss, reference, plain = gcn(graph), Scaled(graph.num_classes), gcn(graph), Scaled(graph.num_classes)
    kept = next(model.parameters())
    run = hpcgnn.fit(model, graph, out=shared_path / "run", loss=loss, optimizer=make, epochs=EPOCHS,
                     eval_every=EPOCHS, **({} if make else {"weight_decay": 0.01, "lr": 0.02}))
    them = [*reference.parameters(), *plain.parameters()]
    optimizer = make(them) if make else torch.optim.Adam(them, lr=0.02, weight_decay=0.01)
    np.testing.assert_allclose(losses(run.metrics), plain_losses(reference, data, plain, optimizer), rtol=1e-5)
    assert run.summary["results"][0]["best_epoch"] == EPOCHS
    for name, expected in (*reference.named_parameters(), *plain.named_parameters()):
        found = dict([*model.named_parameters(), *loss.named_parameters()])[name]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert kept is next(model.parameters()) and all(one.grad is None for one in model.parameters())
    assert torch.equal(loss.idle, torch.ones(3))       # unused: no decay either
    assert kept.untyped_storage().nbytes() == kept.nbytes
    stored = on_rank_zero(COMM, lambda: read_checkpoint(run.path / "checkpoint.h5"))
    assert torch.equal(stored.best_loss["loss.scale"], loss.scale.detach())


@pytest.mark.parallel([1, 2])
def test_a_stopped_run_with_a_loss_of_weights_and_a_frozen_layer_goes_on_bit_for_bit(graph, shared_path):
    def freeze(model):
        def at(run, record):
            if record["epoch"] == 2:
                for one in model.convs[0].parameters():
                    one.requires_grad_(False)
            if record["epoch"] == 4:
                model.convs[0].lin.weight.requires_grad_(True)
        return at

    def fit(out, stop=0, **more):
        model, loss = gcn(graph), Scaled(graph.num_classes)
        callbacks = [At(freeze(model)), *([Stop(stop)] if stop else [])]
        return hpcgnn.fit(model, graph, out=shared_path / out, loss=loss, callbacks=callbacks, weight_decay=0.01, **RUN,
                          **more), model, loss

    whole, *expected = fit("whole")
    for number, stop in enumerate((3, 5)):
        with pytest.raises(Interrupted):
            fit(f"stopped{number}", stop)
        resumed, *found = fit(f"stopped{number}", resume=True)
        assert without_seconds(resumed.metrics) == without_seconds(whole.metrics)
        for mine, other in zip(found, expected, strict=True):
            for (name, one), two in zip(mine.state_dict().items(), other.state_dict().values(), strict=True):
                assert torch.equal(one, two), name


class At(hpcgnn.Callback):
    """Calls a function at the end of each epoch."""

    def __init__(self, function):
        self.function = function

    def on_epoch_end(self, run, record):
        self.function(run, record)


class TwoHeads(torch.nn.Module):
    """Trains one head of two, a tied layer, and keeps a term of its last pass."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.first, self.middle, self.last = GCNConv(inputs, 8), GCNConv(8, 8), GCNConv(8, outputs)
        self.again, self.unused = self.middle, torch.nn.Linear(8, 5)
        self.uses_last, self.scale = True, 1.0

    def forward(self, x, edge_index):
        h = self.again(self.middle(self.first(x, edge_index).relu(), edge_index).relu(), edge_index)
        return self.scale * (self.last(h, edge_index) if self.uses_last else h[:, :self.last.out_channels])


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("built_in", [True, False], ids=["adam", "adamw"])
def test_unused_tied_and_frozen_weights_are_those_of_a_plain_loop(graph, data, shared_path, built_in):
    torch.manual_seed(0)
    model = TwoHeads(graph.num_features, graph.num_classes)
    reference = copy.deepcopy(model)

    def change(one, epoch):
        one.uses_last = epoch != 2
        one.scale = 1.0 + 0.1 * epoch
        one.first.requires_grad_(epoch not in (3, 4))

    class Change(hpcgnn.Callback):
        def on_start(self, run):
            assert run.model is model
            change(run.model, 0)

        def on_epoch_end(self, run, record):
            change(run.model, record["epoch"])

    def loss(outputs, labels):
        return F.cross_entropy(outputs, labels) + 0.01 * model.first.lin.weight.abs().sum()

    def plain_loss(outputs, labels):
        return F.cross_entropy(outputs, labels) + 0.01 * reference.first.lin.weight.abs().sum()

    make = (lambda them: torch.optim.Adam(them, lr=0.02, weight_decay=0.1)) if built_in else (
        lambda them: torch.optim.AdamW(them, lr=0.02, weight_decay=0.1))
    settings = {"lr": 0.02, "weight_decay": 0.1} if built_in else {"optimizer": make}
    run = hpcgnn.fit(model, graph, out=shared_path / "run", loss=loss, callbacks=[Change()], eval_every=EPOCHS,
                     epochs=EPOCHS, **settings)
    expected = plain_losses(reference, data, plain_loss, make(reference.parameters()),
                            before=lambda epoch: change(reference, epoch))
    np.testing.assert_allclose(losses(run.metrics), expected, rtol=1e-5)
    for (name, found), wanted in zip(model.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parallel([2])
def test_what_codes_of_gradients_lack_is_forgotten_where_other_weights_are_trained(graph, shared_path, monkeypatch):
    model, kept, add_up = gcn(graph), [], QuantizedSums.sum
    first, second = model.convs[0].lin, model.convs[1].bias
    first.weight.requires_grad_(False)

    def noted(self, *arguments):
        kept.append(bool(self.state()))
        return add_up(self, *arguments)

    class Turn(hpcgnn.Callback):
        def on_epoch_end(self, run, record):
            if record["epoch"] == 3:
                first.weight.requires_grad_(True)
                second.requires_grad_(False)

    monkeypatch.setattr(QuantizedSums, "sum", noted)
    hpcgnn.fit(model, graph, out=shared_path / "run", callbacks=[Turn()], sum_bits=4, **RUN)
    assert kept == [number not in (0, 3) for number in range(EPOCHS)]


@pytest.mark.parallel([1, 2])
def test_weights_that_only_the_optimizer_is_given_are_trained(graph, data, shared_path):
    scale, plain = (torch.nn.Parameter(torch.ones(())) for _ in range(2))
    model, reference = gcn(graph), gcn(graph)
    run = hpcgnn.fit(model, graph, out=shared_path / "run", loss=lambda o, y: F.cross_entropy(o * scale, y), **RUN,
                     optimizer=lambda them: torch.optim.SGD([*them, scale], lr=0.3))
    optimizer = torch.optim.SGD([*reference.parameters(), plain], lr=0.3)
    expected = plain_losses(reference, data, lambda o, y: F.cross_entropy(o * plain, y), optimizer)
    np.testing.assert_allclose(losses(run.metrics), expected, rtol=1e-5)
    torch.testing.assert_close(scale, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parallel([1, 2])
def test_what_can_t_be_trained_is_refused_in_a_sentence(graph, shared_path):
    scale, head = torch.nn.Parameter(torch.ones(())), torch.nn.Linear(graph.num_classes, graph.num_classes)
    frozen = gcn(graph).requires_grad_(False)

    class OnOneRank(hpcgnn.Callback):
        def on_epoch_end(self, run, record):
            if run.comm.rank == COMM.size - 1:
                next(run.model.parameters()).requires_grad_(False)

    cases = [({"loss": lambda o, y: F.cross_entropy(o * scale, y)}, gcn(graph), r"of shape \(\) that no optimizer"),
             ({"loss": lambda o, y: F.cross_entropy(head(o), y)}, gcn(graph), "that no optimizer updates"),
             ({}, frozen, "depends on no weight that requires a gradient; unfreeze some"),
             ({}, gcn(graph).double(), "is float64, and hpcgnn trains float32 weights; call .float()"),
             ({}, gcn(graph).bfloat16(), "is bfloat16, and hpcgnn trains float32 weights")]
    if COMM.size > 1:
        cases.append(({"callbacks": [OnOneRank()]}, gcn(graph), "on some ranks and none on others"))
    for number, (brought, model, complaint) in enumerate(cases):
        with pytest.raises(hpcgnn.HpcgnnError, match=complaint):
            hpcgnn.fit(model, graph, out=shared_path / f"run{number}", **brought, **RUN)


@pytest.mark.parallel([1])
def test_another_loss_can_t_go_on_and_a_frozen_teacher_is_left_alone(graph, shared_path):
    teacher = gcn(graph, seed=5).requires_grad_(False)
    hpcgnn.fit(gcn(graph), graph, out=shared_path / "run", loss=Scaled(graph.num_classes), **RUN)
    with pytest.raises(CollectiveError, match=r"loss\.scale.* of the loss, and this loss has none"):
        hpcgnn.fit(gcn(graph), graph, out=shared_path / "run", resume=True, **{**RUN, "epochs": 10},
                   loss=lambda o, y: F.cross_entropy(o, y) + 0 * sum(one.sum() for one in teacher.parameters()))


@pytest.mark.parallel([1])
def test_trying_the_precision_leaves_the_given_model_as_it_is(graph, shared_path):
    torch.manual_seed(0)
    model = GraphSAGE(graph.num_features, 8, 2, graph.num_classes, norm="BatchNorm")
    expected = copy.deepcopy(model)
    run = hpcgnn.fit(model, graph, out=shared_path / "auto", precision="auto", **RUN)
    again = hpcgnn.fit(expected, graph, out=shared_path / "set", precision=run.session.config.precision, **RUN)
    assert without_seconds(run.metrics) == without_seconds(again.metrics)
