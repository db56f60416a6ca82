"""Driver of `hpcgnn bench epoch`: DGL's GraphConv and SAGEConv on the whole graph."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from hpcgnn.bench.peers.dgl_import import import_dgl
from hpcgnn.bench.peers.epoch_loop import drive

dgl = import_dgl()
from dgl.nn.pytorch import GraphConv, SAGEConv  # noqa: E402  (needs what import_dgl prepares)


def make_graph(indptr: np.ndarray, indices: np.ndarray, model: str):
    """The graph with both sparse formats made beforehand, and with self-loops for GCN, as DGL needs them."""
    target = np.repeat(np.arange(len(indptr) - 1, dtype=np.int32), np.diff(indptr))
    graph = dgl.graph((torch.from_numpy(indices), torch.from_numpy(target)), num_nodes=len(indptr) - 1,
                      idtype=torch.int32)
    graph = (dgl.add_self_loop(graph) if model == "gcn" else graph).formats(["csr", "csc"])
    graph.create_formats_()
    return graph


def make_convolution(model: str, in_dim: int, out_dim: int) -> nn.Module:
    """DGL's layer; both kinds map before they sum if the mapped rows are narrower.

    SAGEConv's weights start as in torch.nn.Linear, like hpcgnn's and PyTorch Geometric's weights. With DGL's own start
    (Glorot with the gain of ReLU) it learns more slowly, which would look like a difference between the systems.
    """
    if model == "gcn":
        return GraphConv(in_dim, out_dim)
    convolution = SAGEConv(in_dim, out_dim, "mean")
    convolution.fc_self.reset_parameters()
    convolution.fc_neigh.reset_parameters()
    return convolution


if __name__ == "__main__":
    drive(make_graph, make_convolution)
