"""A PyTorch Geometric model, unchanged but for the rows that its layers ask of other ranks. In this folder:

mpirun -n 2 hpcgnn train shards/cora-p2 --model own_model:GAT --method uniform --bits 8
"""

import torch
from torch_geometric.nn import GATConv


class GAT(torch.nn.Module):
    """Two attention layers. `graph.halo` returns inner rows followed by halo rows, packed on the wire."""

    attends = True      # so that methods that choose widths leave attention 4 bits at least

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, num_layers: int, dropout: float):
        super().__init__()
        self.first = GATConv(in_dim, hidden_dim, add_self_loops=False)
        self.last = GATConv(hidden_dim, out_dim, add_self_loops=False)
        self.dropout = dropout

    def forward(self, graph, x):
        h = torch.relu(self.layer(self.first, graph, x))
        return self.layer(self.last, graph, graph.dropout(h, self.dropout))

    @staticmethod
    def layer(convolution, graph, h):
        h_all = graph.halo(h)
        return convolution((h_all, h_all[:graph.num_inner]), graph.edge_index)
