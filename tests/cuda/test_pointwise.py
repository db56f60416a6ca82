"""Dropout and the fused activation on the device: the host's masks bit for bit, and values within float32's rounding.

The bounds are those of tests/reference_pointwise.py: a mean over dim terms in a lane's chain of dim / 256 and a tree of
eight further additions errs less than the dim / 16 + 16 roundings that they allow.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cuda.conftest import both_orders
from reference import draws_of
from reference_pointwise import (
    activation,
    activation_backward,
    activation_backward_error,
    activation_error,
    before_relu,
)

from hpcgnn.ops import pointwise as operations
from hpcgnn.ops.counter import DROPOUT, CounterKey
from hpcgnn.ops.cuda import pointwise
from hpcgnn.ops.cuda.pointwise import backward_blocks, lanes_a_row, mask_blocks
from hpcgnn.ops.pointwise import Activation

host = SimpleNamespace(dropout=operations._dropout.host, activate=operations._activate.host,
                       activate_backward=operations._activate_backward.host)
KEY = CounterKey(seed=3, epoch=4, purpose=DROPOUT, layer=2)
STORAGES = [torch.float32, torch.bfloat16, torch.float16]
DIMS = [1, 3, 32, 100, 256]
WIDE = 600      # more columns than a warp keeps in registers
HALF = 1 << 15  # of the levels of a draw
EPS = 1e-5
one_order = pytest.mark.parametrize("device", [1], indirect=True)    # of blocks, where others would take long


def rows_of(num_rows, dim, dtype=torch.float32, seed=0, offset=0.0):
    return torch.from_numpy(np.random.default_rng(seed).normal(offset, 1, (num_rows, dim))).to(dtype)


def kept_elements(node_id, dim, threshold):
    """The scale of each element that is kept, and 0 where it is dropped; float64."""
    draws = draws_of(node_id, dim, KEY.seed, KEY.epoch, KEY.stream)
    return (draws >= threshold) * (2**16 / (2**16 - threshold))


@pytest.mark.covering
@pytest.mark.parametrize("dim", [*DIMS, 7, 8, 257])
@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("threshold", [1, HALF, 2**16 - 1])
def test_dropout_has_the_host_s_bits(device, dim, dtype, threshold):
    rows, node_id = rows_of(5, dim, dtype), np.array([0, 5, 2**33, 7, 2**40], np.int64)
    out = pointwise.dropout(rows.to(device), node_id, KEY, threshold)
    assert torch.equal(out.cpu(), host.dropout(rows, node_id, KEY, threshold))


@pytest.mark.parametrize("dim", DIMS)
def test_the_mask_is_that_of_the_oracle_s_draws(device, dim):
    node_id = np.arange(30) * 2**31 + 5
    out = pointwise.dropout(torch.ones(30, dim, device=device), node_id, KEY, HALF)
    assert np.array_equal(out.cpu().numpy(), kept_elements(node_id, dim, HALF))


@pytest.mark.covering
@pytest.mark.parametrize("dim", [*DIMS, 13])
@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("threshold", [0, HALF])
def test_relu_and_dropout_and_their_backward_have_the_host_s_bits(device, dim, dtype, threshold):
    rows, gradient, node_id = rows_of(19, dim, dtype), rows_of(19, dim, dtype, 1), np.arange(19) * 2**31
    how = Activation(None, None, EPS, node_id, KEY, threshold, 19)
    out, moments = pointwise.activate(rows.to(device), how)
    expected, no_moments = host.activate(rows, how)
    assert torch.equal(out.cpu(), expected) and moments.shape == no_moments.shape
    found = backward_of(pointwise, gradient.to(device), rows.to(device), how, moments)
    assert torch.equal(found[0].cpu(), backward_of(host, gradient, rows, how, no_moments)[0])
    assert found[1] is found[2] is None


def backward_of(implementation, gradient, rows, *arguments):
    """The gradients of rows, weight and bias."""
    out = torch.full_like(rows, torch.nan)
    return out, *implementation.activate_backward(gradient, rows, *arguments, out)


class Case:
    """Rows, weights and a gradient of a normalization, in their storage and as float64 for the oracle."""

    def __init__(self, num_rows, dim, dtype=torch.float32, threshold=HALF, offset=0.0):
        self.storage, self.threshold = str(dtype).removeprefix("torch."), threshold
        self.node_id = np.arange(num_rows) * 7
        self.rows, self.gradient = (rows_of(num_rows, dim, dtype, seed, offset) for seed in (dim, dim + 1))
        rng = np.random.default_rng(dim)
        self.weight, self.bias = (torch.from_numpy(rng.normal(mean, 0.5, dim).astype(np.float32)) for mean in (1, 0))
        self.kept = kept_elements(self.node_id, dim, threshold)
        # Where rounding may decide which side of the ReLU an element is on, no gradient passes.
        exact = self.oracle_arguments()[:4]
        is_near = np.abs(before_relu(*exact)) <= activation_error(*exact, np.ones_like(self.kept), "float32")
        self.gradient[torch.from_numpy(is_near)] = 0

    def oracle_arguments(self):
        return *(x.double().numpy() for x in (self.rows, self.weight, self.bias)), EPS, self.kept

    def run(self, device, implementation=pointwise):
        """out, moments, and the gradients of rows, weight and bias."""
        rows, gradient, weight, bias = (x.to(device) for x in (self.rows, self.gradient, self.weight, self.bias))
        how = Activation(weight, bias, EPS, self.node_id, KEY, self.threshold, len(rows))
        out, moments = implementation.activate(rows, how)
        gradients = backward_of(implementation, gradient, rows, how, moments)
        return [x.cpu() for x in (out, moments, *gradients)]


def assert_within(actual, expected, bound):
    assert (np.abs(actual.double().numpy() - expected) <= bound).all()


def assert_gradients_are_the_oracle_s(case, gradients):
    arguments = *case.oracle_arguments(), case.gradient.double().numpy()
    bounds = activation_backward_error(*arguments, case.storage)
    for found in zip(gradients, activation_backward(*arguments), bounds, strict=True):
        assert_within(*found)


@pytest.mark.covering
@pytest.mark.parametrize("dim", [*DIMS, 24, 257, WIDE])
@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("threshold", [0, HALF])
def test_activation_and_its_gradients_are_the_oracle_s(device, dim, dtype, threshold):
    case = Case(19, dim, dtype, threshold)
    arguments = case.oracle_arguments()
    out, _, *gradients = case.run(device)
    assert out.dtype == gradients[0].dtype == dtype and gradients[1].dtype == gradients[2].dtype == torch.float32
    assert_within(out, activation(*arguments), activation_error(*arguments, case.storage))
    assert_gradients_are_the_oracle_s(case, gradients)


@pytest.mark.covering
@pytest.mark.parametrize("dim", [*DIMS, 24, WIDE])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_moments_are_those_of_float64(device, dim, offset):
    """x of at most M = max |x| loses dim / 256 + 9 roundings of M in its mean, and so does x - mean; rstd errs by as
    much relative to the deviation, plus a dozen roundings.
    """
    case = Case(11, dim, offset=offset)
    moments = case.run(device)[1].double().numpy()
    rows = case.rows.double().numpy()
    error = (dim / 256 + 16) * 2.0**-24 * np.abs(rows).max(axis=1)
    rstd = 1 / np.sqrt(rows.var(axis=1) + EPS)
    assert (np.abs(moments[:, 0] - rows.mean(axis=1)) <= error).all()
    assert (np.abs(moments[:, 1] / rstd - 1) <= 2 * error * rstd + 16 * 2.0**-24).all()


@pytest.mark.parametrize("dim", [5, 64])
def test_what_drops_inside_an_activation_is_what_drops_on_the_host(device, dim):
    case = Case(50, dim)
    case.bias += 100    # no element is cut by the ReLU
    assert torch.equal(case.run(device)[0] == 0, case.run("cpu", host)[0] == 0)


@one_order
@pytest.mark.parametrize("dim", [1, 8, 200])
def test_gradients_of_many_rows_are_summed_over_blocks_and_sub_warps(device, dim):
    """More than one block, the last of them with sub-warps that have no row."""
    num_rows = backward_blocks(1, lanes_a_row(dim))[0] + 5
    case = Case(num_rows, dim)
    assert_gradients_are_the_oracle_s(case, case.run(device)[2:])


def digest(results):
    return [None if result is None else result.numpy().tobytes() for result in results]


@both_orders
@pytest.mark.parametrize("dim", [3, 40])
def test_results_have_the_same_bits_in_any_order_of_blocks(device, first_results, dim):
    """Also two runs on a device."""
    found = digest(Case(150, dim).run(device))
    assert found == first_results.setdefault(dim, found) == digest(Case(150, dim).run(device))


@pytest.mark.covering
@pytest.mark.parametrize("shift", [0, 1, 4])
@pytest.mark.parametrize("dtype", STORAGES)
def test_rows_that_lie_off_a_vector_s_address_are_activated_alike(device, shift, dtype):
    memory = torch.zeros(6 * 32 + shift, dtype=dtype, device=device)
    rows, node_id = rows_of(6, 32, dtype).to(device), np.arange(6)
    moved = memory[shift:].view(6, 32).copy_(rows)
    weight, bias = torch.ones(32, device=device), torch.zeros(32, device=device)
    for arguments in ((None, None), (weight, bias)):
        how = Activation(*arguments, EPS, node_id, KEY, HALF, 6)
        found, expected = (pointwise.activate(x, how)[0] for x in (moved, rows))
        assert torch.equal(found, expected)


def test_constant_rows_become_the_bias_and_have_the_gradient_of_deviation_zero(device):
    """x^ = 0 and rstd = eps^-1/2, so an element's gradient is eps^-1/2 times how far it is from the row's mean."""
    rows, weight = torch.full((4, 130), 7.25, device=device), torch.ones(130, device=device)
    bias = torch.linspace(-1, 1, 130, device=device)
    how = Activation(weight, bias, EPS, None, None, 0, 4)
    out, moments = pointwise.activate(rows, how)
    assert torch.equal(out, bias.relu().repeat(4, 1))
    gradient = torch.ones_like(rows)
    found = backward_of(pointwise, gradient, rows, how, moments)[0]
    passed = (bias > 0).double()
    torch.testing.assert_close(found.double(), ((passed - passed.mean()) / EPS**0.5).repeat(4, 1), rtol=1e-6, atol=0)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("is_normalized", [False, True])
def test_nan_stays_nan(device, dtype, is_normalized):
    """A NaN of a row is seen in every column that its mean reaches, and in no other row."""
    rows = rows_of(5, 41, dtype).to(device)
    rows[2, 40] = torch.nan
    weight, bias = (torch.ones(41, device=device), torch.zeros(41, device=device)) if is_normalized else (None, None)
    how = Activation(weight, bias, EPS, None, None, 0, 5)
    out, moments = pointwise.activate(rows, how)
    gradient = backward_of(pointwise, torch.ones_like(rows), rows, how, moments)[0]
    expected = torch.zeros(5, 41, dtype=torch.bool)
    expected[2, 0 if is_normalized else 40:] = True
    assert torch.equal(out.isnan().cpu(), expected)
    assert torch.equal(gradient.isnan().cpu(), expected & is_normalized)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_no_rows_and_no_columns_are_no_error(device, shape):
    rows, node_id = torch.empty(shape, device=device), np.arange(shape[0])
    weight, bias = torch.ones(shape[1], device=device), torch.ones(shape[1], device=device)
    assert pointwise.dropout(rows, node_id, KEY, HALF).shape == rows.shape
    how = Activation(weight, bias, EPS, node_id, KEY, HALF, len(rows))
    out, moments = pointwise.activate(rows, how)
    gradients = backward_of(pointwise, rows, rows, how, moments)
    assert out.shape == gradients[0].shape == rows.shape
    assert all(gradient.shape == weight.shape and not gradient.any() for gradient in gradients[1:])


def test_a_row_has_the_fewest_lanes_that_hold_it_a_power_of_two_up_to_a_warp():
    for dim in range(1, 300):
        lanes = lanes_a_row(dim)
        assert lanes in (1, 2, 4, 8, 16, 32)
        assert 8 * lanes >= dim or lanes == 32
        assert lanes == 1 or 8 * (lanes // 2) < dim


@pytest.mark.parametrize("lanes", [1, 8, 32])
@pytest.mark.parametrize("num_rows", [0, 1, 63, 64, 65, 100_000, 10_000_000])
def test_blocks_of_a_backward_hold_all_rows_and_no_block_is_empty(lanes, num_rows):
    rows_a_block, num_blocks = backward_blocks(num_rows, lanes)
    assert (num_blocks - 1) * rows_a_block < num_rows <= num_blocks * rows_a_block or num_rows == num_blocks == 0
    assert num_blocks <= 1024 and rows_a_block >= 8 * 256 // lanes and rows_a_block % (256 // lanes) == 0


@pytest.mark.parametrize("num_rows, dim", [(0, 5), (5, 0), (1, 1), (32, 64), (33, 64), (100, 257)])
def test_every_eight_columns_have_one_thread(num_rows, dim):
    num_threads, needed = 256 * mask_blocks(num_rows, dim), num_rows * -(-dim // 8)
    assert needed <= num_threads < needed + 256
