"""Attention on a device: kernels/softmax.cu has the softmax, kernels/attention.cu the rest."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.ops.aggregation import multiply_weighted
from hpcgnn.ops.cuda.aggregation import THREADS, entry_arguments, fold_segments, fold_spilled, staging
from hpcgnn.ops.cuda.module import LATER, BoundKernel, kernel
from hpcgnn.ops.cuda.segments import SUFFIX, WARP, alignment, sub_warp
from hpcgnn.ops.resident import on_device

TASK_ROWS = 1024      # rows over which a block sums the gradients of the vectors
ROW_THREADS = {"lanes": 8, "warp": WARP, "block": THREADS}     # threads per row's softmax, for short to long rows


def has_shared_rows() -> bool:
    return False


def head_scores(rows: torch.Tensor, vectors: torch.Tensor, num_heads: int) -> torch.Tensor:
    score = torch.empty((len(vectors), len(rows), num_heads), device=rows.device)
    if score.numel():
        head_dim = rows.shape[1] // num_heads
        vector = _vector(head_dim, rows, vectors)
        products_a_block = THREADS // sub_warp(-(-head_dim // vector))
        kernel("attention", f"head_scores_{SUFFIX[rows.dtype]}")(
            (-(-len(rows) * num_heads // products_a_block),), (THREADS,), rows.detach(), vectors.detach(),
            len(vectors), len(rows), num_heads, head_dim, vector, score)
    return score


def head_scores_backward(rows: torch.Tensor, gradient: torch.Tensor, vectors: torch.Tensor,
                         score_gradient: torch.Tensor) -> torch.Tensor:
    # The gradient of `vectors` is summed in float64 over blocks of rows.
    num_vectors, num_rows, num_heads = score_gradient.shape
    dim, suffix = rows.shape[1], SUFFIX[rows.dtype]
    if rows.numel() == 0 or vectors.numel() == 0:
        return torch.zeros_like(vectors)
    of_vectors = torch.empty_like(vectors)
    num_tasks = -(-num_rows // TASK_ROWS)
    partial = torch.empty((num_tasks, num_vectors, dim), device=rows.device)
    sizes = num_rows, num_heads, dim // num_heads
    kernel("attention", f"vector_gradients_{suffix}")((num_tasks, -(-dim // WARP), num_vectors), (THREADS,),
                                                      rows.detach(), score_gradient, *sizes, TASK_ROWS, partial)
    kernel("attention", "sum_tasks")((-(-num_vectors * dim // THREADS),), (THREADS,), partial, num_tasks,
                                     num_vectors * dim, of_vectors)
    kernel("attention", f"score_gradients_{suffix}")(
        (-(-num_rows * -(-dim // 2) // THREADS),), (THREADS,), gradient, vectors.detach(), score_gradient, num_vectors,
        *sizes, int(alignment(gradient) >= 2))
    return of_vectors


def edge_softmax(matrix, target: torch.Tensor, source: torch.Tensor, slope: float,
                 dtype: torch.dtype = torch.float32) -> torch.Tensor:
    alpha = torch.empty((len(matrix.indices), target.shape[1]), dtype=dtype, device=target.device)
    _over_rows("edge_softmax", matrix, target, source, slope, alpha)
    return alpha


def edge_softmax_backward(matrix, target: torch.Tensor, source: torch.Tensor, slope: float, alpha: torch.Tensor,
                          gradient: torch.Tensor) -> torch.Tensor:
    target_gradient = torch.empty((matrix.num_rows, alpha.shape[1]), device=alpha.device)
    _over_rows("edge_softmax_backward", matrix, target, source, slope, alpha, gradient, target_gradient)
    return target_gradient


def _over_rows(name: str, matrix, target: torch.Tensor, source: torch.Tensor, slope: float, *arguments) -> None:
    num_heads, bound = target.shape[1], matrix.geometry.bound
    if num_heads == 0:
        return
    key = name, num_heads, slope, target.device, arguments[0].dtype
    if key not in bound:
        bound[key] = _bind_over_rows(name, matrix, target, slope, arguments)
    for start in bound[key]:
        start(target, source, *arguments)


def _bind_over_rows(name: str, matrix, target: torch.Tensor, slope: float, arguments: tuple) -> tuple[BoundKernel, ...]:
    arrays = [on_device(array, target) for array in (matrix.begin, matrix.end, matrix.indices)]
    storage = SUFFIX[arguments[0].dtype]
    return tuple(kernel("softmax", f"{name}_{size}_{storage}").bind(
        (-(-len(rows) * threads // THREADS),), (THREADS,), len(rows), on_device(rows, target), *arrays,
        target.shape[1], LATER, LATER, slope, *[LATER] * len(arguments))
        for rows, (size, threads) in zip(matrix.geometry.rows_by_length, ROW_THREADS.items(), strict=True))


def sum_entries(matrix, value: torch.Tensor, entry_index: np.ndarray) -> torch.Tensor:
    num_heads = value.shape[1]
    out = torch.empty((matrix.num_rows, num_heads), device=value.device)
    if out.numel():
        cut = matrix.geometry.segments(0, matrix.num_rows)
        parts = staging(cut, num_heads, value)
        fold_segments("attention", f"sum_entries_{SUFFIX[value.dtype]}", cut, matrix, value, num_heads,
                      on_device(entry_index, value), value.detach(), num_heads, parts, out)
        fold_spilled("aggregation", "aggregate_spilled_f32", cut, value, num_heads, None, 0, 0, parts, out)
    return out


def take_entries(value: torch.Tensor, entry_index: np.ndarray) -> torch.Tensor:
    out = torch.empty((len(entry_index), value.shape[1]), dtype=value.dtype, device=value.device)
    kernel("attention", f"take_entries_{SUFFIX[value.dtype]}")(
        (-(-out.numel() // THREADS),), (THREADS,), on_device(entry_index, value), len(entry_index), value.shape[1],
        value.detach(), out)
    return out


def sampled_products(matrix, left: torch.Tensor, right: torch.Tensor, num_heads: int,
                     vector: int | None = None) -> torch.Tensor:
    out = torch.empty((len(matrix.indices), num_heads), dtype=left.dtype, device=left.device)
    if out.numel() and matrix.num_rows:
        cut, head_dim = matrix.geometry.segments(0, matrix.num_rows), left.shape[1] // num_heads
        vector = vector or _vector(head_dim, left, right)
        key, bound = ("sampled_products", left.dtype, left.device, num_heads, head_dim, vector), matrix.geometry.bound
        if key not in bound:
            bound[key] = kernel("attention", f"sampled_products_{SUFFIX[left.dtype]}").bind(
                (cut.num_blocks,), (cut.threads,), *entry_arguments(cut, matrix, left), LATER, LATER, num_heads,
                head_dim, vector, LATER),
        bound[key][0](left, right, out)
    return out


def sums_by_head(matrix, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    # Heads share all columns, so each is a product of its own.
    return torch.stack([multiply_weighted(matrix, rows, of_head[:, None]) for of_head in weight.t().contiguous()])


def products_by_head(matrix, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return torch.cat([sampled_products(matrix, of_head, right, 1) for of_head in left], 1).float()


def _vector(head_dim: int, *rows: torch.Tensor) -> int:
    vector = alignment(*rows)
    while head_dim % vector:
        vector //= 2
    return vector
