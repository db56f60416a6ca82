"""Row-wise operations: dropout, and normalization + ReLU + dropout in one pass, with their backwards.

Masks are not stored. The draw for an element is keyed by its global node id and column, so all ranks mask the same
elements, and backward draws them again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from hpcgnn._ext import pointwise as kernels
from hpcgnn.errors import KernelError
from hpcgnn.ops.arena import empty
from hpcgnn.ops.counter import DRAW_LEVELS, CounterKey
from hpcgnn.ops.dispatch import STORAGE_NUMBER, as_bytes, by_device, check_rows


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows: torch.Tensor, node_id: np.ndarray, key: CounterKey, threshold: int) -> torch.Tensor:
        ctx.arguments = node_id, key, threshold
        return _dropout.on(rows.device)(rows, node_id, key, threshold)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: torch.Tensor):
        masked = _dropout.on(gradient.device)(gradient.contiguous(), *ctx.arguments)
        return masked, None, None, None


def dropout(rows: torch.Tensor, probability: float, node_id: np.ndarray, key: CounterKey) -> torch.Tensor:
    """Zero each element with `probability` and scale the rest, so that the expectation is the input.

    rows : (n, dim) float32, bfloat16 or float16
    probability : float in [0, 1), rounded to a multiple of 2**-16; at 0 `rows` itself is returned
    node_id : (n,) int64            global ids of the rows
    key : CounterKey                purpose DROPOUT

    Raises KernelError for another probability, rows of another type, or ids and rows that disagree in number.
    """
    contiguous, num_rows = rows.contiguous(), rows.shape[0]
    threshold = _threshold_of(probability, node_id, num_rows)
    check_rows(contiguous, num_rows, "dropout")
    return rows if threshold == 0 else _Dropout.apply(contiguous, node_id, key, threshold)


def drop(rows: torch.Tensor, probability: float, node_id: np.ndarray, key: CounterKey,
         out: torch.Tensor | None = None, first_column: int = 0) -> torch.Tensor:
    """`dropout` of contiguous rows without a gradient; `out` may be `rows`, and is new if None.

    Rows may be a range of columns of longer ones, from `first_column` on, a multiple of 8; on the host only.
    """
    num_rows = rows.shape[0]
    threshold = _threshold_of(probability, node_id, num_rows)
    check_rows(rows, num_rows, "dropout")
    of_range = (first_column,) if first_column else ()
    return _dropout.on(rows.device)(rows, node_id, key, threshold, out, *of_range) if threshold else rows


@dataclass(frozen=True)
class Activation:
    """`activate` as two steps, for a layer that stores rows before their activation and activates them again backward.

    weight, bias, eps and num_back are as in `activate`; a threshold of 0 masks nothing.
    """

    weight: torch.Tensor | None
    bias: torch.Tensor | None
    eps: float
    node_id: np.ndarray | None
    key: CounterKey | None
    threshold: int
    num_back: int
    overwrites: ClassVar[bool] = False

    @classmethod
    def of(cls, rows: torch.Tensor, probability: float, node_id: np.ndarray | None, key: CounterKey | None,
           weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, eps: float = 1e-5,
           num_back: int | None = None) -> Activation:
        threshold = _threshold_of(probability, node_id, rows.shape[0]) if probability else 0
        _check_norm(rows, weight, bias)
        if weight is not None and bias is not None:
            weight, bias = weight.contiguous(), bias.contiguous()
        return cls(weight, bias, eps, node_id, key, threshold, rows.shape[0] if num_back is None else num_back)

    def forward(self, rows: torch.Tensor, out: torch.Tensor | None = None) -> tuple[torch.Tensor, tuple]:
        """Return `rows` (all or the first ones) activated, and state for `backward`; without it `out` may be `rows`."""
        check_rows(rows, rows.shape[0], "activation")
        out, moments = _activate.on(rows.device)(rows, self, out)
        return out, (rows, moments)

    def part(self, start: int, stop: int, node_id: np.ndarray) -> Activation:
        if node_id is self.node_id:      # of all rows
            return self
        return replace(self, node_id=None if self.node_id is None else node_id,
                       num_back=min(max(self.num_back - start, 0), stop - start))

    def backward(self, gradient: torch.Tensor, kept: tuple,
                 out: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Write the gradient of rows to `out`, which may be `gradient`, and return the gradients of weight and bias.

        On the host `out` may also be the stored rows.
        """
        (rows, moments), num_back = kept, self.num_back
        out[num_back:] = 0
        return _activate_backward.on(gradient.device)(gradient[:num_back], rows[:num_back], self, moments[:num_back],
                                                      out[:num_back])

    @cached_property
    def draws(self) -> tuple[int, int, int, int, float]:
        """Key, threshold and scale of the dropout, as the host's kernels take them."""
        return _draws(self.key, self.threshold)

    def ids(self, num_rows: int) -> np.ndarray | None:
        return self.node_id if self.node_id is None or len(self.node_id) == num_rows else self.node_id[:num_rows]


class Activating(Protocol):
    """An `Activation`, or one that stores its rows in codes, see `hpcgnn.ops.row_codes.StoredActivation`."""

    @property
    def weight(self) -> torch.Tensor | None: ...

    @property
    def bias(self) -> torch.Tensor | None: ...

    @property
    def overwrites(self) -> bool:
        """Whether `forward` writes to its rows."""

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, tuple]: ...

    def backward(self, gradient: torch.Tensor, kept: tuple,
                 out: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]: ...


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None,
                activation: Activating) -> torch.Tensor:
        out, kept = activation.forward(rows.clone() if activation.overwrites else rows)
        ctx.save_for_backward(*kept)
        ctx.activation = activation
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: torch.Tensor):
        of_rows = empty(gradient.shape, gradient.dtype, gradient.device)
        of_norm = ctx.activation.backward(gradient.contiguous(), ctx.saved_tensors, of_rows)
        return of_rows, *of_norm, None


def activate(rows: torch.Tensor, probability: float, node_id: np.ndarray | None, key: CounterKey | None,
             weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, eps: float = 1e-5,
             num_back: int | None = None) -> torch.Tensor:
    """dropout(max(0, LayerNorm(rows))), in one pass forward and one backward; computed in float32 and rounded once.

    x^ = (x - mean) / sqrt(variance + eps) over a row's columns, u = max(0, x^ * weight + bias), then u is masked like
    the rows of `dropout`. NaN passes the maximum.

    Parameters
    ----------
    rows : (n, dim) float32, bfloat16 or float16
    probability : float in [0, 1), rounded to a multiple of 2**-16
    node_id : (n,) int64            global ids of the rows; not read at probability 0
    key : CounterKey                purpose DROPOUT; not read at probability 0
    weight, bias : (dim,) float32   parameters of the normalization; both None for u = max(0, x)
    eps : float                     added to the variance, which divides by dim
    num_back : int or None          only the first num_back rows get a gradient, the others 0; None: all rows

    Raises KernelError for another probability; rows of another type; ids, weight or bias that do not fit the rows.

    Reference: Ba et al., "Layer normalization", 2016, Eq. (4).
    """
    rows = rows.contiguous()
    return apply_activation(rows, Activation.of(rows, probability, node_id, key, weight, bias, eps, num_back))


def apply_activation(rows: torch.Tensor, activation: Activating) -> torch.Tensor:
    return _Activation.apply(rows, activation.weight, activation.bias, activation)


def _check_norm(rows: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> None:
    if (weight is None) != (bias is None):
        raise KernelError("normalization needs a weight and a bias or neither, found one of them")
    for name, values in (("weight", weight), ("bias", bias)):
        if values is not None and (values.dtype != torch.float32 or values.shape != rows.shape[1:]):
            raise KernelError(f"normalization of {rows.shape[1]} columns needs as many float32 in its {name}, "
                              f"found {values.dtype} of shape {tuple(values.shape)}")


def _threshold_of(probability: float, node_id: np.ndarray, num_rows: int) -> int:
    if not 0.0 <= probability < 1.0:
        raise KernelError(f"dropout probability must lie in [0, 1), found {probability}")
    if len(node_id) != num_rows:
        raise KernelError(f"dropout was given {num_rows} rows and {len(node_id)} node ids")
    if node_id.dtype != np.int64:
        raise KernelError(f"dropout needs int64 node ids, found {node_id.dtype}")
    return min(round(probability * DRAW_LEVELS), DRAW_LEVELS - 1)


ROWS_A_THREAD, MAX_BLOCKS = 256, 1024     # rows over which one thread sums weight gradients, and limit of blocks


@by_device("pointwise")
def _dropout(rows: torch.Tensor, node_id: np.ndarray, key: CounterKey, threshold: int,
             out: torch.Tensor | None = None, first_column: int = 0) -> torch.Tensor:
    out = empty(rows.shape, rows.dtype) if out is None else out
    kernels.dropout_rows(as_bytes(rows), node_id, *_draws(key, threshold), as_bytes(out), STORAGE_NUMBER[rows.dtype],
                         first_column)
    return out


@by_device("pointwise")
def _activate(rows: torch.Tensor, how: Activation,
              out: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    out = empty(rows.shape, rows.dtype) if out is None else out
    moments = torch.empty(0 if how.weight is None else rows.shape[0], 2)
    kernels.activate_rows(as_bytes(rows), STORAGE_NUMBER[rows.dtype],
                          how.ids(rows.shape[0]) if how.threshold else None, *how.draws, how.weight, how.bias,
                          how.eps, moments.numpy(), as_bytes(out))
    return out, moments


@by_device("pointwise")
def _activate_backward(gradient: torch.Tensor, rows: torch.Tensor, how: Activation, moments: torch.Tensor,
                       out: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    num_blocks = min(-(-rows.shape[0] // ROWS_A_THREAD), MAX_BLOCKS)
    sums = np.empty((num_blocks, 3, rows.shape[1]), np.float32)
    # Zeros, since nothing is written if there are no rows.
    weight_gradient = None if how.weight is None else torch.zeros_like(how.weight)
    bias_gradient = None if how.bias is None else torch.zeros_like(how.bias)
    kernels.activate_backward(as_bytes(rows), STORAGE_NUMBER[rows.dtype],
                              how.ids(rows.shape[0]) if how.threshold else None, *how.draws, how.weight, how.bias,
                              how.eps, moments.numpy(), as_bytes(gradient), sums, as_bytes(out), weight_gradient,
                              bias_gradient)
    return weight_gradient, bias_gradient


def _draws(key: CounterKey | None, threshold: int) -> tuple[int, int, int, int, float]:
    if key is None or threshold == 0:
        return 0, 0, 0, 0, 1.0
    return key.seed, key.epoch, key.stream, threshold, DRAW_LEVELS / (DRAW_LEVELS - threshold)
