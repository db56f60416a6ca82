"""`DglBatches` runs the benchmark's networks in DGL, float32, batch after batch: GraphConv, GINConv and SAGEConv.

Graphs are made beforehand with the formats that DGL reads. If the mapped rows are narrower, rows are mapped before they
are summed: GraphConv does so automatically, and this order makes GINConv cheaper too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from hpcgnn.bench.peers.dgl_import import import_dgl, make_graph
from hpcgnn.bench.peers.torch_batches import linear_map, normalized
from hpcgnn.lowbit.inference.batches import Batches

if TYPE_CHECKING:
    from hpcgnn.bench.float_networks import FloatConvolution


class DglBatches:
    """Runs a stack over batches; `features` is (num_rows, num_features) float32 in the order of the batches."""

    def __init__(self, stack: list[FloatConvolution], batches: Batches, features: np.ndarray):
        rows, bounds = torch.from_numpy(features), batches.row_begin.tolist()
        self._work = [(make_graph(*batches.adjacency(b), stack[0].kind), rows[bounds[b]:bounds[b + 1]])
                      for b in range(batches.num_batches)]
        self._stack, self._layers = stack, [_Layer(one) for one in stack]

    def forward(self) -> np.ndarray:
        with torch.inference_mode():
            return torch.cat([self._forward_batch(graph, rows) for graph, rows in self._work]).numpy()

    def _forward_batch(self, graph: Any, h: torch.Tensor) -> torch.Tensor:
        for given, layer in zip(self._stack[:-1], self._layers[:-1], strict=True):
            h = F.relu(normalized(given, layer(graph, h)))
        return self._layers[-1](graph, h)


class _Layer(nn.Module):
    def __init__(self, layer: FloatConvolution):
        super().__init__()
        import_dgl()
        from dgl.nn.pytorch import GINConv, GraphConv, SAGEConv

        out_dim, in_dim = layer.weight.shape
        self.first = self.second = None
        if layer.kind == "gcn":
            self.convolution = GraphConv(in_dim, out_dim)
            self.convolution.weight.data.copy_(layer.weight.T)
            self.convolution.bias.data.copy_(layer.bias)
        elif layer.kind == "sage":
            self.convolution = SAGEConv(in_dim, out_dim, "mean")
            self.convolution.fc_neigh.weight.data.copy_(layer.weight)
            self.convolution.fc_self.weight.data.copy_(layer.own)
            self.convolution.fc_self.bias.data.copy_(layer.bias)
        else:
            self.convolution = GINConv(None, "sum", init_eps=layer.epsilon)
            self.first, self.second = linear_map(layer.weight, None), linear_map(layer.second, layer.second_bias)
            self.bias = layer.bias

    def forward(self, graph: Any, h: torch.Tensor) -> torch.Tensor:
        if self.first is None:
            return self.convolution(graph, h)
        return self.second(F.relu(self.convolution(graph, self.first(h)) + self.bias))
