"""Batch normalization with statistics over the rows of all ranks: of the whole graph, or of a step's rows."""

from __future__ import annotations

import torch

from hpcgnn.graph.local_graph import LocalGraph


class _SumOverRanks(torch.autograd.Function):
    """Sum over ranks. Every rank's loss depends on the sum, so its gradient is the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx, values: torch.Tensor, graph: LocalGraph) -> torch.Tensor:
        ctx.graph = graph
        return graph.sum_of_pass(values)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        return ctx.graph.sum_of_pass(gradient), None


def batch_norm(graph: LocalGraph, rows: torch.Tensor, running_mean: torch.Tensor | None,
               running_var: torch.Tensor | None, weight: torch.Tensor | None, bias: torch.Tensor | None,
               momentum: float, eps: float) -> torch.Tensor:
    """Collective: normalize columns by mean and variance over the rows of all ranks, and update running statistics.

    Parameters
    ----------
    rows : (n, dim) float32                               each row of the whole graph, or of the step, on one rank only
    running_mean, running_var : (dim,) float32 or None    changed in place, alike on all ranks
    weight, bias : (dim,) float32 or None

    Reference: Ioffe and Szegedy, ICML 2015, Algorithm 1. Running variances are unbiased, as in PyTorch.
    """
    count = graph.sum_of_pass(rows.new_full((1,), float(len(rows))))
    mean = _SumOverRanks.apply(rows.sum(0), graph) / count
    centered = rows - mean
    variance = _SumOverRanks.apply((centered * centered).sum(0), graph) / count
    if running_mean is not None:
        with torch.no_grad():
            running_mean.lerp_(mean, momentum)
            running_var.lerp_(variance * (count / (count - 1).clamp(min=1)), momentum)
    out = centered * torch.rsqrt(variance + eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias
