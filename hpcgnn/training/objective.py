"""The loss over the training nodes of all ranks, and the masks and labels that evaluation shares with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from mpi4py import MPI
from torch.nn import functional

SPLITS = ("train", "val", "test")
HOST_DEVICE = torch.device("cpu")


@dataclass(frozen=True)
class Objective:
    """Labels of inner rows and the rows of each split.

    Attributes
    ----------
    labels : (num_inner,) int64 class ids, or (num_inner, num_classes) float32 indicators
    rows : dict of split name to (n,) int64 local rows
    num_global : dict of split name to the number of its nodes on all ranks
    """

    labels: torch.Tensor
    rows: dict[str, torch.Tensor]
    num_global: dict[str, int]

    @classmethod
    def build(cls, comm: MPI.Comm, labels: np.ndarray, masks: dict[str, np.ndarray],
              device: torch.device = HOST_DEVICE) -> Objective:
        """Collective: count each split over all ranks; tensors lie on `device`."""
        rows = {split: torch.from_numpy(np.flatnonzero(masks[split])).to(device) for split in SPLITS}
        counts = np.array([len(rows[split]) for split in SPLITS], dtype=np.int64)
        comm.Allreduce(MPI.IN_PLACE, counts)
        typed = torch.from_numpy(labels.astype(np.float32 if labels.ndim == 2 else np.int64))
        return cls(typed.to(device), rows, dict(zip(SPLITS, counts.tolist(), strict=True)))

    @property
    def is_multi_label(self) -> bool:
        return self.labels.ndim == 2

    def loss_sum(self, logits: torch.Tensor, split: str) -> torch.Tensor:
        """Sum of the loss over this rank's nodes of a split; summed over ranks and divided by `num_global` it is
        the mean. Cross-entropy for class ids; for indicators the binary cross-entropy, averaged over the classes.
        """
        rows = self.rows[split]
        # A pass that leaves rows out returns the training rows alone, and they are numbered first.
        chosen = (logits if len(logits) == len(rows) else logits[rows]).float()
        labels = self.labels[rows]
        if self.is_multi_label:
            return functional.binary_cross_entropy_with_logits(chosen, labels, reduction="sum") / logits.shape[1]
        return functional.cross_entropy(chosen, labels, reduction="sum")
