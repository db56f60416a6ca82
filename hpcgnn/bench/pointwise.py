"""Normalization, ReLU and dropout, forward and backward, and dropout alone, against torch and against plain passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from hpcgnn.bench.ceilings import copy_stream, read_stream
from hpcgnn.bench.memory import empty_rows, random_rows
from hpcgnn.bench.timing import CEILING, OURS, Effort, Measurement, measure
from hpcgnn.ops.counter import DROPOUT, CounterKey
from hpcgnn.ops.pointwise import activate, dropout

PROBABILITY = 0.5
KEY = CounterKey(0, 0, DROPOUT, 0)


def measure_pointwise(num_rows: int, width: int, peers: tuple[str, ...], effort: Effort) -> Iterator[Measurement]:
    """Three measurements on (num_rows, width) rows. Rates count what must move: each matrix once."""
    node_id = np.arange(num_rows)
    case = f"{num_rows:,} x {width}, p = {PROBABILITY}"
    rows, gradient = random_rows(num_rows, width), random_rows(num_rows, width, seed=1)
    copy, read = copy_stream(empty_rows(num_rows, width), rows), read_stream(rows)
    weight, bias = torch.ones(width, requires_grad=True), torch.zeros(width, requires_grad=True)

    def ours(h: torch.Tensor) -> torch.Tensor:
        return activate(h, PROBABILITY, node_id, KEY, weight, bias)

    def theirs(h: torch.Tensor) -> torch.Tensor:
        return F.dropout(torch.relu(F.layer_norm(h, (width,), weight, bias)), PROBABILITY)

    functions = {OURS: ours, **({"torch": theirs} if "torch" in peers else {})}
    h = rows.detach().requires_grad_()
    yield measure("norm + ReLU + dropout", f"forward, {case}", 2 * rows.nbytes / 1e9, "GB/s",
                  {CEILING: copy, **{name: partial(apply, h) for name, apply in functions.items()}}, effort)
    # Backward reads the gradient and the input, and writes one matrix.
    yield measure("norm + ReLU + dropout", f"backward, {case}", 3 * rows.nbytes / 1e9, "GB/s",
                  {CEILING: partial(_both, copy, read),
                   **{name: partial(_backward, apply(h), (h, weight, bias), gradient)
                      for name, apply in functions.items()}}, effort)
    alone: dict[str, Callable] = {CEILING: copy, OURS: partial(dropout, rows, PROBABILITY, node_id, KEY)}
    if "torch" in peers:
        alone["torch"] = partial(F.dropout, rows, PROBABILITY)
    yield measure("dropout", case, 2 * rows.nbytes / 1e9, "GB/s", alone, effort)


def _both(first: Callable, second: Callable) -> None:
    first()
    second()


def _backward(out: torch.Tensor, inputs: tuple[torch.Tensor, ...], gradient: torch.Tensor) -> None:
    torch.autograd.grad(out, inputs, gradient, retain_graph=True)
