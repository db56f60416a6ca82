"""Driver of `hpcgnn bench epoch`: PyTorch Geometric's GCNConv and SAGEConv on a CSR adjacency."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import nn
from torch_geometric.nn import GCNConv, SAGEConv

from hpcgnn.bench.peers.epoch_loop import drive


class RowsSecond(nn.Module):
    """Calls a convolution of PyTorch Geometric, forward(rows, graph), as forward(graph, rows)."""

    def __init__(self, convolution: nn.Module):
        super().__init__()
        self.convolution = convolution

    def forward(self, graph: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return self.convolution(h, graph)


def make_graph(indptr: np.ndarray, indices: np.ndarray, model: str) -> torch.Tensor:
    # A CSR tensor of the transposed adjacency is PyTorch Geometric's fast path on a CPU.
    warnings.filterwarnings("ignore", "Sparse (CSR tensor support|invariant checks)", UserWarning)
    num_nodes = len(indptr) - 1
    return torch.sparse_csr_tensor(torch.from_numpy(indptr), torch.from_numpy(indices.astype(np.int64)),
                                   torch.ones(len(indices)), size=(num_nodes, num_nodes))


def make_convolution(model: str, in_dim: int, out_dim: int, is_last: bool) -> nn.Module:
    # GCNConv caches the normalized adjacency. SAGEConv takes the mean before its linear map, whatever the widths.
    if model == "gcn":
        return RowsSecond(GCNConv(in_dim, out_dim, cached=True))
    return RowsSecond(SAGEConv(in_dim, out_dim))


if __name__ == "__main__":
    drive(make_graph, make_convolution)
