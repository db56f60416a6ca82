"""Trains a PyTorch Geometric model, unchanged, on shards: mpirun -n 2 python examples/own_model.py shards/cora-p2

Everything that `hpcgnn train` adds (checkpoints, metrics, selection on validation) is left out to show the few calls
that make a model distributed.
"""

import sys
from pathlib import Path

from hpcgnn.launch import run_parallel  # first: it shares out the cores before torch starts its threads

# isort: split

import torch
from torch_geometric.nn import GATConv

from hpcgnn.config import TrainConfig
from hpcgnn.training.epoch import train_epoch
from hpcgnn.training.evaluate import evaluate
from hpcgnn.training.gradients import FlatGradients
from hpcgnn.training.session import Session


class GAT(torch.nn.Module):
    """Two attention layers. `graph.halo` returns inner rows followed by halo rows, packed on the wire."""

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int):
        super().__init__()
        self.first = GATConv(in_dim, hidden_dim, add_self_loops=False)
        self.last = GATConv(hidden_dim, out_dim, add_self_loops=False)

    def forward(self, graph, x):
        h = torch.relu(self.layer(self.first, graph, x))
        return self.layer(self.last, graph, graph.dropout(h, 0.5))

    @staticmethod
    def layer(convolution, graph, h):
        h_all = graph.halo(h)
        return convolution((h_all, h_all[:graph.num_inner]), graph.edge_index)


def train(comm, shards: Path, num_epochs: int) -> None:
    """Collective: train with 8-bit messages and print scores on rank 0."""
    session = Session.open(comm, shards, TrainConfig.of(method="uniform", bits=8))
    torch.manual_seed(0)
    model = GAT(session.info.num_features, 64, session.info.num_classes)
    optimizer, gradients = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4), FlatGradients(model)
    controller = session.config.method.controller(session.method_context())
    for epoch in range(num_epochs):
        session.exchange.begin_epoch(controller.plan(seed=0, epoch=epoch))
        trace = train_epoch(comm, model, session.graph, session.exchange, session.objective, optimizer, gradients,
                            seed=0, epoch=epoch, stop_signal=0)
        controller.observe(trace.loss, trace.epoch_seconds, session.exchange.traces)
        if (epoch + 1) % 10 == 0:
            scores = evaluate(comm, model, session.graph, session.objective, session.score)
            if comm.rank == 0:
                print(f"epoch {epoch + 1}: loss {trace.loss:.4f}, validation {scores.val_score:.4f}, "
                      f"test {scores.test_score:.4f}, {trace.sent_bytes_payload} bytes")


if __name__ == "__main__":
    epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 50
    run_parallel(lambda comm: train(comm, Path(sys.argv[1]), epochs))
