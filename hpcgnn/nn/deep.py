"""Deep models, each with its formula: GCNII, DAGNN, SGC, JKNet and APPNP.

DAGNN and APPNP propagate a perceptron's predictions, so only rows as wide as the classes travel. SGC is one linear map
of propagated rows; without dropout the propagated input is constant, and nothing travels.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from hpcgnn.errors import ConfigError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.convolution import GCNConvolution
from hpcgnn.nn.layers import maps_first, of_input
from hpcgnn.nn.linear import NORMS, add_bias, layer_norm_of, linear, normalized
from hpcgnn.nn.propagation import known_hops, propagate, propagate_input, take_hops


class DeepModel(nn.Module):
    """What training methods ask of these models; see `ConvolutionStack`."""

    reduction = "gcn"
    attends = False
    # The graph's call that returns the rows which the last linear map reads; None: there are no hidden rows.
    last_call: str | None = "activate"
    first_layer = "first"      # its place in the model

    def first_layer_parameters(self) -> list[nn.Parameter]:
        return list(self.get_submodule(self.first_layer).parameters())


class GCNII(DeepModel):
    """H_l = ReLU(((1 - alpha) A H_{l-1} + alpha H_0) ((1 - beta_l) I + beta_l W_l)) between two linear maps.

    H_0 = ReLU(x W_in + b_in), the logits are H_L W_out + b_out, and beta_l = log(theta / l + 1), theta the paper's
    lambda. Dropout is on the input of every layer and of both outer maps; H_0 is mixed in without dropout. The paper
    has no norm.

    Reference: Chen et al., ICML 2020, Eq. (5), and section 3 for beta.
    """

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, num_layers: int, dropout: float, norm: str,
                 alpha: float, theta: float, input_dropout: float = -1.0):
        super().__init__()
        self.num_steps, self.dropout, self.alpha = num_layers, dropout, alpha
        self.num_hops = known_hops(num_layers, norm)
        self.input_dropout = of_input(input_dropout, dropout)
        self.beta = [math.log(theta / layer + 1) for layer in range(1, num_layers + 1)]
        self.first, self.last = nn.Linear(in_dim, hidden_dim), nn.Linear(hidden_dim, out_dim)
        self.weights = nn.ParameterList(nn.init.xavier_uniform_(torch.empty(hidden_dim, hidden_dim))
                                        for _ in range(num_layers))
        self.norms = nn.ModuleList(NORMS[norm](hidden_dim) for _ in range(num_layers))

    def forward(self, graph: LocalGraph, x: torch.Tensor) -> torch.Tensor:
        """Collective: map (num_inner, in_dim) input rows to logits; see `ConvolutionStack.forward`."""
        hops = take_hops(graph, self.num_steps)
        z = linear(graph.dropout(x[:hops[0].num_in], self.input_dropout), self.first.weight, self.first.bias,
                   graph)
        h = first = graph.activate(z, None, 0.0, is_dropped=False)
        is_dropped = False
        for layer, hop in enumerate(hops):
            mixed = propagate(graph, h, hop, self.dropout, is_dropped, first, self.alpha)
            z = linear(mixed, self._map(layer), graph=graph)
            # Rows sent unmapped are masked by their receivers. After the last layer nothing is sent.
            is_dropped = graph.drops_first or layer == self.num_steps - 1
            z = normalized(graph, self.norms[layer], z)
            h = graph.activate(z, layer_norm_of(self.norms[layer]), self.dropout, is_dropped)
        return linear(h, self.last.weight, self.last.bias, graph)

    def _map(self, layer: int) -> torch.Tensor:
        # (1 - beta) I + beta W is one matrix, so rows take one product and no sum.
        weight = self.weights[layer]
        return torch.eye(len(weight), dtype=weight.dtype, device=weight.device).lerp(weight, self.beta[layer])


class Perceptron(nn.Module):
    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, dropout: float, norm: str, input_dropout: float):
        super().__init__()
        self.dropout, self.input_dropout = dropout, of_input(input_dropout, dropout)
        self.first, self.second = nn.Linear(in_dim, hidden_dim), nn.Linear(hidden_dim, out_dim)
        self.norm = NORMS[norm](hidden_dim)

    def forward(self, graph: LocalGraph, x: torch.Tensor) -> torch.Tensor:
        h = linear(graph.dropout(x, self.input_dropout), self.first.weight, self.first.bias, graph)
        h = graph.activate(normalized(graph, self.norm, h), layer_norm_of(self.norm), self.dropout)
        return linear(h, self.second.weight, self.second.bias, graph)


class DAGNN(DeepModel):
    """H_0 = perceptron(x), H_k = A H_{k-1}; per row, the logits are the sum over k of sigmoid(H_k s + b) H_k.

    `num_layers` is the paper's number of propagation steps k. The paper has no norm.

    Reference: Liu et al., KDD 2020, Eq. (8). The gate has a bias b, as in the authors' program.
    """

    first_layer = "perceptron.first"

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, num_layers: int, dropout: float, norm: str,
                 input_dropout: float = -1.0):
        super().__init__()
        self.num_steps, self.num_hops = num_layers, known_hops(num_layers, norm)
        self.perceptron = Perceptron(in_dim, hidden_dim, out_dim, dropout, norm, input_dropout)
        self.gate = nn.Linear(out_dim, 1)

    def forward(self, graph: LocalGraph, x: torch.Tensor) -> torch.Tensor:
        """Collective: map (num_inner, in_dim) input rows to float32 logits; see `ConvolutionStack.forward`."""
        hops = take_hops(graph, self.num_steps)
        h, num_out = self.perceptron(graph, x[:hops[0].num_in]), hops[-1].num_out
        logits = self._gated(h[:num_out])
        for hop in hops:
            h = propagate(graph, h, hop)
            logits = logits + self._gated(h[:num_out])
        return logits

    def _gated(self, h: torch.Tensor) -> torch.Tensor:
        # In float32: a sum of many depths, and the gate's gradient a sum over all rows.
        h = h.float()
        return torch.sigmoid(self.gate(h)) * h


class APPNP(DeepModel):
    """Z_0 = H = perceptron(x), Z_k = (1 - alpha) A Z_{k-1} + alpha H; the last of `num_layers` Z is the logits.

    alpha in [0, 1] is the teleport probability. The paper has no norm.

    Reference: Klicpera et al., ICLR 2019, Eq. (4)-(5). Deviation: no dropout of the adjacency, since draws would need
    two global node ids.
    """

    first_layer = "perceptron.first"      # the only weights that the paper decays

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, num_layers: int, dropout: float, norm: str,
                 alpha: float, input_dropout: float = -1.0):
        super().__init__()
        self.num_steps, self.num_hops, self.alpha = num_layers, known_hops(num_layers, norm), alpha
        self.perceptron = Perceptron(in_dim, hidden_dim, out_dim, dropout, norm, input_dropout)

    def forward(self, graph: LocalGraph, x: torch.Tensor) -> torch.Tensor:
        """Collective: map (num_inner, in_dim) input rows to logits; see `ConvolutionStack.forward`."""
        hops = take_hops(graph, self.num_steps)
        z = first = self.perceptron(graph, x[:hops[0].num_in])
        for hop in hops:
            z = propagate(graph, z, hop, first=first, alpha=self.alpha)
        return z


class SGC(DeepModel):
    """logits = A^K dropout(x) W + b, K = num_layers.

    Without dropout, as in the paper, A^K x is computed once, from full-precision messages that count as evaluation,
    whatever the training method. With dropout, rows are mapped before they are propagated if there are fewer classes
    than features, so that the narrower rows travel.

    Reference: Wu et al., ICML 2019, Eq. (8).
    """

    is_one_map = True
    last_call, first_layer = None, "linear"

    def __init__(self, in_dim: int, out_dim: int, num_layers: int, dropout: float, input_dropout: float = -1.0):
        super().__init__()
        self.num_hops, self.dropout = num_layers, of_input(input_dropout, dropout)
        self.linear = nn.Linear(in_dim, out_dim)
        self._graph: LocalGraph | None = None
        self._constant: torch.Tensor | None = None

    @property
    def maps_first(self) -> bool:
        return maps_first(self.linear.in_features, self.linear.out_features)

    def forward(self, graph: LocalGraph, x: torch.Tensor) -> torch.Tensor:
        """Collective: map (num_inner, in_dim) input rows to logits; see `ConvolutionStack.forward`."""
        # Rows that don't depend on the weights may be older than the weights.
        sends_mapped = self.maps_first and not graph.reads_history
        hops = take_hops(graph, self.num_hops, begins_at_input=not sends_mapped)
        if self.dropout == 0.0:
            return linear(self._propagated_input(graph)[:hops[-1].num_out], self.linear.weight, self.linear.bias, graph)
        if sends_mapped:
            h = linear(graph.dropout(x[:hops[0].num_in], self.dropout), self.linear.weight, graph=graph)
            for hop in hops:
                h = propagate(graph, h, hop)
            return add_bias(h, self.linear.bias)
        h = propagate(graph, x, hops[0], self.dropout)
        for hop in hops[1:]:
            h = propagate(graph, h, hop)
        return linear(h, self.linear.weight, self.linear.bias, graph)

    def _propagated_input(self, graph: LocalGraph) -> torch.Tensor:
        whole, rows = graph.whole
        if self._graph is not whole:
            self._graph, self._constant = whole, propagate_input(whole, self.num_hops)
        return self._constant if rows is None else self._constant.index_select(0, rows)


JUMPS = {"concat": lambda rows: torch.cat(rows, dim=1), "max": lambda rows: torch.stack(rows).amax(dim=0)}


class JKNet(DeepModel):
    """H_l = ReLU(A H_{l-1} W_l + b_l), H_0 = x; logits = join(H_1 .. H_L) W + b. Dropout is on the input of every map.

    `jump` "concat" joins columns, "max" takes the largest of each column. The paper has no norm.

    Raises
    ------
    ConfigError      an unknown jump

    Reference: Xu et al., ICML 2018, section 4, over the convolution of Kipf and Welling.
    """

    last_call, first_layer = "dropout", "convolutions.0"

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
