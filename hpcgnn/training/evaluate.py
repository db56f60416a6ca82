"""Evaluation: one forward pass with float32 messages and no dropout, and the scores of every split."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

from hpcgnn.errors import CollectiveError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.quantized.models import QuantizedStack
from hpcgnn.ops.arena import empty
from hpcgnn.ops.spans import blocks
from hpcgnn.training.generators import alike_draws
from hpcgnn.training.objective import SPLITS, Objective, chosen_rows
from hpcgnn.training.scores import Score
from hpcgnn.whereabouts import HERE


@dataclass(frozen=True)
class Evaluation:
    """Scores, nan for a split without nodes, and the mean validation loss."""

    train_score: float
    val_score: float
    test_score: float
    val_loss: float

    def is_better_than(self, other: Evaluation | None, prefers_low: bool = False, has_validation: bool = True) -> bool:
        """Prefer a higher validation score, or a lower one where that is better, then a lower validation loss; the
        later evaluation where no node validates. A score that is not finite is never better. The test split has no say.
        """
        if not has_validation:
            return True
        if other is None or not math.isfinite(self.val_score) or not math.isfinite(other.val_score):
            return math.isfinite(self.val_score)
        sign = -1 if prefers_low else 1
        return (sign * self.val_score, -self.val_loss) > (sign * other.val_score, -other.val_loss)


@dataclass(frozen=True)
class QuantizedEvaluation(Evaluation):
    """Hold the scores of a model trained as integers, and its features' size; see `QuantizedStack.feature_size`.

    `meets_target` is false where they take more than the target by over 1 %.
    """

    feature_kb: float
    mean_feature_bits: float
    feature_bits: list[float]
    meets_target: bool

    def is_better_than(self, other: Evaluation | None, prefers_low: bool = False, has_validation: bool = True) -> bool:
        """Prefer the one that meets the target; of two that don't, the smaller; else decide by validation."""
        is_undefined = has_validation and not math.isfinite(self.val_score)
        if other is None or is_undefined or (self.meets_target and other.meets_target):
            return super().is_better_than(other, prefers_low, has_validation)
        if self.meets_target != other.meets_target:
            return self.meets_target
        if self.feature_kb != other.feature_kb:
            return self.feature_kb < other.feature_kb
        return super().is_better_than(other, prefers_low, has_validation)


def evaluation_from(values: dict[str, Any]) -> Evaluation:
    """Rebuild an evaluation from the values that `asdict` made of it."""
    return QuantizedEvaluation(**values) if "feature_kb" in values else Evaluation(**values)


@torch.no_grad()
def evaluate(comm: MPI.Comm, model: nn.Module, graph: LocalGraph, objective: Objective, score: Score) -> Evaluation:
    """Collective: score the model on the whole graph.

    Raises
    ------
    CollectiveError      an answer is not finite
    """
    model.eval()
    graph.begin_forward(seed=0, epoch=0, is_training=False)
    with alike_draws(model):
        logits = _as_floats(model(graph, graph.x))
        # All rows, also those that no training pass reaches.
        sums = np.array([objective.loss_sum(logits, "val").item(), _num_not_finite(logits)])
    HERE.note("waits for the sum of the scores")
    comm.Allreduce(MPI.IN_PLACE, sums)
    if sums[1] > 0:
        raise CollectiveError(f"the model's answers for {sums[1]:.0f} nodes are not finite; lower --lr, or look for "
                              "extreme values in the features")
    scores = [score(comm, chosen_rows(logits, rows), objective.labels[rows])
              for rows in (objective.rows[split] for split in SPLITS)]
    found = Evaluation(*scores, val_loss=float(sums[0]) / (objective.mean_rows["val"] or 1))
    if not isinstance(model, QuantizedStack):
        return found
    size = model.feature_size()
    return QuantizedEvaluation(**asdict(found), **size, meets_target=model.meets_target(size["feature_kb"]))


def _as_floats(rows: torch.Tensor) -> torch.Tensor:
    """Return rows as float32, where the rows of the layers lay."""
    return rows if rows.dtype == torch.float32 else empty(rows.shape, torch.float32, rows.device).copy_(rows)


def _num_not_finite(rows: torch.Tensor) -> int:
    """Count the rows that hold NaN or infinity, block by block, since torch makes a copy of what it looks through."""
    return sum((~torch.isfinite(rows[start:stop])).any(1).sum().item()
               for start, stop in blocks(0, len(rows), rows.device.type))
