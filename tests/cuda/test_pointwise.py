"""Dropout and the fused activation on the device: their moments, and the same bits in any order and at any address."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cuda.conftest import both_orders

from hpcgnn.ops.counter import DROPOUT, CounterKey
from hpcgnn.ops.cuda import pointwise
from hpcgnn.ops.cuda.pointwise import backward_blocks, lanes_a_row, mask_blocks
from hpcgnn.ops.pointwise import Activation

KEY = CounterKey(seed=3, epoch=4, purpose=DROPOUT, layer=2)
STORAGES = [torch.float32, torch.bfloat16, torch.float16]
HALF = 1 << 15  # of the levels of a draw
EPS = 1e-5


def rows_of(num_rows, dim, dtype=torch.float32, seed=0, offset=0.0):
    return torch.from_numpy(np.random.default_rng(seed).normal(offset, 1, (num_rows, dim))).to(dtype)


def normalized(rows, device):
    """The activated rows, their moments, and the gradients of rows, weight and bias, of a gradient of other rows."""
    rows, gradient = rows.to(device), rows_of(*rows.shape, rows.dtype, seed=1).to(device)
    weight, bias = (rows_of(1, rows.shape[1], seed=seed)[0].to(device) for seed in (2, 3))
    how = Activation(weight, bias, EPS, np.arange(len(rows)) * 7, KEY, HALF, len(rows))
    (out, moments), of_rows = pointwise.activate(rows, how), torch.full_like(rows, torch.nan)
    return out, moments, of_rows, *pointwise.activate_backward(gradient, rows, how, moments, of_rows)


@pytest.mark.covering
@pytest.mark.parametrize("dim", [1, 3, 24, 32, 100, 256, 600])      # a warp keeps less than 600 columns in registers
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_moments_are_those_of_float64(device, dim, offset):
    """x of at most M = max |x| loses dim / 256 + 9 roundings of M in its mean, and so does x - mean; rstd errs by as
    much relative to the deviation, plus a dozen roundings.
    """
    given = rows_of(11, dim, offset=offset)
    moments, rows = normalized(given, device)[1].double().cpu().numpy(), given.double().numpy()
    error = (dim / 256 + 16) * 2.0**-24 * np.abs(rows).max(axis=1)
    rstd = 1 / np.sqrt(rows.var(axis=1) + EPS)
    assert (np.abs(moments[:, 0] - rows.mean(axis=1)) <= error).all()
    assert (np.abs(moments[:, 1] / rstd - 1) <= 2 * error * rstd + 16 * 2.0**-24).all()


@both_orders
@pytest.mark.parametrize("dim", [3, 40])
def test_results_have_the_same_bits_in_any_order_of_blocks(device, first_results, dim):
    """Also two runs on a device."""
    found, again = ([result.cpu().numpy().tobytes() for result in normalized(rows_of(150, dim), device)]
                    for _ in range(2))
    assert found == first_results.setdefault(dim, found) == again


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


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_no_rows_and_no_columns_are_no_error(device, shape):
    assert pointwise.dropout(torch.empty(shape, device=device), np.arange(shape[0]), KEY, HALF).shape == shape
    out, _, of_rows, *of_norm = normalized(torch.empty(shape), device)
    assert out.shape == of_rows.shape == shape
    assert all(gradient.shape == shape[1:] and not gradient.any() for gradient in of_norm)


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
