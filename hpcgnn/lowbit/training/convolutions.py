"""Convolutions with fake-quantized rows, weights and mapped rows, computed as A (X W) like the integer model.

Weights are the float convolutions' own; quantizers come from a scheme. `hpcgnn.lowbit.integer_model` has the formula of
each kind.

Constant input rows that are mostly zeros, such as word counts, are quantized, dropped out and mapped value by value
(`SparseInput`). Example: 2,708 rows of 1,433 columns with 49,216 values; a dense layer reads 3.9 million numbers, a
sparse one 49,216.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from hpcgnn.config import TrainConfig, parse_protection
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.lowbit.integer_model import IntegerConvolution
from hpcgnn.lowbit.training.quantizer import (
    ColumnQuantizer,
    LargestWeightQuantizer,
    Nodes,
    RowQuantizer,
    TrackedColumnQuantizer,
    TrackedRowQuantizer,
    WeightQuantizer,
)
from hpcgnn.nn.attention import SLOPE, GATConvolution
from hpcgnn.nn.convolution import GCNConvolution, SAGEConvolution
from hpcgnn.nn.isomorphism import GINConvolution
from hpcgnn.nn.linear import linear
from hpcgnn.ops.aggregation import SparseRows, from_csr, multiply_weighted
from hpcgnn.ops.attention import attend, sampled_products
from hpcgnn.ops.pointwise import dropout
from hpcgnn.ops.resident import resident

FIRST_BITS = 4       # at which rows are fitted, before their widths are chosen
LEARNS_WIDTHS = ("degree-aware", "layer-aware")
SHRINKING = (*LEARNS_WIDTHS, "calibrated")    # rows with fewer codes get fewer bits
BY_LAYER = ("layer-aware", "uniform")         # all rows of a layer share step and width


SPARSE_SHARE = 0.25      # rows with at most this share of non-zero values are sparse


@dataclass(frozen=True)
class QuantizationScheme:
    name: str  # {"degree-aware", "layer-aware", "degree-steps", "uniform", "degree-quant", "calibrated"}
    bits: int                                     # of weights and mapped rows
    row_bits: int                                 # of rows; the starting width where widths are learned
    target_kb: float = 0.0  # of all layers' rows, see `QuantizedStack.penalty`; 0 is 2 bits per value
    size_weight: float = 1.0                      # lambda of Eq. (5)
    is_local: bool = False  # steps and widths of rows and mapped rows follow their own error, not the loss
    protection: tuple[float, float] = (0.0, 0.0)  # (low, high), probabilities, of degree-quant

    @classmethod
    def of(cls, config: TrainConfig) -> QuantizationScheme:
        row_bits = FIRST_BITS if config.quantize in LEARNS_WIDTHS else config.quantize_bits
        return cls(config.quantize, config.quantize_bits, row_bits, config.target_kb, config.size_weight,
                   config.quantize_gradient == "local", parse_protection(config.protect))

    @property
    def learns_width(self) -> bool:
        return self.name in LEARNS_WIDTHS


class QuantizerMaker:
    """Makes the quantizers of a scheme; counts, (num_entries,) int64, has the whole graph's nodes by in-degree."""

    def __init__(self, scheme: QuantizationScheme, counts: np.ndarray, comm):
        self._scheme, self._comm, self._num_nodes = scheme, comm, int(counts.sum())
        self._counts = counts.sum(keepdims=True) if scheme.name in BY_LAYER else counts
        self._is_tracked = scheme.name == "degree-quant"

    def rows(self, dim: int, is_signed: bool) -> RowQuantizer | TrackedRowQuantizer:
        scheme = self._scheme
        if self._is_tracked:
            return TrackedRowQuantizer(self._comm, dim, self._num_nodes, scheme.row_bits, is_signed)
        return RowQuantizer(self._comm, dim, self._counts, scheme.row_bits, is_signed, scheme.learns_width,
                            scheme.name in SHRINKING, scheme.is_local)

    def columns(self, dim: int) -> ColumnQuantizer | TrackedColumnQuantizer:
        if self._is_tracked:
            return TrackedColumnQuantizer(self._comm, dim, self._scheme.bits)
        return ColumnQuantizer(self._comm, dim, self._num_nodes, self._scheme.bits, self._scheme.is_local)

    def weights(self, out_dim: int) -> WeightQuantizer | LargestWeightQuantizer:
        if self._is_tracked:
            return LargestWeightQuantizer(self._scheme.bits)
        return WeightQuantizer(out_dim, self._scheme.bits)


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


Rows = DenseRows | SparseValues


class QuantizedConvolution(nn.Module, ABC):
    """Quantizes a layer's rows, applies dropout and combines them as its kind does.

    The float `convolution` has the weights; they are trained, and quantized in every pass. in_dim and mapped_dim count
    the columns of its rows and of the rows that are sent; is_signed rows have negative values. has_sparse_input, equal
    on all ranks, says that most values of the input are zero, see `SparseInput`.
    """

    kind: str

    def __init__(self, convolution: nn.Module, make: QuantizerMaker, in_dim: int, mapped_dim: int, is_signed: bool):
        super().__init__()
        self.convolution, self.has_sparse_input = convolution, False
        self.rows, self.mapped, self.neighbor = (make.rows(in_dim, is_signed), make.columns(mapped_dim),
                                                 make.weights(mapped_dim))
        self._input: SparseInput | None = None

    def forward(self, graph: LocalGraph, h: torch.Tensor, nodes: Nodes) -> torch.Tensor:
        """Collective: map (num_inner, in_dim) float32 rows to (num_inner, out_dim)."""
        if self.has_sparse_input and graph.is_input(h):
            quantized: Any = self._sparse_input(graph).quantized(self.rows, nodes)
        else:
            quantized = DenseRows(self.rows(h, nodes))
        # Quantized before dropout, so that inference sees the same rows.
        return self._combine(graph, quantized.dropped_out(graph, self.convolution.dropout), nodes)

    def _sparse_input(self, graph: LocalGraph) -> SparseInput:
        if self._input is None or self._input.rows is not graph.x:
            self._input = SparseInput(graph.x, graph.ids(0, graph.num_inner))
        return self._input

    @abstractmethod
    def export(self) -> IntegerConvolution:
        """Return the convolution as integers, without the normalization after it."""

    def _exported(self, weight: torch.Tensor, bias: torch.Tensor, **parts: Any) -> IntegerConvolution:
        return IntegerConvolution(self.kind, self.rows.scale(), self.neighbor.integers(weight), self.mapped.scale(),
                                  array_of(bias), **parts)

    @abstractmethod
    def _combine(self, graph: LocalGraph, x: Rows, nodes: Nodes) -> torch.Tensor:
        """Collective: combine quantized rows with their neighbors'."""

    @property
    def row_quantizers(self) -> list[nn.Module]:
        return [self.rows]

    def _map(self, x: Rows, weight: torch.Tensor, nodes: Nodes, scale: torch.Tensor | None = None) -> torch.Tensor:
        mapped = x.mapped(self.neighbor(weight))
        return self.mapped(mapped if scale is None else mapped * scale, nodes)


class QuantizedGCN(QuantizedConvolution):
    """z = (sum of B[u] + B[v]) (in-degree + 1)^-1/2 + b; B has the same factor before it is quantized."""

    kind = "gcn"

    def __init__(self, convolution: GCNConvolution, make: QuantizerMaker, is_signed: bool):
        super().__init__(convolution, make, convolution.in_dim, convolution.out_dim, is_signed)

    def _combine(self, graph: LocalGraph, x: Rows, nodes: Nodes) -> torch.Tensor:
        scale = graph.row_factor("gcn")[:, None]
        mapped = self._map(x, self.convolution.weight_neighbor, nodes, scale)
        return (graph.aggregate(graph.halo(mapped), "sum") + mapped) * scale + self.convolution.bias

    def export(self) -> IntegerConvolution:
        return self._exported(self.convolution.weight_neighbor, self.convolution.bias)


class QuantizedSAGE(QuantizedConvolution):
    """z = mean of B[u] + x W_self + b."""

    kind = "sage"

    def __init__(self, convolution: SAGEConvolution, make: QuantizerMaker, is_signed: bool):
        super().__init__(convolution, make, convolution.in_dim, convolution.out_dim, is_signed)
        self.own = make.weights(convolution.out_dim)

    def _combine(self, graph: LocalGraph, x: Rows, nodes: Nodes) -> torch.Tensor:
        mapped = self._map(x, self.convolution.weight_neighbor, nodes)
        own = x.mapped(self.own(self.convolution.weight_self))
        return graph.aggregate(graph.halo(mapped), "mean") + own + self.convolution.bias

    def export(self) -> IntegerConvolution:
        return self._exported(self.convolution.weight_neighbor, self.convolution.bias,
                              own=self.own.integers(self.convolution.weight_self))


class QuantizedGIN(QuantizedConvolution):
    """z = relu(sum of B[u] + (1 + epsilon) B[v] + b) W_2 + b_2; the rows between the maps are quantized too."""

    kind = "gin"

    def __init__(self, convolution: GINConvolution, make: QuantizerMaker, is_signed: bool):
        super().__init__(convolution, make, convolution.in_dim, convolution.out_dim, is_signed)
        self.second_rows = make.rows(convolution.out_dim, is_signed=False)
        self.second = make.weights(convolution.out_dim)

    @property
    def row_quantizers(self) -> list[nn.Module]:
        return [self.rows, self.second_rows]

    def _combine(self, graph: LocalGraph, x: Rows, nodes: Nodes) -> torch.Tensor:
        first, second, epsilon = self.convolution.first, self.convolution.second, self.convolution.epsilon
        mapped = self._map(x, first.weight, nodes)
        combined = graph.aggregate(graph.halo(mapped), "sum") + (1 + epsilon) * mapped
        hidden = self.second_rows(torch.relu(combined + first.bias), nodes)
        return linear(hidden, self.second(second.weight)) + second.bias

    def export(self) -> IntegerConvolution:
        first, second = self.convolution.first, self.convolution.second
        return self._exported(first.weight, first.bias, epsilon=self.convolution.epsilon.item(),
                              second_rows=self.second_rows.scale(), second=self.second.integers(second.weight),
                              second_bias=array_of(second.bias))


class QuantizedGAT(QuantizedConvolution):
    """z = sum of alpha[v, u] B[u] + b, head by head, over the in-neighbors of v and v itself."""

    kind = "gat"

    def __init__(self, convolution: GATConvolution, make: QuantizerMaker, is_signed: bool):
        super().__init__(convolution, make, convolution.in_dim, len(convolution.weight), is_signed)

    def _combine(self, graph: LocalGraph, x: Rows, nodes: Nodes) -> torch.Tensor:
        convolution = self.convolution
        mapped = self._map(x, convolution.weight, nodes)
        out = attend(graph.halo(mapped, is_scaled=False), convolution.attention, graph.adjacency(with_self=True),
                     convolution.heads, SLOPE, graph.halo_present(mapped))
        if convolution.combine == "average":
            out = out.view(len(out), convolution.heads, convolution.out_dim).mean(dim=1)
        return out + convolution.bias

    def export(self) -> IntegerConvolution:
        convolution = self.convolution
        return self._exported(convolution.weight, convolution.bias, attention=array_of(convolution.attention),
                              heads=convolution.heads, averages_heads=convolution.combine == "average")


def array_of(parameter: torch.Tensor) -> np.ndarray:
    return parameter.detach().cpu().numpy().copy()
