"""Trains an embedding of a knowledge graph, such as FB15k-237 or WN18RR, on any number of ranks.

python examples/knowledge_graph.py fb15k237.npz shards/fb-p2 2
mpirun -n 2 python examples/knowledge_graph.py shards/fb-p2 epochs=3000 dim=300

The archive has arrays train, valid and test, (n, 3) integers: head, relation and tail of each triple. The model is a
table of rows and a decoder, no convolution: a baseline for models with some. hpcgnn's models train on the same shards:

mpirun -n 2 hpcgnn train shards/fb-p2 --task links --model rgcn --hidden 200 --set node_embedding=200
"""

import json
import sys

import numpy as np
import torch

import hpcgnn


class Rows(torch.nn.Module):
    """A row for each node. Rows begin small, so that all scores are nearly equal."""

    def __init__(self, graph, dim):
        super().__init__()
        self.table = hpcgnn.NodeEmbedding(graph, dim, seed=0)
        self.table.weight.data *= 0.1

    def forward(self, graph, x):
        return self.table(graph.node_index)


def prepare(archive, shards, num_parts):
    """Cut the training triples, each with its reverse, into shards; the others are held out."""
    triples = dict(np.load(archive))
    head, relation, tail = triples["train"].astype(np.int64).T
    num_nodes = 1 + max(int(triples[part][:, [0, 2]].max()) for part in ("train", "valid", "test"))
    hpcgnn.preprocess((head, tail), relation=relation, symmetrize=True, features=np.ones((num_nodes, 1), np.float32),
                      val_links=triples["valid"], test_links=triples["test"], parts=num_parts, out=shards)


def train(shards, dim=200, **settings):
    """Train with settings of `hpcgnn train`; each of many epochs learns a hundredth of the questions."""
    graph = hpcgnn.open(shards)
    settings = {"decoder": "complex", "link_share": 0.01, "negatives": 4096, "n3": 0.05, "lr": 0.05,
                "schedule": "cosine", "epochs": 1000, "eval_every": 250, **settings}
    return hpcgnn.fit(Rows(graph, dim), graph, task="links", **settings)


if __name__ == "__main__":
    if sys.argv[1].endswith(".npz"):
        prepare(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        pairs = (word.split("=", 1) for word in sys.argv[2:])
        run = train(sys.argv[1], **{name: json.loads(value) if value[0].isdigit() else value for name, value in pairs})
        print(f"validation {run.val_score:.4f}, test {run.test_score:.4f}")
