"""Row-wise operations on a device: dropout and activations by kernels/pointwise.cu, rounding by torch.

Geometry depends only on the numbers of rows and columns, so gradients have the same bits on every device.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from hpcgnn.ops.counter import DRAW_LEVELS, CounterKey
from hpcgnn.ops.cuda.dense import column_sums
from hpcgnn.ops.cuda.module import kernel
from hpcgnn.ops.cuda.segments import LANE_COLUMNS, SUFFIX, lanes_a_row
from hpcgnn.ops.cuda.step_numbers import draw_arguments
from hpcgnn.ops.fake_quantization import CodeGradients
from hpcgnn.ops.pointwise import Activation
from hpcgnn.ops.resident import on_device

BLOCK_THREADS = 256
VECTOR_BYTES = 16
LEAST_ROUNDS, MAX_ROW_BLOCKS = 8, 1024  # in a backward: least rows of a sub-warp, and most blocks

_kernel = partial(kernel, "pointwise", is_exact=True)


def dropout(rows: torch.Tensor, node_id: np.ndarray, key: CounterKey, threshold: int,
            out: torch.Tensor | None = None) -> torch.Tensor:
    return _mask(rows, None, node_id, key, threshold, out)


def activate(rows: torch.Tensor, how: Activation,
             out: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    num_rows, dim = rows.shape
    dropped, weight, bias = (how.ids(num_rows), how.key, how.threshold), how.weight, how.bias
    moments = torch.empty(0 if weight is None else num_rows, 2, device=rows.device)
    if weight is None:
        return _mask(rows, rows, *dropped, out), moments
    out, lanes = torch.empty_like(rows) if out is None else out, lanes_a_row(dim)
    _kernel(f"normalize_rows_{SUFFIX[rows.dtype]}")(
        (-(-num_rows * lanes // BLOCK_THREADS) if dim else 0,), (BLOCK_THREADS,), rows,
        *_dropout_arguments(rows, *dropped), weight, bias, how.eps, moments, out, lanes, num_rows, dim,
        _is_vector(rows, weight, bias, out))
    return out, moments


def activate_backward(gradient: torch.Tensor, rows: torch.Tensor, how: Activation, moments: torch.Tensor,
                      out: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    num_rows, dim = rows.shape
    dropped, weight, bias = (how.ids(num_rows), how.key, how.threshold), how.weight, how.bias
    if weight is None:
        _mask(gradient, rows, *dropped, out)
        return None, None
    lanes = lanes_a_row(dim)
    rows_a_block, num_blocks = backward_blocks(num_rows, lanes)
    num_blocks = num_blocks if dim else 0
    sums = torch.empty(num_blocks * (BLOCK_THREADS // lanes), 2 * dim, device=rows.device)
    _kernel(f"normalize_backward_{SUFFIX[rows.dtype]}")(
        (num_blocks,), (BLOCK_THREADS,), rows, gradient, *_dropout_arguments(rows, *dropped), weight, bias, moments,
        out, sums, rows_a_block, lanes, num_rows, dim, _is_vector(rows, gradient, weight, bias, out, sums))
    weight_gradient, bias_gradient = column_sums(sums).view(2, dim)
    return weight_gradient, bias_gradient


def backward_blocks(num_rows: int, lanes: int) -> tuple[int, int]:
    """Rows per block, in whole rounds of its sub-warps, and number of blocks.

    A sub-warp sums at least LEAST_ROUNDS rows before it writes, and more to keep to MAX_ROW_BLOCKS blocks.
    """
    rows_together = BLOCK_THREADS // lanes
    rows_a_block = rows_together * max(LEAST_ROUNDS, -(-num_rows // (rows_together * MAX_ROW_BLOCKS)))
    return rows_a_block, -(-num_rows // rows_a_block)


def mask_blocks(num_rows: int, dim: int) -> int:
    return -(-num_rows * -(-dim // LANE_COLUMNS) // BLOCK_THREADS)


def _mask(values: torch.Tensor, rectifier: torch.Tensor | None, node_id: np.ndarray | None, key: CounterKey | None,
          threshold: int, out: torch.Tensor | None = None) -> torch.Tensor:
    num_rows, dim = values.shape
    out = torch.empty_like(values) if out is None else out
    _kernel(f"mask_rows_{SUFFIX[values.dtype]}")(
        (mask_blocks(num_rows, dim),), (BLOCK_THREADS,), values,
        None if rectifier is None else rectifier, *_dropout_arguments(values, node_id, key, threshold), out,
        num_rows, dim, _is_vector(values, out, *(() if rectifier is None else (rectifier,))))
    return out


def _is_vector(*matrices: torch.Tensor) -> bool:
    return all([m.shape[-1] % LANE_COLUMNS == 0 and m.data_ptr() % VECTOR_BYTES == 0 for m in matrices])


def _dropout_arguments(rows: torch.Tensor, node_id: np.ndarray | None, key: CounterKey | None, threshold: int) -> tuple:
    if threshold == 0:
        return None, 0, 0, None, 0, 0, 1.0
    return on_device(node_id, rows), *draw_arguments(key), threshold, DRAW_LEVELS / (DRAW_LEVELS - threshold)


def quantize_values(values: torch.Tensor, step: torch.Tensor, max_code: torch.Tensor) -> torch.Tensor:
    return _signed_codes(values, step, max_code).mul_(step)


def quantize_values_backward(values: torch.Tensor, step: torch.Tensor, max_code: torch.Tensor, gradient: torch.Tensor,
                             local_weight: float | None, needs_values: bool) -> CodeGradients:
    ratio, codes = values / step, _signed_codes(values, step, max_code)
    is_clipped = ratio.abs() > max_code
    of_values = gradient.masked_fill(is_clipped, 0.0) if needs_values else None
    if local_weight is not None:
        gradient = torch.sign(codes * step - values).mul_(local_weight)
    of_step = (gradient * (codes - ratio.masked_fill_(is_clipped, 0.0))).sum_to_size(step.shape)
    if tuple(step.shape) != (len(values), 1):
        return CodeGradients(of_values, of_step, None)
    clipped = (gradient * torch.sign(values)).masked_fill_(~is_clipped, 0.0).sum(dim=1, keepdim=True)
    return CodeGradients(of_values, of_step, clipped)


def _signed_codes(values: torch.Tensor, step: torch.Tensor, max_code: torch.Tensor) -> torch.Tensor:
    codes = (values.abs() / step).add_(0.5).floor_()
    return torch.minimum(codes, max_code, out=codes).mul_(torch.sign(values))
