"""LabelInputs: training labels as input columns; an epoch hides the labels that its loss is over.

Example with three classes: a row of features (0.2, 0.7) of a training node of class 1 becomes (0.2, 0.7, 0, 1, 0). In
an epoch a random share of the training nodes keeps these columns, and the loss is over the other training nodes, with
0 in these columns. In evaluation all training nodes have their labels. The draw belongs to the node, so each rank hides
the same nodes among its halo rows as their owners do, without a message.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from hpcgnn.errors import TrainingError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.ops.counter import LABELS, CounterKey, words_of
from hpcgnn.partition.partition import Partition
from hpcgnn.training.objective import Objective
from hpcgnn.training.own_loss import OwnLoss
from hpcgnn.training.scores import CLASSES, KINDS


def with_label_columns(part: Partition, num_classes: int, objective: Objective) -> Partition:
    """The part with a column per class behind its features: 1 at a training node's class, else 0.

    Raises TrainingError: labels of another task, or a program's own loss.
    """
    if objective.task != CLASSES:
        raise TrainingError(f"label_inputs needs one class per node, and these labels are {KINDS[objective.task]}; "
                            "leave it out")
    if isinstance(objective.loss, OwnLoss):
        raise TrainingError("label_inputs changes in every epoch which nodes the loss is over, and a program's own "
                            "loss counts all of them; leave one out")
    columns = np.zeros((len(part.labels), num_classes), np.float32)
    rows = np.flatnonzero(part.train_mask & (part.labels >= 0))
    columns[rows, part.labels[rows]] = 1
    return replace(part, features=np.concatenate([part.features.astype(np.float32, copy=False), columns], axis=1))


class LabelInputs:
    """Hides labels in the input rows of a graph; outside of training epochs none is hidden.

    Parameters
    ----------
    graph : LocalGraph      its last input columns are labels, of inner and halo rows
    share : float           share of the training nodes whose labels are inputs in an epoch

    Reference: Shi et al., "Masked label prediction" (UniMP), IJCAI 2021, section 3.2; the columns are the labels
    themselves (Wang et al., "Bag of tricks for node classification", 2021) instead of an embedding of them.
    """

    def __init__(self, graph: LocalGraph, num_classes: int, share: float):
        self._graph, self._share = graph, share
        self._columns = graph.x_all[:, -num_classes:]
        self._rows = torch.nonzero(self._columns.any(dim=1))[:, 0]
        self._labels = self._columns[self._rows].argmax(dim=1)
        self._node_id = graph.node_id[self._rows.cpu().numpy()]

    def hide(self, seed: int, epoch: int, objective: Objective) -> Objective:
        """Collective: hide the labels of an epoch's loss; return the objective over them.

        Raises TrainingError: no training node is left for the loss.
        """
        words = words_of(self._node_id, 1, CounterKey(seed, epoch, LABELS, 0))[:, 0]
        is_given = torch.from_numpy(words < np.uint64(self._share * 2 ** 32)).to(self._rows.device)
        self._write(is_given)
        is_hidden = torch.ones(self._graph.num_rows, dtype=torch.bool, device=self._rows.device)
        is_hidden[self._rows[is_given]] = False
        rows = objective.rows["train"]
        rows = rows[is_hidden[rows]]
        number = objective.comm.allreduce(len(rows))      # no message is under way: asynchronous methods are refused
        if not number:
            raise TrainingError(f"label_inputs {self._share} gives the labels of all {objective.num_global['train']} "
                                f"training nodes in epoch {epoch + 1}, and none is left for the loss; give a smaller "
                                "share")
        return replace(objective, rows={**objective.rows, "train": rows},
                       num_global={**objective.num_global, "train": number},
                       mean_rows={**objective.mean_rows, "train": number})

    def give_all(self) -> None:
        self._write(torch.ones(len(self._rows), dtype=torch.bool, device=self._rows.device))

    def _write(self, is_given: torch.Tensor) -> None:
        self._columns[self._rows, self._labels] = is_given.to(self._columns.dtype)
        self._graph.forget_input_sums()
