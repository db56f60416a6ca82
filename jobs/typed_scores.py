"""Scores of jobs/benchmark_typed.sh: hpcgnn and PyTorch Geometric train the same models on a typed graph, by seed.

    python jobs/typed_scores.py reduce GRAPH.npz REDUCED.npz     # see `reduce`
    python jobs/typed_scores.py train RESULTS MODEL SEEDS SHARDS..     # SEEDS such as "0 1 2"

Both sides get the same rows, edges, splits, sizes, optimizer and epochs. Each takes the recipe of RECIPES with its own
best validation score in the first of the SHARDS, for training seeds that count nowhere else. RESULTS has one JSON
object per line and training; what it has is not trained again. On several ranks only hpcgnn trains.
"""

from __future__ import annotations

# hpcgnn.run.launch comes first, since it shares out the cores before torch starts its threads.
# isort: off
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from hpcgnn.run.launch import MPI

import numpy as np
import scipy.sparse.linalg
import torch
import torch_geometric.nn as pyg
from torch import nn
from torch.nn import functional
from typed_table import LAST, SIDES, TUNING_SEEDS, Results

import hpcgnn
from hpcgnn.pyg.typed import NodeTypes
from hpcgnn.training.scores import accuracy, macro_f1

COLUMNS, HIDDEN = 32, 16
EPOCHS, EVAL_EVERY = 60, 3
ALWAYS = {"dropout": 0.5, "weight_decay": 5e-4}
RECIPES = {f"norm {norm}, input dropout {dropout:g}": {"norm": norm, "input_dropout": dropout, "lr": 0.01}
           for norm, dropout in (("none", 0.0), ("none", 0.5), ("layer", 0.5))}
CONVOLUTIONS: dict[str, Callable[[int, int, int], nn.Module]] = {"rgcn": pyg.RGCNConv, "rgat": pyg.RGATConv}
BUILT_IN = ("rgcn",)      # hpcgnn trains its own model of this name; else `distribute`s the one of PyTorch Geometric
TYPED, HEADS = "hgt", 2


class Layers(nn.Module):
    """Two convolutions of PyTorch Geometric, with a norm, a ReLU and dropout between.

    rgat maps its input first, since RGATConv makes a matrix for each edge.
    """

    def __init__(self, name, graph, recipe):
        super().__init__()
        relations, self.recipe = len(graph.relation_names), recipe
        self.map = nn.Linear(graph.num_features, HIDDEN) if name == "rgat" else nn.Identity()
        self.first = CONVOLUTIONS[name](HIDDEN if name == "rgat" else graph.num_features, HIDDEN, relations)
        self.norm = nn.LayerNorm(HIDDEN) if recipe["norm"] == "layer" else nn.Identity()
        self.last = CONVOLUTIONS[name](HIDDEN, graph.num_classes, relations)
        if name == "rgat":      # unused, but PyTorch Geometric leaves it uninitialized, perhaps NaN
            nn.init.zeros_(self.first.l2), nn.init.zeros_(self.last.l2)

    def forward(self, x, edge_index, edge_type):
        x = self.map(functional.dropout(x, self.recipe["input_dropout"], self.training))
        h = self.norm(self.first(x, edge_index, edge_type)).relu()
        return self.last(functional.dropout(h, ALWAYS["dropout"], self.training), edge_index, edge_type)


class TypedLayers(nn.Module):
    """Two HGTConv, as `Layers` otherwise."""

    def __init__(self, name, graph, recipe):
        super().__init__()
        types, self.recipe = NodeTypes.of(graph.info, name), recipe
        self.maps = nn.ModuleDict({kind: pyg.Linear(-1, HIDDEN) for kind in types.nodes})
        self.first, self.last = (pyg.HGTConv(HIDDEN, HIDDEN, graph.metadata(), HEADS) for _ in range(2))
        self.norm = nn.LayerNorm(HIDDEN) if recipe["norm"] == "layer" else nn.Identity()
        self.end = nn.Linear(HIDDEN, graph.num_classes)

    def forward(self, x_dict, edge_index_dict):
        x_dict = {kind: linear(functional.dropout(x_dict[kind], self.recipe["input_dropout"], self.training))
                  for kind, linear in self.maps.items()}
        h_dict = {kind: functional.dropout(self.norm(h).relu(), ALWAYS["dropout"], self.training)
                  for kind, h in self.first(x_dict, edge_index_dict).items()}
        return {kind: self.end(h) for kind, h in self.last(h_dict, edge_index_dict).items()}


def model_of(name, graph, recipe):
    return (TypedLayers if name == TYPED else Layers)(name, graph, recipe)


def whole_pass(name, graph):
    """A function from a model of PyTorch Geometric to its logits for all nodes."""
    data = graph.to_pyg()
    if name != TYPED:
        return lambda model: model(data.x, data.edge_index, data.edge_type)
    types = NodeTypes.of(graph.info, name)
    x_dict = {kind: data.x[nodes.start:nodes.stop, types.columns[kind]] for kind, nodes in types.nodes.items()}
    edge_index_dict = {}
    for number, kind in enumerate(types.kinds):
        first = torch.tensor([[types.nodes[end].start] for end in (kind[0], kind[2])])
        edge_index_dict[kind] = data.edge_index[:, data.edge_type == number] - first

    def logits(model):
        out_dict = model(x_dict, edge_index_dict)
        return torch.cat([out_dict[kind] for kind in types.nodes])
    return logits


def of_hpcgnn(name, graph, recipe, seed):
    """Collective: logits of the best validation score, in the order of the source, and (validation, test) scores of all
    evaluations.
    """
    settings = {"epochs": EPOCHS, "eval_every": EVAL_EVERY, "seed": seed, "lr": recipe["lr"],
                "weight_decay": ALWAYS["weight_decay"], "checkpoint_every": 0}
    if name in BUILT_IN:
        model = name
        settings |= {**recipe, **ALWAYS, "layers": 2, "hidden": HIDDEN}
    else:
        torch.manual_seed(seed)
        model = model_of(name, graph, recipe)
    with TemporaryDirectory() as folder:
        run = hpcgnn.fit(model, graph, out=graph.comm.bcast(folder) + "/run", **settings)
        answers = run.predict()
        scores = [(epoch["val_score"], epoch["test_score"]) for epoch in run.metrics if "test_score" in epoch]
        graph.comm.Barrier()
    return (None if answers is None else torch.from_numpy(answers.logits)), scores


def of_pyg(name, graph, recipe, seed):
    """The same in plain PyTorch."""
    torch.manual_seed(seed)
    model, logits, data = model_of(name, graph, recipe), whole_pass(name, graph), graph.to_pyg()
    with torch.no_grad():
        logits(model)      # sizes of -1 become known
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe["lr"], weight_decay=ALWAYS["weight_decay"])
    scores, best, best_logits = [], (-1.0, 0.0), None
    for epoch in range(1, EPOCHS + 1):
        model.train()
        optimizer.zero_grad()
        out = logits(model)
        functional.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
        optimizer.step()
        if epoch % EVAL_EVERY:
            continue
        model.eval()
        with torch.no_grad():
            out = logits(model)
        scores.append(tuple(accuracy(MPI.COMM_SELF, out[mask], data.y[mask])
                            for mask in (data.val_mask, data.test_mask)))
        # hpcgnn chooses so too: a tie of scores goes to the lower loss.
        loss = functional.cross_entropy(out[data.val_mask], data.y[data.val_mask]).item()
        if (scores[-1][0], -loss) > best:
            best, best_logits = (scores[-1][0], -loss), out
    return best_logits, scores


TRAINERS = dict(zip(SIDES, (of_hpcgnn, of_pyg), strict=True))


def train(results, name, seeds, folders):
    """Collective: train what RESULTS lacks; on several ranks, hpcgnn's side alone."""
    graphs = [hpcgnn.open(folder) for folder in folders]
    ranks = graphs[0].comm.size
    sides = SIDES if ranks == 1 else SIDES[:1]
    if ranks == 1:
        for recipe in RECIPES:
            for seed in TUNING_SEEDS:
                for side in sides:
                    train_one(results, graphs[0], folders[0], name, side, recipe, seed)
    chosen = {side: results.best_recipe(graphs[0].name, name, side) for side in sides}
    for seed in seeds:
        for graph, folder in zip(graphs, folders, strict=True):
            for side in sides:
                train_one(results, graph, folder, name, side, chosen[side], seed)


def train_one(results, graph, folder, name, side, recipe, seed):
    """Collective: train and note validation score, micro-F1, macro-F1, and test scores of the last evaluations."""
    training = {"graph": graph.name, "split": int(Path(folder).name.split("-")[-2]), "model": name, "side": side,
                "recipe": recipe, "seed": seed, "ranks": graph.comm.size}
    if results.find(**training):
        return
    logits, scores = TRAINERS[side](name, graph, RECIPES[recipe], seed)
    found = None
    if graph.comm.rank == 0:
        whole = hpcgnn.open(folder, MPI.COMM_SELF)
        out, labels = logits[whole.test_mask], whole.y[whole.test_mask]
        last = [test_score for _, test_score in scores[-LAST:]]
        found = {"val": max(val for val, _ in scores), "micro": accuracy(MPI.COMM_SELF, out, labels),
                 "macro": macro_f1(MPI.COMM_SELF, out, labels), "last": fmean(last), "worst": min(last)}
    results.add(training | graph.comm.bcast(found), graph.comm.rank == 0)


def reduce(source, target):
    """Write a typed archive whose types all have features: standardized, and of sparse ones the first COLUMNS left
    singular vectors. A type without features gets the first COLUMNS singular vectors of each kind of its edges, as a
    matrix of ones.
    """
    held = dict(np.load(source))
    for kind in [name.removesuffix("_indptr") for name in held if name.endswith("_indptr")]:
        indptr, indices, columns = (held.pop(f"{kind}_{part}") for part in ("indptr", "indices", "columns"))
        values = held.pop(f"{kind}_data", np.ones(len(indices), np.float32))
        matrix = scipy.sparse.csr_matrix((values, indices, indptr), (len(indptr) - 1, int(columns)))
        held[kind] = singular_vectors(matrix)[0]
    from_edges = defaultdict(list)
    for name in [name for name in held if name.startswith("edge_")]:
        ends = name.removeprefix("edge_").split("__")
        matrix = scipy.sparse.csr_matrix((np.ones(held[name].shape[1]), tuple(held[name])),
                                         [int(held[f"num_{end}"]) for end in ends])
        for end, rows in zip(ends, singular_vectors(matrix), strict=True):
            from_edges[f"feat_{end}"].append(rows)
    held = {kind: np.concatenate(rows, axis=1) for kind, rows in from_edges.items()} | held
    for kind in [name for name in held if name.startswith("feat_")]:
        held[kind] = ((held[kind] - held[kind].mean(0)) / held[kind].std(0)).astype(np.float32)
    np.savez(target, **held)


def singular_vectors(matrix):
    """The first COLUMNS singular vectors, left and right, fewer if the matrix has fewer rows or columns."""
    columns = min(COLUMNS, min(matrix.shape) - 1)
    left, _, right = scipy.sparse.linalg.svds(matrix, columns, v0=np.ones(min(matrix.shape)))
    return left, right.T


def main():
    """See the module."""
    command, first, *rest = sys.argv[1:]
    if command == "reduce":
        reduce(first, *rest)
    else:
        train(Results(first), rest[0], [int(seed) for seed in rest[1].split()], rest[2:])


if __name__ == "__main__":
    main()
