"""Sums over neighbors by relation, with matrices that are sums of a few basis matrices (R-GCN), and their gradients.

An entry (v, u) of a matrix has a relation r and a scale. `relational_sum` computes

    out[v] = sum over the entries of v of scale * W_r x[u],   W_r = sum over b of coefficient[r, b] * basis[b].

The rows are summed first, once for each basis, with scale * coefficient[r, b] as weights; one product then maps the
sums of all bases, which lie side by side. Example: of 100 relations and 8 bases a row has 8 sums, not 100, and its
neighbor's row is read once. The sums of a block of rows are mapped before those of the next block are computed, so
memory holds one block of them. `sum_of_mapped` takes rows that all bases have mapped: fewer columns, if x is wide.
`block_diagonal_sum` has a block-diagonal matrix for each relation; it sums the rows of one relation after another.

Backward: the gradient of x is the same sum over the transposed entries, with transposed matrices. The gradient of a
weight is a product of two rows at its entry; the coefficients' gradient sums these products by relation.

A device has long blocks, and keeps the matrices of each: it sums the rows once for each basis, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops import spans
from hpcgnn.ops.aggregation import SparseRows, from_csr, multiply, multiply_weighted
from hpcgnn.ops.arena import empty
from hpcgnn.ops.attention import products_by_head, sum_entries, sums_by_head
from hpcgnn.ops.dense import map_back, map_rows, weight_gradient
from hpcgnn.ops.resident import make_resident, on_device, resident

BLOCK_VALUES, LEAST_ROWS = 1 << 20, 64      # values of a block's sums, which stay in the cache; rows of a block
COUNTS_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class RelationEntries:
    """The entries of a matrix without scales, row after row, each with its relation and its scale.

    matrix : SparseRows
    relation : (num_entries,) int32
    scale : (num_entries,) float32
    """

    matrix: SparseRows
    relation: np.ndarray
    scale: np.ndarray

    def __post_init__(self) -> None:
        make_resident(self, "relation", "scale")

    def blocks(self, num_columns: int, num_rows: int | None = None,
               device: str = "cpu") -> Iterator[tuple[int, int, RelationEntries]]:
        """Yield (start, stop, entries of these rows) for the first `num_rows` rows, whose sums have `num_columns`."""
        num_rows = self.matrix.num_rows if num_rows is None else num_rows
        step = max(LEAST_ROWS, BLOCK_VALUES // max(1, num_columns))
        for start, stop in ([(start, min(start + step, num_rows)) for start in range(0, num_rows, step)]
                            if device == "cpu" else spans.blocks(0, num_rows, device)):
            yield start, stop, self._part(start, stop) if device == "cpu" else self._kept(start, stop)

    def _part(self, start: int, stop: int) -> RelationEntries:
        begin, end = self.matrix.begin[start:stop], self.matrix.end[start:stop]
        entries = slice(int(begin[0]), int(end[-1]))
        matrix = replace(self.matrix, begin=begin - entries.start, end=end - entries.start,
                         indices=self.matrix.indices[entries])
        return RelationEntries(matrix, self.relation[entries], self.scale[entries])

    def _kept(self, start: int, stop: int) -> RelationEntries:
        # A device's copies of a block live as long as the block.
        if (start, stop) == (0, self.matrix.num_rows):
            return self
        if (start, stop) not in self._parts:
            self._parts[start, stop] = self._part(start, stop)
        return self._parts[start, stop]

    @cached_property
    def _parts(self) -> dict[tuple[int, int], RelationEntries]:
        return {}

    @cached_property
    def grouped(self) -> Grouped:
        """The entries relation after relation, and within a relation row after row."""
        matrix, relation = self.matrix, self.relation
        row = np.repeat(np.arange(matrix.num_rows), matrix.end - matrix.begin)
        order = np.argsort(relation, kind="stable")
        relation, row = relation[order], row[order]
        first = np.flatnonzero((np.diff(relation, prepend=-1) != 0) | (np.diff(row, prepend=-1) != 0))
        indptr = np.append(first, len(order))
        sums = SparseRows(indptr[:-1], indptr[1:], matrix.indices[order], matrix.num_columns,
                          entry_scale=self.scale[order])
        numbers, starts, counts = np.unique(relation[first], return_index=True, return_counts=True)
        return Grouped(sums, row[first], list(zip(
            numbers.tolist(), starts.tolist(), (starts + counts).tolist(), strict=True)), {})

    @cached_property
    def _by_relation(self) -> tuple[SparseRows, np.ndarray]:
        """A matrix with a row for each relation, and the entry that each of its entries stands for."""
        order = np.argsort(self.relation, kind="stable")
        bounds = np.searchsorted(self.relation[order], np.arange(int(self.relation.max(initial=-1)) + 2))
        return from_csr(bounds.astype(np.int64), np.zeros(len(order), np.int32), 1), resident(order)

    def weights(self, coefficient: torch.Tensor) -> torch.Tensor:
        """scale * coefficient[relation], (num_entries, num_bases) float32."""
        relation, scale = (on_device(array, coefficient) for array in (self.relation, self.scale))
        return coefficient.index_select(0, relation).mul_(scale[:, None])

    def add_coefficient_gradient(self, of_weights: torch.Tensor, total: torch.Tensor) -> None:
        """Add to `total`, (num_relations, num_bases) float64, from the gradient of `weights`.

        Sums are float64 on the host, and float32 on a device.
        """
        scaled = of_weights.mul_(on_device(self.scale, of_weights)[:, None])
        if total.device.type == "cpu":
            relation = self.relation.astype(np.intp)
            for column, of_basis in zip(total.numpy().T, scaled.numpy().T, strict=True):
                column += np.bincount(relation, of_basis, minlength=len(total))
            return
        by_relation, entry_index = self._by_relation
        total[:by_relation.num_rows] += sum_entries(by_relation, scaled, entry_index)


class Grouped(NamedTuple):
    """A sum for each relation and row that has entries of it."""

    sums: SparseRows                            # a row per sum, by relation
    row: np.ndarray                             # (num_sums,) int64, the row that it belongs to
    bounds: list[tuple[int, int, int]]          # relation, and its sums: start, stop
    kept: dict[int, list[tuple[int, np.ndarray, SparseRows]]]      # a device's pieces, with their copies there

    def pieces(self, rows: torch.Tensor) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Yield (relation, rows that sums belong to, sums of `rows`) for some sums of one relation at a time."""
        is_host = rows.device.type == "cpu"
        step = max(LEAST_ROWS, BLOCK_VALUES // max(1, rows.shape[1])) if is_host else spans.MIN_DEVICE_BLOCK
        made = self._cut(step) if is_host else self.kept.get(step) or self.kept.setdefault(step, list(self._cut(step)))
        for relation, row, sums in made:
            yield relation, on_device(row, rows), multiply(sums, rows).float()

    def _cut(self, step: int) -> Iterator[tuple[int, np.ndarray, SparseRows]]:
        for relation, first, last in self.bounds:
            for start in range(first, last, step):
                stop = min(start + step, last)
                yield relation, resident(self.row[start:stop]), self.sums.rows(start, stop)


class Relations(NamedTuple):
    by_target: RelationEntries      # per inner node, the local rows of its in-neighbors
    by_source: RelationEntries      # per inner or halo node, the local rows of its out-neighbors

    @classmethod
    def of(cls, adjacency: tuple[SparseRows, SparseRows, np.ndarray], relation: np.ndarray) -> Relations:
        """The scale of an entry is 1 / the number of entries of its row and relation.

        adjacency : (matrix, transposed, entry_index)      see `hpcgnn.ops.attention.attend`
        relation : (num_entries,) int32, at least 0        by the entries of `matrix`

        Raises KernelError for another number of relations than of entries.
        """
        matrix, transposed, entry_index = adjacency
        if len(relation) != len(matrix.indices):
            raise KernelError(f"a matrix of {len(matrix.indices)} entries was given {len(relation)} relations")
        relation = relation.astype(np.int32, copy=False)
        scale = _inverse_counts(matrix, relation)
        return cls(RelationEntries(matrix, np.ascontiguousarray(relation), scale),
                   RelationEntries(transposed, relation[entry_index], scale[entry_index]))

    @property
    def arrays(self) -> list[np.ndarray]:
        found = [values for entries in self for values in (
            entries.matrix.begin, entries.matrix.end, entries.matrix.indices, entries.relation, entries.scale)]
        made = [entries.grouped for entries in self if "grouped" in vars(entries)]
        return found + [values for one in made for values in (
            one.sums.begin, one.sums.end, one.sums.indices, one.sums.entry_scale, one.row)]


def _inverse_counts(matrix: SparseRows, relation: np.ndarray) -> np.ndarray:
    scale = np.empty(len(relation), np.float32)
    num_relations = int(relation.max(initial=0)) + 1
    step = max(1, COUNTS_AT_ONCE // num_relations)
    for start in range(0, matrix.num_rows, step):
        begin, end = matrix.begin[start:start + step], matrix.end[start:start + step]
        entries = slice(int(begin[0]), int(end[-1]))
        pair = np.repeat(np.arange(len(begin)) * num_relations, end - begin) + relation[entries]
        scale[entries] = 1 / np.bincount(pair)[pair]
    return scale


class _RelationalSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, basis, coefficient, relations, num_back):
        x = x.contiguous()
        ctx.save_for_backward(x, basis, coefficient)
        ctx.relations, ctx.num_back = relations, num_back
        out = empty((relations.by_target.matrix.num_rows, basis.shape[1]), x.dtype, x.device)
        _mapped_sums(relations.by_target, x, _joined(basis, x.dtype), coefficient, out)
        return out

    @staticmethod
    def backward(ctx, gradient):
        x, basis, coefficient = ctx.saved_tensors
        num_bases, out_dim, in_dim = basis.shape
        relations, gradient, weight = ctx.relations, gradient.contiguous(), _joined(basis, x.dtype)
        of_weight = torch.zeros(out_dim, num_bases * in_dim, device=x.device)
        of_coefficient = torch.zeros_like(coefficient, dtype=torch.float64) if ctx.needs_input_grad[2] else None
        for start, stop, block in relations.by_target.blocks(num_bases * in_dim, device=x.device.type):
            of_rows = gradient[start:stop]
            sums = sums_by_head(block.matrix, x, block.weights(coefficient))
            of_weight += weight_gradient(of_rows, _side_by_side(sums))
            if of_coefficient is not None:
                of_sums = _by_basis(map_back(of_rows, weight), num_bases)
                block.add_coefficient_gradient(products_by_head(block.matrix, of_sums, x), of_coefficient)
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x, num_back = empty(x.shape, x.dtype, x.device), len(x) if ctx.num_back is None else ctx.num_back
            _mapped_sums(relations.by_source, gradient, _joined(basis.transpose(1, 2), x.dtype), coefficient,
                         of_x[:num_back])
            of_x[num_back:] = 0
        return (of_x, of_weight.view(out_dim, num_bases, in_dim).transpose(0, 1),
                None if of_coefficient is None else of_coefficient.float(), None, None)


def relational_sum(x: torch.Tensor, basis: torch.Tensor, coefficient: torch.Tensor, relations: Relations,
                   num_back: int | None = None) -> torch.Tensor:
    """Sum the rows of neighbors, mapped by the matrices of their relations: (num_inner, out_dim) of x's type.

    Differentiable in x, basis and coefficient. Sums are float32.

    x : (num_columns, in_dim) float32, bfloat16 or float16
    basis : (num_bases, out_dim, in_dim) float32            rounded to the type of x for use
    coefficient : (num_relations, num_bases) float32
    num_back : int or None      only these first rows of x get a gradient, the others get 0; None: all

    Raises KernelError for shapes that do not fit.

    Reference: Schlichtkrull et al., ESWC 2018, Eq. (2) and (3).
    """
    _check(x, relations, basis.shape[2], basis.shape[0], coefficient)
    return _RelationalSum.apply(x, basis, coefficient, relations, num_back)


class _SumOfMapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, mapped, coefficient, relations):
        mapped, num_bases = mapped.contiguous(), coefficient.shape[1]
        ctx.save_for_backward(mapped, coefficient)
        ctx.relations = relations
        out = empty((relations.by_target.matrix.num_rows, mapped.shape[1] // num_bases), mapped.dtype, mapped.device)
        for start, stop, block in relations.by_target.blocks(mapped.shape[1], device=mapped.device.type):
            sums = multiply_weighted(block.matrix, mapped, block.weights(coefficient))
            out[start:stop] = sums.view(stop - start, num_bases, -1).sum(1, dtype=torch.float32)
        return out

    @staticmethod
    def backward(ctx, gradient):
        (mapped, coefficient), gradient = ctx.saved_tensors, gradient.contiguous()
        of_mapped, num_bases = empty(mapped.shape, mapped.dtype, mapped.device), coefficient.shape[1]
        of_coefficient = torch.zeros_like(coefficient, dtype=torch.float64) if ctx.needs_input_grad[1] else None
        for start, stop, block in ctx.relations.by_source.blocks(mapped.shape[1], device=mapped.device.type):
            sums = sums_by_head(block.matrix, gradient, block.weights(coefficient))
            of_mapped[start:stop] = _side_by_side(sums)
            if of_coefficient is not None:
                products = products_by_head(block.matrix, _by_basis(mapped[start:stop], num_bases), gradient)
                block.add_coefficient_gradient(products, of_coefficient)
        return of_mapped, None if of_coefficient is None else of_coefficient.float(), None


def sum_of_mapped(mapped: torch.Tensor, coefficient: torch.Tensor, relations: Relations) -> torch.Tensor:
    """`relational_sum` of rows that every basis has mapped, which lie side by side: (num_inner, out_dim).

    mapped : (num_columns, num_bases * out_dim) float32, bfloat16 or float16      x @ basis.flatten(0, 1).T
    """
    num_bases = coefficient.shape[1]
    _check(mapped, relations, mapped.shape[1] // num_bases * num_bases, num_bases, coefficient)
    return _SumOfMapped.apply(mapped, coefficient, relations)


class _BlockDiagonalSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, blocks, relations, num_back):
        x = x.contiguous()
        ctx.save_for_backward(x, blocks)
        ctx.relations, ctx.num_back = relations, num_back
        weight = blocks.to(x.dtype).float()
        return _block_sums(relations.by_target, x, weight.transpose(2, 3), relations.by_target.matrix.num_rows)

    @staticmethod
    def backward(ctx, gradient):
        (x, blocks), gradient = ctx.saved_tensors, gradient.contiguous()
        of_blocks = torch.zeros_like(blocks)
        for relation, row, sums in ctx.relations.by_target.grouped.pieces(x):
            of_rows = _by_basis(gradient[row].float(), blocks.shape[1])
            of_blocks[relation] += of_rows.transpose(1, 2) @ _by_basis(sums, blocks.shape[1])
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = _block_sums(ctx.relations.by_source, gradient, blocks.to(x.dtype).float(), len(x))
            of_x[len(x) if ctx.num_back is None else ctx.num_back:] = 0
        return of_x, of_blocks, None, None


def block_diagonal_sum(x: torch.Tensor, blocks: torch.Tensor, relations: Relations,
                       num_back: int | None = None) -> torch.Tensor:
    """Sum the rows of neighbors, mapped by block-diagonal matrices of relations: (num_inner, out_dim) of x's type.

    Block b of W_r maps columns b * in_dim / num_blocks and on to columns b * out_dim / num_blocks and on.
    Differentiable in x and blocks. Sums are float32.

    x : (num_columns, in_dim) float32, bfloat16 or float16
    blocks : (num_relations, num_blocks, out_dim / num_blocks, in_dim / num_blocks) float32
        rounded to the type of x for use
    num_back : int or None      only these first rows of x get a gradient, the others get 0; None: all

    Raises KernelError for shapes that do not fit.

    Reference: Schlichtkrull et al., ESWC 2018, Eq. (2) and (4).
    """
    _check(x, relations, blocks.shape[1] * blocks.shape[3], blocks.shape[1], blocks)
    return _BlockDiagonalSum.apply(x, blocks, relations, num_back)


def _block_sums(entries: RelationEntries, rows: torch.Tensor, blocks: torch.Tensor, num_rows: int) -> torch.Tensor:
    """(num_rows, dim): sums of `rows` by relation, each multiplied with its blocks, of columns that come out last."""
    out = torch.zeros(num_rows, blocks.shape[1] * blocks.shape[3], device=rows.device)
    for relation, row, sums in entries.grouped.pieces(rows):
        out[row] += _side_by_side(_by_basis(sums, blocks.shape[1]) @ blocks[relation])      # a row occurs once
    return out.to(rows.dtype)


def _check(rows: torch.Tensor, relations: Relations, dim: int, num_bases: int, coefficient: torch.Tensor) -> None:
    num_columns = relations.by_target.matrix.num_columns
    if rows.ndim != 2 or rows.shape != (num_columns, dim) or coefficient.shape[1] != num_bases:
        raise KernelError(f"sums by relation need {num_columns} rows of {dim} columns and coefficients of {num_bases} "
                          f"bases, found shapes {tuple(rows.shape)} and {tuple(coefficient.shape)}")


def _mapped_sums(entries: RelationEntries, rows: torch.Tensor, weight: torch.Tensor, coefficient: torch.Tensor,
                 out: torch.Tensor) -> None:
    for start, stop, block in entries.blocks(weight.shape[1], len(out), rows.device.type):
        sums = sums_by_head(block.matrix, rows, block.weights(coefficient))
        out[start:stop] = map_rows(_side_by_side(sums), weight)


def _joined(basis: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(out_dim, num_bases * in_dim): the weight that maps sums which lie side by side."""
    return basis.transpose(0, 1).flatten(1).to(dtype).contiguous()


def _side_by_side(by_basis: torch.Tensor) -> torch.Tensor:
    return by_basis.transpose(0, 1).flatten(1)


def _by_basis(side_by_side: torch.Tensor, num_bases: int) -> torch.Tensor:
    return side_by_side.view(len(side_by_side), num_bases, -1).transpose(0, 1).contiguous()

