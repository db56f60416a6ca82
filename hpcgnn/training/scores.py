"""Exact scores over the nodes of all ranks: accuracy, micro-averaged F1 and area under the ROC curve."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from mpi4py import MPI


def accuracy(comm: MPI.Comm, logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Collective: share of rows whose largest logit is the label; nan where no rank has a row.

    logits : (n, num_classes) float32, labels : (n,) int64
    """
    counts = np.array([(logits.argmax(dim=1) == labels).sum().item(), len(labels)], dtype=np.int64)
    comm.Allreduce(MPI.IN_PLACE, counts)
    return counts[0] / counts[1] if counts[1] else float("nan")


def micro_f1(comm: MPI.Comm, logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Collective: F1 of all (node, class) decisions together, a class being predicted where its logit is positive.

    logits : (n, num_classes) float32, labels : (n, num_classes) float32 of 0 and 1
    """
    predicted, actual = logits > 0, labels > 0.5
    counts = np.array([(predicted & actual).sum().item(), predicted.sum().item(), actual.sum().item()], dtype=np.int64)
    comm.Allreduce(MPI.IN_PLACE, counts)
    hits, num_predicted, num_actual = counts.tolist()
    return 2 * hits / (num_predicted + num_actual) if num_predicted + num_actual else float("nan")


def roc_auc(comm: MPI.Comm, logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Collective: probability that a node of class 1 scores above one of class 0, ties counting one half.

    logits : (n, 2) float32, labels : (n,) int64 of 0 and 1; nan where a class is absent
    """
    from scipy.stats import rankdata  # half a second, which other scores need not wait for

    margins = comm.allgather((logits[:, 1] - logits[:, 0]).double().cpu().numpy())
    positives = np.concatenate(comm.allgather(labels.cpu().numpy() == 1))
    num_positive = int(positives.sum())
    num_negative = len(positives) - num_positive
    if num_positive == 0 or num_negative == 0:
        return float("nan")
    rank_sum = rankdata(np.concatenate(margins))[positives].sum()
    return (rank_sum - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative)


SCORES: dict[str, Callable[[MPI.Comm, torch.Tensor, torch.Tensor], float]] = {
    "accuracy": accuracy, "micro_f1": micro_f1, "roc_auc": roc_auc}
