"""Evaluation: one forward pass with float32 messages and no dropout, and the scores of every split."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.training.objective import SPLITS, Objective
from hpcgnn.training.scores import SCORES


@dataclass(frozen=True)
class Evaluation:
    """Scores in [0, 1], nan for a split without nodes, and the mean validation loss."""

    train_score: float
    val_score: float
    test_score: float
    val_loss: float

    def is_better_than(self, other: Evaluation | None) -> bool:
        """Higher validation score, or the same at a lower validation loss; the later one where no node validates.

        The test split has no say.
        """
        if other is None or math.isnan(self.val_score):
            return True
        return (self.val_score, -self.val_loss) > (other.val_score, -other.val_loss)


@torch.no_grad()
def evaluate(comm: MPI.Comm, model: nn.Module, graph: LocalGraph, objective: Objective, score: str) -> Evaluation:
    """Collective: score the model on the whole graph."""
    model.eval()
    graph.begin_forward(seed=0, epoch=0, is_training=False)
    logits = model(graph, graph.x).float()
    scores = [SCORES[score](comm, logits[objective.rows[split]], objective.labels[objective.rows[split]])
              for split in SPLITS]
    loss = np.array([objective.loss_sum(logits, "val").item()])
    comm.Allreduce(MPI.IN_PLACE, loss)
    return Evaluation(*scores, val_loss=float(loss[0]) / max(1, objective.num_global["val"]))
