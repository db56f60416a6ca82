"""Batch normalization with statistics over the rows of all ranks: of the whole graph, or of a step's rows."""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.neighborhood import KeptRows, keep


class BatchNorm(nn.BatchNorm1d):
    """A `torch.nn.BatchNorm1d` of hidden rows that `normalized` applies over the rows of all ranks."""


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
