"""FlatAdam takes torch's steps, its state goes on where it stopped, and starting a training imports no compiler."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest
import torch
from fork_server import served
from mpi4py import MPI
from parallel_run import clean_environment
from torch import nn
from training_setup import easy_graph, write

from hpcgnn.errors import CollectiveError
from hpcgnn.ops.adam import check_of
from hpcgnn.training.gradients import FlatGradients
from hpcgnn.training.optimizer import FlatAdam, WeightGroup


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3, bias=False), nn.Linear(3, 1))


def groups_of(model):
    """Three kinds of weights, in another order than the model's own."""
    first, second, third = model
    return [WeightGroup([second.weight], 0.01, 5e-4), WeightGroup([*third.parameters()], 0.1), WeightGroup([], 0.3),
            WeightGroup([*first.parameters()], 0.02, 0.1)]


def started(model, decouples=False):
    gradients = FlatGradients(model)
    return gradients, FlatAdam(gradients, groups_of(model), decouples)


def take_steps(model, step, zero, first, count, collect=None):
    for number in range(first, first + count):
        zero()
        rows = torch.randn(20, 5, generator=torch.Generator().manual_seed(number))
        model(rows).square().mean().backward()
        if collect is not None:
            collect(MPI.COMM_SELF)
        step()


@pytest.mark.parametrize("decouples", [False, True])
def test_steps_are_those_of_torch(decouples):
    model, expected = network(), network()
    kind = torch.optim.AdamW if decouples else torch.optim.Adam
    optimizer = kind([{"params": [*group.parameters], "lr": group.lr, "weight_decay": group.weight_decay}
                      for group in groups_of(expected)])
    take_steps(expected, optimizer.step, optimizer.zero_grad, 0, 20)
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    take_steps(expected, optimizer.step, optimizer.zero_grad, 20, 10)
    gradients, flat = started(model, decouples)
    take_steps(model, flat.step, gradients.zero, 0, 20, gradients.collect)
    flat.scale_rate(0.5)
    take_steps(model, flat.step, gradients.zero, 20, 10, gradients.collect)
    for found, wanted, first in zip(model.parameters(), expected.parameters(), network().parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
        assert (found - first).abs().max() > 0.01
    moments = optimizer.state_dict()["state"]
    assert flat.state().keys() == moments.keys()
    for number, tensors in flat.state().items():
        assert tensors.keys() == moments[number].keys()
        for name in tensors:
            torch.testing.assert_close(tensors[name], moments[number][name], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("finds_unused", [False, True])
def test_a_weight_that_a_pass_leaves_out_brings_zeros_to_the_sum(finds_unused):
    model = network()
    gradients = FlatGradients(model, finds_unused=finds_unused)
    gradients.zero()
    model(torch.ones(20, 5)).square().mean().backward()
    gradients.collect(MPI.COMM_SELF)
    gradients.flat[5 * 7] = 8.0      # between two parameters: noise of a sum in few bits
    gradients.zero()
    model[:2](torch.ones(20, 5)).square().mean().backward()
    gradients.collect(MPI.COMM_SELF)
    used = torch.zeros_like(gradients.flat)
    for parameter in model[:2].parameters():
        used[gradients.places[parameter]] = parameter.grad.flatten()
    assert torch.equal(gradients.flat, used) and used.any()


def test_a_state_goes_on_bit_for_bit():
    whole, halves = network(), network()
    gradients, flat = started(whole)
    assert flat.state() == {}
    take_steps(whole, flat.step, gradients.zero, 0, 10, gradients.collect)
    gradients, flat = started(halves)
    take_steps(halves, flat.step, gradients.zero, 0, 4, gradients.collect)
    weights, state = halves.state_dict(), flat.state()
    resumed = network()
    gradients, flat = started(resumed)
    resumed.load_state_dict(weights)
    flat.load_state(state)
    take_steps(resumed, flat.step, gradients.zero, 4, 6, gradients.collect)
    for found, wanted in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(found, wanted)


def test_weights_and_gradients_begin_on_cache_lines_of_one_buffer():
    model = network()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    gradients, _ = started(model)
    starts = [place.start for place in gradients.places.values()]
    assert starts == [0, 48, 64, 96, 112] and gradients.flat.numel() == 113
    base = next(model.parameters()).data_ptr()
    assert [(parameter.data_ptr() - base) // 4 for parameter in model.parameters()] == starts
    assert all(torch.equal(parameter, old) for parameter, old in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("numbers, steps", [((1,), -1e6), ((0, 1, 2, 3, 4), 0.0), ((2,), 7.5), ((3,), float("nan")),
                                            ((0, 1, 2, 3, 4), float("inf")), ((0, 1, 2, 3, 4), 2.5)])
def test_numbers_of_steps_that_are_none_are_refused(numbers, steps):
    model = network()
    gradients, flat = started(model)
    take_steps(model, flat.step, gradients.zero, 0, 3, gradients.collect)
    state = flat.state()
    assert state.keys() == {0, 1, 2, 3, 4}
    for number in numbers:
        state[number] = {**state[number], "step": torch.tensor(steps)}
    with pytest.raises(CollectiveError, match="optimizer has taken"):
        started(network())[1].load_state(state)


def test_weights_without_gradients_are_left_alone_as_torchs_adam_does():
    """Some steps use a layer or not, and one is frozen and unfrozen under way; state and results are torch's."""
    models = network(), network()
    optimizer = torch.optim.Adam([{"params": [*group.parameters], "lr": group.lr, "weight_decay": group.weight_decay}
                                  for group in groups_of(models[1])])
    gradients = FlatGradients(models[0], finds_unused=True)
    flat = FlatAdam(gradients, groups_of(models[0]))
    for number in range(12):
        rows = torch.randn(20, 5, generator=torch.Generator().manual_seed(number))
        for model in models:
            model[0].weight.requires_grad_(not 3 <= number < 6)
            model[1].requires_grad_(number != 8)
        if gradients.zero():
            flat.lay_out()
        optimizer.zero_grad()
        for model in models:
            (model if number % 3 else model[:2])(rows).square().mean().backward()
        gradients.collect(MPI.COMM_SELF)
        check = flat.step()
        optimizer.step()
        assert [one.grad is None for one in models[0].parameters()] == [one.grad is None for one in
                                                                        models[1].parameters()]
        weights = torch.zeros_like(gradients.flat)
        for parameter, place in gradients.places.items():
            weights[place] = parameter.detach().flatten()
        assert check.hash == check_of(gradients.flat, weights).hash
    for found, wanted in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    moments, state = optimizer.state_dict()["state"], flat.state()
    assert {number: float(one["step"]) for number, one in state.items()} == {
        number: float(one["step"]) for number, one in moments.items()}
    again = FlatAdam(FlatGradients(models[0]), groups_of(models[0]))
    again.load_state(state)
    assert all(torch.equal(again.state()[number][name], state[number][name]) for number in state
               for name in state[number])


def test_a_training_imports_no_compiler(tmp_path):
    dataset = easy_graph()
    shards = write(dataset, np.zeros(dataset.num_nodes, np.int32), 1, tmp_path / "shards")
    program = ("import sys; from hpcgnn.__main__ import main; sys.argv[0] = 'hpcgnn'\n"
               "try: main()\nfinally: assert 'torch._dynamo' not in sys.modules")
    done = subprocess.run(served(["-c", program, "train", shards, "--model", "gcn", "--epochs", "1", "--out",
                                  tmp_path / "run", "--quantize", "degree-aware"]), capture_output=True, text=True,
                          env=clean_environment())
    assert done.returncode == 0, done.stderr
