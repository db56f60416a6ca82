"""The loss over the training nodes of all ranks, and the masks and labels that evaluation shares with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from mpi4py import MPI
from torch.nn import functional

from hpcgnn.errors import TrainingError
from hpcgnn.ops.arena import empty
from hpcgnn.ops.cross_entropy import cross_entropy
from hpcgnn.training.scores import CLASSES, KINDS, MULTI_LABEL, REGRESSION

SPLITS = ("train", "val", "test")
HOST_DEVICE = torch.device("cpu")
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Objective:
    """Labels of inner rows, the rows of each split, and the loss.

    Attributes
    ----------
    labels : (num_inner,) int64 class ids, (num_inner, num_classes) float32 indicators, or (num_inner, num_outputs)
             float32 targets
    rows : dict of split name to (n,) int64 local rows
    num_global : dict of split name to the number of its nodes on all ranks
    task : {"classes", "multi-label", "regression"}
    loss : Loss                 sums the loss of some rows, from their outputs and labels
    """

    labels: torch.Tensor
    rows: dict[str, torch.Tensor]
    num_global: dict[str, int]
    task: str
    loss: Loss

    @classmethod
    def build(cls, comm: MPI.Comm, labels: np.ndarray, masks: dict[str, np.ndarray],
              device: torch.device = HOST_DEVICE, loss: Loss | str = "auto") -> Objective:
        """Collective: count each split over all ranks; tensors lie on `device`.

        Raises
        ------
        TrainingError      a loss of another task than the labels are of
        """
        rows = {split: torch.from_numpy(np.flatnonzero(masks[split])).to(device) for split in SPLITS}
        counts = np.array([len(rows[split]) for split in SPLITS], dtype=np.int64)
        comm.Allreduce(MPI.IN_PLACE, counts)
        task = task_of(labels)
        typed = torch.from_numpy(labels.astype(np.int64 if task == CLASSES else np.float32))
        return cls(typed.to(device), rows, dict(zip(SPLITS, counts.tolist(), strict=True)), task,
                   choose_loss(loss, task) if isinstance(loss, str) else loss)

    def of_rows(self, rows: np.ndarray) -> Objective:
        """Return the training objective of some inner rows, (n,) int64; counts stay those of all rows of all ranks."""
        device = self.labels.device
        chosen = torch.from_numpy(rows).to(device)
        return replace(self, labels=self.labels.index_select(0, chosen),
                       rows={"train": torch.from_numpy(np.flatnonzero(self._is_train[rows])).to(device)})

    @cached_property
    def _is_train(self) -> np.ndarray:
        is_train = np.zeros(len(self.labels), bool)
        is_train[self.rows["train"].cpu().numpy()] = True
        return is_train

    def loss_sum(self, logits: torch.Tensor, split: str) -> torch.Tensor:
        """Sum of the loss over this rank's nodes of a split; summed over ranks and divided by `num_global` it is
        the mean.
        """
        rows = self.rows[split]
        # A pass that leaves rows out returns the training rows alone, and they are numbered first.
        return self.loss(logits if len(logits) == len(rows) else chosen_rows(logits, rows), self.labels[rows])


def chosen_rows(outputs: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the rows of a split, (n, num_outputs); they lie where rows of the layers lay, but where a gradient passes.

    rows : (n,) int64
    """
    if outputs.requires_grad:
        return outputs[rows]
    chosen = empty((len(rows), *outputs.shape[1:]), outputs.dtype, outputs.device)
    return torch.index_select(outputs, 0, rows, out=chosen)


def own_loss(function: Loss) -> Loss:
    """Make a loss of a user's function of (outputs, labels) of n rows, which gives a value a row, (n,), or their mean.

    Raises (when it is called)
    ------
    TrainingError      the function gives something else
    """
    def summed(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if len(labels) == 0:
            return outputs.float().sum()      # 0, but a part of the computation, through which the backward pass goes
        values = function(outputs.float(), labels)
        if values.ndim == 0:
            return values * len(labels)
        if values.shape != (len(labels),):
            raise TrainingError(f"the loss gives values of shape {tuple(values.shape)} for {len(labels)} rows; it must "
                                "give one a row, or their mean")
        return values.sum()

    return summed


def task_of(labels: np.ndarray) -> str:
    """Return the task that labels are of, by how shards store them."""
    if labels.ndim == 1:
        return CLASSES
    return REGRESSION if labels.dtype.kind == "f" else MULTI_LABEL


def binary_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum the binary cross-entropy of rows, averaged over the classes; both (n, num_classes)."""
    return functional.binary_cross_entropy_with_logits(logits.float(), labels, reduction="sum") / logits.shape[1]


def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Sum the squared error of rows, averaged over the targets; both (n, num_outputs)."""
    return functional.mse_loss(outputs.float(), targets, reduction="sum") / outputs.shape[1]


def absolute_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Sum the absolute error of rows, averaged over the targets; both (n, num_outputs)."""
    return functional.l1_loss(outputs.float(), targets, reduction="sum") / outputs.shape[1]


LOSSES: dict[str, tuple[str, Loss]] = {
    "cross_entropy": (CLASSES, cross_entropy), "binary_cross_entropy": (MULTI_LABEL, binary_cross_entropy),
    "mse": (REGRESSION, squared_error), "mae": (REGRESSION, absolute_error)}


def choose_loss(name: str, task: str) -> Loss:
    """Return a loss by its name, or what "auto" means for a task.

    Raises
    ------
    TrainingError      it is of another task
    """
    fitting = [known for known, (of, _) in LOSSES.items() if of == task]
    if name == "auto":
        return LOSSES[fitting[0]][1]
    if name not in fitting:
        raise TrainingError(f"loss {name} does not fit these labels, which are {KINDS[task]}; use "
                            f"{' or '.join(fitting)}")
    return LOSSES[name][1]
