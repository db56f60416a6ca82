"""Attention over a row's entries: scores, edge softmax and products sampled at the entries (SDDMM), with backwards.

Each node has a score as destination and one as source, per head. An edge's score is their sum; a softmax over the edges
of a destination makes it a weight, and `multiply_weighted` sums the weighted rows. Scores and sums are float32; values
of edges have the type that `hpcgnn.ops.aggregation.entry_dtype` states.
"""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn._ext import attention as kernels
from hpcgnn.errors import KernelError
from hpcgnn.ops.aggregation import SparseRows, entry_dtype, multiply_weighted
from hpcgnn.ops.arena import empty
from hpcgnn.ops.dense import map_back, map_rows, weight_gradient
from hpcgnn.ops.dispatch import STORAGE_NUMBER, as_bytes, by_device, check_rows
from hpcgnn.ops.resident import on_device

# For `shares_rows`, measured on an AMD EPYC without AVX-512: products took 15 ps per multiply-add (1.8 times as much if
# a head has 64 columns instead of 256), sums 330 ps per float32 read.
PRODUCTS_A_VALUE, NARROW = 22, 1.8


def head_scores(rows: torch.Tensor, vectors: torch.Tensor, num_heads: int) -> torch.Tensor:
    """score[k, u, head] = <row u, vector k> over the columns of a head; heads share the columns evenly.

    Takes float32 rows and vectors (num_vectors, dim), returns (num_vectors, num_rows, num_heads) float32.
    """
    _check_heads(rows, len(rows), num_heads)
    check_rows(vectors, len(vectors), "attention", torch.float32)
    if vectors.shape[1] != rows.shape[1]:
        raise KernelError(f"attention was given rows of {rows.shape[1]} columns and vectors of {vectors.shape[1]}")
    return _head_scores.on(rows.device)(rows, vectors, num_heads)


def edge_softmax(matrix: SparseRows, target: torch.Tensor, source: torch.Tensor, slope: float,
                 dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """alpha[e, head] = softmax over the entries e = (v, u) of row v of LeakyReLU(target[v, head] + source[u, head]).

    matrix : SparseRows                      scales are ignored; self-loops must be stored entries, else KernelError
    target : (matrix.num_rows, num_heads) float32
    source : (matrix.num_columns, num_heads) float32     minus infinity for an absent column, which gets alpha 0
    slope : float                            slope of LeakyReLU below 0
    dtype : torch.dtype                      type of alpha; float32 on the host

    Returns (num_entries, num_heads) of dtype, rounded once, with a relative error of 2^-11 in float16 (absolute 2^-25
    below 2^-14) or 2^-8 in bfloat16; zeros in a row with absent columns only.

    Reference: Velickovic et al., ICLR 2018, Eq. (3). The row's maximum is subtracted first, so that no exponential
    overflows (HalfGNN, Section 3.1.2) and alpha stays in the range of 16 bits (Section 4.4).
    """
    _check_scores(matrix, target, source)
    return _edge_softmax.on(target.device)(matrix, target, source, slope, dtype)


def edge_softmax_backward(matrix: SparseRows, target: torch.Tensor, source: torch.Tensor, slope: float,
                          alpha: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Replace `gradient` of alpha by the gradient of target[v] + source[u] at each entry; both have one type.

    Returns the gradient of target, its sum over each row: (matrix.num_rows, num_heads) float32.
    """
    _check_scores(matrix, target, source)
    check_rows(alpha, len(matrix.indices), "attention", *_entry_dtypes(alpha))
    check_rows(gradient, len(matrix.indices), "attention", alpha.dtype)
    for value in (alpha, gradient):
        _check_equal_heads(value, target)
    return _edge_softmax_backward.on(target.device)(matrix, target, source, slope, alpha, gradient)


def sum_entries(matrix: SparseRows, value: torch.Tensor, entry_index: np.ndarray) -> torch.Tensor:
    """out[v] = sum of value[entry_index[e]] over the entries e of row v, in order, (num_rows, num_heads) float32."""
    check_rows(value, len(value), "attention", *_entry_dtypes(value))
    _check_index(matrix, entry_index)
    return _sum_entries.on(value.device)(matrix, value, entry_index)


def sampled_products(matrix: SparseRows, left: torch.Tensor, right: torch.Tensor, num_heads: int) -> torch.Tensor:
    """SDDMM: out[e, head] = <left[v], right[u]> over the columns of a head, for each entry e = (v, u).

    left has one row per row of the matrix, right one row per column, both in one storage type. Returns (num_entries,
    num_heads) float32, on a device in the rows' type; summed in float32 and rounded once.

    Reference: HalfGNN, Sections 4.2 and 4.4. Deviation: sums are float32.
    """
    _check_heads(left, matrix.num_rows, num_heads)
    check_rows(right, matrix.num_columns, "attention", left.dtype)
    if left.shape[1] != right.shape[1]:
        raise KernelError(f"attention was given rows of {left.shape[1]} and of {right.shape[1]} columns")
    return _sampled_products.on(left.device)(matrix, left, right, num_heads)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, vectors, adjacency, num_heads, slope, is_present, entry_weight):
        (matrix, transposed, entry_index), z = adjacency, z.contiguous()
        score = head_scores(z, vectors, num_heads)
        if is_present is not None:
            # exp(-inf) = 0, so an absent node gets no share of the softmax.
            score[1].index_fill_(0, on_device(np.flatnonzero(~is_present), score), -torch.inf)
        alpha = edge_softmax(matrix, score[0, :matrix.num_rows], score[1], slope,
                             entry_dtype.on(z.device)(z))
        ctx.save_for_backward(z, vectors, score, alpha, entry_weight)
        ctx.structure = matrix, transposed, entry_index, slope
        return multiply_weighted(matrix, z, _weighed(alpha, entry_weight))

    @staticmethod
    def backward(ctx, gradient):
        z, vectors, score, alpha, entry_weight = ctx.saved_tensors
        matrix, transposed, entry_index, slope = ctx.structure
        gradient = gradient.contiguous()
        # The product passes over the weights once per head, so they are first put into its order.
        of_source = _take_entries.on(z.device)(_weighed(alpha, entry_weight), entry_index)
        z_gradient = multiply_weighted(transposed, gradient, of_source)
        entry_gradient = _weighed(sampled_products(matrix, gradient, z, alpha.shape[1]), entry_weight)
        of_target = edge_softmax_backward(matrix, score[0, :matrix.num_rows], score[1], slope, alpha, entry_gradient)
        of_source = sum_entries(transposed, entry_gradient, entry_index)
        if len(of_target) < len(of_source):      # halo rows are no destinations
            of_target = torch.cat([of_target, of_target.new_zeros(len(of_source) - len(of_target), alpha.shape[1])])
        score_gradient = torch.stack([of_target, of_source])
        return z_gradient, _head_scores_backward.on(z.device)(z, z_gradient, vectors, score_gradient), *[None] * 5


def _weighed(value: torch.Tensor, entry_weight: torch.Tensor | None) -> torch.Tensor:
    return value if entry_weight is None else torch.mul(value, entry_weight[:, None], out=torch.empty_like(value))


def _entry_dtypes(value: torch.Tensor) -> set[torch.dtype]:
    return {torch.float32, entry_dtype.on(value.device)(value)}


def attend(z: torch.Tensor, vectors: torch.Tensor, adjacency: tuple[SparseRows, SparseRows, np.ndarray],
           num_heads: int, slope: float = 0.2, is_present: np.ndarray | None = None,
           entry_weight: torch.Tensor | None = None) -> torch.Tensor:
    """out[v] = sum of w[e] alpha[e] z[u] over the entries e = (v, u) of row v, head by head; v is also a row of z.

    alpha is the edge softmax of <z[v], vectors[0]> + <z[u], vectors[1]>. Differentiable in z and vectors.

    z : (matrix.num_columns, dim) float32, bfloat16 or float16     heads share the columns evenly
    vectors : (2, dim) float32                                     for the destination, for the source
    adjacency : (matrix, transposed, entry_index)                  the same entries by rows and by columns, and the
                                                                   position in matrix, (num_entries,) int64, of each
                                                                   entry of transposed
    slope : float                                                  slope of LeakyReLU below 0
    is_present : (matrix.num_columns,) bool                        rows of z that are sources, all by default; entries
                                                                   of other rows are ignored. All rows must be finite
    entry_weight : (num_entries,) float32                          w, applied after the softmax; 1 by default

    Raises KernelError for self-loops that are not stored.

    Reference: Velickovic et al., ICLR 2018, Eq. (1)-(4).
    """
    matrix, transposed, entry_index = adjacency
    if z.ndim != 2 or len(z) != matrix.num_columns or matrix.num_rows > matrix.num_columns:
        raise KernelError(f"attention needs {matrix.num_columns} rows, the {matrix.num_rows} destinations first, "
                          f"found shape {tuple(z.shape)}")
    if vectors.shape != (2, z.shape[1]):
        raise KernelError(f"attention needs two vectors of {z.shape[1]} columns, found shape {tuple(vectors.shape)}")
    _check_index(transposed, entry_index)
    if is_present is not None and (is_present.dtype != np.bool_ or is_present.shape != (matrix.num_columns,)):
        raise KernelError(f"attention needs a bool is_present of {matrix.num_columns} columns, "
                          f"found {is_present.dtype} of shape {is_present.shape}")
    if entry_weight is not None and (entry_weight.dtype != torch.float32 or entry_weight.shape != matrix.indices.shape):
        raise KernelError(f"attention needs a float32 entry_weight of {len(matrix.indices)} entries, "
                          f"found {entry_weight.dtype} of shape {tuple(entry_weight.shape)}")
    return _Attend.apply(z, vectors, adjacency, num_heads, slope, is_present, entry_weight)


class _AttendShared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, vectors, adjacency, num_heads, slope, is_present, entry_weight, num_back):
        matrix, x, weights = adjacency[0], x.contiguous(), weight.to(x.dtype).chunk(num_heads)
        # <x W, a> = <x, W a>: scores of unmapped rows.
        by_head = vectors.view(2, num_heads, -1).transpose(0, 1)
        target_vectors, source_vectors = (by_head @ torch.stack(weights).float()).unbind(1)
        target, source = _scores(x[:matrix.num_rows], target_vectors), _scores(x, source_vectors)
        if is_present is not None:
            source.index_fill_(0, torch.from_numpy(np.flatnonzero(~is_present)), -torch.inf)
        alpha = edge_softmax(matrix, target, source, slope)
        sums = sums_by_head(matrix, x, _weighed(alpha, entry_weight))
        ctx.save_for_backward(x, weight, vectors, target, source, alpha, entry_weight, sums)
        ctx.structure, ctx.num_back = (*adjacency, slope), num_back
        return torch.cat([map_rows(of_head, of_weight) for of_head, of_weight in zip(sums, weights, strict=True)], 1)

    @staticmethod
    def backward(ctx, gradient):
        x, weight, vectors, target, source, alpha, entry_weight, sums = ctx.saved_tensors
        (matrix, transposed, entry_index, slope), num_heads = ctx.structure, alpha.shape[1]
        weights = weight.to(x.dtype).chunk(num_heads)
        gradients = [part.contiguous() for part in gradient.chunk(num_heads, 1)]
        of_weight = torch.stack([weight_gradient(*pair) for pair in zip(gradients, sums, strict=True)])
        of_sums = torch.zeros_like(sums)
        for part, mapped_by, out in zip(gradients, weights, of_sums, strict=True):
            map_back(part, mapped_by, out=out)
        of_scores = _weighed(products_by_head(matrix, of_sums, x), entry_weight)
        of_target = edge_softmax_backward(matrix, target, source, slope, alpha, of_scores)
        of_source = sum_entries(transposed, of_scores, entry_index)
        num_back = ctx.num_back if ctx.needs_input_grad[0] else 0
        of_x = empty((len(x) if num_back else 0, x.shape[1]), x.dtype)
        if num_back:
            by_source = _take_entries.on(x.device)(_weighed(alpha, entry_weight), entry_index)
            sum_over_heads(transposed.rows(0, num_back), by_source, of_sums, of_x[:num_back])
            of_x[num_back:] = 0
        wide, by_head = torch.stack(weights).float(), vectors.view(2, num_heads, -1).transpose(0, 1)
        target_vectors, source_vectors = (by_head @ wide).unbind(1)
        of_vectors = torch.stack([
            _scores_backward(x[:matrix.num_rows], of_x[:matrix.num_rows], target_vectors, of_target),
            _scores_backward(x, of_x[:num_back], source_vectors, of_source)], 1)      # of W a, head by head
        of_weight += by_head.transpose(1, 2) @ of_vectors
        of_vectors = (of_vectors @ wide.transpose(1, 2)).transpose(0, 1).reshape(vectors.shape)
        return of_x if num_back else None, of_weight.view(weight.shape), of_vectors, *[None] * 6


def _scores(rows: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    return head_scores(rows, vectors.contiguous(), 1)[..., 0].t().contiguous()


def _scores_backward(rows: torch.Tensor, gradient: torch.Tensor, vectors: torch.Tensor,
                     score_gradient: torch.Tensor) -> torch.Tensor:
    return _head_scores_backward.on(rows.device)(rows, gradient, vectors.contiguous(),
                                                 score_gradient.t().contiguous()[..., None])


def attend_shared(x: torch.Tensor, weight: torch.Tensor, vectors: torch.Tensor,
                  adjacency: tuple[SparseRows, SparseRows, np.ndarray], num_heads: int, slope: float = 0.2,
                  is_present: np.ndarray | None = None, entry_weight: torch.Tensor | None = None,
                  num_back: int | None = None) -> torch.Tensor:
    """`attend` of z = x @ weight.T, where each head sums unmapped rows and maps its sum: (matrix.num_rows, out_dim).

    Since sum of alpha[e] x[u] W = (sum of alpha[e] x[u]) W, `num_rows` rows are mapped instead of `num_columns`, which
    pays where a matrix has few rows and many columns; see `shares_rows`. Differentiable in x, weight and vectors. On
    the host only; `attend` describes what is not said here.

    x : (matrix.num_columns, in_dim) float32, bfloat16 or float16
    weight : (out_dim, in_dim) float32        rounded to the type of x for use; heads share its rows evenly
    vectors : (2, out_dim) float32
    num_back : int or None                    only these first rows of x get a gradient, at least matrix.num_rows; the
                                              others get 0. None: all
    """
    matrix, transposed, entry_index = adjacency
    num_back = matrix.num_columns if num_back is None else num_back
    if x.ndim != 2 or len(x) != matrix.num_columns or not matrix.num_rows <= num_back <= len(x):
        raise KernelError(f"attention needs {matrix.num_columns} rows, the {matrix.num_rows} destinations first, with "
                          f"gradients of as many or more, found shape {tuple(x.shape)} and gradients of {num_back}")
    _check_heads(vectors, 2, num_heads)
    if weight.shape[1] != x.shape[1] or vectors.shape != (2, len(weight)):
        raise KernelError(f"attention needs a weight of {x.shape[1]} columns, and two vectors as long as it has rows, "
                          f"found shapes {tuple(weight.shape)} and {tuple(vectors.shape)}")
    _check_index(transposed, entry_index)
    return _AttendShared.apply(x, weight, vectors, adjacency, num_heads, slope, is_present, entry_weight, num_back)


def shares_rows(x: torch.Tensor, adjacency: tuple[SparseRows, SparseRows, np.ndarray], out_dim: int, num_heads: int,
                num_back: int | None = None) -> bool:
    """Whether `attend_shared` is the faster way for `x`; False on a device, which has no kernels for it.

    Counts multiply-adds of products, and values that sums read, forward and backward. With `attend_shared` an entry
    reads two rows of x, and num_heads more if it has a gradient; with all rows mapped, three rows of out_dim columns.
    """
    (matrix, transposed, _), in_dim = adjacency, x.shape[1]
    if not _has_shared_rows.on(x.device)():
        return False
    num_back = (matrix.num_columns if num_back is None else num_back) if x.requires_grad else 0
    entries, entries_back = len(matrix.indices), int(transposed.end[num_back - 1]) if num_back else 0
    a_value = PRODUCTS_A_VALUE * x.element_size() / 4
    read = 2 * in_dim * (entries + matrix.num_columns) + num_heads * in_dim * entries_back
    shared = 3 * NARROW * matrix.num_rows * in_dim * out_dim + a_value * read
    mapped = (2 * matrix.num_columns + num_back) * in_dim * out_dim + a_value * 3 * entries * out_dim
    return shared < mapped


def _check_heads(rows: torch.Tensor, num_rows: int, num_heads: int) -> None:
    check_rows(rows, num_rows, "attention")
    if num_heads < 1 or rows.shape[1] % num_heads:
        raise KernelError(f"{num_heads} heads can't share {rows.shape[1]} columns evenly")


def _check_scores(matrix: SparseRows, target: torch.Tensor, source: torch.Tensor) -> None:
    check_rows(target, matrix.num_rows, "attention", torch.float32)
    check_rows(source, matrix.num_columns, "attention", torch.float32)
    _check_equal_heads(source, target)
    if matrix.num_self:
        raise KernelError(f"attention needs self-loops as stored entries, found {matrix.num_self} implied ones")


def _check_equal_heads(value: torch.Tensor, target: torch.Tensor) -> None:
    if value.shape[1] != target.shape[1]:
        raise KernelError(f"attention was given values of {value.shape[1]} heads and scores of {target.shape[1]}")


def _check_index(matrix: SparseRows, entry_index: np.ndarray) -> None:
    if entry_index.dtype != np.int64 or len(entry_index) != len(matrix.indices):
        raise KernelError(f"attention needs an int64 entry_index of {len(matrix.indices)} entries, "
                          f"found {entry_index.dtype} of {len(entry_index)}")


@by_device("attention")
def _head_scores(rows: torch.Tensor, vectors: torch.Tensor, num_heads: int) -> torch.Tensor:
    score = empty((len(vectors), len(rows), num_heads))
    kernels.head_scores(as_bytes(rows), STORAGE_NUMBER[rows.dtype], rows.shape[1] // num_heads,
                        vectors.detach().numpy(), score.numpy())
    return score


@by_device("attention")
def _head_scores_backward(rows: torch.Tensor, gradient: torch.Tensor, vectors: torch.Tensor,
                          score_gradient: torch.Tensor) -> torch.Tensor:
    partial = np.zeros((-(-len(rows) // kernels.TASK_ROWS), *vectors.shape), np.float32)
    kernels.head_scores_backward(as_bytes(rows), as_bytes(gradient), STORAGE_NUMBER[rows.dtype],
                                 rows.shape[1] // score_gradient.shape[2], vectors.detach().numpy(),
                                 score_gradient.numpy(), partial)
    return torch.from_numpy(partial.sum(axis=0, dtype=np.float64).astype(np.float32))


@by_device("attention")
def _edge_softmax(matrix, target: torch.Tensor, source: torch.Tensor, slope: float,
                  dtype: torch.dtype = torch.float32) -> torch.Tensor:
    alpha = empty((len(matrix.indices), target.shape[1]))
    kernels.edge_softmax(matrix.begin, matrix.end, matrix.tasks, matrix.indices, target.detach().numpy(),
                         source.detach().numpy(), slope, alpha.numpy())
    return alpha


@by_device("attention")
def _edge_softmax_backward(matrix, target: torch.Tensor, source: torch.Tensor, slope: float, alpha: torch.Tensor,
                           gradient: torch.Tensor) -> torch.Tensor:
    target_gradient = empty((matrix.num_rows, alpha.shape[1]))
    kernels.edge_softmax_backward(matrix.begin, matrix.end, matrix.tasks, matrix.indices, target.detach().numpy(),
                                  source.detach().numpy(), slope, alpha.numpy(), gradient.numpy(),
                                  target_gradient.numpy())
    return target_gradient


@by_device("attention")
def _sum_entries(matrix, value: torch.Tensor, entry_index: np.ndarray) -> torch.Tensor:
    out = empty((matrix.num_rows, value.shape[1]))
    kernels.sum_entries(matrix.begin, matrix.end, matrix.tasks, matrix.indices, entry_index, value.detach().numpy(),
                        out.numpy())
    return out


@by_device("attention")
def _take_entries(value: torch.Tensor, entry_index: np.ndarray) -> torch.Tensor:
    out = empty((len(entry_index), value.shape[1]))
    kernels.take_entries(entry_index, value.detach().numpy(), out.numpy())
    return out


@by_device("attention")
def _sampled_products(matrix, left: torch.Tensor, right: torch.Tensor, num_heads: int) -> torch.Tensor:
    out = empty((len(matrix.indices), num_heads))
    kernels.sampled_products(matrix.begin, matrix.end, matrix.tasks, matrix.indices, STORAGE_NUMBER[left.dtype],
                             left.shape[1] // num_heads, as_bytes(left), as_bytes(right), out.numpy())
    return out


@by_device("attention")
def _has_shared_rows() -> bool:
    return True


def sums_by_head(matrix, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """(num_heads, matrix.num_rows, dim): sum of weight[e, head] rows[u] over the entries of each row."""
    return _sums_by_head.on(rows.device)(matrix, rows, weight)


@by_device("attention")
def _sums_by_head(matrix, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    out = empty((weight.shape[1] * matrix.num_rows, rows.shape[1]), rows.dtype)
    kernels.sums_by_head(matrix.begin, matrix.end, matrix.tasks, matrix.indices, weight.numpy(),
                         STORAGE_NUMBER[rows.dtype], as_bytes(rows), as_bytes(out))
    return out.view(weight.shape[1], matrix.num_rows, rows.shape[1])


def products_by_head(matrix, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """(num_entries, num_heads) float32: <left[head, v], right[u]> for each entry (v, u).

    On a device each product is rounded to the rows' type.
    """
    return _products_by_head.on(right.device)(matrix, left, right)


@by_device("attention")
def _products_by_head(matrix, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    out = empty((len(matrix.indices), len(left)))
    kernels.products_by_head(matrix.begin, matrix.end, matrix.tasks, matrix.indices, STORAGE_NUMBER[left.dtype],
                             as_bytes(left.view(-1, left.shape[2])), as_bytes(right), out.numpy())
    return out


def sum_over_heads(matrix, weight: torch.Tensor, rows: torch.Tensor, out: torch.Tensor) -> None:
    """out[v] = sum of weight[e, head] rows[head, u] over the entries of row v and all heads."""
    kernels.sum_over_heads(matrix.begin, matrix.end, matrix.tasks, matrix.indices, weight.numpy(), matrix.num_columns,
                           STORAGE_NUMBER[rows.dtype], as_bytes(rows.view(-1, rows.shape[2])), as_bytes(out))
