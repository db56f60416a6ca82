"""Cross-entropy by blocks of rows has torch's bits, forward and backward, in every storage type."""

import pytest
import torch
from torch.nn import functional

from hpcgnn.ops.cross_entropy import ROWS_A_BLOCK, cross_entropy


@pytest.mark.parametrize("num_rows", [0, 1, 7, ROWS_A_BLOCK, 2 * ROWS_A_BLOCK + 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_loss_and_gradient_have_the_bits_of_torchs(dtype, num_rows):
    generator = torch.Generator().manual_seed(num_rows)
    logits = (3 * torch.randn(num_rows, 47, generator=generator)).to(dtype)
    labels = torch.randint(0, 47, (num_rows,), generator=generator)
    one, other = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    expected = functional.cross_entropy(other.float(), labels, reduction="sum")
    found = cross_entropy(one, labels)
    (found / 3).backward()
    (expected / 3).backward()
    assert found.dtype == torch.float32 and torch.equal(found, expected)
    assert one.grad.dtype == dtype and torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [[], [3, 0, 4], range(5, ROWS_A_BLOCK + 90)], ids=len)
def test_some_rows_have_the_bits_of_their_copy(dtype, rows):
    """The others have no gradient."""
    generator = torch.Generator().manual_seed(1)
    logits = (3 * torch.randn(ROWS_A_BLOCK + 100, 11, generator=generator)).to(dtype)
    rows = torch.tensor(rows, dtype=torch.int64)
    labels = torch.randint(0, 11, (len(rows),), generator=generator)
    one, other = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    found, expected = cross_entropy(one, labels, rows), cross_entropy(other[rows], labels)
    (found / 3).backward()
    (expected / 3).backward()
    assert torch.equal(found, expected) and torch.equal(one.grad, other.grad) and one.grad.dtype == dtype


def test_the_gradient_is_that_of_finite_differences():
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels = torch.tensor([0, 4, 2, 2, 1, 3])
    cross_entropy(logits, labels).backward()
    for row, column in [(0, 0), (1, 0), (5, 3)]:
        step = torch.zeros(6, 5, dtype=torch.float64)
        step[row, column] = 1e-4
        above, below = (functional.cross_entropy(logits.detach().double() + sign * step, labels, reduction="sum")
                        for sign in (1, -1))
        assert logits.grad[row, column].item() == pytest.approx(((above - below) / 2e-4).item(), abs=1e-5)
