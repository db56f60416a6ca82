"""A peer's driver without a package of its own, for tests of processes beside each other: layers that read no neighbor,
all of a process's training nodes in each step, and an error instead where the learning rate says so.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from measurements.race.score_loop import drive
from torch import nn

from hpcgnn.errors import ConfigError

FAILING_RATE = 0.5      # with which the last process fails, while the others wait for it


class Rowwise(nn.Module):
    """A convolution that reads no neighbor."""

    def __init__(self, model: str, in_dim: int, out_dim: int, is_last: bool):
        super().__init__()
        self.map = nn.Linear(in_dim, out_dim)

    def forward(self, graph, h: torch.Tensor) -> torch.Tensor:
        return self.map(h)


def make_losses(arrays, graph, settings, processes):
    """Two steps an epoch over this process's training nodes."""
    own = processes.share(arrays.train_nodes)

    def losses(model):
        if settings.lr == FAILING_RATE and processes.rank == processes.size - 1:
            raise ConfigError("the last process has failed")
        for _ in range(2):
            logits = model.forward_batch([None] * settings.layers, processes.fetch(arrays.rows, own))
            yield F.cross_entropy(logits, arrays.labels[own])

    return losses


if __name__ == "__main__":
    drive(lambda *graph: None, Rowwise, make_losses)
