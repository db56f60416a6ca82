"""Linear maps of rows of any storage type by float32 parameters, and normalizations of hidden rows by name.

Parameter gradients are summed in float32.
"""

from __future__ import annotations

import torch
from torch import nn

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.batch_norm import BatchNorm
from hpcgnn.nn.neighborhood import KeptRows, keep
from hpcgnn.ops.arena import empty
from hpcgnn.ops.dense import column_sums, combine, map_back, map_rows
from hpcgnn.ops.spans import short_blocks

NORMS: dict[str, type[nn.Module]] = {"none": nn.Identity, "layer": nn.LayerNorm, "batch": BatchNorm}


def layer_norm_of(norm: nn.Module) -> nn.LayerNorm | None:
    return norm if isinstance(norm, nn.LayerNorm) else None


class _Map(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, weight, bias, graph, total):
        weight = weight.to(rows.dtype)
        keep(ctx, graph, rows, before=(weight,))
        ctx.num_back, ctx.has_bias = None if graph is None else graph.num_back, bias is not None
        rows, ctx.is_added = rows.contiguous(), total is not None
        if total is not None:
            # Nothing reads `total` itself any more, so autograd need not know that its memory has other values.
            out = total.detach()
            for start, stop in short_blocks(len(rows)):
                mapped = map_rows(rows[start:stop], weight)
                out[start:stop] += mapped if bias is None else mapped.add_(bias.to(rows.dtype))
            return out
        if bias is not None and rows.device.type != "cpu":
            return combine(rows, weight, None, None, bias)
        mapped = map_rows(rows, weight)
        return mapped if bias is None else mapped.add_(bias.to(rows.dtype))

    @staticmethod
    def backward(ctx, gradient):
        kept, gradient = KeptRows(ctx), gradient.contiguous()
        (weight,), of_rows = kept.before, None
        if ctx.needs_input_grad[0] and (ctx.num_back is None or ctx.num_back >= len(gradient)):
            of_rows = map_back(gradient, weight)
        elif ctx.needs_input_grad[0]:      # rows of the history are constants
            of_rows = empty((len(gradient), weight.shape[1]), gradient.dtype, gradient.device).zero_()
            map_back(gradient[:ctx.num_back], weight, out=of_rows[:ctx.num_back])
        of_bias = column_sums(gradient) if ctx.has_bias else None
        return of_rows, kept.weight_gradient(0, gradient), of_bias, None, gradient if ctx.is_added else None


class _AddBias(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, bias):
        return rows + bias.to(rows.dtype)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, column_sums(gradient.contiguous())


def linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None,
           graph: LocalGraph | None = None, total: torch.Tensor | None = None) -> torch.Tensor:
    """Return rows @ weight.T + bias, (n, out_dim) of the rows' type, differentiable in all three.

    With `total`, of the same shape and type, it is added to that in place, and no second table exists; the function
    that made `total` must not keep it for its backward pass.

    Float32 `weight` (out_dim, in_dim) and `bias` (out_dim,) are rounded to the rows' type for use. `graph` says how its
    first rows are kept for the backward pass; None: as they are.
    """
    return _Map.apply(rows, weight, bias, graph, total)


def add_bias(rows: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return rows + bias in the rows' type; the gradient of bias (dim,) float32 is summed in float32."""
    return _AddBias.apply(rows, bias)
