"""Trains HGT, a model with a table for each type of nodes: mpirun -n 2 python examples/typed_model.py"""

import torch
from torch_geometric.data import HeteroData
from torch_geometric.nn import HGTConv, Linear
from torch_geometric.transforms import ToUndirected

import hpcgnn


class HGT(torch.nn.Module):
    def __init__(self, metadata, hidden, classes):
        super().__init__()
        self.maps = torch.nn.ModuleDict({name: Linear(-1, hidden) for name in metadata[0]})
        self.convs = torch.nn.ModuleList([HGTConv(hidden, hidden, metadata, heads=2) for _ in range(2)])
        self.end = Linear(hidden, classes)

    def forward(self, x_dict, edge_index_dict):
        x_dict = {name: linear(x_dict[name]).relu() for name, linear in self.maps.items()}
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
        return self.end(x_dict["paper"])


torch.manual_seed(0)
data = HeteroData()
data["paper"].y = torch.randint(3, (600,))
data["paper"].x = torch.eye(3)[data["paper"].y] + torch.randn(600, 3)
data["author"].x = torch.randn(200, 5)
data["author", "writes", "paper"].edge_index = torch.stack([torch.randint(200, (2000,)), torch.randint(600, (2000,))])
hpcgnn.preprocess(ToUndirected()(data), parts=2, out="shards/papers-p2", overwrite=True)

graph = hpcgnn.open("shards/papers-p2")
model = HGT(graph.metadata(), 16, graph.num_classes)
run = hpcgnn.fit(model, graph, epochs=20, lr=0.02, out="runs/hgt", overwrite=True)
if graph.comm.rank == 0:
    print(f"test accuracy {run.test_score:.4f}")
