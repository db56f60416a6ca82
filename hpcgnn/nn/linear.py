"""Linear maps of rows of any storage type by float32 parameters, and normalizations of hidden rows by name.

Parameter gradients are summed in float32. A batch normalization has statistics over the rows of all ranks: of the whole
graph, or of a step's rows.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.neighborhood import KeptRows, keep
from hpcgnn.ops.arena import empty
from hpcgnn.ops.dense import column_sums, combine, map_back, map_rows
from hpcgnn.ops.spans import short_blocks


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


class BatchNorm(nn.BatchNorm1d):
    """A `torch.nn.BatchNorm1d` of hidden rows that `normalized` applies over the rows of all ranks."""


NORMS: dict[str, type[nn.Module]] = {"none": nn.Identity, "layer": nn.LayerNorm, "batch": BatchNorm}


def layer_norm_of(norm: nn.Module) -> nn.LayerNorm | None:
    return norm if isinstance(norm, nn.LayerNorm) else None


def normalized(graph: LocalGraph, norm: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """Collective in training: rows (n, dim) after a `BatchNorm`; other norms leave them, for the activation."""
    if not isinstance(norm, BatchNorm):
        return rows
    if norm.training:
        norm.num_batches_tracked.add_(1)
        return batch_norm(graph, rows, norm.running_mean, norm.running_var, norm.weight, norm.bias, norm.momentum,
                          norm.eps)
    return functional.batch_norm(rows.float(), norm.running_mean, norm.running_var, norm.weight, norm.bias,
                                 eps=norm.eps).to(rows.dtype)


def batch_norm(graph: LocalGraph, rows: torch.Tensor, running_mean: torch.Tensor | None,
               running_var: torch.Tensor | None, weight: torch.Tensor | None, bias: torch.Tensor | None,
               momentum: float, eps: float) -> torch.Tensor:
    """Collective: normalize columns by mean and variance over the rows of all ranks, and update running statistics.

    Sums and statistics are float32; the result has the rows' type.

    Parameters
    ----------
    rows : (n, dim) float32, bfloat16 or float16          each row of the whole graph, or of the step, on one rank only
    running_mean, running_var : (dim,) float32 or None    changed in place, alike on all ranks
    weight, bias : (dim,) float32 or None

    Reference: Ioffe and Szegedy, ICML 2015, Algorithm 1. Running variances are unbiased, as in PyTorch.
    """
    with torch.no_grad():
        values = rows.float()
        count = graph.sum_of_pass(values.new_full((1,), float(len(rows)))).clamp_(min=1)
        mean = graph.sum_of_pass(values.sum(0)) / count
        variance = graph.sum_of_pass((values - mean).square_().sum(0)) / count
        if running_mean is not None:
            running_mean.lerp_(mean, momentum)
            running_var.lerp_(variance * (count / (count - 1).clamp(min=1)), momentum)
    return _Normalize.apply(rows, weight, bias, mean, torch.rsqrt(variance + eps), count, graph)


class _Normalize(torch.autograd.Function):
    """(rows - mean) * scale * weight + bias. Keeps the rows, and makes the centered ones again in the backward pass.

    mean and scale depend on the rows of all ranks, so every rank's gradient has a part in every row's: it enters by two
    sums over the ranks, of the gradients and of the gradients times the normalized rows.
    """

    @staticmethod
    def forward(ctx, rows, weight, bias, mean, scale, count, graph):
        keep(ctx, graph, rows, before=(weight, mean, scale, count))
        ctx.graph, ctx.has_bias = graph, bias is not None
        out = (rows.float() - mean).mul_(scale)
        out = out if weight is None else out.mul_(weight)
        return (out if bias is None else out.add_(bias)).to(rows.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        """Collective."""
        kept = KeptRows(ctx)
        rows, (weight, mean, scale, count) = kept.rows(0), kept.before
        of_out, centered = gradient.float(), (rows.float() - mean).mul_(scale)
        own = torch.stack([of_out.sum(0), (of_out * centered).sum(0)])
        of_all = ctx.graph.sum_of_pass(own) / count
        of_rows = (of_out - of_all[0]).sub_(centered.mul_(of_all[1])).mul_(scale if weight is None else scale * weight)
        of_weight = None if weight is None else own[1]
        return of_rows.to(rows.dtype), of_weight, own[0] if ctx.has_bias else None, None, None, None, None
