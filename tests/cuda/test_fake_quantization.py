"""Rounding to small integers' values on the device, against the host's kernels."""

from __future__ import annotations

import pytest
import torch
from cuda.conftest import HAS_GPU

from hpcgnn.ops import fake_quantization as on_host
from hpcgnn.ops.cuda import pointwise as on_device

DEVICE = "cuda" if HAS_GPU else "cpu"


def some_case(shape, is_by_column):
    """Values of which some are zero, some not a number, and some past the largest code."""
    torch.manual_seed(0)
    values = torch.randn(shape) * (torch.rand(shape) < 0.7)
    step = torch.rand((1, shape[1]) if is_by_column else (shape[0], 1)) + 0.05
    max_code = torch.full((1, 1), 7.0) if is_by_column else torch.randint(0, 8, (shape[0], 1)).exp2() - 1
    return values, step, max_code.float(), torch.randn(shape)


@pytest.mark.parametrize("shape", [(0, 4), (1, 1), (7, 5), (200, 33)])
@pytest.mark.parametrize("is_by_column", [False, True])
def test_values_equal_the_hosts(shape, is_by_column):
    case = some_case(shape, is_by_column)[:3]
    out = on_device.quantize_values(*(part.to(DEVICE) for part in case))
    assert torch.equal(out.cpu(), on_host._quantize_values.host(*case))


def test_nan_stays_and_infinity_takes_the_largest_code():
    values = torch.tensor([[torch.nan, torch.inf, -torch.inf, -0.2]], device=DEVICE)
    step, max_code = torch.full((1, 1), 0.5, device=DEVICE), torch.full((1, 1), 7.0, device=DEVICE)
    out = on_device.quantize_values(values, step, max_code).cpu()
    torch.testing.assert_close(out, torch.tensor([[torch.nan, 3.5, -3.5, 0.0]]), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (200, 33)])
@pytest.mark.parametrize("is_by_column", [False, True])
@pytest.mark.parametrize("local_weight", [None, 0.3])
def test_gradients_are_the_hosts(shape, is_by_column, local_weight):
    case = some_case(shape, is_by_column)
    found = on_device.quantize_values_backward(*(part.to(DEVICE) for part in case), local_weight, True)
    expected = on_host._quantize_values_backward.host(*case, local_weight, True)
    assert torch.equal(found.of_values.cpu(), expected.of_values)
    for name in ("of_step", "clipped"):
        mine, host = getattr(found, name), getattr(expected, name)
        assert (mine is None) == (host is None)
        if mine is not None:
            # Up to 200 terms of at most 8 * 4 in magnitude, added in float32 in two orders.
            torch.testing.assert_close(mine.cpu(), host, rtol=1e-5, atol=200 * 32 * 2.0 ** -24)
