"""Correct and Smooth: a model's predictions, moved by the training labels along the edges.

Each class has a column of shares Z. The errors of training nodes, label minus share, are spread over the edges and
added to Z ("correct"). Then training nodes get their labels, and the columns are spread once more ("smooth"). Example:
on the path a - b - c with label 1 on a, where the model says 0.6, the error 0.4 of a reaches b and, smaller, c.

Spreading is P(Y) = alpha S Y + (1 - alpha) Y_0, `num_layers` times, with S = D^-1/2 A D^-1/2 and D the in-degree. Each
rank holds the rows of its own nodes and gets halo rows by the run's exchange, so P ranks predict as one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from hpcgnn.errors import CollectiveError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.neighborhood import Neighborhood
from hpcgnn.results.answers import Answers
from hpcgnn.training.reading import Reading
from hpcgnn.training.scores import CLASSES, KINDS
from hpcgnn.training.session import Session

LARGEST_SCALE = 1000.0      # of automatic scaling; larger ones count as 1


@dataclass(frozen=True)
class CorrectAndSmooth:
    """As torch_geometric.nn.CorrectAndSmooth, with the layers and alphas of its example.

    `scale` multiplies the errors that were spread, and training nodes keep their own errors; None scales each node's
    errors to the mean error of the training nodes.

    Reference: Huang et al., ICLR 2021, sections 2.2 and 2.3.
    """

    correction_layers: int = 50
    correction_alpha: float = 1.0
    smoothing_layers: int = 50
    smoothing_alpha: float = 0.8
    scale: float | None = None

    def answers(self, session: Session, answers: Answers) -> Answers:
        """Collective: this rank's predictions after both steps, as shares of classes; they need not add to 1.

        Raises
        ------
        CollectiveError      predictions that are not one class per node; no training node with a label
        """
        if answers.task != CLASSES or answers.reading is Reading.UNKNOWN:
            what = KINDS.get(answers.task, answers.task) if answers.task != CLASSES else "known to its program only"
            raise CollectiveError("correct and smooth needs predictions of one class per node, and this model's are "
                                  f"{what}; leave it out")
        objective, graph = session.objective, session.graph
        rows = objective.rows["train"]
        rows = rows[objective.labels[rows] >= 0]
        if session.comm.allreduce(len(rows)) == 0:
            raise CollectiveError("correct and smooth needs the labels of training nodes, and this graph has none; "
                                  "give shards with the training's labels and splits")
        shares = torch.from_numpy(answers.shares()).to(graph.x.device)
        labels = torch.nn.functional.one_hot(objective.labels[rows].long(), shares.shape[1]).to(shares.dtype)
        with torch.no_grad():
            shares = self._corrected(session, shares, rows, labels)
            shares[rows] = labels
            shares = spread(graph, shares, self.smoothing_layers, self.smoothing_alpha, lambda out: out.clamp_(0, 1))
        return replace(answers, logits=shares.cpu().numpy(), reading=Reading.PROBABILITIES)

    def _corrected(self, session: Session, shares: torch.Tensor, rows: torch.Tensor,
                   labels: torch.Tensor) -> torch.Tensor:
        error = torch.zeros_like(shares)
        error[rows] = labels - shares[rows]
        if self.scale is not None:
            def keep_own(out: torch.Tensor) -> None:
                out[rows] = error[rows]

            return shares + self.scale * spread(session.graph, error, self.correction_layers, self.correction_alpha,
                                                keep_own)
        smoothed = spread(session.graph, error, self.correction_layers, self.correction_alpha,
                          lambda out: out.clamp_(-1, 1))
        sums = np.array([error[rows].abs().sum(dtype=torch.float64).item(), len(rows)])
        total, number = session.comm.allreduce(sums)
        scale = (total / number) / smoothed.abs().sum(dim=1, keepdim=True)
        scale[~(scale <= LARGEST_SCALE)] = 1.0      # also where no error has arrived
        return shares + scale * smoothed


def spread(graph: LocalGraph, rows: torch.Tensor, num_layers: int, alpha: float,
           after: Callable[[torch.Tensor], object]) -> torch.Tensor:
    """Collective: Y = alpha S Y + (1 - alpha) rows, `num_layers` times from Y = `rows` on; `after` changes each Y.

    `rows` are (num_inner, dim) float32. Messages are exact, as in evaluation. An edge weight multiplies its edge's
    entry of A, and D is then the sum of a node's incoming weights.
    """
    degree = torch.from_numpy(np.asarray(graph.degree[:graph.num_inner], np.float32)).to(rows.device)
    factor = degree.where(degree > 0, torch.inf).rsqrt()[:, None]
    out, rest = rows.contiguous(), (1 - alpha) * rows
    for _ in range(num_layers):
        graph.begin_forward(seed=0, epoch=0, is_training=False)
        there = Neighborhood(graph, graph.hop("sum"), is_input=False, is_dropped=True, reduction="sum", probability=0.0)
        summed, _ = there.aggregate(factor * out, wants_rows=False)
        out = (factor * summed).mul_(alpha).add_(rest)
        after(out)
    return out
