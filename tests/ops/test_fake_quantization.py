"""Rounding to small integers' values, and its gradients, against the formulas in float64, at every SIMD level."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.fake_quantization import quantize_values, quantize_values_backward

SHAPES = [(1, 1), (7, 5), (3, 16), (40, 33), (600, 100)]


def some_case(shape, is_by_column, seed=0):
    """Values of which some are zero and some on the edge of two codes, steps, limits and an upstream gradient."""
    rng = np.random.default_rng(seed)
    step = rng.choice([0.25, 0.3, 1.7], (1, shape[1]) if is_by_column else (shape[0], 1)).astype(np.float32)
    values = rng.normal(scale=2, size=shape).astype(np.float32)
    values[rng.random(shape) < 0.3] = 0
    on_edge = np.broadcast_to(1.5 * step, shape)
    values = np.where(rng.random(shape) < 0.1, on_edge, values).astype(np.float32)
    limit = 2.0 ** rng.integers(0, 8, (1, 1) if is_by_column else (shape[0], 1)) - 1
    return values, step, limit.astype(np.float32), rng.normal(size=shape).astype(np.float32)


def codes_of(values, step, limit):
    """Signed codes; the quotient is rounded to float32, as the contract's float32 values ask."""
    return np.sign(values) * np.minimum(np.floor(np.abs(values) / step + np.float32(0.5)), limit)


def tensors(*arrays):
    return [torch.from_numpy(array) for array in arrays]


@pytest.mark.covering
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("is_by_column", [False, True])
def test_values_become_steps_times_their_codes_exactly(simd, shape, is_by_column):
    values, step, limit, _ = some_case(shape, is_by_column)
    out = quantize_values(*tensors(values, step, limit))
    np.testing.assert_array_equal(out.numpy(), codes_of(values, step, limit) * step)


@pytest.mark.covering
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("is_by_column", [False, True])
@pytest.mark.parametrize("local_weight", [None, 0.3])
def test_gradients_are_the_sums_of_the_formulas(simd, shape, is_by_column, local_weight):
    values, step, limit, upstream = some_case(shape, is_by_column, seed=1)
    found = quantize_values_backward(*tensors(values, step, limit, upstream), local_weight)
    ratio = (values / step).astype(np.float64)
    is_clipped = np.abs(ratio) > limit
    codes = codes_of(values, step, limit).astype(np.float64)
    np.testing.assert_array_equal(found.of_values.numpy(), np.where(is_clipped, 0, upstream))
    gradient = upstream.astype(np.float64)
    if local_weight is not None:
        gradient = local_weight * np.sign(codes.astype(np.float32) * step - values).astype(np.float64)
    terms = gradient * (codes - np.where(is_clipped, 0, ratio))
    axis = 0 if is_by_column else 1
    # Sums of float32 in another order: a relative error of 2^-24 a term and addition, of the sum of magnitudes.
    bound = 2.0 ** -22 * shape[axis] * np.abs(terms).sum(axis, keepdims=True) + 1e-30
    assert (np.abs(found.of_step.numpy() - terms.sum(axis, keepdims=True)) <= bound).all()
    if is_by_column and shape != (1, 1):
        assert found.clipped is None
        return
    clipped = np.where(is_clipped, gradient * np.sign(values), 0)
    bound = 2.0 ** -22 * shape[1] * np.abs(clipped).sum(1, keepdims=True) + 1e-30
    assert (np.abs(found.clipped.numpy() - clipped.sum(1, keepdims=True)) <= bound).all()


def test_a_gradient_of_values_that_nobody_needs_is_not_made():
    found = quantize_values_backward(*tensors(*some_case((7, 5), False)), needs_values=False)
    assert found.of_values is None
    assert found.of_step.shape == (7, 1)


def test_nan_stays_and_infinity_takes_the_largest_code(simd):
    values = torch.tensor([[torch.nan, torch.inf, -torch.inf, -0.2]])
    out = quantize_values(values, torch.full((1, 1), 0.5), torch.full((1, 1), 7.0))
    np.testing.assert_array_equal(out.numpy(), [[np.nan, 3.5, -3.5, 0.0]])


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_no_values_give_no_gradients(shape):
    values = torch.zeros(shape)
    step, limit = torch.ones(shape[0], 1), torch.ones(shape[0], 1)
    assert quantize_values(values, step, limit).shape == shape
    found = quantize_values_backward(values, step, limit, torch.zeros(shape))
    assert found.of_values.shape == shape
    assert torch.equal(found.of_step, torch.zeros(shape[0], 1))
    assert torch.equal(found.clipped, torch.zeros(shape[0], 1))


@pytest.mark.parametrize(("step", "limit", "gradient", "complaint"), [
    (torch.ones(2, 1), torch.ones(1, 1), torch.ones(3, 4), r"step of shape \(3, 1\) or \(1, 4\), found .* \(2, 1\)"),
    (torch.ones(3, 1).double(), torch.ones(1, 1), torch.ones(3, 4), "found torch.float64"),
    (torch.ones(3, 1), torch.ones(1, 4), torch.ones(3, 4), r"max_code of shape \(3, 1\) or \(1, 1\)"),
    (torch.ones(3, 1), torch.ones(3, 1), torch.ones(3, 5), r"values of shape \(3, 4\) were given a gradient of \(3, 5"),
    (torch.ones(3, 1), torch.ones(3, 1), torch.ones(2, 4), "fake quantization needs contiguous float32 of 3 rows"),
])
def test_shapes_that_disagree_are_refused(step, limit, gradient, complaint):
    with pytest.raises(KernelError, match=complaint):
        quantize_values_backward(torch.ones(3, 4), step, limit, gradient)
