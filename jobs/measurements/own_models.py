"""Losses, scores and seconds of models of PyTorch Geometric in many steps an epoch and in one, on any number of ranks.

    hpcgnn preprocess npz:graph.npz --parts 2 --out shards-p2
    mpirun -n 2 python jobs/measurements/own_models.py train shards-p2 own-p2.json [steps=40 epochs=20 act=gelu]
    python jobs/measurements/own_models.py table own-p1.json own-p2.json own-p4.json

`train` trains five models with the given steps and with one step, from the same weights for any number of ranks. `act`
is their activation: the derivative of a ReLU jumps at 0, so where rounding turns one sign, two trainings part. `table`
prints how far the losses of each file are from those of the first, relative to them, and of each file the test score at
the best validation score and the median seconds of an epoch.
"""

from __future__ import annotations

# hpcgnn.run.launch comes first, since it shares out the cores before torch starts its threads.
# isort: off
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from hpcgnn.run.launch import run_parallel

import torch
import torch_geometric.nn as pyg
from mpi4py import MPI

import hpcgnn
from hpcgnn.cli.train import read_assignments
# isort: on

HIDDEN, LAYERS, DROPOUT, ACT = 64, 3, 0.2, "act"
DEFAULTS = ("steps=40", "epochs=20", "lr=0.003", "method=vanilla", "seed=0")


class Difference(pyg.MessagePassing):
    """A convolution of a user's own: the mean of tanh of differences to the neighbors."""

    def __init__(self, in_dim: int, out_dim: int):
        super().__init__(aggr="mean")
        self.linear = torch.nn.Linear(in_dim, out_dim)

    def forward(self, x, edge_index):
        return self.linear(x) + self.propagate(edge_index, x=x)

    def message(self, x_i, x_j):
        return torch.tanh(self.linear(x_j) - self.linear(x_i))


class Own(torch.nn.Module):
    """Three convolutions of one's own with layer norms and dropout."""

    def __init__(self, in_dim: int, out_dim: int, act: str):
        super().__init__()
        self.act, dims = getattr(torch.nn.functional, act), [in_dim, *[HIDDEN] * (LAYERS - 1), out_dim]
        self.layers = torch.nn.ModuleList(map(Difference, dims[:-1], dims[1:]))
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(dim) for dim in dims[1:-1])

    def forward(self, x, edge_index):
        for layer, norm in zip(self.layers, self.norms, strict=False):
            x = torch.nn.functional.dropout(self.act(norm(layer(x, edge_index))), DROPOUT, self.training)
        return self.layers[-1](x, edge_index)


def stack(kind: type[torch.nn.Module], norm: str | None = None, **more) -> Callable[[int, int, str], torch.nn.Module]:
    """A maker of one of PyTorch Geometric's stacks of convolutions."""
    more |= {"dropout": DROPOUT, "norm": norm}
    return lambda in_dim, out_dim, act: kind(in_dim, HIDDEN, LAYERS, out_dim, act=act, **more)


MODELS = {"GraphSAGE": stack(pyg.GraphSAGE), "GraphSAGE, BatchNorm": stack(pyg.GraphSAGE, "batch_norm"),
          "GATv2": stack(pyg.GAT, v2=True, heads=2), "own MessagePassing": Own,
          "PNA": stack(pyg.PNA, aggregators=["mean", "max", "std"], scalers=["identity", "amplification"],
                       deg=torch.tensor([1, 5, 9, 20, 11, 4]))}


def train(shards: Path, out: Path, given: list[str]) -> None:
    """Collective: train all models with many steps and with one; rank 0 writes `out`."""
    settings = read_assignments((f"{ACT}=relu", *DEFAULTS)) | read_assignments(tuple(given))
    act = str(settings.pop(ACT))
    found: dict[str, dict[str, dict]] = {}

    def work(comm: MPI.Comm) -> None:
        graph = hpcgnn.open(shards)
        with tempfile.TemporaryDirectory() as own:
            folder = comm.bcast(own)      # rank 0's, for all
            for name, make in MODELS.items():
                for steps in dict.fromkeys((str(settings["steps"]), "1")):
                    torch.manual_seed(0)
                    run = hpcgnn.fit(make(graph.num_features, graph.num_classes, act), graph, overwrite=True,
                                     out=Path(folder) / "run", **{**settings, "steps": steps})
                    if comm.rank == 0:
                        records = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
                        found.setdefault(name, {})[steps] = {
                            "losses": [record["loss"] for record in records], "test_score": run.test_score,
                            "seconds": statistics.median(record["epoch_seconds"] for record in records)}
        if comm.rank == 0:
            out.write_text(json.dumps({"ranks": comm.size, "models": found}, indent=1))

    run_parallel(work)


def table(paths: list[Path]) -> None:
    """Print the comparison."""
    files = [json.loads(path.read_text()) for path in paths]
    ranks = [str(file["ranks"]) for file in files]
    print("| model | steps | " + " | ".join(f"{what}, {number} rank{'s' * (number != '1')}" for what in
                                              ("losses differ by", "test %", "s an epoch") for number in ranks) + " |")
    print("|---|---|" + "---|" * 3 * len(files))
    for name, by_steps in files[0]["models"].items():
        for steps, first in by_steps.items():
            same = [file["models"][name][steps] for file in files]
            differences = [max(abs(one - other) / abs(other) for one, other in
                               zip(found["losses"], first["losses"], strict=True)) for found in same]
            cells = [*(f"{number:.1e}" for number in differences),
                     *(f"{100 * found['test_score']:.2f}" for found in same),
                     *(f"{found['seconds']:.3f}" for found in same)]
            print(f"| {name} | {steps} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    if command == "train":
        train(Path(rest[0]), Path(rest[1]), rest[2:])
    else:
        table([Path(path) for path in rest])
