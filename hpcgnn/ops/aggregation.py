"""Aggregation: a sparse matrix times dense rows (SpMM), and the maximum over a row's entries, with their backwards.

A rank's matrix has inner rows and, as columns, inner and halo nodes: the near rows, and the far rows that messages
bring. Far rows may stay packed in their messages; the product decodes them while it gathers. Threads take ranges of
rows with about equally many entries, and each row is summed in the order of its entries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from hpcgnn._ext import aggregation as kernels
from hpcgnn.errors import KernelError
from hpcgnn.ops.arena import empty
from hpcgnn.ops.dispatch import STORAGE_NUMBER, as_bytes, by_device, check_rows
from hpcgnn.ops.quantization import LARGEST_PARAMETER_WIDTH, Buffer
from hpcgnn.ops.resident import make_resident

if TYPE_CHECKING:
    from hpcgnn.ops.cuda.segments import Geometry

ENTRIES_A_TASK = 4096     # about this many entries per task of a thread
ENTRIES_A_ROW = 8         # cost of a row itself, in entries


@dataclass(frozen=True)
class SparseRows:
    """A sparse matrix by rows, scaled on both sides: row_scale[v] * A[v, u] * column_scale[u].

    begin, end : (num_rows,) int64              row v has the entries begin[v] .. end[v] - 1
    indices : (num_entries,) int32, columns in [0, num_columns)
    num_columns : int
    num_self : int                              rows v < num_self also have an entry (v, v) that is not stored
    row_scale : (num_rows,) float32 or None     None means 1
    column_scale : (num_columns,) float32 or None
    entry_scale : (num_entries,) float32 or None     A[v, u]; None means 1, as for implied self-loops
    split : int or None                         columns below it are near rows, the others far; None: the number of the
                                                given near rows
    num_near : int or None                      number of near rows, if no entry names the columns between it and
                                                `split`
    has_half_sums : bool                        a GPU adds products of 16-bit rows 16 at a time in the rows' own type:
                                                error up to 17 units of 2^-11 (float16) or 2^-8 (bfloat16) of a batch's
                                                sum of magnitudes; see kernels/arithmetic.cuh

    Reference: HalfGNN, section 4.3.1, for `has_half_sums`.
    """

    begin: np.ndarray
    end: np.ndarray
    indices: np.ndarray
    num_columns: int
    num_self: int = 0
    row_scale: np.ndarray | None = None
    column_scale: np.ndarray | None = None
    entry_scale: np.ndarray | None = None
    split: int | None = None
    num_near: int | None = None
    has_half_sums: bool = False

    def __post_init__(self):
        make_resident(self, "begin", "end", "indices", "row_scale", "column_scale", "entry_scale")

    @cached_property
    def num_rows(self) -> int:
        return len(self.begin)

    @cached_property
    def geometry(self) -> Geometry:
        """How a device works through the entries."""
        from hpcgnn.ops.cuda.segments import Geometry

        return Geometry(self)

    @cached_property
    def tasks(self) -> np.ndarray:
        """Bounds of row ranges with about equally many entries, (num_tasks + 1,) int64.

        Raises KernelError for entries that are not stored, or columns that no table has.
        """
        # Every product asks for the tasks, so the matrix is checked here, once; kernels trust it.
        self._check()
        # Equal shares of work: the row of a hub is one task, many short rows share one.
        work = np.cumsum(self.end - self.begin + ENTRIES_A_ROW)
        total = int(work[-1]) if len(work) else 0
        cuts = np.searchsorted(work, np.arange(ENTRIES_A_TASK, total, ENTRIES_A_TASK), side="right")
        return np.unique(np.concatenate([[0], cuts, [self.num_rows]])).astype(np.int64)

    def _check(self) -> None:
        typed = [("begin", self.begin, np.int64, self.num_rows), ("end", self.end, np.int64, self.num_rows),
                 ("indices", self.indices, np.int32, len(self.indices)),
                 ("row_scale", self.row_scale, np.float32, self.num_rows),
                 ("column_scale", self.column_scale, np.float32, self.num_columns),
                 ("entry_scale", self.entry_scale, np.float32, len(self.indices))]
        for name, array, dtype, length in typed:
            if array is not None and (array.dtype != dtype or array.shape != (length,) or not array.flags.c_contiguous):
                raise KernelError(f"{name} of a sparse matrix is {array.dtype} of shape {array.shape}; "
                                  f"expected contiguous {np.dtype(dtype)} of shape ({length},)")
        split = self.num_columns if self.split is None else self.split
        no_row = split if self.num_near is None else self.num_near
        if not 0 <= self.num_self <= min(self.num_rows, no_row):
            raise KernelError(f"a sparse matrix of {self.num_rows} rows with {no_row} near columns has "
                              f"{self.num_self} self-loops")
        # A column in [no_row, split) would be read beyond the near rows.
        bad = kernels.first_bad_row(self.begin, self.end, self.indices, self.num_columns, no_row, split)
        if bad >= 0:
            raise KernelError(f"row {bad} of a sparse matrix has entries {self.begin[bad]} to {self.end[bad]} of "
                              f"{len(self.indices)}, or an entry with a column that no table of rows has, of "
                              f"{self.num_columns}; make the matrix again from a checked graph")

    def tasks_of(self, start: int, stop: int) -> np.ndarray:
        if (start, stop) not in self._tasks_of:
            inner = self.tasks[np.searchsorted(self.tasks, start, "right"):np.searchsorted(self.tasks, stop)]
            self._tasks_of[start, stop] = np.concatenate([[start], inner, [stop]]).astype(np.int64)
        return self._tasks_of[start, stop]

    @cached_property
    def _tasks_of(self) -> dict[tuple[int, int], np.ndarray]:
        return {}

    def rows(self, start: int, stop: int) -> SparseRows:
        """The matrix of rows start .. stop - 1. Raises KernelError if it starts among rows with implied self-loops."""
        if 0 < start < self.num_self:
            raise KernelError(f"rows with self-loops must be taken from row 0, found {start} of {self.num_self}")
        row_scale = None if self.row_scale is None else self.row_scale[start:stop]
        return replace(self, begin=self.begin[start:stop], end=self.end[start:stop], row_scale=row_scale,
                       num_self=0 if start else min(self.num_self, stop))


@dataclass(frozen=True)
class PackedRows:
    """Far rows as stored in messages, decoded while they are gathered: fewer bytes are read, without a dense copy.

    message : (num_bytes,) uint8                              see `hpcgnn.ops.quantization`; on the rows' device
    bit_width : (num_far,) uint8, of 1, 2, 4, 8
    payload_offset, parameter_offset : (num_far,) int64       bytes from the start of `message`
    """

    message: Buffer
    bit_width: np.ndarray
    payload_offset: np.ndarray
    parameter_offset: np.ndarray

    def __post_init__(self):
        make_resident(self, "bit_width", "payload_offset", "parameter_offset")

    def __len__(self) -> int:
        return len(self.bit_width)

    @cached_property
    def _fitting(self) -> set[int]:
        return set()

    def check(self, dim: int) -> None:
        """Check once that every row of `dim` columns lies within the message; rows on a device are trusted."""
        if not len(self) or dim in self._fitting or not isinstance(self.message, np.ndarray):
            return
        outside = kernels.first_outside(self.message, self.bit_width, self.payload_offset, self.parameter_offset, dim)
        if outside >= 0:
            raise KernelError(f"packed row {outside} of {dim} columns at {self.bit_width[outside]} bits does not lie "
                              f"within its message of {len(self.message)} bytes")
        self._fitting.add(dim)


FarRows: TypeAlias = torch.Tensor | PackedRows | None


def from_csr(indptr: np.ndarray, indices: np.ndarray, num_columns: int, **scaling) -> SparseRows:
    """Matrix of a CSR: indptr (num_rows + 1,) int64, indices int32."""
    return SparseRows(indptr[:-1], indptr[1:], indices, num_columns, **scaling)


def multiply(matrix: SparseRows, near: torch.Tensor, far: FarRows = None) -> torch.Tensor:
    """matrix @ [near; far], summed in float32 and stored once in the rows' type.

    Each row is summed in the order of its entries, for any number of threads.

    near : (n, dim) float32, bfloat16 or float16
    far : (m, dim) as near, PackedRows of m rows, or None if m is 0. n + m = matrix.num_columns, or
        n = matrix.num_near and m = matrix.num_columns - matrix.split
    """
    out = empty((matrix.num_rows, near.shape[-1]), near.dtype, near.device)
    _check_tables(matrix, near, far)
    _multiply.on(near.device)(matrix, near, far, out, matrix.tasks, is_added=False)
    return out


def add_product(matrix: SparseRows, near: torch.Tensor, far: FarRows, out: torch.Tensor) -> None:
    """Add matrix @ [near; far] to `out` (matrix.num_rows, dim), rounding once; see `multiply`."""
    _check_tables(matrix, near, far, out)
    _multiply.on(near.device)(matrix, near, far, out, matrix.tasks, is_added=True)


def multiply_span(matrix: SparseRows, near: torch.Tensor, far: FarRows, out: torch.Tensor,
                  span: tuple[int, int]) -> None:
    """Store rows start .. stop - 1 of `multiply` in `out`. Far rows that they do not sum may still be travelling."""
    _check_tables(matrix, near, far, out)
    if not 0 <= span[0] <= span[1] <= matrix.num_rows:
        raise KernelError(f"a span of rows lies in [0, {matrix.num_rows}], found {span}")
    _multiply.on(near.device)(matrix, near, far, out, matrix.tasks_of(*span), is_added=False)


def multiply_weighted(matrix: SparseRows, near: torch.Tensor, entry_scale: torch.Tensor,
                      entry_index: np.ndarray | None = None) -> torch.Tensor:
    """The product with one weight per entry and head, for (matrix.num_columns, dim) rows; heads share columns evenly.

    entry_scale is (num_weights, num_heads) float32, on a device also of near's type; entry_index, (num_entries,) int64,
    is the row of entry_scale for each entry, by default the entry's own number.

    Raises KernelError for a matrix with a column_scale, an entry_scale or implied self-loops.
    """
    out = empty((matrix.num_rows, near.shape[-1]), near.dtype, near.device)
    _check_tables(matrix, near, None)
    _check_entry_scale(matrix, near, entry_scale, entry_index)
    _multiply_weighted.on(near.device)(matrix, near, entry_scale, entry_index, out)
    return out


def _check_tables(matrix: SparseRows, near: torch.Tensor, far: FarRows, out: torch.Tensor | None = None) -> None:
    num_far = 0
    if isinstance(far, PackedRows):
        num_far = len(far)
        _check_packed(far, near.shape[-1])
    elif far is not None:
        num_far = far.shape[0]
    split = matrix.num_columns - num_far if matrix.split is None else matrix.split
    check_rows(near, split if matrix.num_near is None else matrix.num_near, "aggregation")
    if split + num_far != matrix.num_columns:
        raise KernelError(f"aggregation needs {matrix.num_columns - split} far rows, found {num_far}")
    for rows, num_rows in ((far, num_far), (out, matrix.num_rows)):
        if isinstance(rows, torch.Tensor):
            check_rows(rows, num_rows, "aggregation", near.dtype)
            if rows.shape[1] != near.shape[1]:
                raise KernelError(f"aggregation was given rows of {near.shape[1]} and {rows.shape[1]} columns")


def _check_packed(packed: PackedRows, dim: int) -> None:
    if len(packed) and packed.bit_width.max() > LARGEST_PARAMETER_WIDTH:
        raise KernelError(f"packed rows have 1 to {LARGEST_PARAMETER_WIDTH} bits, found {packed.bit_width.max()}")
    packed.check(dim)


def _check_entry_scale(matrix: SparseRows, near: torch.Tensor, entry_scale: torch.Tensor,
                       entry_index: np.ndarray | None) -> None:
    dim, stored = near.shape[1], entry_dtype.on(near.device)(near)
    num_scales = len(entry_scale) if entry_index is not None else len(matrix.indices)
    check_rows(entry_scale, num_scales, "aggregation", *{torch.float32, stored})
    if entry_index is not None and (entry_index.dtype != np.int64 or len(entry_index) != len(matrix.indices)):
        raise KernelError(f"aggregation needs an int64 entry_index of {len(matrix.indices)} entries, "
                          f"found {entry_index.dtype} of {len(entry_index)}")
    if entry_scale.shape[1] == 0 or dim % entry_scale.shape[1]:
        raise KernelError(f"{entry_scale.shape[1]} heads can't share {dim} columns evenly")
    if matrix.column_scale is not None or matrix.entry_scale is not None or matrix.num_self:
        raise KernelError("entries that are weighed by head take no column_scale, entry_scale or implied self-loops; "
                          "store the self-loops, and multiply the weights")


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h: torch.Tensor, matrix: SparseRows, transposed: SparseRows) -> torch.Tensor:
        ctx.transposed = transposed
        return multiply(matrix, h.contiguous())

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        return multiply(ctx.transposed, gradient.contiguous()), None, None


def aggregate(h: torch.Tensor, matrix: SparseRows, transposed: SparseRows) -> torch.Tensor:
    """matrix @ h, differentiable in h; `transposed` is the same matrix by columns.

    Raises KernelError if h does not have one row of a storage type per column of the matrix.
    """
    if h.ndim != 2 or len(h) != matrix.num_columns:
        raise KernelError(f"aggregation needs {matrix.num_columns} rows, found shape {tuple(h.shape)}")
    return _Aggregate.apply(h, matrix, transposed)


def chosen_rows(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rows of `table` (m, dim) by number, (n,) int64: (n, dim).

    The gradient of a row that is chosen several times adds in the same order in every run, on a device too, where that
    of `index_select` does not.
    """
    return table.index_select(0, index) if table.device.type == "cpu" else table[index]


@by_device("aggregation")
def _multiply(matrix, near: torch.Tensor, far, out: torch.Tensor, tasks: np.ndarray, is_added: bool) -> None:
    entry_scale = None if matrix.entry_scale is None else matrix.entry_scale[:, None]
    _aggregate(matrix, near, far, out, tasks, is_added, entry_scale)


@by_device("aggregation")
def _multiply_weighted(matrix, near: torch.Tensor, entry_scale: torch.Tensor, entry_index: np.ndarray | None,
                       out: torch.Tensor) -> None:
    _aggregate(matrix, near, None, out, matrix.tasks, False, entry_scale.detach().numpy(), entry_index)


def _aggregate(matrix, near: torch.Tensor, far, out: torch.Tensor, tasks: np.ndarray, is_added: bool,
               entry_scale: np.ndarray | None = None, entry_index: np.ndarray | None = None) -> None:
    split = near.shape[0] if matrix.split is None else matrix.split
    is_dense = isinstance(far, torch.Tensor)
    packed = None if is_dense or far is None else (far.message, far.bit_width, far.payload_offset, far.parameter_offset)
    kernels.aggregate_rows(matrix.begin, matrix.end, tasks, matrix.indices, matrix.row_scale, matrix.column_scale,
                           entry_scale, entry_index, matrix.num_self, STORAGE_NUMBER[near.dtype], near.shape[1], split,
                           as_bytes(near), as_bytes(far) if is_dense else None, is_added, as_bytes(out), packed)


@by_device("aggregation")
def entry_dtype(rows: torch.Tensor) -> torch.dtype:
    """Type of the entries' values for these rows: float32 on the host, the rows' type on a device."""
    return torch.float32


def row_maximum(matrix: SparseRows, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """out[v, j] = largest h[u, j] over the entries u of row v, and the u that has it.

    `matrix` is unscaled with stored self-loops, else KernelError; h is (matrix.num_columns, dim) float32, bfloat16 or
    float16. Returns out (matrix.num_rows, dim), 0 for a row without entries and NaN if an entry is NaN, and argmax in
    int32: the first largest entry, or -1.
    """
    check_rows(h, matrix.num_columns, "maximum")
    scales = matrix.entry_scale, matrix.row_scale, matrix.column_scale
    if matrix.num_self or any(scale is not None for scale in scales):
        raise KernelError("maximum needs a matrix without scales and with self-loops as stored entries")
    return _maximum.on(h.device)(matrix, h)


class _Maximum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h: torch.Tensor, matrix: SparseRows, transposed: SparseRows) -> torch.Tensor:
        out, argmax = row_maximum(matrix, h.contiguous())
        # The gradient only needs the number of the largest row.
        ctx.save_for_backward(argmax)
        ctx.transposed = transposed
        return out

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        argmax, = ctx.saved_tensors
        return _maximum_backward.on(gradient.device)(ctx.transposed, gradient.contiguous(), argmax), None, None


def maximum(h: torch.Tensor, matrix: SparseRows, transposed: SparseRows) -> torch.Tensor:
    """`row_maximum` without argmax, differentiable in h: a gradient goes to the first largest row.

    `transposed` has the entries of `matrix` by columns, ascending in each column; errors as in `row_maximum`.
    """
    if h.ndim != 2 or len(h) != matrix.num_columns:
        raise KernelError(f"maximum needs {matrix.num_columns} rows, found shape {tuple(h.shape)}")
    return _Maximum.apply(h, matrix, transposed)


@by_device("aggregation")
def _maximum(matrix, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    from hpcgnn._ext import maximum

    shape = matrix.num_rows, h.shape[1]
    out, argmax = empty(shape, h.dtype), empty(shape, torch.int32)
    maximum.maximum_forward(matrix.begin, matrix.end, matrix.tasks, matrix.indices, STORAGE_NUMBER[h.dtype],
                            h.shape[1], as_bytes(h), as_bytes(out), argmax.numpy())
    return out, argmax


@by_device("aggregation")
def _maximum_backward(transposed, gradient: torch.Tensor, argmax: torch.Tensor) -> torch.Tensor:
    from hpcgnn._ext import maximum

    out = empty((transposed.num_rows, gradient.shape[1]), gradient.dtype)
    maximum.maximum_backward(transposed.begin, transposed.end, transposed.tasks, transposed.indices,
                             STORAGE_NUMBER[gradient.dtype], gradient.shape[1], as_bytes(gradient), argmax.numpy(),
                             as_bytes(out))
    return out
