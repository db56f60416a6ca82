"""Cross-entropy on the device is that of float64, forward and backward, in every storage type."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from hpcgnn.ops.cuda import cross_entropy

STORAGES = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}     # half a step of a gradient


def case(num_rows, dim, dtype, scale=3.0):
    generator = torch.Generator().manual_seed(num_rows + dim)
    return ((scale * torch.randn(num_rows, dim, generator=generator)).to(dtype),
            torch.randint(0, dim, (num_rows,), generator=generator))


@pytest.mark.covering
@pytest.mark.parametrize("num_rows, dim", [(1, 1), (7, 2), (300, 40), (33, 47), (65, 400)])
@pytest.mark.parametrize("dtype", list(STORAGES))
def test_loss_and_gradient_are_those_of_float64(device, num_rows, dim, dtype):
    logits, labels = case(num_rows, dim, dtype)
    exact = logits.double().requires_grad_()
    expected = functional.cross_entropy(exact, labels, reduction="sum")
    (expected / 3).backward()
    there = logits.to(device), labels.to(device)
    found, log_sums = cross_entropy.loss_sum(*there)
    gradient = cross_entropy.loss_backward(*there, log_sums, torch.tensor(1 / 3, device=device))
    assert found.shape == () and found.dtype == torch.float32 and gradient.dtype == dtype
    magnitude = exact.detach().abs().amax(1).sum() + math.log(dim) * num_rows
    assert abs(found.item() - expected.item()) <= (num_rows / 64 + dim / 32 + 16) * 2.0**-24 * magnitude + 1e-12
    bound = STORAGES[dtype] * exact.grad.abs() + (dim / 32 + 40) * 2.0**-24 / 3 + (dtype == torch.float16) * 2.0**-25
    assert ((gradient.cpu().double() - exact.grad).abs() <= bound).all()


def test_logits_that_overflow_an_exponential_do_not(device):
    logits = torch.tensor([[300.0, -300.0], [1000.0, 1000.0]])
    labels = torch.tensor([1, 0])
    found, log_sums = cross_entropy.loss_sum(logits.to(device), labels.to(device))
    assert found.item() == pytest.approx(600 + math.log(2))
    gradient = cross_entropy.loss_backward(logits.to(device), labels.to(device), log_sums,
                                           torch.tensor(2.0, device=device))
    torch.testing.assert_close(gradient.cpu(), torch.tensor([[2.0, -2.0], [-1.0, 1.0]]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_logit_that_is_not_finite_spoils_the_loss(device, value):
    logits, labels = case(40, 9, torch.float32)
    logits[17, 5] = value
    found, log_sums = cross_entropy.loss_sum(logits.to(device), labels.to(device))
    assert math.isnan(found.item())
    gradient = cross_entropy.loss_backward(logits.to(device), labels.to(device), log_sums,
                                           torch.tensor(1.0, device=device)).cpu()
    assert torch.isnan(gradient[17]).any() and torch.isfinite(gradient[:17]).all()


@pytest.mark.parametrize("label", [-1, 9])
def test_a_label_that_is_no_class_spoils_the_loss(device, label):
    logits, labels = case(40, 9, torch.float32)
    labels[3] = label
    assert math.isnan(cross_entropy.loss_sum(logits.to(device), labels.to(device))[0].item())


def test_no_row_has_a_loss_of_zero(device):
    found, log_sums = cross_entropy.loss_sum(torch.empty(0, 5, device=device),
                                             torch.empty(0, dtype=torch.int64, device=device))
    assert found.item() == 0.0 and len(log_sums) == 0
