"""JKNet: graph convolutions with the rows of all depths joined before the last linear map."""

from __future__ import annotations

import torch
from torch import nn

from hpcgnn.errors import ConfigError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.batch_norm import normalized
from hpcgnn.nn.convolution import GCNConvolution
from hpcgnn.nn.deep.propagation import known_hops
from hpcgnn.nn.layers import of_input
from hpcgnn.nn.linear import NORMS, layer_norm_of, linear

JUMPS = {"concat": lambda rows: torch.cat(rows, dim=1), "max": lambda rows: torch.stack(rows).amax(dim=0)}


class JKNet(nn.Module):
    """H_l = ReLU(A H_{l-1} W_l + b_l), H_0 = x; logits = join(H_1 .. H_L) W + b. Dropout is on the input of every map.

    `jump` "concat" joins columns, "max" takes the largest of each column. The paper has no norm.

    Raises
    ------
    ConfigError      an unknown jump

    Reference: Xu et al., ICML 2018, section 4, over the convolution of Kipf and Welling.
    """

    reduction = "gcn"
    attends = False
    last_call = "dropout"      # of the graph; it returns the rows that the last linear map reads

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, num_layers: int, dropout: float, norm: str,
                 jump: str, input_dropout: float = -1.0):
        super().__init__()
        if jump not in JUMPS:
            raise ConfigError(f"JKNet joins its layers by one of {', '.join(JUMPS)}, found {jump!r}; change jump")
        self.num_hops, self.dropout, self.jump = known_hops(num_layers, norm), dropout, jump
        dims = [in_dim] + [hidden_dim] * num_layers
        self.convolutions = nn.ModuleList(
            GCNConvolution(dims[i], dims[i + 1], dropout if i else of_input(input_dropout, dropout))
            for i in range(num_layers))
        self.norms = nn.ModuleList(NORMS[norm](hidden_dim) for _ in range(num_layers))
        self.last = nn.Linear(num_layers * hidden_dim if jump == "concat" else hidden_dim, out_dim)

    def forward(self, graph: LocalGraph, x: torch.Tensor) -> torch.Tensor:
        """Collective: map (num_inner, in_dim) input rows to logits; see `ConvolutionStack.forward`."""
        h, depths = x, []
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            h = normalized(graph, norm, convolution(graph, h))
            h = graph.activate(h, layer_norm_of(norm), 0.0, is_dropped=False)
            depths.append(h)
        # A pass that leaves rows out has the fewest rows at the last depth.
        joined = JUMPS[self.jump]([rows[:len(h)] for rows in depths])
        return linear(graph.dropout(joined, self.dropout), self.last.weight, self.last.bias, graph)

    def first_layer_parameters(self) -> list[nn.Parameter]:
        return list(self.convolutions[0].parameters())
