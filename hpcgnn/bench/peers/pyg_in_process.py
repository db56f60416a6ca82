"""PyTorch Geometric's SAGEConv, GCNConv and GATConv, trained on a whole graph in this process, on the host or a GPU.

The stack is ours (dropout, convolution, LayerNorm, ReLU) and starts from our weights. It gets the graph in one of two
forms: the transposed adjacency as torch's CSR matrix, which SAGE and GCN multiply by (cuSPARSE on a GPU), or a list of
edges, where rows are gathered and scattered; GAT has only the second. Self-loops and the coefficients of GCN are
computed once, before training. With `compiles` the stack goes through torch.compile.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import GATConv, GCNConv, SAGEConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import add_self_loops

from hpcgnn.bench.epoch_phases import PhaseClock
from hpcgnn.results.pyg_weights import Weights, pyg_weights

CSR, EDGES = "CSR", "edges"
FORMS = {"sage": (CSR, EDGES), "gcn": (CSR, EDGES), "gat": (EDGES,)}     # ways to give a model the graph


@dataclass(frozen=True)
class PeerGraph:
    edges: torch.Tensor          # (2, num_edges) int64, source and target of each edge, targets ascending
    features: torch.Tensor       # (num_nodes, num_features) float32
    labels: torch.Tensor         # (num_nodes,) int64
    train_index: torch.Tensor    # (n,) int64, nodes of the loss

    def form(self, name: str, model: str, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        """The graph in one of FORMS, as the arguments of a convolution after the rows."""
        num_nodes, edges, weight = len(self.features), self.edges, None
        if model == "gcn":
            edges, weight = gcn_norm(edges, None, num_nodes, add_self_loops=True, dtype=torch.float32)
        elif model == "gat":
            edges, _ = add_self_loops(edges, num_nodes=num_nodes)
        if name == EDGES:
            return (edges,) if weight is None else (edges, weight.to(dtype))
        values = torch.ones(edges.shape[1], device=edges.device) if weight is None else weight
        order = torch.argsort(edges[1], stable=True) if model == "gcn" else None
        sources, targets = edges if order is None else edges[:, order]
        indptr = torch.zeros(num_nodes + 1, dtype=torch.int32, device=edges.device)
        torch.cumsum(torch.bincount(targets, minlength=num_nodes), 0, out=indptr[1:])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse (CSR tensor support|invariant checks)", UserWarning)
            # Indices of 32 bits are the faster ones on a GPU.
            return (torch.sparse_csr_tensor(indptr, sources.int(), (values if order is None else values[order])
                                            .to(dtype), size=(num_nodes, num_nodes)),)


class PeerStack(nn.Module):
    """Dropout → convolution → LayerNorm → ReLU; the last convolution gives the logits.

    `dims` are the columns of input, hidden layers and output; `heads` is for gat.
    """

    def __init__(self, model: str, dims: list[int], heads: int):
        super().__init__()
        self.dropout, last = 0.0, len(dims) - 2
        self.convs = nn.ModuleList(make_convolution(model, left, right, heads, layer == last)
                                   for layer, (left, right) in enumerate(pairwise(dims)))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for dim in dims[1:-1])

    def forward(self, h: torch.Tensor, *graph: torch.Tensor) -> torch.Tensor:
        for layer, convolution in enumerate(self.convs):
            h = convolution(F.dropout(h, self.dropout, self.training), *graph)
            if layer < len(self.norms):
                h = torch.relu(self.norms[layer](h))
        return h

    def set_dropout(self, probability: float) -> None:
        self.dropout = probability


def make_convolution(model: str, in_dim: int, out_dim: int, heads: int, is_last: bool) -> nn.Module:
    """PyTorch Geometric's layer. Heads share a hidden width, and are averaged in the last layer."""
    if model == "gcn":
        return GCNConv(in_dim, out_dim, normalize=False)
    if model == "sage":
        return SAGEConv(in_dim, out_dim)
    columns = out_dim if is_last else out_dim // heads
    return GATConv(in_dim, columns, heads, concat=not is_last, add_self_loops=False)


@dataclass(frozen=True)
class PeerTraining:
    model: str
    form: str                 # one of FORMS
    precision: torch.dtype    # type of rows and weights; PyTorch Geometric sums in the rows' type
    dims: list[int]           # columns of input, hidden layers and output
    heads: int
    weights: Weights          # our initial weights, by our names
    lr: float
    compiles: bool = False

    @property
    def name(self) -> str:
        return f"pyg {self.form}, compiled" if self.compiles else f"pyg {self.form}"

    def stack(self) -> PeerStack:
        arguments = {"in_dim": self.dims[0], "hidden_dim": self.dims[1], "out_dim": self.dims[-1],
                     "num_layers": len(self.dims) - 1, "dropout": 0.0, "norm": "layer", "heads": self.heads}
        stack = PeerStack(self.model, self.dims, self.heads)
        stack.load_state_dict(pyg_weights(self.model, arguments, self.weights)[2])
        return stack

    def run(self, graph: PeerGraph, make_clock: Callable[[PeerStack], PhaseClock]) -> PhaseClock:
        """Train through all phases of a clock. Raises RuntimeError if the peer can't do this or memory is short."""
        stack = self.stack().to(graph.features.device, self.precision)
        clock, given = make_clock(stack), graph.form(self.form, self.model, self.precision)
        rows, labels = graph.features.to(self.precision), graph.labels[graph.train_index]
        optimizer = torch.optim.Adam(stack.parameters(), self.lr, fused=True if rows.is_cuda else None)
        forward = torch.compile(stack, dynamic=False) if self.compiles else stack
        torch.manual_seed(0)
        clock.start()
        try:
            while not clock.is_done:
                stack.train()
                optimizer.zero_grad()
                loss = F.cross_entropy(forward(rows, *given)[graph.train_index].float(), labels)
                loss.backward()
                optimizer.step()
                clock.tick(loss.item())
        finally:
            clock.stop()
        return clock
