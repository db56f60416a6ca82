"""ConvolutionStack: convolutions one after another, and the six models that stack one kind each."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.convolution import Convolution, GCNConvolution, MaxPoolConvolution, SAGEConvolution
from hpcgnn.nn.layers import LINEAR, of_input
from hpcgnn.nn.linear import NORMS, BatchNorm, layer_norm_of, normalized


class ConvolutionStack(nn.Module):
    """dropout → convolution → norm → ReLU, `num_layers` times; the last convolution returns the logits.

    A subclass makes its layers in `convolution`, which gets `options`. With `residual`, each hidden layer from the
    second on adds its input, before dropout, to what the ReLU returns (Kipf and Welling, ICLR 2017, appendix B).
    """

    # {"gcn", "mean", "sum"}: how neighbors' rows are summed; attention and a maximum count as means
    reduction = "mean"
    attends = False            # rows are weighted by a softmax
    weighs_self = False        # each layer has separate weights for the row itself
    takes_edge_weights = True  # uses edge weights; else refuses them

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, num_layers: int, dropout: float, norm: str,
                 input_dropout: float = -1.0, residual: bool = False, **options):
        super().__init__()
        self.residual = residual
        dims = [in_dim] + [hidden_dim] * (num_layers - 1) + [out_dim]
        dropouts = [of_input(input_dropout, dropout)] + [dropout] * (num_layers - 1)
        self.convolutions = nn.ModuleList(
            self.convolution(dims[i], dims[i + 1], dropouts[i], i == num_layers - 1, **options)
            for i in range(num_layers))
        self.norms = nn.ModuleList(NORMS[norm](hidden_dim) for _ in range(num_layers - 1))
        # Aggregations from input to logits; None if a layer can't leave out rows far from the loss, as a batch norm,
        # which is over all rows.
        can_leave_out = (all(isinstance(convolution, Convolution) for convolution in self.convolutions)
                         and not any(isinstance(norm, BatchNorm) for norm in self.norms))
        self.num_hops = num_layers if can_leave_out else None

    @staticmethod
    def convolution(in_dim: int, out_dim: int, dropout: float, is_last: bool) -> nn.Module:
        raise NotImplementedError("a subclass of ConvolutionStack must define `convolution`")

    def forward(self, graph: LocalGraph, x: torch.Tensor) -> torch.Tensor:
        """Collective: map (num_inner, in_dim) input rows to (num_inner, out_dim) logits.

        A training pass may leave rows out: then only the rows of the loss come out, which are the first ones.
        """
        if self.residual:
            return self._with_residuals(graph, x)
        h = x
        before: dict[str, Any] = {"is_dropped": False}
        for convolution, norm, following in zip(self.convolutions, self.norms, self.convolutions[1:], strict=False):
            h = normalized(graph, norm, convolution(graph, h, **before))
            before = {"is_dropped": following.takes_dropped(graph)}
            if isinstance(following, Convolution) and torch.is_grad_enabled():
                before["activation"] = graph.activation(h, layer_norm_of(norm), following.dropout, **before)
            else:
                h = graph.activate(h, layer_norm_of(norm), following.dropout, **before)
        return self.convolutions[-1](graph, h, **before)

    def _with_residuals(self, graph: LocalGraph, x: torch.Tensor) -> torch.Tensor:
        h = x
        for number, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=False)):
            z = normalized(graph, norm, convolution(graph, h))
            out = graph.activate(z, layer_norm_of(norm), 0.0, is_dropped=False)
            h = out + h[:len(out)] if number else out
        return self.convolutions[-1](graph, h)

    def first_layer_parameters(self) -> list[nn.Parameter]:
        """Return the first convolution's parameters, the only ones that Kipf and Welling (2017) decay."""
        return list(self.convolutions[0].parameters())


class GCN(ConvolutionStack):
    """A stack of `GCNConvolution`."""

    reduction, weighs_self = LINEAR["gcn"]

    @staticmethod
    def convolution(in_dim: int, out_dim: int, dropout: float, is_last: bool) -> nn.Module:
        return GCNConvolution(in_dim, out_dim, dropout)


class SAGE(ConvolutionStack):
    """A stack of `SAGEConvolution`."""

    reduction, weighs_self = LINEAR["sage"]

    @staticmethod
    def convolution(in_dim: int, out_dim: int, dropout: float, is_last: bool) -> nn.Module:
        return SAGEConvolution(in_dim, out_dim, dropout)


class MaxPoolSAGE(ConvolutionStack):
    """A stack of `MaxPoolConvolution`."""

    weighs_self = True
    takes_edge_weights = False

    @staticmethod
    def convolution(in_dim: int, out_dim: int, dropout: float, is_last: bool) -> nn.Module:
        return MaxPoolConvolution(in_dim, out_dim, dropout)


class GAT(ConvolutionStack):
    """A stack of `GATConvolution`: heads, which share hidden_dim, are concatenated, in the last layer averaged."""

    attends = True

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, num_layers: int, dropout: float, norm: str,
                 input_dropout: float = -1.0, residual: bool = False, heads: int = 4):
        super().__init__(in_dim, hidden_dim, out_dim, num_layers, dropout, norm, input_dropout, residual, heads=heads)

    @staticmethod
    def convolution(in_dim: int, out_dim: int, dropout: float, is_last: bool, heads: int = 4) -> nn.Module:
        from hpcgnn.nn.attention import GATConvolution

        return GATConvolution(in_dim, out_dim, dropout, heads, "average" if is_last else "concatenate")


class GIN(ConvolutionStack):
    """A stack of `GINConvolution`. has_wide_sums sums neighbors, for float32 rows; else HalfGNN's mean is used."""

    reduction = "sum"

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, num_layers: int, dropout: float, norm: str,
                 input_dropout: float = -1.0, residual: bool = False, has_wide_sums: bool = True):
        super().__init__(in_dim, hidden_dim, out_dim, num_layers, dropout, norm, input_dropout, residual,
                         has_wide_sums=has_wide_sums)

    @staticmethod
    def convolution(in_dim: int, out_dim: int, dropout: float, is_last: bool, has_wide_sums: bool = True) -> nn.Module:
        # A sum over a hub's neighbors passes float16's largest number; HalfGNN's scaled mean stays below it.
        from hpcgnn.nn.isomorphism import GINConvolution

        return GINConvolution(in_dim, out_dim, dropout, "sum" if has_wide_sums else "mean")


class RGCN(ConvolutionStack):
    """A stack of `RGCNConvolution`. Raises ConfigError for a graph without relations."""

    weighs_self = takes_relations = True
    takes_edge_weights = False

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, num_layers: int, dropout: float, norm: str,
                 input_dropout: float = -1.0, residual: bool = False, num_bases: int = 8, num_relations: int = 0,
                 num_blocks: int = 0):
        super().__init__(in_dim, hidden_dim, out_dim, num_layers, dropout, norm, input_dropout, residual,
                         num_relations=num_relations, num_bases=num_bases, num_blocks=num_blocks)

    @staticmethod
    def convolution(in_dim: int, out_dim: int, dropout: float, is_last: bool, num_relations: int = 0,
                    num_bases: int = 8, num_blocks: int = 0) -> nn.Module:
        from hpcgnn.nn.relational import RGCNConvolution

        return RGCNConvolution(in_dim, out_dim, dropout, num_relations, num_bases, num_blocks)
