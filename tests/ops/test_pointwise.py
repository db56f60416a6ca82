"""Dropout and the fused activation against their oracles; their mask depends on the global node id and column only."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import draws_of
from reference import dropout as expected_dropout
from reference_pointwise import (
    activation,
    activation_backward,
    activation_backward_error,
    activation_error,
    before_relu,
)

from hpcgnn.errors import KernelError
from hpcgnn.ops.counter import DROPOUT, CounterKey
from hpcgnn.ops.pointwise import Activation, activate, drop, dropout

KEY = CounterKey(seed=3, epoch=4, purpose=DROPOUT, layer=2)


def rows_of(num_rows, dim):
    return torch.from_numpy(np.random.default_rng(dim).normal(size=(num_rows, dim)).astype(np.float32))


def draws_under(key, node_id, dim):
    return draws_of(node_id, dim, key.seed, key.epoch, key.stream)


@pytest.mark.covering
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


def test_a_halo_copy_drops_what_its_owner_drops():
    rows, owner_id = rows_of(8, 33), np.arange(8) * 1000
    owned = dropout(rows, 0.5, owner_id, KEY)
    order = np.array([6, 2, 7])
    copies = dropout(rows[order], 0.5, owner_id[order], KEY)
    assert torch.equal(copies, owned[order])
    # A narrower layer drops the same leading columns.
    assert torch.equal(dropout(rows[:, :20].contiguous(), 0.5, owner_id, KEY), owned[:, :20])


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


WITHOUT_WEIGHTS, WITH_WEIGHTS = False, True
STORAGES = [torch.float32, torch.bfloat16, torch.float16]
DIMS = [1, 7, 41, 64, 128, 256, 257, 1000]


class Case:
    """Rows, weights and a gradient for `activate`, in their storage and as float64 for the oracle."""

    def __init__(self, num_rows, dim, dtype=torch.float32, is_normalized=True, probability=0.5, offset=0.0):
        rng = np.random.default_rng(dim)
        self.storage, self.probability, self.eps = str(dtype).removeprefix("torch."), probability, 1e-5
        self.node_id = np.arange(num_rows) * 2**31 + 5
        self.rows, self.gradient = (torch.from_numpy(rng.normal(offset, 1, (num_rows, dim))).to(dtype)
                                    for _ in range(2))
        self.weight, self.bias = (torch.from_numpy(rng.normal(mean, 0.5, dim).astype(np.float32))
                                  if is_normalized else None for mean in (1, 0))
        scale = 1 / (1 - round(probability * 2**16) / 2**16)
        self.kept = scale * (draws_under(KEY, self.node_id, dim) >= round(probability * 2**16))
        # Where rounding may decide which side of the ReLU an element is on, no gradient passes.
        arguments = self.oracle_arguments()
        is_near = np.abs(before_relu(*arguments[:4])) <= activation_error(*arguments[:4], np.ones_like(self.kept),
                                                                          "float32")
        self.gradient[torch.from_numpy(is_near)] = 0

    def oracle_arguments(self):
        in_float64 = (None if x is None else x.double().numpy() for x in (self.rows, self.weight, self.bias))
        return *in_float64, self.eps, self.kept

    def run(self):
        """out, and the gradients of rows, weight and bias."""
        leaves = [None if x is None else x.clone().requires_grad_() for x in (self.rows, self.weight, self.bias)]
        out = activate(leaves[0], self.probability, self.node_id, KEY, *leaves[1:], self.eps)
        out.backward(self.gradient)
        return [out.detach(), *(None if leaf is None else leaf.grad for leaf in leaves)]


def assert_within(actual, expected, bound):
    assert (np.abs(actual.double().numpy() - expected) <= bound).all()


@pytest.mark.covering
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("is_normalized", [WITHOUT_WEIGHTS, WITH_WEIGHTS])
@pytest.mark.parametrize("probability", [0.0, 0.5])
def test_activation_and_its_gradients_are_the_oracle_s(simd, dim, dtype, is_normalized, probability):
    case = Case(19, dim, dtype, is_normalized, probability)
    arguments, gradient = case.oracle_arguments(), case.gradient.double().numpy()
    out, *gradients = case.run()
    assert out.dtype == gradients[0].dtype == dtype
    assert_within(out, activation(*arguments), activation_error(*arguments, case.storage))
    expected = activation_backward(*arguments, gradient)
    bounds = activation_backward_error(*arguments, gradient, case.storage)
    for actual, value, bound in zip(gradients, expected, bounds, strict=True):
        if value is None:
            assert actual is None
        else:
            assert_within(actual, value, bound)


def test_the_oracle_s_backward_meets_finite_differences():
    """float64, step 1e-6 of values near 1: the difference errs by about 1e-6^2 and 1e-16 / 1e-6."""
    case = Case(5, 9)
    rows, weight, bias, eps, kept = case.oracle_arguments()
    gradient = case.gradient.double().numpy()
    expected = activation_backward(rows, weight, bias, eps, kept, gradient)
    values = [rows, weight, bias]
    for which, partial in enumerate(expected):
        for index in np.ndindex(partial.shape):
            ends = []
            for sign in (1, -1):
                moved = [value.copy() for value in values]
                moved[which][index] += sign * 1e-6
                ends.append((activation(*moved, eps, kept) * gradient).sum())
            assert partial[index] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6, abs=1e-8)


@pytest.mark.covering
@pytest.mark.parametrize("dim", [1, 41, 257])
@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("is_normalized", [WITHOUT_WEIGHTS, WITH_WEIGHTS])
def test_every_instruction_set_gives_the_same_bits(simd, monkeypatch, dim, dtype, is_normalized):
    case = Case(300, dim, dtype, is_normalized)
    found = [*case.run(), dropout(case.rows, 0.3, case.node_id, KEY)]
    monkeypatch.setenv("HPCGNN_SIMD", "portable")
    for value, portable in zip(found, [*case.run(), dropout(case.rows, 0.3, case.node_id, KEY)], strict=True):
        assert value is portable is None or torch.equal(value, portable)


def test_a_large_mean_does_not_spoil_the_variance(simd):
    """At an offset of 1000 one pass over x and x^2 would lose 20 of 24 bits of the variance."""
    case = Case(11, 256, offset=1000.0)
    arguments = case.oracle_arguments()
    assert_within(case.run()[0], activation(*arguments), activation_error(*arguments, case.storage))


@pytest.mark.parametrize("dtype", STORAGES)
def test_dropout_of_every_storage_is_that_of_its_float32_values(simd, dtype):
    rows, node_id = rows_of(9, 41).to(dtype).requires_grad_(), np.arange(9)
    out = dropout(rows, 0.3, node_id, KEY)
    assert torch.equal(out, dropout(rows.detach().float(), 0.3, node_id, KEY).to(dtype))
    out.backward(torch.ones_like(out))
    assert rows.grad.dtype == dtype and torch.equal(rows.grad != 0, out != 0)


def test_activation_drops_what_dropout_drops(simd):
    rows, node_id = torch.ones(50, 300), np.arange(50) * 2**33
    assert torch.equal(activate(rows, 0.3, node_id, KEY), dropout(rows, 0.3, node_id, KEY))
    ones = activate(rows, 0.3, node_id, KEY, torch.zeros(300), torch.ones(300))
    assert torch.equal(ones, dropout(rows, 0.3, node_id, KEY))


def test_constant_rows_become_the_bias(simd):
    """Variance 0: x^ = 0 and rstd = eps^-1/2, by which gradients go to rows, less their mean."""
    rows, weight, bias = torch.full((4, 130), 7.25, requires_grad=True), torch.ones(130), torch.linspace(-1, 1, 130)
    out = activate(rows, 0.0, None, None, weight, bias)
    out.sum().backward()
    assert torch.equal(out.detach(), bias.relu().repeat(4, 1))
    passed = (bias > 0).double()
    expected = ((passed - passed.mean()) / 1e-5**0.5).repeat(4, 1)
    torch.testing.assert_close(rows.grad.double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("is_normalized", [WITHOUT_WEIGHTS, WITH_WEIGHTS])
def test_nan_stays_nan(simd, dtype, is_normalized):
    """A NaN of a row is seen in every column that its mean reaches, and in no other row."""
    case = Case(5, 41, dtype, is_normalized, probability=0.0)
    case.rows[2, 40] = torch.nan
    out, rows_gradient, *_ = case.run()
    expected = torch.zeros(5, 41, dtype=torch.bool)
    expected[2, 0 if is_normalized else 40:] = True
    assert torch.equal(out.isnan(), expected)
    assert torch.equal(rows_gradient.isnan(), expected & is_normalized)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
@pytest.mark.parametrize("is_normalized", [WITHOUT_WEIGHTS, WITH_WEIGHTS])
def test_activation_of_nothing_is_no_error(shape, is_normalized):
    rows = torch.empty(shape, requires_grad=True)
    weights = [torch.ones(shape[1], requires_grad=True) for _ in range(2)] if is_normalized else []
    out = activate(rows, 0.5, np.arange(shape[0]), KEY, *weights)
    out.sum().backward()
    assert out.shape == rows.grad.shape == torch.Size(shape)
    assert all(weight.grad.shape == weight.shape and not weight.grad.any() for weight in weights)


def test_rows_and_gradients_that_are_not_contiguous_are_activated_alike():
    case = Case(6, 10)
    expected = case.run()
    case.rows, case.gradient = case.rows.t().contiguous().t(), case.gradient.t().contiguous().t()
    for value, alike in zip(case.run(), expected, strict=True):
        assert torch.equal(value, alike)


def test_activation_keeps_only_its_rows_and_two_numbers_a_row():
    kept = []
    rows, weight, bias = (torch.ones(*shape, requires_grad=True) for shape in ((6, 8), (8,), (8,)))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.shape), lambda x: x):
        activate(rows, 0.5, np.arange(6), KEY, weight, bias)
    assert sorted(kept) == sorted([rows.shape, (6, 2)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("probability", [0.0, 0.5])
@pytest.mark.parametrize("dim", [1, 41, 256])
@pytest.mark.parametrize("is_normed", [True, False])
def test_results_have_the_same_bits_where_the_rows_lie(dtype, probability, dim, is_normed):
    generator = torch.Generator().manual_seed(dim)
    rows, gradient = (torch.randn(300, dim, generator=generator).to(dtype) for _ in range(2))
    norm = (torch.rand(dim, generator=generator), torch.rand(dim, generator=generator)) if is_normed else (None, None)
    activation = Activation.of(rows, probability, np.arange(300), KEY, *norm, num_back=290)
    expected, kept = activation.forward(rows)
    of_rows = torch.empty_like(rows)
    of_norm = activation.backward(gradient, kept, of_rows)
    in_place = gradient.clone()
    for one, other in zip(of_norm, activation.backward(in_place, kept, in_place), strict=True):
        assert (one is None and other is None) or torch.equal(one, other)
    assert torch.equal(in_place, of_rows)
    part = activation.part(200, 300, np.arange(200, 300))
    assert torch.equal(part.forward(rows[200:])[0], expected[200:]) and not of_rows[290:].any()
    of_part = torch.full_like(gradient[200:], 7.0)
    part.backward(gradient[200:], tuple(values[200:] for values in kept), of_part)
    assert torch.equal(of_part, of_rows[200:])
    over_rows = rows.clone()
    for one, other in zip(of_norm, activation.backward(gradient, (over_rows, kept[1]), over_rows), strict=True):
        assert (one is None and other is None) or torch.equal(one, other)
    assert torch.equal(over_rows, of_rows)
    assert torch.equal(activation.forward(rows.clone())[0], expected)
    lost = rows.clone()
    assert activation.forward(lost, lost)[0] is lost and torch.equal(lost, expected)
    dropped = dropout(rows, probability, np.arange(300), KEY)
    assert torch.equal(drop(rows.clone(), probability, np.arange(300), KEY), dropped)


@pytest.mark.parametrize("weight, bias, match", [
    (torch.ones(4), None, "a weight and a bias or neither"),
    (torch.ones(3), torch.ones(4), r"4 columns needs .* in its weight, found torch.float32 of shape \(3,\)"),
    (torch.ones(4), torch.ones(4).double(), "in its bias, found torch.float64"),
])
def test_weights_that_do_not_fit_the_rows_are_refused(weight, bias, match):
    with pytest.raises(KernelError, match=match):
        activate(torch.ones(2, 4), 0.0, None, None, weight, bias)


@pytest.mark.parametrize("operation", [activate, dropout])
def test_rows_of_another_type_are_refused(operation):
    for rows in (torch.ones(2, 4).double(), torch.ones(2)):
        with pytest.raises(KernelError, match="float32 or bfloat16 or float16 of 2 rows"):
            operation(rows, 0.5, np.arange(2), KEY)


def test_ids_of_another_type_are_refused():
    with pytest.raises(KernelError, match="int64 node ids, found int32"):
        activate(torch.ones(2, 4), 0.5, np.arange(2, dtype=np.int32), KEY)
