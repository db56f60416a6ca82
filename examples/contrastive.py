"""A model with several outputs, a term of all rows in the loss, and a loss against drawn nodes (InfoNCE):

hpcgnn preprocess synthetic:nodes=1000,mean_degree=8,classes=4,features=16,homophily=0.9 --parts 2 --out shards/small-p2
mpirun -n 2 python examples/contrastive.py shards/small-p2
"""

import sys

import torch
from torch.nn.functional import cross_entropy, normalize
from torch_geometric.nn import SAGEConv

import hpcgnn


class Two(torch.nn.Module):
    def __init__(self, graph):
        super().__init__()
        self.conv, self.last = SAGEConv(graph.num_features, 32), torch.nn.Linear(32, graph.num_classes)

    def forward(self, x, edge_index):
        h = self.conv(x, edge_index).relu()
        return {"logits": self.last(h), "hidden": h, "loss": 0.001 * h.square().sum(1)}


def contrastive(heads, labels, graph):                 # InfoNCE against 64 drawn nodes
    h = normalize(heads["hidden"], dim=1)
    away = torch.logsumexp(h @ graph.draw_rows(h, 64).t() / 0.5, dim=1)
    return cross_entropy(heads["logits"], labels, reduction="none") + 0.1 * away


graph = hpcgnn.open(sys.argv[1])
run = hpcgnn.fit(Two(graph), graph, loss=contrastive, epochs=30, out="runs/contrastive", overwrite=True)
if graph.comm.rank == 0:
    print(f"test accuracy {run.test_score:.4f}")
