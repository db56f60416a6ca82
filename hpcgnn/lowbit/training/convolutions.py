"""Convolutions with fake-quantized rows, weights and mapped rows, computed as A (X W) like the integer model.

Weights are the float convolutions' own; quantizers come from a scheme. `hpcgnn.lowbit.integer_model` has the formula of
each kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.lowbit.integer_model import IntegerConvolution
from hpcgnn.lowbit.training.quantizer import Nodes
from hpcgnn.lowbit.training.sparse_input import DenseRows, SparseInput, SparseValues
from hpcgnn.nn.attention import SLOPE, GATConvolution
from hpcgnn.nn.convolution import GCNConvolution, SAGEConvolution
from hpcgnn.nn.isomorphism import GINConvolution
from hpcgnn.nn.linear import linear
from hpcgnn.ops.attention import attend

Rows = DenseRows | SparseValues


class QuantizerMaker(Protocol):
    def rows(self, dim: int, is_signed: bool) -> nn.Module:
        """Make the quantizer of a layer's rows, with quantizer(rows, nodes), num_bits(), scale() and dim."""

    def columns(self, dim: int) -> nn.Module:
        """Make the quantizer of mapped rows, with quantizer(rows, nodes) and scale()."""

    def weights(self, out_dim: int) -> nn.Module:
        """Make the quantizer of weights, with quantizer(weight) and integers(weight)."""


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
        weight = self.convolution.weight_neighbor
        return IntegerConvolution(self.kind, self.rows.scale(),
                                  self.neighbor.integers(weight), self.mapped.scale(),
                                  _array(self.convolution.bias))


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
        weight = self.convolution.weight_neighbor
        return IntegerConvolution(self.kind, self.rows.scale(),
                                  self.neighbor.integers(weight), self.mapped.scale(),
                                  _array(self.convolution.bias), own=self.own.integers(self.convolution.weight_self))


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
        return IntegerConvolution(self.kind, self.rows.scale(), self.neighbor.integers(first.weight),
                                  self.mapped.scale(), _array(first.bias),
                                  epsilon=self.convolution.epsilon.item(), second_rows=self.second_rows.scale(),
                                  second=self.second.integers(second.weight), second_bias=_array(second.bias))


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
        return IntegerConvolution(self.kind, self.rows.scale(), self.neighbor.integers(convolution.weight),
                                  self.mapped.scale(), _array(convolution.bias),
                                  attention=_array(convolution.attention), heads=convolution.heads,
                                  averages_heads=convolution.combine == "average")


def _array(parameter: torch.Tensor) -> np.ndarray:
    return parameter.detach().cpu().numpy().copy()
