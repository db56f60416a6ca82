"""The loss over the training nodes of all ranks, and the masks and labels that evaluation also uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional

from hpcgnn.errors import TrainingError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.heads import Heads, Outputs, scored
from hpcgnn.ops.arena import empty
from hpcgnn.ops.cross_entropy import cross_entropy, reads_rows
from hpcgnn.run.launch import together
from hpcgnn.training.own_loss import OwnLoss, Population, class_counts_of, places_of
from hpcgnn.training.scores import CLASSES, KINDS, MULTI_LABEL, REGRESSION, SOFT, Score

UNKNOWN_LABEL = 255      # in shards: it is unknown whether the node has this label
SPLITS = ("train", "val", "test")
SHARE_TOLERANCE = 1e-3      # by which the sum of a node's probabilities may differ from 1
HOST_DEVICE = torch.device("cpu")
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Objective:
    """Labels of inner rows, the rows of each split, and the loss."""

    # (num_inner,) int64 class ids, (num_inner, num_classes) float32 indicators, or (num_inner, num_outputs) float32
    # targets
    labels: torch.Tensor
    rows: dict[str, torch.Tensor]      # split -> (n,) int64 local rows
    num_global: dict[str, int]      # split -> nodes of all ranks
    task: str      # {"classes", "multi-label", "regression"}
    loss: Loss | OwnLoss      # sums the loss of some rows, from their outputs and labels
    comm: MPI.Comm
    node_id: torch.Tensor      # (num_inner,) int64, global ids
    # Split -> nodes of all ranks by class id; for a user's own loss.
    class_counts: dict[str, dict[int, int]]
    # Split -> divisor of the sum over all ranks: the number of nodes; or, if some values are unknown, the number of
    # known values divided by the number of columns.
    mean_rows: dict[str, float]
    num_steps: int = 1      # above 1 if the rows belong to one of several steps
    # Split -> (n,) int64, the place of each row among the split's rows of all ranks, by node id; for a loss that draws.
    places: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def structure_bytes(self) -> int:
        """Bytes of what the loss keeps of the edges."""
        return 0

    @classmethod
    def build(cls, comm: MPI.Comm, labels: np.ndarray, masks: dict[str, np.ndarray], device: torch.device = HOST_DEVICE,
              loss: Loss | OwnLoss | str = "auto", node_id: np.ndarray | None = None) -> Objective:
        """Collective: count each split over all ranks; TrainingError if loss and labels are for different tasks.

        A loss over several rows needs `node_id`; it gets the rows in this order.
        """
        rows = {split: torch.from_numpy(np.flatnonzero(masks[split])).to(device) for split in SPLITS}
        counts = np.array([len(rows[split]) for split in SPLITS], dtype=np.int64)
        comm.Allreduce(MPI.IN_PLACE, counts)
        task = task_of(labels)
        if loss == SOFT:
            together(comm, lambda: _check_shares(labels, masks))
        typed = torch.from_numpy(labels.astype(np.int64 if task == CLASSES else np.float32))
        if task == MULTI_LABEL:
            typed[typed == UNKNOWN_LABEL] = np.nan
        num_global = dict(zip(SPLITS, counts.tolist(), strict=True))
        mean_rows = num_global if task == CLASSES or isinstance(loss, OwnLoss) else \
            {split: _known_rows(comm, typed[rows[split].cpu()], num_global[split]) for split in SPLITS}
        ids = torch.arange(len(labels)) if node_id is None else torch.from_numpy(node_id.astype(np.int64))
        class_counts = {split: class_counts_of(comm, labels[masks[split].astype(bool)]) for split in SPLITS} \
            if isinstance(loss, OwnLoss) else {}
        places = {split: places_of(comm, ids[rows[split].cpu()]).to(device) for split in SPLITS} \
            if isinstance(loss, OwnLoss) and loss.takes_graph else {}
        return cls(typed.to(device), rows, num_global, task, choose_loss(loss, task) if isinstance(loss, str) else loss,
                   comm, ids.to(device), class_counts, mean_rows, places=places)

    def of_rows(self, rows: np.ndarray, num_steps: int = 1, step: int = 0) -> Objective:
        """The objective of a step of several, by its number, with its rows, (n,) int64; counts are still of all ranks'.
        """
        device = self.labels.device
        chosen = torch.from_numpy(rows).to(device)
        return replace(self, labels=self.labels.index_select(0, chosen), node_id=self.node_id.index_select(0, chosen),
                       num_steps=num_steps,
                       rows={"train": torch.from_numpy(np.flatnonzero(self._is_train[rows])).to(device)})

    def of_model(self, model: nn.Module) -> Objective:
        """The objective of one model; only a task that trains weights of its own in the model reads it."""
        return self

    @cached_property
    def _is_train(self) -> np.ndarray:
        is_train = np.zeros(len(self.labels), bool)
        is_train[self.rows["train"].cpu().numpy()] = True
        return is_train

    def loss_sum(self, logits: Outputs, split: str, graph: LocalGraph | None = None) -> torch.Tensor:
        """Collective for a user's own loss: sum of the loss over this rank's nodes of a split.

        Summed over the ranks and divided by `mean_rows`, it is the mean loss. Of several heads, a built-in loss takes
        the one that is scored. `graph` made the logits; a loss over links needs it, and one that draws rows.
        """
        rows, is_own = self.rows[split], isinstance(self.loss, OwnLoss)
        outputs, heads = Heads.joined(logits if is_own else scored(logits))
        # A pass that leaves rows out returns only the training rows; they are numbered first.
        labels, has_others = self.labels[rows], len(outputs) != len(rows)
        if self.loss is cross_entropy and has_others and reads_rows(outputs.device):
            return cross_entropy(outputs, labels, rows)
        outputs = chosen_rows(outputs, rows) if has_others else outputs
        if isinstance(self.loss, OwnLoss):
            return self.loss.sum(outputs, labels, Population(
                self.comm, self.num_global[split], self.class_counts[split], self.node_id[rows], self.num_steps, heads,
                graph, self.places.get(split)))
        return self.loss(outputs, labels)

    def scores(self, comm: MPI.Comm, outputs: torch.Tensor, score: Score) -> list[float]:
        """Collective: the score of each split, nan without rows, from the outputs of all inner rows."""
        return [score(comm, chosen_rows(outputs, rows), self.labels[rows], self.node_id[rows])
                for rows in (self.rows[split] for split in SPLITS)]

    def score_by_chance(self, score: Score) -> float | None:
        """Collective: the test score that answers in random order have on average; None if it is not known."""
        return None


def _known_rows(comm: MPI.Comm, labels: torch.Tensor, num_rows: int) -> float:
    """Collective: number of rows of all ranks, reduced by the share of unknown values."""
    num_unknown = comm.allreduce(int(torch.isnan(labels).sum()))
    return num_rows - num_unknown / labels.shape[1] if num_unknown else num_rows


class _Chosen(torch.autograd.Function):
    """outputs[rows], for rows that are named once: torch's own backward would sort them, and add one after another."""

    @staticmethod
    def forward(ctx, outputs: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        ctx.rows, ctx.shape = rows, outputs.shape
        return outputs.index_select(0, rows)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient.new_zeros(ctx.shape).index_copy_(0, ctx.rows, gradient), None


def chosen_rows(outputs: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Outputs of the (n,) int64 `rows`. The copy overwrites layer memory, unless a gradient passes through."""
    if outputs.requires_grad:
        return _Chosen.apply(outputs, rows)
    chosen = empty((len(rows), *outputs.shape[1:]), outputs.dtype, outputs.device)
    return torch.index_select(outputs, 0, rows, out=chosen)


def task_of(labels: np.ndarray) -> str:
    if labels.ndim == 1:
        return CLASSES
    return REGRESSION if labels.dtype.kind == "f" else MULTI_LABEL


def binary_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum over rows of the binary cross-entropy, averaged over the classes; both (n, num_classes). NaN is unknown."""
    known = ~torch.isnan(labels)
    return functional.binary_cross_entropy_with_logits(logits.float(), torch.where(known, labels, 0.0), known.float(),
                                                       reduction="sum") / logits.shape[1]


def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Sum over rows of the squared error, averaged over the targets; both (n, num_outputs). NaN is unknown."""
    outputs = outputs.float()
    return functional.mse_loss(outputs, _known_or(targets, outputs), reduction="sum") / outputs.shape[1]


def absolute_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Sum over rows of the absolute error, averaged over the targets; both (n, num_outputs). NaN is unknown."""
    outputs = outputs.float()
    return functional.l1_loss(outputs, _known_or(targets, outputs), reduction="sum") / outputs.shape[1]


def soft_cross_entropy(logits: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Sum over rows of the cross-entropy with a distribution over classes; both (n, num_classes)."""
    return functional.cross_entropy(logits.float(), shares, reduction="sum")


def _check_shares(labels: np.ndarray, masks: dict[str, np.ndarray]) -> None:
    """Raise TrainingError unless each row of a split holds the probabilities of all classes."""
    rows = labels[np.any([masks[split] for split in SPLITS], axis=0)]
    if task_of(labels) == REGRESSION and rows.size:
        is_whole = (rows >= 0).all(axis=1) & (np.abs(rows.sum(axis=1) - 1) <= SHARE_TOLERANCE)
        if not is_whole.all():
            raise TrainingError(f"loss {SOFT} takes the probabilities of all classes, at least 0 with a sum of 1, and "
                                f"a node has {rows[~is_whole][0].tolist()}; write NaN for all classes of a node that "
                                "has none, or use mse")


def _known_or(targets: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """The targets. An unknown one is replaced by the output, so its error and gradient are 0."""
    return torch.where(torch.isnan(targets), outputs.detach(), targets)


LOSSES: dict[str, tuple[str, Loss]] = {
    "cross_entropy": (CLASSES, cross_entropy), "binary_cross_entropy": (MULTI_LABEL, binary_cross_entropy),
    "mse": (REGRESSION, squared_error), "mae": (REGRESSION, absolute_error), SOFT: (REGRESSION, soft_cross_entropy)}


def choose_loss(name: str, task: str) -> Loss:
    """The loss of this name; "auto" is the task's usual one. Raises TrainingError: the loss is for another task."""
    fitting = [known for known, (of, _) in LOSSES.items() if of == task]
    if name == "auto":
        return LOSSES[fitting[0]][1]
    if name not in fitting:
        raise TrainingError(f"loss {name} does not fit these labels, which are {KINDS[task]}; use "
                            f"{' or '.join(fitting)}")
    return LOSSES[name][1]
