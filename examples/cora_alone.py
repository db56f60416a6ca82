"""Train PyTorch Geometric's GCN in one process, as its own examples do: python examples/cora_alone.py cora.npz"""

import sys

import numpy as np
import torch
from torch_geometric.nn import GCN

file = np.load(sys.argv[1])
x = torch.zeros(len(file["labels"]), int(file["num_features"]))
row = np.repeat(np.arange(len(x)), np.diff(file["feat_indptr"]))
x[row, file["feat_indices"]] = torch.from_numpy(file["feat_data"].astype(np.float32)) if "feat_data" in file else 1.0
target = np.repeat(np.arange(len(x)), np.diff(file["indptr"]))
edge_index = torch.from_numpy(np.stack([file["indices"], target]).astype(np.int64))
y = torch.from_numpy(file["labels"].astype(np.int64))
train, val, test = (torch.from_numpy(file[f"{split}_mask"].astype(bool)) for split in ("train", "val", "test"))

torch.manual_seed(0)
model = GCN(x.shape[1], 16, 2, int(y.max()) + 1, dropout=0.0)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
best = test_score = 0.0
for _ in range(100):
    model.train()
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x, edge_index)[train], y[train])
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        right = model(x, edge_index).argmax(dim=1) == y
    if right[val].float().mean() > best:
        best, test_score = right[val].float().mean().item(), right[test].float().mean().item()
print(f"loss {loss.item():.5f}, test accuracy {100 * test_score:.2f} %")
