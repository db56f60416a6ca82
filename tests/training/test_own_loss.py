"""A program's loss is that of one process with all rows, whatever it does, on any number of ranks, in any steps."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch.nn import functional as F

from hpcgnn.errors import CollectiveError, TrainingError
from hpcgnn.training.objective import Objective
from hpcgnn.training.own_loss import OwnLoss, evaluating
from hpcgnn.training.scores import choose_score

COMM = MPI.COMM_WORLD
N, CLASSES = 60, 4
WEIGHT = torch.tensor([0.2, 5.0, 1.0, 8.0])


def rows(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, CLASSES, generator=generator), torch.randint(CLASSES, (N,), generator=generator)


def pairs(outputs, labels):
    normed = F.normalize(outputs, dim=1)
    near = normed @ normed.t() - 1e9 * torch.eye(len(labels))
    same = (labels[:, None] == labels).float() - torch.eye(len(labels))
    return -((near.log_softmax(1) * same).sum(1) / same.sum(1).clamp(min=1))


class Rescaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = torch.nn.Parameter(torch.tensor(0.7))

    def forward(self, outputs, labels):
        return F.cross_entropy(outputs * self.temperature, labels, weight=WEIGHT)


# A loss, its kind, and how plain PyTorch takes it of all rows where that is not the mean of its values.
LOSSES = {
    "plain": (F.cross_entropy, "mean"),
    "smoothing": (torch.nn.CrossEntropyLoss(label_smoothing=0.1), "mean"),
    "a value a row": (torch.nn.CrossEntropyLoss(weight=WEIGHT, reduction="none"), "rows"),
    "class weights": (torch.nn.CrossEntropyLoss(weight=WEIGHT), "mean"),
    "weights and smoothing": (functools.partial(F.cross_entropy, weight=WEIGHT, label_smoothing=0.2), "mean"),
    "ignored": (torch.nn.CrossEntropyLoss(ignore_index=3), "mean"),
    "ignored and weights": (lambda o, y: F.cross_entropy(o, y, WEIGHT, ignore_index=1), "mean"),
    "nll": (lambda o, y: 0.5 * F.nll_loss(o.log_softmax(1), y, WEIGHT) + 0.1 * o.square().mean(), "mean"),
    "with weights": (Rescaled(), "mean"),
    "multi-margin": (torch.nn.MultiMarginLoss(weight=WEIGHT), "mean"),
    "one-hot": (lambda o, y: F.binary_cross_entropy_with_logits(o, F.one_hot(y, CLASSES).float(), pos_weight=WEIGHT),
                "mean"),
    "a constant": (lambda o, y: F.cross_entropy(o, y) + 3.0, "mean"),
    "sum": (torch.nn.CrossEntropyLoss(reduction="sum"), "sum"),
    "weights by hand": (lambda o, y: (F.cross_entropy(o, y, reduction="none") * WEIGHT[y]).sum() / WEIGHT[y].sum(),
                        "whole"),
    "chosen rows": (lambda o, y: F.cross_entropy(o[y > 1], y[y > 1]), "whole"),
    "remapped": (lambda o, y: F.cross_entropy(o, torch.where(y == 2, -100, y)), "whole"),
    "quantile": (lambda o, y: F.cross_entropy(o, y, reduction="none").quantile(0.9), "whole"),
    "hardest": (lambda o, y: F.cross_entropy(o, y, reduction="none").topk(7).values.mean(), "whole"),
    "pairs": (pairs, "whole"),
    "neighbors in order": (lambda o, y: F.cross_entropy(o, y) + (o[1:] - o[:-1]).abs().mean(), "whole"),
    "focal of the mean": (lambda o, y: (1 - torch.exp(-F.cross_entropy(o, y))) ** 2, "whole"),
    "flooding": (lambda o, y: (F.cross_entropy(o, y) - 0.1).abs() + 0.1, "whole"),
    "a bound of the mean": (lambda o, y: F.cross_entropy(o, y).clamp(min=0.2), "whole"),
    "sure rows again": (lambda o, y: F.cross_entropy(o, y) + F.cross_entropy(
        torch.where(o.softmax(1).amax(1, True) > 0.99, o, 0), y, reduction="none").square().mean().sqrt(), "whole"),
    "far rows left out": (lambda o, y: F.cross_entropy(o[o.abs().amax(1) < 9], y[o.abs().amax(1) < 9]), "whole"),
    "probabilities": (lambda o, y: F.binary_cross_entropy(o.sigmoid(), F.one_hot(y, CLASSES).float()), "mean"),
    "a weight for each row": (lambda o, y: (F.cross_entropy(o, y, reduction="none") * torch.linspace(0, 2, N)).mean(),
                              "whole"),
    "root": (lambda o, y: F.mse_loss(o[:, 0], y.float()).sqrt(), "whole"),
    "a mean of shape (1,)": (lambda o, y: F.cross_entropy(o, y) * torch.full((1,), 0.5) + 0.1, "mean"),
    "a sum of shape (1, 1)": (lambda o, y: F.cross_entropy(o, y, reduction="sum")[None, None], "sum"),
    "a root of shape (1,)": (lambda o, y: F.mse_loss(o[:, 0], y.float()).sqrt() * torch.ones(1), "whole"),
}


def mine(num_rows: int = N) -> np.ndarray:
    """The rows of this rank: shares of unlike size, out of order; the last of several ranks has none."""
    owner = np.random.default_rng(1).integers(0, max(1, COMM.size - 1), num_rows)
    return np.random.default_rng(2).permutation(np.flatnonzero(owner == COMM.rank))


def objective_of(labels: np.ndarray, loss) -> Objective:
    own = mine(len(labels))
    masks = {"train": np.ones(len(own), bool), "val": np.zeros(len(own), bool), "test": np.zeros(len(own), bool)}
    return Objective.build(COMM, labels[own], masks, loss=loss, node_id=own)


def share_and_gradient(objective: Objective, outputs: torch.Tensor) -> tuple[float, np.ndarray]:
    """Loss over all ranks, and the gradient of all rows, on every rank."""
    own = mine(len(outputs))
    here = outputs[own].requires_grad_()
    loss = objective.loss_sum(here, "train") / objective.mean_rows["train"]
    loss.backward()
    gradient = np.zeros(outputs.shape, np.float32)
    gradient[own] = here.grad.numpy()
    COMM.Allreduce(MPI.IN_PLACE, gradient)
    return COMM.allreduce(loss.item()), gradient


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradients_are_those_of_one_process(name):
    function, kind = LOSSES[name]
    outputs, labels = rows()
    own = OwnLoss(function)
    found, gradient = share_and_gradient(objective_of(labels.numpy(), own), outputs.clone())
    plain = outputs.clone().requires_grad_()
    expected = function(plain, labels).mean()
    expected.backward()
    assert own.kind == kind
    np.testing.assert_allclose(found, expected.item(), rtol=2e-6)
    np.testing.assert_allclose(gradient, plain.grad, rtol=2e-5, atol=1e-7)


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("share", [0.5, 0.02])
def test_a_mean_over_what_is_known_is_that_of_all_ranks(share):
    """Also where few values are unknown."""
    outputs, _ = rows()
    targets = np.random.default_rng(3).normal(size=outputs.shape).astype(np.float32)
    targets[np.random.default_rng(4).random(targets.shape) < share] = np.nan
    known = ~np.isnan(targets)
    expected = np.square(outputs.numpy() - targets)[known].mean()

    def masked(o, t):
        return ((o - t.nan_to_num()) ** 2)[~t.isnan()].mean()

    own = OwnLoss(masked)
    found, gradient = share_and_gradient(objective_of(targets, own), outputs.clone())
    assert own.kind == "whole"
    np.testing.assert_allclose(found, expected, rtol=2e-6)
    # hpcgnn's own loss of partly known targets is this one.
    for name, values in (("mse", np.square(outputs.numpy() - targets)), ("mae", np.abs(outputs.numpy() - targets))):
        np.testing.assert_allclose(share_and_gradient(objective_of(targets, name), outputs.clone())[0],
                                   values[known].mean(), rtol=2e-6)
    np.testing.assert_allclose(share_and_gradient(objective_of(targets, "mse"), outputs.clone())[1], gradient,
                               rtol=1e-5, atol=1e-8)


@pytest.mark.parallel([1, 2])
def test_several_labels_of_which_some_are_unknown_have_the_mean_cross_entropy_of_the_known_ones():
    outputs, _ = rows()
    labels = np.random.default_rng(5).choice(np.array([0, 1, 255], np.uint8), outputs.shape)
    known = labels != 255
    found, gradient = share_and_gradient(objective_of(labels, "auto"), outputs.clone())
    plain = outputs.clone().requires_grad_()
    expected = F.binary_cross_entropy_with_logits(plain[torch.from_numpy(known)],
                                                  torch.from_numpy(labels[known]).float())
    expected.backward()
    np.testing.assert_allclose(found, expected.item(), rtol=2e-6)
    np.testing.assert_allclose(gradient, plain.grad, rtol=1e-5, atol=1e-8)


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("name", ["plain", "class weights", "ignored and weights", "sum"])
def test_the_losses_of_an_epochs_steps_add_up_to_that_of_the_epoch(name):
    outputs, labels = rows()
    own = OwnLoss(LOSSES[name][0])
    objective, order = objective_of(labels.numpy(), own), mine()
    expected = COMM.allreduce((objective.loss_sum(outputs[order], "train") / N).item())
    steps = []
    for number in range(3):
        chosen = np.flatnonzero(order % 3 == number)
        step = objective.of_rows(chosen, num_steps=3)
        steps.append(COMM.allreduce((step.loss_sum(outputs[order[chosen]], "train") / (N / 3)).item()) / 3)
    np.testing.assert_allclose(sum(steps), expected, rtol=1e-6)


@pytest.mark.parallel([1, 2])
def test_a_step_of_a_loss_over_all_rows_is_the_loss_of_its_rows():
    outputs, labels = rows()
    function, order = LOSSES["chosen rows"][0], mine()
    objective = objective_of(labels.numpy(), OwnLoss(function))
    objective.loss_sum(outputs[order], "train")
    chosen = np.flatnonzero(order < 20)
    step = objective.of_rows(chosen, num_steps=3)
    found = COMM.allreduce((step.loss_sum(outputs[order[chosen]], "train") / (N / 3)).item())
    np.testing.assert_allclose(found, function(outputs[:20], labels[:20]).item(), rtol=2e-6)


@pytest.mark.parallel([1, 2])
def test_trying_a_loss_changes_neither_its_buffers_nor_the_draws(capfd):
    loss = torch.nn.Sequential()
    loss.norm = torch.nn.BatchNorm1d(CLASSES)
    loss.forward = lambda o, y: F.cross_entropy(loss.norm(F.dropout(o, 0.5)), y)
    outputs, labels = rows()
    own, before = OwnLoss(loss), torch.get_rng_state()
    objective = objective_of(labels.numpy(), own)
    order = mine()
    own.kind = own._find_kind(outputs[order], labels[order], objective_population(objective))
    assert own.kind == "whole" and torch.equal(torch.get_rng_state(), before)
    assert loss.norm.num_batches_tracked == 0 and not loss.norm.running_mean.any()
    assert ('reduction="none"' in capfd.readouterr().err) == (COMM.rank == 0)


def objective_population(objective):
    from hpcgnn.training.own_loss import Population
    return Population(COMM, objective.num_global["train"], objective.class_counts["train"], objective.node_id)


@pytest.mark.parametrize("loss, complaint", [(lambda o, y: o, r"values of shape \(60, 4\) for 60 rows"),
                                             (lambda o, y: 0.5, "the loss gives a float; it must give a tensor"),
                                             (lambda o, y: torch.autograd.grad(o.sum(), o)[0].sum(), "itself, which")])
def test_what_is_no_loss_is_refused(loss, complaint):
    outputs, labels = rows()
    with pytest.raises(TrainingError, match=complaint):
        objective_of(labels.numpy(), OwnLoss(loss)).loss_sum(outputs, "train")


class Running(torch.nn.Module):
    """Weighs rows by a running mean of their losses, and counts its calls."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(()))
        self.calls = 0

    def forward(self, outputs, labels):
        value = F.cross_entropy(outputs, labels)
        if self.training:
            self.mean.lerp_(value.detach(), 0.5)
            self.calls += 1
        return value


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: lambda o, y: one(o, y), lambda one: one.forward,
                                  lambda one: functools.partial(one)])
def test_what_a_loss_keeps_is_of_all_training_rows_and_no_evaluation_changes_it(wrap):
    (outputs, labels), loss, order = rows(), Running(), mine()
    own = OwnLoss(wrap(loss))
    objective = objective_of(labels.numpy(), own)
    expected = F.cross_entropy(outputs, labels).item()
    for number in (1, 2):
        total = COMM.allreduce(objective.loss_sum(outputs[order], "train").item()) / N
        np.testing.assert_allclose(total, expected, rtol=2e-6)
        assert loss.calls == number and own.kind == "whole"
    np.testing.assert_allclose(loss.mean.item(), 1 + 0.75 * (expected - 1), rtol=2e-6)
    with evaluating(own.function):
        objective.loss_sum(outputs[order], "train")
        assert not loss.training
    assert loss.calls == 2 and loss.training
    np.testing.assert_allclose(loss.mean.item(), 1 + 0.75 * (expected - 1), rtol=2e-6)


@pytest.mark.parallel([1, 2])
def test_a_loss_may_read_what_a_model_keeps_on_one_rank_alone():
    (outputs, labels), kept, order = rows(), torch.nn.Module(), mine()
    kept.h = torch.full((3,), COMM.rank + 1.0, requires_grad=True).square()
    objective = objective_of(labels.numpy(), OwnLoss(lambda o, y: F.cross_entropy(o, y) + kept.h.square().mean()))
    if COMM.size == 1:
        objective.loss_sum(outputs, "train").backward()      # needs h as it was
    else:
        with pytest.raises(TrainingError, match="for the same rows on different ranks: it reads what the model keeps"):
            objective.loss_sum(outputs[order], "train")


@pytest.mark.parametrize("loss", [lambda o, y: F.cross_entropy(o[torch.ones(N + 5, dtype=torch.bool)], y),
                                  lambda o, y: F.cross_entropy(o, torch.zeros(N + 5, dtype=torch.int64)),
                                  lambda o, y: (F.cross_entropy(o, y, reduction="none") * torch.ones(N + 5)).mean()])
def test_a_loss_with_a_mask_or_labels_of_its_own_is_named(loss):
    outputs, labels = rows()
    with pytest.raises(TrainingError, match=f"the loss fails on the outputs and labels of {N} nodes .*apply no mask"):
        objective_of(labels.numpy(), OwnLoss(loss)).loss_sum(outputs, "train")


def test_an_error_in_a_loss_is_raised_as_it_is():
    outputs, labels = rows()
    with pytest.raises(KeyError, match="mine"):
        objective_of(labels.numpy(), OwnLoss(lambda o, y: {}["mine"])).loss_sum(outputs, "train")


@pytest.mark.parallel([1, 2, 3])
def test_probabilities_as_targets_have_the_cross_entropy_of_one_process():
    outputs, _ = rows()
    shares = torch.softmax(3 * rows(seed=1)[0], dim=1)
    found, gradient = share_and_gradient(objective_of(shares.numpy(), "soft_cross_entropy"), outputs.clone())
    plain = outputs.clone().requires_grad_()
    expected = F.cross_entropy(plain, shares)
    expected.backward()
    np.testing.assert_allclose(found, expected.item(), rtol=2e-6)
    np.testing.assert_allclose(gradient, plain.grad, rtol=2e-5, atol=1e-7)
    score = choose_score("auto", "regression", CLASSES, "these", "soft_cross_entropy")
    own = mine()
    assert score(COMM, outputs[own], shares[own]) == (outputs.argmax(1) == shares.argmax(1)).double().mean().item()
    shares[7, 2] = np.nan
    with pytest.raises(CollectiveError, match=r"takes the probabilities of all classes, .* a node has .*nan"):
        objective_of(shares.numpy(), "soft_cross_entropy")


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("loss", [F.mse_loss, lambda o, t: ((o - t) ** 2).mean(1)])
def test_a_loss_that_turns_an_unknown_target_into_nan_is_refused_on_all_ranks(loss):
    outputs, _ = rows()
    targets = rows(seed=1)[0]
    targets[5, 1] = np.nan
    with pytest.raises(TrainingError, match=r"the loss gives nan where a target is unknown \(nan\); leave unknown"):
        share_and_gradient(objective_of(targets.numpy(), OwnLoss(loss)), outputs)
