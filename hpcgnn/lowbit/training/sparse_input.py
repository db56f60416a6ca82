"""Constant input rows that are mostly zeros, such as word counts: quantized, dropped out and mapped value by value.

`DenseRows` has the same methods for other rows. Example: 2,708 rows of 1,433 columns with 49,216 values; a dense layer
reads 3.9 million numbers, a sparse one 49,216.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.lowbit.training.quantizer import Nodes
from hpcgnn.nn.linear import linear
from hpcgnn.ops.aggregation import SparseRows, from_csr, multiply_weighted
from hpcgnn.ops.attention import sampled_products
from hpcgnn.ops.cuda.resident import resident
from hpcgnn.ops.pointwise import dropout

SPARSE_SHARE = 0.25      # rows with at most this share of non-zero values are sparse


@dataclass(frozen=True)
class DenseRows:
    rows: torch.Tensor

    def dropped_out(self, graph: LocalGraph, probability: float) -> DenseRows:
        return DenseRows(graph.dropout(self.rows, probability))

    def mapped(self, weight: torch.Tensor) -> torch.Tensor:
        return linear(self.rows, weight)


class SparseInput:
    """The non-zero values of (n, dim) float32 rows, (num_values, 1) float32 row after row, and their places.

    node_id, (n,) int64, are global ids, so that dropout does not depend on the number of ranks.
    """

    def __init__(self, rows: torch.Tensor, node_id: np.ndarray):
        num_rows, dim = rows.shape
        self.rows = rows
        self._row, column = rows.nonzero(as_tuple=True)
        self.values = rows[self._row, column][:, None]
        row, column = self._row.cpu().numpy(), column.cpu().numpy()
        self.by_column = resident(np.argsort(column, kind="stable"))
        self.matrix = _csr(row, column, num_rows, dim)
        self.transposed = _csr(column[self.by_column], row[self.by_column], dim, num_rows)
        self.value_id = resident(node_id[row] * dim + column)

    def quantized(self, quantizer: nn.Module, nodes: Nodes) -> SparseValues:
        """Quantize each value as a one-column row of its node; zeros fit any step."""
        is_protected = None if nodes.is_protected is None else nodes.is_protected[self._row]
        return SparseValues(self, quantizer(self.values, Nodes(nodes.in_degree[self._row], is_protected)))


@dataclass(frozen=True)
class SparseValues:
    entries: SparseInput
    values: torch.Tensor    # (num_values, 1) float32 at the places of `entries`

    def dropped_out(self, graph: LocalGraph, probability: float) -> SparseValues:
        key = graph.next_dropout(probability)
        if key is None:
            return self
        return SparseValues(self.entries, dropout(self.values, probability, self.entries.value_id, key))

    def mapped(self, weight: torch.Tensor) -> torch.Tensor:
        return _SparseMap.apply(self.values, weight, self.entries)


class _SparseMap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values: torch.Tensor, weight: torch.Tensor, entries: SparseInput) -> torch.Tensor:
        columns = weight.t().contiguous()
        ctx.save_for_backward(values, columns)
        ctx.entries = entries
        return multiply_weighted(entries.matrix, columns, values)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        (values, columns), entries = ctx.saved_tensors, ctx.entries
        gradient = gradient.contiguous()
        of_values = sampled_products(entries.matrix, gradient, columns, 1) if ctx.needs_input_grad[0] else None
        of_columns = multiply_weighted(entries.transposed, gradient, values, entries.by_column)
        return of_values, of_columns.t().contiguous(), None


def _csr(row: np.ndarray, column: np.ndarray, num_rows: int, num_columns: int) -> SparseRows:
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=num_rows))])
    return from_csr(indptr, column.astype(np.int32), num_columns)
