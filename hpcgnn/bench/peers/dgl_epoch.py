"""Driver of `hpcgnn bench epoch`: DGL's GraphConv and SAGEConv on the whole graph; GATConv for the race of jobs/."""

from __future__ import annotations

import torch
from torch import nn

from hpcgnn.bench.peers.dgl_import import import_dgl, make_graph
from hpcgnn.bench.peers.epoch_loop import HEADS, drive

import_dgl()
from dgl.nn.pytorch import GATConv, GraphConv, SAGEConv  # noqa: E402  (needs what import_dgl prepares)


class Heads(GATConv):
    def __init__(self, in_dim: int, out_dim: int, is_last: bool):
        super().__init__(in_dim, out_dim if is_last else out_dim // HEADS, HEADS, allow_zero_in_degree=True)
        self._is_last = is_last

    def forward(self, graph, h: torch.Tensor) -> torch.Tensor:
        out = super().forward(graph, h)
        return out.mean(1) if self._is_last else out.flatten(1)


def make_convolution(model: str, in_dim: int, out_dim: int, is_last: bool) -> nn.Module:
    """DGL's layer; GraphConv and SAGEConv map before they sum if the mapped rows are narrower.

    SAGEConv's weights start as in torch.nn.Linear, like hpcgnn's and PyTorch Geometric's weights. With DGL's own start
    (Glorot with the gain of ReLU) it learns more slowly, which would look like a difference between the systems.
    """
    if model == "gcn":
        return GraphConv(in_dim, out_dim, allow_zero_in_degree=True)
    if model == "gat":
        return Heads(in_dim, out_dim, is_last)
    convolution = SAGEConv(in_dim, out_dim, "mean")
    convolution.fc_self.reset_parameters()
    convolution.fc_neigh.reset_parameters()
    return convolution


if __name__ == "__main__":
    drive(make_graph, make_convolution)
