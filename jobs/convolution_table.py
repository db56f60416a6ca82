"""Compare every supported convolution with PyTorch Geometric on one process: answers, gradients and losses.

    hpcgnn preprocess npz:cora.npz --parts 2 --out shards/cora-p2
    mpirun -n 2 python jobs/convolution_table.py shards/cora-p2 --out p2.json
    python jobs/convolution_table.py --print p1.json p2.json p3.json
"""

from __future__ import annotations

# hpcgnn.run.launch comes first, since it shares out the cores before torch starts its threads.
# isort: off
import argparse
import copy
import json
from pathlib import Path

from hpcgnn.run.launch import run_parallel

import numpy as np
import torch
import torch_geometric.nn as pyg

import hpcgnn
from hpcgnn.config import TrainConfig
from hpcgnn.pyg.convolutions import REFUSED
from hpcgnn.training.learner import Learner
from hpcgnn.training.recipe import Recipe
from hpcgnn.training.session import Session
from hpcgnn.training.trainer import train_epoch

EPOCHS, HIDDEN, LR = 20, 16, 0.01
METHODS = {"vanilla": {}, "uniform 8": {"method": "uniform", "bits": 8}, "sylvie": {"method": "sylvie"},
           "adaqp": {"method": "adaqp", "period": 5}, "pipegcn": {"method": "pipegcn"}, "bns": {"method": "bns"},
           "sancus": {"method": "sancus"}}
SCALERS = ["identity", "amplification", "attenuation"]


def mlp(i, o):
    """Return two maps, with a normalization over the batch between them."""
    return torch.nn.Sequential(torch.nn.Linear(i, o), torch.nn.BatchNorm1d(o), torch.nn.ReLU(), torch.nn.Linear(o, o))


# From columns in and out to a convolution; those of the second table come after a map, at one width.
CONVOLUTIONS = {
    "SAGEConv": pyg.SAGEConv, "SAGEConv, max": lambda i, o: pyg.SAGEConv(i, o, aggr="max"), "GCNConv": pyg.GCNConv,
    "GATConv": lambda i, o: pyg.GATConv(i, o, heads=4, concat=False),
    "GATv2Conv": lambda i, o: pyg.GATv2Conv(i, o, heads=4, concat=False),
    "TransformerConv": lambda i, o: pyg.TransformerConv(i, o, heads=2, concat=False),
    "GINConv": lambda i, o: pyg.GINConv(mlp(i, o), train_eps=True), "GraphConv": pyg.GraphConv,
    "ResGatedGraphConv": pyg.ResGatedGraphConv, "LEConv": pyg.LEConv, "GeneralConv": pyg.GeneralConv,
    "ClusterGCNConv": pyg.ClusterGCNConv, "FiLMConv": pyg.FiLMConv, "SGConv": lambda i, o: pyg.SGConv(i, o, K=2),
    "TAGConv": lambda i, o: pyg.TAGConv(i, o, K=2), "SSGConv": lambda i, o: pyg.SSGConv(i, o, alpha=0.1, K=2),
    "MixHopConv": lambda i, o: pyg.MixHopConv(i, o, powers=[1]),
}
AFTER_A_MAP = {
    "PNAConv": lambda degrees: pyg.PNAConv(HIDDEN, HIDDEN, ["mean", "max", "std"], SCALERS, degrees),
    "EdgeConv": lambda _: pyg.EdgeConv(mlp(2 * HIDDEN, HIDDEN)),
    "GENConv": lambda _: pyg.GENConv(HIDDEN, HIDDEN, norm="batch"),
    "CGConv": lambda _: pyg.CGConv(HIDDEN), "GatedGraphConv": lambda _: pyg.GatedGraphConv(HIDDEN, num_layers=2),
    "APPNP": lambda _: pyg.APPNP(K=4, alpha=0.1), "LGConv": lambda _: pyg.LGConv(),
    "SimpleConv": lambda _: pyg.SimpleConv("mean", combine_root="sum"),
}


class Layers(torch.nn.Module):
    """Two convolutions with ReLU between, or one between two maps."""

    def __init__(self, name, in_dim, out_dim, degrees):
        super().__init__()
        if name in CONVOLUTIONS:
            self.parts = torch.nn.ModuleList([CONVOLUTIONS[name](in_dim, HIDDEN), CONVOLUTIONS[name](HIDDEN, out_dim)])
        else:
            self.parts = torch.nn.ModuleList([torch.nn.Linear(in_dim, HIDDEN), AFTER_A_MAP[name](degrees),
                                              torch.nn.Linear(HIDDEN, out_dim)])

    def forward(self, x, edge_index):
        h = x
        for number, part in enumerate(self.parts):
            h = torch.relu(h) if number else h
            h = part(h) if isinstance(part, torch.nn.Linear) else part(h, edge_index)
        return h


def open_session(comm, shards, method, model=None):
    """Collective: the session of one training."""
    config = TrainConfig.of(**{"method": "vanilla", "precision": "fp32", "epochs": EPOCHS, "lr": LR,
                               "weight_decay": 0.0, **METHODS[method]})
    return Session.open(comm, shards, config, recipe=Recipe(model=model))


def whole_graph(comm, session):
    """Collective: rows, edges, labels and training nodes of the whole graph, by global id, on every rank."""
    graph, objective = session.graph, session.objective
    ids = graph.node_id[:graph.num_inner]
    x, labels = (torch.from_numpy(in_order(comm, ids, rows)) for rows in (graph.x.numpy(), objective.labels.numpy()))
    edges = np.concatenate(comm.allgather(graph.node_id[graph.edge_index.numpy()]), axis=1)
    train = np.concatenate(comm.allgather(ids[objective.rows["train"].numpy()]))
    return x.double(), torch.from_numpy(edges), labels.long(), torch.from_numpy(train)


def in_order(comm, ids, rows):
    """Collective: rows of all ranks by global id."""
    order = np.argsort(np.concatenate(comm.allgather(ids)))
    return np.concatenate(comm.allgather(rows))[order]


def of_pyg(model, whole):
    """Return answers, gradients and losses of PyTorch Geometric in float64."""
    x, edge_index, labels, train = whole
    model = copy.deepcopy(model).double()
    optimizer, losses, first = torch.optim.Adam(model.parameters(), LR), [], None
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        out = model(x, edge_index)
        loss = torch.nn.functional.cross_entropy(out[train], labels[train])
        loss.backward()
        losses.append(loss.item())
        first = first or (out.detach(), [parameter.grad.clone() for parameter in model.parameters()])
        optimizer.step()
    return *first, losses


def first_pass(comm, session, model):
    """Collective: answers of all nodes by global id, and gradients summed over the ranks."""
    distributed, graph, objective = hpcgnn.distribute(copy.deepcopy(model)), session.graph, session.objective
    graph.begin_forward(seed=0, epoch=0, is_training=True)
    out = distributed(graph, graph.x)
    (objective.loss_sum(out, "train") / objective.mean_rows["train"]).backward()
    answers = in_order(comm, graph.node_id[:graph.num_inner], out.detach().numpy())
    return torch.from_numpy(answers), [torch.from_numpy(comm.allreduce(parameter.grad.numpy()))
                                       for parameter in distributed.parameters()]


def trained(session):
    """Collective: losses of EPOCHS epochs."""
    learner = Learner.of(session, session.new_model(0))
    controller, losses = session.config.method.controller(session.method_context()), []
    for epoch in range(EPOCHS):
        session.exchange.begin_epoch(controller.plan(seed=0, epoch=epoch))
        trace = train_epoch(session, learner, seed=0, epoch=epoch)
        controller.observe(trace.loss, trace.epoch_seconds, session.exchange.traces())
        losses.append(trace.loss)
    session.exchange.forget()
    return losses


def difference(found, expected):
    """Return the largest difference by the largest value."""
    return max(float((a.double() - b).abs().max()) for a, b in zip(found, expected, strict=True)) / max(
        float(b.abs().max()) for b in expected)


def compare(comm, arguments, name, whole, num_classes):
    """Collective: measure one convolution."""
    torch.manual_seed(0)
    degrees = torch.bincount(torch.bincount(whole[1][1], minlength=len(whole[0])))
    model = Layers(name, whole[0].shape[1], num_classes, degrees)
    answers, gradients, losses = of_pyg(model, whole)
    line = {"ranks": comm.size, "name": name, "pyg": losses[-1]}
    for method in arguments.methods if comm.size > 1 else ("vanilla",):
        session = open_session(comm, arguments.shards, method, model)
        if method == "vanilla":
            out, grads = first_pass(comm, session, model)
            line["forward"], line["gradient"] = difference([out], [answers]), difference(grads, gradients)
        found = trained(session)
        line[method] = found[-1]
        if method == "vanilla":
            line["losses"] = max(abs(a - b) / b for a, b in zip(found, losses, strict=True))
    return line


def measure(comm, arguments):
    """Collective: write the lines of all convolutions."""
    session = open_session(comm, arguments.shards, "vanilla")
    whole, lines = whole_graph(comm, session), []
    for name in arguments.only or (*CONVOLUTIONS, *AFTER_A_MAP):
        lines.append(compare(comm, arguments, name, whole, session.info.num_classes))
        if comm.rank == 0:
            print(json.dumps(lines[-1]), flush=True)
            arguments.out.write_text(json.dumps(lines))


def print_table(paths):
    """Print two tables of what was measured, and what is refused; a dash is not measured."""
    lines = [line for path in paths for line in json.loads(path.read_text())]
    names = [name for name in (*CONVOLUTIONS, *AFTER_A_MAP) if any(line["name"] == name for line in lines)]
    ranks = sorted({line["ranks"] for line in lines})
    found = {(line["name"], line["ranks"]): line for line in lines}
    plain = {line["name"]: line["pyg"] for line in lines}
    differences = [(kind, p) for kind in ("forward", "gradient", "losses") for p in ranks]
    methods = [(m, p) for p in ranks for m in METHODS if p > 1 and any(m in line for line in lines
                                                                      if line["ranks"] == p)]
    for title, columns, style in (("", differences, ".0e"), (" | PyG", methods, ".3f")):
        print(f"| convolution{title} | " + " | ".join(f"{what}, P = {p}" for what, p in columns) + " |")
        print("|---" * (len(columns) + 1 + bool(title)) + "|")
        for name in names:
            cells = [found.get((name, p), {}).get(what) for what, p in columns]
            written = ["-" if cell is None else format(cell, style) for cell in cells]
            print("| " + " | ".join([name, *([f"{plain[name]:.3f}"] if title else []), *written]) + " |")
        print()
    print("| refused | because |\n|---|---|")
    for name, reason in REFUSED.items():
        print(f"| {name} | {reason} |")


def main():
    """Measure on the shards that are given, or print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", nargs="?", type=Path)
    parser.add_argument("--out", type=Path, default=Path("convolutions.json"))
    parser.add_argument("--only", nargs="+", help="names of convolutions")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--print", nargs="+", type=Path, dest="printed")
    arguments = parser.parse_args()
    if arguments.printed:
        print_table(arguments.printed)
    else:
        run_parallel(lambda comm: measure(comm, arguments))


if __name__ == "__main__":
    main()
