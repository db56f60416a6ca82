"""Trains a recommender, LightGCN, on any number of ranks; each user is asked for items.

python examples/recommend.py gowalla.npz shards/gowalla-val-p2 2 0.2    # a validation part of train, to choose settings
mpirun -n 2 python examples/recommend.py shards/gowalla-val-p2 epochs=2000
python examples/recommend.py gowalla.npz shards/gowalla-p2 2            # all of train; test is held out
mpirun -n 2 python examples/recommend.py shards/gowalla-p2 epochs=2000 eval_every=2000

The archive has arrays train and test, (n, 2) integers: user and item of each pair, both numbered from 0. Users and
items are nodes of two labels. Reference: He et al., LightGCN: Simplifying and Powering Graph Convolution Network for
Recommendation, SIGIR 2020, Eq. (3)-(4).
"""

import json
import sys
from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional

import hpcgnn
from hpcgnn.training.evaluate import evaluate


class LightGCN(torch.nn.Module):
    """Sums a table's rows with `layers` propagations of them; the score of a link is a cosine by a temperature.

    Cosines forget how many users an item has, so evaluations multiply them by (degrees of both ends)**popularity.
    """

    def __init__(self, graph, dim, layers, temperature, popularity, seed):
        super().__init__()
        self.layers, self.temperature, self.popularity = layers, temperature, popularity
        self.table = hpcgnn.NodeEmbedding(graph, dim, seed)
        self.table.weight.data *= 0.1

    def forward(self, graph, x):
        # (D^-1/2 A D^-1/2)^k = D^1/2 (D^-1 A)^k D^-1/2: layers are means over neighbors, and a cosine needs no D^1/2.
        degree = graph.inner_degree.clamp(min=1)[:, None]
        mean = total = self.table(graph.node_index) / degree.sqrt()
        for _ in range(self.layers):
            mean = graph.aggregate(graph.halo(mean), "mean")
            total = total + mean
        rows = functional.normalize(total) / self.temperature**0.5
        return rows if self.training else rows * degree**self.popularity


def prepare(archive, shards, num_parts, user_share=0.0):
    """Cut the pairs of train into shards; test is held out.

    With `user_share`, test is left out, and every fifth pair of this share of the users is held out for validation.
    """
    pairs = dict(np.load(archive))
    num_users, num_items = (1 + max(int(pairs[part][:, end].max()) for part in ("train", "test")) for end in (0, 1))
    train, test = (pairs[part].astype(np.int64) + np.array([0, num_users]) for part in ("train", "test"))
    rng = np.random.default_rng(0)
    is_held = (rng.random(num_users) < user_share)[train[:, 0]] & (rng.random(len(train)) < 0.2)
    held = {"val_links": train[is_held]} if user_share else {"test_links": test}
    hpcgnn.preprocess(train[~is_held], symmetrize=True, features=np.ones((num_users + num_items, 1), np.float32),
                      labels=np.repeat([0, 1], [num_users, num_items]), cluster_rows=0, parts=num_parts, out=shards,
                      **held)


def train(shards, dim=64, layers=3, temperature=0.1, popularity=0.1, **settings):
    """Train with settings of `hpcgnn train`; only users, label 0, are asked."""
    graph = hpcgnn.open(shards)
    settings = {"candidates": "label", "ask": "targets", "asked_label": 0, "score": "recall@20", "link_share": 0.06,
                "negatives": 4096, "optimizer": "adamw", "lr": 0.01, "weight_decay": 2.0, "schedule": "cosine",
                "epochs": 2000, "eval_every": 200, **settings}
    model = LightGCN(graph, dim, layers, temperature, popularity, settings.get("seed", 0))
    return hpcgnn.fit(model, graph, task="links", **settings)


if __name__ == "__main__":
    if sys.argv[1].endswith(".npz"):
        prepare(sys.argv[1], sys.argv[2], int(sys.argv[3]), *map(float, sys.argv[4:]))
    else:
        pairs = (word.split("=", 1) for word in sys.argv[2:])
        run = train(sys.argv[1], **{name: json.loads(value) if value[0].isdigit() else value for name, value in pairs})
        session, by_place = run.session, replace(run.session.score, name="ndcg@20")
        ndcg = evaluate(session.comm, run.model, session.graph, session.objective, by_place)
        print(f"validation {run.val_score:.4f}, test {run.test_score:.4f}; "
              f"NDCG@20 {ndcg.val_score:.4f} and {ndcg.test_score:.4f}")
