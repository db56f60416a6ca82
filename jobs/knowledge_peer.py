"""Trains ComplEx or R-GCN of PyTorch Geometric, or R-GCN of DGL, on a knowledge graph, and prints seconds and scores.

knowledge_peer.py fb15k237.npz complex 20      epochs; all triples are learned in each
knowledge_peer.py fb15k237.npz rgcn 5
knowledge_peer.py fb15k237.npz dgl 100         epochs of one update each, on 30,000 triples

ComplEx as in PyG's examples/kge_fb15k_237.py, R-GCN with DistMult as in its examples/rgcn_link_pred.py and in DGL's
examples/pytorch/rgcn/link.py: their widths, rates, batches and negatives. Scores are filtered mean reciprocal ranks of
both ends; ties count one half, as hpcgnn counts them.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict

import numpy as np
import torch
from torch_geometric.nn import ComplEx, RGCNConv

from hpcgnn.bench.peers.dgl_import import import_dgl

EVALUATIONS = 5


class RGCN(torch.nn.Module):
    """Two layers on a learned row of each node, in five blocks."""

    def __init__(self, num_nodes: int, num_relations: int, hidden: int = 500):
        super().__init__()
        self.table = torch.nn.Parameter(torch.empty(num_nodes, hidden))
        self.first, self.second = (RGCNConv(hidden, hidden, 2 * num_relations, num_blocks=5) for _ in range(2))
        self.relation = torch.nn.Parameter(torch.empty(num_relations, hidden))
        torch.nn.init.xavier_uniform_(self.table)
        torch.nn.init.xavier_uniform_(self.relation)

    def forward(self, edge_index: torch.Tensor, edge_type: torch.Tensor) -> torch.Tensor:
        hidden = self.first(self.table, edge_index, edge_type).relu_()
        hidden = torch.nn.functional.dropout(hidden, 0.2, self.training)
        return self.second(hidden, edge_index, edge_type)


def mean_reciprocal_rank(scores_of, triples: torch.Tensor, known: dict) -> float:
    """The filtered score of both ends; scores_of(nodes, relations, asks_tails) gives (n, num_nodes)."""
    found = []
    for part in triples.split(512):
        for asks_tails, anchor, answer in ((True, part[:, 0], part[:, 2]), (False, part[:, 2], part[:, 0])):
            scores = scores_of(anchor, part[:, 1], asks_tails)
            own = scores.gather(1, answer[:, None]).clone()
            for row, (node, relation) in enumerate(zip(anchor.tolist(), part[:, 1].tolist(), strict=True)):
                scores[row, known[node, relation, asks_tails]] = -torch.inf
            rank = 1 + (scores > own).sum(1) + (scores == own).sum(1) / 2
            found.append(1 / rank)
    return float(torch.cat(found).mean())


def known_answers(triples: np.ndarray) -> dict:
    """All answers of each question, by (node, relation, whether it asks for tails)."""
    known = defaultdict(list)
    for head, relation, tail in triples.tolist():
        known[head, relation, True].append(tail)
        known[tail, relation, False].append(head)
    return known


def train_complex(train: torch.Tensor, num_nodes: int, num_relations: int):
    """A model and functions: one epoch, and the scores of all nodes."""
    model = ComplEx(num_nodes, num_relations, hidden_channels=50)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.001, weight_decay=1e-6)
    loader = model.loader(*train.t().contiguous(), batch_size=1000, shuffle=True)

    def epoch() -> None:
        for head, relation, tail in loader:
            optimizer.zero_grad()
            model.loss(head, relation, tail).backward()
            optimizer.step()

    def scores_of(node: torch.Tensor, relation: torch.Tensor, asks_tails: bool) -> torch.Tensor:
        (a, b), (c, d) = ((table(index) for table in tables) for tables, index in (
            ((model.node_emb, model.node_emb_im), node), ((model.rel_emb, model.rel_emb_im), relation)))
        d = d if asks_tails else -d
        return (a * c - b * d) @ model.node_emb.weight.t() + (a * d + b * c) @ model.node_emb_im.weight.t()

    return model, epoch, scores_of


def train_rgcn(train: torch.Tensor, num_nodes: int, num_relations: int):
    """The same for R-GCN; the loss has one negative for each triple, a random head or tail, in each epoch."""
    model = RGCN(num_nodes, num_relations)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    head, relation, tail = train.t()
    edge_index = torch.stack([torch.cat([head, tail]), torch.cat([tail, head])])
    edge_type = torch.cat([relation, relation + num_relations])
    evaluated: list[torch.Tensor] = []

    def epoch() -> None:
        evaluated.clear()
        optimizer.zero_grad()
        rows = model(edge_index, edge_type)
        corrupts_tail, drawn = torch.rand(len(head)) < 0.5, torch.randint(num_nodes, (len(head),))
        heads = torch.cat([head, torch.where(corrupts_tail, head, drawn)])
        tails = torch.cat([tail, torch.where(corrupts_tail, drawn, tail)])
        scores = (rows[heads] * model.relation[relation.repeat(2)] * rows[tails]).sum(1)
        truth = torch.arange(2 * len(head)) < len(head)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, truth.float())
        (loss + 0.01 * (rows.pow(2).mean() + model.relation.pow(2).mean())).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def scores_of(node: torch.Tensor, relation: torch.Tensor, asks_tails: bool) -> torch.Tensor:
        if not evaluated:
            evaluated.append(model(edge_index, edge_type))
        rows = evaluated[0]
        return (rows[node] * model.relation[relation]) @ rows.t()

    return model, epoch, scores_of


def train_dgl(train: torch.Tensor, num_nodes: int, num_relations: int):
    """The same for DGL's R-GCN: an epoch draws 30,000 triples, half of which carry messages, and learns them all."""
    sampled, negatives, hidden = 30_000, 10, 500
    dgl = import_dgl()
    from dgl.nn.pytorch import RelGraphConv

    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(num_nodes, hidden)
            self.first, self.second = (RelGraphConv(hidden, hidden, 2 * num_relations, regularizer="bdd", num_bases=100,
                                                    dropout=0.2, self_loop=True) for _ in range(2))
            self.relation = torch.nn.Parameter(torch.empty(num_relations, hidden))
            torch.nn.init.xavier_uniform_(self.relation, gain=torch.nn.init.calculate_gain("relu"))

        def forward(self, graph, node: torch.Tensor) -> torch.Tensor:
            kind, norm = graph.edata["kind"], graph.edata["norm"]
            hidden = torch.nn.functional.relu(self.first(graph, self.table(node), kind, norm))
            hidden = torch.nn.functional.dropout(hidden, 0.2, self.training)
            return self.second(graph, hidden, kind, norm)

    def graph_of(triples: torch.Tensor, nodes: int):
        head, relation, tail = triples.t()
        graph = dgl.graph((torch.cat([head, tail]), torch.cat([tail, head])), num_nodes=nodes)
        graph.edata["kind"] = torch.cat([relation, relation + num_relations])
        graph.edata["norm"] = 1 / graph.in_degrees().clamp(min=1).float()[graph.edges()[1]].unsqueeze(1)
        return graph

    model, whole = Layers(), graph_of(train, num_nodes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    evaluated: list[torch.Tensor] = []

    def epoch() -> None:
        evaluated.clear()
        drawn = train[torch.randperm(len(train))[:sampled]]
        node, ends = torch.unique(drawn[:, [0, 2]], return_inverse=True)
        triples = torch.stack([ends[:, 0], drawn[:, 1], ends[:, 1]], dim=1)
        wrong = triples.repeat(negatives, 1)
        corrupts_head, other = torch.rand(len(wrong)) > 0.5, torch.randint(len(node), (len(wrong),))
        wrong[:, 0] = torch.where(corrupts_head, other, wrong[:, 0])
        wrong[:, 2] = torch.where(corrupts_head, wrong[:, 2], other)
        asked, truth = torch.cat([triples, wrong]), torch.arange(len(wrong) + len(triples)) < len(triples)
        rows = model(graph_of(triples[torch.randperm(len(triples))[:sampled // 2]], len(node)), node)
        scores = (rows[asked[:, 0]] * model.relation[asked[:, 1]] * rows[asked[:, 2]]).sum(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, truth.float())
        optimizer.zero_grad()
        (loss + 0.01 * (rows.pow(2).mean() + model.relation.pow(2).mean())).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def scores_of(node: torch.Tensor, relation: torch.Tensor, asks_tails: bool) -> torch.Tensor:
        if not evaluated:
            evaluated.append(model(whole, torch.arange(num_nodes)))
        rows = evaluated[0]
        return (rows[node] * model.relation[relation]) @ rows.t()

    return model, epoch, scores_of


def main(archive: str, name: str, num_epochs: int) -> None:
    torch.manual_seed(0)
    found = dict(np.load(archive))
    num_nodes, num_relations = int(found["num_entities"]), int(found["num_relations"])
    triples = {part: torch.from_numpy(found[part].astype(np.int64)) for part in ("train", "valid", "test")}
    known = known_answers(np.concatenate([found[part] for part in triples]))
    make = {"complex": train_complex, "rgcn": train_rgcn, "dgl": train_dgl}[name]
    model, epoch, scores_of = make(triples["train"], num_nodes, num_relations)
    every, seconds = max(1, num_epochs // EVALUATIONS), []
    for number in range(1, num_epochs + 1):
        model.train()
        begin = time.perf_counter()
        epoch()
        seconds.append(time.perf_counter() - begin)
        if number % every == 0:
            model.eval()
            with torch.no_grad():
                scores = [mean_reciprocal_rank(scores_of, triples[part], known) for part in ("valid", "test")]
            print(f"{name} epoch {number}: {sum(seconds):.0f} s of training, {np.median(seconds):.2f} s an epoch, "
                  f"MRR {scores[0]:.4f} validation, {scores[1]:.4f} test", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
