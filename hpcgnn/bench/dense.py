"""Products of rows and weights, and gradients of weights, against the ceiling of the instructions and libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch

from hpcgnn.bench.ceilings import PRECISION, product_ceiling
from hpcgnn.bench.memory import empty_rows, random_rows
from hpcgnn.bench.timing import CEILING, OURS, Effort, Measurement, measure
from hpcgnn.ops.dense import map_rows, weight_gradient
from hpcgnn.ops.host.simd import multiplies_bfloat16


def measure_dense(num_rows: int, width: int, precisions: tuple[str, ...], effort: Effort) -> Iterator[Measurement]:
    """Rows (num_rows, width) times (width, width), and the gradient of that weight, in each precision. Where torch has
    no instructions for one, it would take minutes, and is left out with a remark.
    """
    amount = 2 * num_rows * width**2 / 1e9
    for precision in precisions:
        rows, gradient, weight, out = _operands(num_rows, width, PRECISION[precision])
        ceiling = product_ceiling(precision, num_rows * width**2)
        contestants: dict[str, dict[str, Callable]] = {
            "rows @ weight": {CEILING: ceiling, OURS: partial(map_rows, rows, weight)},
            "weight gradient": {CEILING: ceiling, OURS: partial(weight_gradient, gradient, rows)}}
        if precision == "fp32" or (precision == "bf16" and multiplies_bfloat16()):
            contestants["rows @ weight"]["torch"] = partial(torch.mm, rows, weight.t(), out=out)
            contestants["weight gradient"]["torch"] = partial(torch.mm, gradient.t(), rows)
        if precision == "fp32":
            contestants["rows @ weight"]["numpy"] = partial(np.matmul, rows.numpy(), weight.t().numpy(),
                                                            out=out.numpy())
        for case, works in contestants.items():
            remarks = [] if "torch" in works else [f"torch has no instructions for products of {precision} here"]
            yield measure("dense", f"{case} x{width} {precision}", amount, "GFLOP/s", works, effort, remarks)


def _operands(num_rows: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return (random_rows(num_rows, width, dtype), random_rows(num_rows, width, dtype, seed=1),
            random_rows(width, width, dtype, seed=2), empty_rows(num_rows, width, dtype))
