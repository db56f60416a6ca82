"""Dropout against the oracle, its backward, and that its mask depends on the global node id and column only."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import draws_of
from reference import dropout as expected_dropout

from hpcgnn.errors import KernelError
from hpcgnn.ops.counter import DROPOUT, CounterKey
from hpcgnn.ops.pointwise import dropout

KEY = CounterKey(seed=3, epoch=4, purpose=DROPOUT, layer=2)


def rows_of(num_rows, dim):
    return torch.from_numpy(np.random.default_rng(dim).normal(size=(num_rows, dim)).astype(np.float32))


def draws_under(key, node_id, dim):
    return draws_of(node_id, dim, key.seed, key.epoch, key.stream)


@pytest.mark.parametrize("dim", [1, 7, 41, 128, 129, 257])
@pytest.mark.parametrize("probability", [1e-4, 0.1, 0.5, 0.9, 0.99999])
def test_forward_and_backward_equal_the_oracle(simd, dim, probability):
    node_id = np.array([0, 5, 2**33, 7, 2**40], np.int64)
    rows, gradient = rows_of(5, dim).requires_grad_(), rows_of(5, dim) + 1
    draws = draws_under(KEY, node_id, dim)
    out = dropout(rows, probability, node_id, KEY)
    out.backward(gradient)
    kept = min(probability, 1 - 2.0**-16)
    np.testing.assert_array_equal(out.detach().numpy(), expected_dropout(rows.detach().numpy(), kept, draws))
    np.testing.assert_array_equal(rows.grad.numpy(), expected_dropout(gradient.numpy(), kept, draws))


def test_backward_meets_finite_differences():
    """Dropout is linear in its rows, so a central difference of <g, dropout(x)> is exact but for float32 rounding."""
    node_id = np.arange(6)
    rows, direction, gradient = (rows_of(6, dim)[:, :9].contiguous() for dim in (9, 10, 11))
    leaf = rows.clone().requires_grad_()
    (dropout(leaf, 0.3, node_id, KEY) * gradient).sum().backward()
    higher, lower = (dropout(rows + sign * direction, 0.3, node_id, KEY).double() for sign in (1, -1))
    difference = ((higher - lower) * gradient.double()).sum() / 2
    assert torch.allclose((leaf.grad.double() * direction.double()).sum(), difference, rtol=1e-5)


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.8])
def test_mean_over_elements_is_the_input(probability):
    """400 000 ones: the mean has deviation sqrt(p / (1 - p) / N); within 5 of it (probability 1 - 6e-7)."""
    out = dropout(torch.ones(4000, 100), probability, np.arange(4000), KEY)
    assert out.unique().tolist() == pytest.approx([0, 1 / (1 - probability)], rel=1e-4)
    assert abs(out.double().mean().item() - 1) < 5 * np.sqrt(probability / (1 - probability) / 400_000) + 1e-5


def test_a_halo_copy_drops_what_its_owner_drops():
    rows, owner_id = rows_of(8, 33), np.arange(8) * 1000
    owned = dropout(rows, 0.5, owner_id, KEY)
    order = np.array([6, 2, 7])
    copies = dropout(rows[order], 0.5, owner_id[order], KEY)
    assert torch.equal(copies, owned[order])
    # A narrower layer drops the same leading columns.
    assert torch.equal(dropout(rows[:, :20].contiguous(), 0.5, owner_id, KEY), owned[:, :20])


@pytest.mark.parametrize("field, value", [("seed", 9), ("epoch", 9), ("layer", 9)])
def test_seed_epoch_and_layer_change_the_mask(field, value):
    rows, node_id = torch.ones(20, 20), np.arange(20)
    other = KEY._replace(**{field: value})
    assert not torch.equal(dropout(rows, 0.5, node_id, KEY), dropout(rows, 0.5, node_id, other))


def test_rows_that_are_not_contiguous_are_dropped_alike():
    rows, node_id = rows_of(6, 10), np.arange(6)
    assert torch.equal(dropout(rows.t().contiguous().t(), 0.5, node_id, KEY), dropout(rows, 0.5, node_id, KEY))


def test_probability_zero_returns_the_input_itself():
    rows = rows_of(3, 4)
    assert dropout(rows, 0.0, np.arange(3), KEY) is rows


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_no_rows_and_no_columns_are_no_error(shape):
    rows = torch.empty(shape, requires_grad=True)
    out = dropout(rows, 0.5, np.arange(shape[0]), KEY)
    out.sum().backward()
    assert out.shape == rows.grad.shape == torch.Size(shape)


@pytest.mark.parametrize("probability", [-0.1, 1.0, 2.0, float("nan")])
def test_a_probability_out_of_range_is_refused(probability):
    with pytest.raises(KernelError, match="probability"):
        dropout(torch.ones(1, 1), probability, np.arange(1), KEY)


def test_ids_that_do_not_fit_the_rows_are_refused():
    with pytest.raises(KernelError, match="3 rows and 2 node ids"):
        dropout(torch.ones(3, 1), 0.5, np.arange(2), KEY)
