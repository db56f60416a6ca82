"""Exact scores over the nodes of all ranks, for classes, several labels per node, and targets of a regression."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.errors import TrainingError
from hpcgnn.run.launch import together

CLASSES, MULTI_LABEL, REGRESSION, LINKS = "classes", "multi-label", "regression", "links"
KINDS = {CLASSES: "single-label", MULTI_LABEL: "multi-label", REGRESSION: "a regression", LINKS: "links"}


def accuracy(comm: MPI.Comm, logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Collective: share of (n, num_classes) rows with the label, (n,) int64, as the largest logit; nan without rows."""
    counts = np.array([(logits.argmax(dim=1) == labels).sum().item(), len(labels)], dtype=np.int64)
    comm.Allreduce(MPI.IN_PLACE, counts)
    return counts[0] / counts[1] if counts[1] else float("nan")


def micro_f1(comm: MPI.Comm, logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Collective: F1 of all known (node, class) decisions together; a positive logit predicts the class.

    Both are (n, num_classes) float32; labels are 0, 1, or NaN if unknown.
    """
    predicted, actual = (logits > 0) & ~torch.isnan(labels), labels > 0.5
    counts = np.array([(predicted & actual).sum().item(), predicted.sum().item(), actual.sum().item()], dtype=np.int64)
    comm.Allreduce(MPI.IN_PLACE, counts)
    hits, num_predicted, num_actual = counts.tolist()
    return 2 * hits / (num_predicted + num_actual) if num_predicted + num_actual else float("nan")


def macro_f1(comm: MPI.Comm, logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Collective: mean over classes of the F1 of each; classes that are neither label nor prediction are left out.

    logits : (n, num_classes) float32, labels : (n,) int64, -1 is a class that no logit predicts; nan without rows
    """
    predicted = logits.argmax(dim=1)
    counts = torch.stack([torch.bincount(classes + 1, minlength=logits.shape[1] + 1) for classes in (
        labels[predicted == labels], predicted, labels)]).cpu().numpy()
    comm.Allreduce(MPI.IN_PLACE, counts)
    hits, num_either = counts[0], counts[1] + counts[2]
    occurs = num_either > 0
    return float(np.mean(2 * hits[occurs] / num_either[occurs])) if occurs.any() else float("nan")


def roc_auc(comm: MPI.Comm, logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Collective: probability that a node of class 1 scores above one of class 0; ties count one half.

    logits : (n, 2) float32, labels : (n,) int64 of 0 and 1; nan if a class is absent
    """
    from scipy.stats import rankdata  # takes half a second to import

    margins = comm.allgather((logits[:, 1] - logits[:, 0]).double().cpu().numpy())
    positives = np.concatenate(comm.allgather(labels.cpu().numpy() == 1))
    num_positive = int(positives.sum())
    num_negative = len(positives) - num_positive
    if num_positive == 0 or num_negative == 0:
        return float("nan")
    rank_sum = rankdata(np.concatenate(margins))[positives].sum()
    return (rank_sum - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative)


def _counts(comm: MPI.Comm, targets: torch.Tensor) -> np.ndarray:
    """Collective: number of known targets per column over all ranks, (num_outputs,) int64."""
    counts = (~torch.isnan(targets)).sum(dim=0).cpu().numpy()
    comm.Allreduce(MPI.IN_PLACE, counts)
    return counts


def _sums_of_squares(comm: MPI.Comm, values: torch.Tensor, targets: torch.Tensor,
                     mean: np.ndarray | float = 0.0) -> np.ndarray:
    """Collective: per column, sum of squares of known targets less `mean` over all ranks, (num_outputs,) float64."""
    squares = np.square(values.double().cpu().numpy() - mean)
    sums = np.where(np.isnan(targets.cpu().numpy()), 0.0, squares).sum(axis=0)
    comm.Allreduce(MPI.IN_PLACE, sums)
    return sums


def r2(comm: MPI.Comm, outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Collective: coefficient of determination, averaged over the targets.

    Both are (n, num_outputs) float32; unknown targets are NaN and left out. nan without rows, or if all values of a
    target are equal.
    """
    num_known = _counts(comm, targets)
    if not num_known.all():
        return float("nan")
    sums = torch.where(torch.isnan(targets), 0.0, targets.double()).sum(dim=0).cpu().numpy()
    comm.Allreduce(MPI.IN_PLACE, sums)
    spread = _sums_of_squares(comm, targets, targets, sums / num_known)
    missed = _sums_of_squares(comm, outputs.double() - targets.double(), targets)
    return float(np.mean(1 - missed / spread)) if (spread > 0).all() else float("nan")


def rmse(comm: MPI.Comm, outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Collective: root of the mean squared error over all known targets of all rows; arguments as in `r2`."""
    num_known = _counts(comm, targets).sum()
    missed = _sums_of_squares(comm, outputs.double() - targets.double(), targets)
    return float(np.sqrt(missed.sum() / num_known)) if num_known else float("nan")


def mae(comm: MPI.Comm, outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Collective: mean absolute error over all known targets of all rows; arguments as in `r2`."""
    num_known = _counts(comm, targets).sum()
    errors = (outputs.double() - targets.double()).abs()
    total = comm.allreduce(torch.where(torch.isnan(targets), 0.0, errors).sum().item())
    return float(total / num_known) if num_known else float("nan")


def soft_accuracy(comm: MPI.Comm, outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Collective: share of rows with the largest output at the most likely class; nan without rows.

    Both are (n, num_classes) float32; targets are the probabilities of the classes.
    """
    return accuracy(comm, outputs, targets.argmax(dim=1))


ScoreFunction = Callable[..., float]


@dataclass(frozen=True)
class Score:
    """A score, and whether high or low values of it are better."""

    name: str
    # Collective: from (comm, outputs, labels) of this rank's rows to the same number on all ranks.
    function: ScoreFunction
    task: str      # task that the score fits, "" for any
    prefers_low: bool = False
    is_share: bool = True      # from 0 to 1, so shown in percent

    def show(self, value: float) -> str:
        """The value as text, in percent if it is a share; "-" if no node was scored."""
        if math.isnan(value):
            return "-"
        return f"{100 * value:.2f}" if self.is_share else f"{value:.4g}"

    def __call__(self, comm: MPI.Comm, outputs: torch.Tensor, labels: torch.Tensor,
                 node_id: torch.Tensor | None = None) -> float:
        """The score; a user's own gets the rows of all ranks in the order of `node_id`, (n,) int64."""
        return self.function(comm, outputs, labels, *(() if self.task or node_id is None else (node_id,)))


SCORES = {score.name: score for score in (
    Score("accuracy", accuracy, CLASSES), Score("macro_f1", macro_f1, CLASSES), Score("roc_auc", roc_auc, CLASSES),
    Score("micro_f1", micro_f1, MULTI_LABEL),
    Score("r2", r2, REGRESSION, is_share=False), Score("soft_accuracy", soft_accuracy, REGRESSION),
    *(Score(function.__name__, function, REGRESSION, prefers_low=True, is_share=False) for function in (mae, rmse)))}
DEFAULT_SCORES = {CLASSES: "accuracy", MULTI_LABEL: "micro_f1", REGRESSION: "r2", LINKS: "mrr"}
SOFT = "soft_cross_entropy"      # the loss of a regression with the probabilities of classes as targets


def own_score(function: Callable[[torch.Tensor, torch.Tensor], float], prefers_low: bool) -> Score:
    """A score of a user's function of (outputs, labels); rank 0 calls it on the host with the rows of all ranks, in the
    order of the source.

    Calling the score raises CollectiveError if the function fails.
    """
    name = getattr(function, "__name__", type(function).__name__)

    def gathered(comm: MPI.Comm, outputs: torch.Tensor, labels: torch.Tensor,
                 node_id: torch.Tensor | None = None) -> float:
        node_id = torch.arange(len(labels)) if node_id is None else node_id
        everyone = comm.gather((outputs.cpu(), labels.cpu(), node_id.cpu()))

        def compute() -> float | None:
            if comm.rank:
                return None
            outputs, labels, numbers = (torch.cat(parts) for parts in zip(*everyone, strict=True))
            order = torch.argsort(numbers)
            try:
                return float(function(outputs[order], labels[order])) if len(labels) else float("nan")
            except Exception as error:      # whatever the user's function does: the other ranks wait for its value
                raise TrainingError(f"the score {name} fails: {type(error).__name__}: {error}") from error

        return comm.bcast(together(comm, compute))

    return Score(name, gathered, "", prefers_low, is_share=False)


def default_score(task: str, loss: str) -> str:
    """The score that "auto" stands for."""
    return "soft_accuracy" if loss == SOFT else DEFAULT_SCORES[task]


def choose_score(name: str, task: str, num_classes: int, dataset: str, loss: str = "auto") -> Score:
    """The score of this name; "auto" is the task's usual one. TrainingError if it does not fit the labels."""
    default = default_score(task, loss)
    score = SCORES[default if name == "auto" else name]
    if score.task != task:
        raise TrainingError(f"score {score.name} does not fit {dataset}, which is {KINDS[task]}; use {default}")
    if score.name == "roc_auc" and num_classes != 2:
        raise TrainingError(f"score roc_auc needs two classes, {dataset} has {num_classes}; use {default}")
    return score
