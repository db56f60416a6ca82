"""Shared by PyTorch Geometric's two loaders: edges as a list, the graph of each layer, convolutions."""

from __future__ import annotations

import numpy as np
import torch
from measurements.race.score_loop import PeerGraph
from torch import nn
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from hpcgnn.bench.peers import pyg_epoch
from hpcgnn.bench.peers.epoch_loop import HEADS
from hpcgnn.bench.peers.pyg_epoch import RowsSecond


class LayerGraph:
    """Edges of one layer of a batch, and the number of rows it reads; rows that later layers need come first."""

    def __init__(self, edge_index: torch.Tensor, num_rows: int):
        self.edge_index, self.num_rows = edge_index, num_rows


class Trimmed(RowsSecond):
    """Runs a convolution over a LayerGraph, a whole batch's edges, or the whole graph."""

    def forward(self, graph: torch.Tensor | LayerGraph, h: torch.Tensor) -> torch.Tensor:
        if isinstance(graph, LayerGraph):
            return self.convolution(h[:graph.num_rows], graph.edge_index)
        return self.convolution(h, graph)


def make_convolution(model: str, in_dim: int, out_dim: int, is_last: bool) -> nn.Module:
    """The layer of a model; the last one of GAT averages its heads, others concatenate them."""
    if model == "gat":
        return Trimmed(GATConv(in_dim, out_dim if is_last else out_dim // HEADS, HEADS, concat=not is_last))
    # The normalized adjacency differs from batch to batch, so GCN can't cache it.
    return Trimmed(GCNConv(in_dim, out_dim) if model == "gcn" else SAGEConv(in_dim, out_dim))


def make_graph(indptr: np.ndarray, indices: np.ndarray, model: str) -> torch.Tensor:
    """The whole graph for evaluations; GAT reads edges only."""
    return edges_of(indptr, indices) if model == "gat" else pyg_epoch.make_graph(indptr, indices, model)


def edge_index_of(arrays: PeerGraph) -> torch.Tensor:
    """Sources and targets, (2, num_edges) int64."""
    return edges_of(arrays.indptr, arrays.indices)


def edges_of(indptr: np.ndarray, indices: np.ndarray) -> torch.Tensor:
    """Sources and targets, (2, num_edges) int64, of a CSR by destination."""
    target = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return torch.from_numpy(np.stack([indices.astype(np.int64), target]))


def layer_graphs(batch, num_layers: int) -> list[LayerGraph]:
    """Leave out of each layer what no later layer reads, if the batch counts nodes and edges by hop.

    torch_geometric.utils.trim_to_layer does the same.
    """
    # Only pyg-lib counts them; with torch-sparse a batch has no such names.
    nodes, edges = (getattr(batch, name, None) for name in ("num_sampled_nodes", "num_sampled_edges"))
    if nodes is None or edges is None:
        return [LayerGraph(batch.edge_index, batch.num_nodes)] * num_layers
    return [LayerGraph(batch.edge_index[:, :sum(edges[:num_layers - layer])], sum(nodes[:num_layers + 1 - layer]))
            for layer in range(num_layers)]
