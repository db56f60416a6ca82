"""The same model on the parts of the graph: mpirun -n 2 python examples/cora_distributed.py shards/cora-p2"""

import sys

import torch
from torch_geometric.nn import GCN

import hpcgnn

graph = hpcgnn.open(sys.argv[1])
torch.manual_seed(0)
model = GCN(graph.num_features, 16, 2, graph.num_classes, dropout=0.0)
run = hpcgnn.fit(model, graph, epochs=100, lr=0.01, weight_decay=5e-4, eval_every=1, overwrite=True, out="runs/cora")
if graph.comm.rank == 0:
    print(f"loss {run.metrics[-1]['loss']:.5f}, test accuracy {100 * run.test_score:.2f} %")
