"""Dropout, and normalization with ReLU and dropout, on the GPU: against torch's, and against plain passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from hpcgnn.bench.device_ceilings import copy_of
from hpcgnn.bench.device_timing import Device
from hpcgnn.bench.timing import CEILING, OURS, Measurement
from hpcgnn.ops.counter import DROPOUT, CounterKey
from hpcgnn.ops.cuda.resident import resident
from hpcgnn.ops.pointwise import activate, dropout

PROBABILITY = 0.5
KEY = CounterKey(0, 0, DROPOUT, 0)
FUSED = "norm + ReLU + dropout"


def measure_pointwise(device: Device, num_rows: int, width: int, dtype: torch.dtype) -> Iterator[Measurement]:
    """Three measurements on (num_rows, width) rows. Rates count what must move: each matrix once."""
    rows, gradient = (device.random_rows(num_rows, width, dtype) for _ in range(2))
    node_id = resident(np.arange(num_rows))
    case = f"{num_rows:,} x {width} {str(dtype).removeprefix('torch.')}, p = {PROBABILITY}"
    copy = copy_of(device, 2 * rows.nbytes)
    weight, bias = (make(width, device=device.place, requires_grad=True) for make in (torch.ones, torch.zeros))

    def ours(h: torch.Tensor) -> torch.Tensor:
        return activate(h, PROBABILITY, node_id, KEY, weight, bias)

    def theirs(h: torch.Tensor) -> torch.Tensor:
        normalized = F.layer_norm(h, (width,), weight.to(dtype), bias.to(dtype))
        return F.dropout(torch.relu(normalized), PROBABILITY)

    h = rows.detach().requires_grad_()
    yield device.measure(FUSED, f"forward, {case}", 2 * rows.nbytes / 1e9, "GB/s",
                         {CEILING: copy, OURS: partial(ours, h), "torch": partial(theirs, h)})
    # Backward reads the gradient and the input, and writes one matrix.
    yield device.measure(FUSED, f"backward, {case}", 3 * rows.nbytes / 1e9, "GB/s", {
        CEILING: copy_of(device, 3 * rows.nbytes), OURS: _backward(ours(h), (h, weight, bias), gradient),
        "torch": _backward(theirs(h), (h, weight, bias), gradient)})
    yield device.measure("dropout", case, 2 * rows.nbytes / 1e9, "GB/s", {
        CEILING: copy, OURS: partial(dropout, rows, PROBABILITY, node_id, KEY),
        "torch": partial(F.dropout, rows, PROBABILITY)})


def _backward(out: torch.Tensor, inputs: tuple[torch.Tensor, ...], gradient: torch.Tensor) -> Callable:
    return partial(torch.autograd.grad, out, inputs, gradient, retain_graph=True)
