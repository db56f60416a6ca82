"""Reading: what a model's output columns mean to scores and predictions, and a check that the loss reads them so too.

    task          columns          read as
    classes       one per class    logits; after a softmax or sigmoid, probabilities
    two classes   one              the logit of class 1; after a sigmoid, its probability
    multi-label   one per label    logits; after a sigmoid, probabilities
    regression    one per target   values

Anything else is refused, unless the user's program passes in both a loss and a score: then only the program knows what
its outputs mean, and there are no predictions.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from mpi4py import MPI
from torch.overrides import TorchFunctionMode

from hpcgnn.errors import TrainingError
from hpcgnn.nn.heads import TERM, Heads, entries_of, scored
from hpcgnn.training.objective import Objective
from hpcgnn.training.own_loss import OwnLoss, left_as_it_was
from hpcgnn.training.scores import CLASSES, MULTI_LABEL, REGRESSION, Score

if TYPE_CHECKING:
    from hpcgnn.training.trial import Tried

# Losses of torch that take logits, log-probabilities or probabilities of all columns.
TAKES_LOGITS = ("cross_entropy", "binary_cross_entropy_with_logits", "multilabel_soft_margin_loss", "soft_margin_loss",
                "logsigmoid", "softplus")
TAKES_LOGS, TAKES_PROBABILITIES = ("nll_loss",), ("binary_cross_entropy",)
OF_CLASSES = ("cross_entropy", "nll_loss")
MOST_ROWS = 16


class Reading(Enum):
    LOGITS = "logits"
    PROBABILITIES = "probabilities"
    UNKNOWN = "unknown"

    def scored(self, outputs: torch.Tensor, task: str, num_classes: int) -> torch.Tensor:
        """Outputs (n, num_outputs) in the form that scores read.

        One column for two classes becomes two. 0.5 is subtracted from probabilities of labels, so that a positive value
        predicts its label.
        """
        is_probability = self is Reading.PROBABILITIES
        if task == CLASSES and outputs.shape[1] == 1 and num_classes == 2:
            return torch.cat([(1 - outputs) if is_probability else torch.zeros_like(outputs), outputs], dim=1)
        return outputs - 0.5 if task == MULTI_LABEL and is_probability else outputs

    def of_score(self, score: Score, task: str, num_classes: int) -> Score:
        """A score that reads outputs this way; a user's own score gets them unchanged."""
        if not score.task or self is Reading.UNKNOWN:
            return score

        def read(comm: MPI.Comm, outputs: torch.Tensor, labels: torch.Tensor) -> float:
            return score.function(comm, self.scored(outputs, task, num_classes), labels)

        return replace(score, function=read)


def reading_of(tried: Tried, task: str, num_classes: int, has_own_score: bool) -> Reading:
    """How to read a model's outputs, judged by its trial run; the training loss is not used."""
    columns, ending = tried.outputs.shape[1], tried.endings[1]
    if task == REGRESSION:
        return Reading.LOGITS
    if columns < num_classes and (columns, num_classes) != (1, 2):
        return Reading.UNKNOWN
    if ending in ("sigmoid", "softmax"):
        return Reading.PROBABILITIES
    is_guessed = has_own_score and columns != num_classes
    return Reading.UNKNOWN if is_guessed else Reading.LOGITS


def check_answers(tried: Tried, objective: Objective, score: Score, num_classes: int) -> list[str]:
    """Check that loss and score can read a model's outputs, else TrainingError; return sentences for the user.

    `num_classes` is the number of classes, labels or targets of the graph.
    """
    columns, ending, task, name = tried.outputs.shape[1], tried.endings[0], objective.task, tried.name
    uses = _uses(objective, tried)
    is_own = isinstance(objective.loss, OwnLoss)
    what = {CLASSES: "classes", MULTI_LABEL: "labels", REGRESSION: "targets"}[task]
    what = what if num_classes != 1 else {CLASSES: "class"}.get(task, what[:-1])
    needed = f"{num_classes} output{'s' * (num_classes != 1)}"
    found = f"{name} returns {columns} column{'s' * (columns != 1)}, and the graph has {num_classes} {what}"
    _check_ending(tried, task, uses if is_own else {"cross_entropy" if task == CLASSES else
                                                    "binary_cross_entropy_with_logits"}, name)
    if columns == num_classes or (is_own and not score.task):
        return []
    fitting = [key for key, head in entries_of(tried.answers).items()
               if key != TERM and head.shape[1:] == (num_classes,)]
    if fitting:
        raise TrainingError(f"{found}; this is its first head, which is scored, and the entry {fitting[0]!r} has "
                            f"{num_classes}; return it first, or as the entry 'logits' of a dict")
    if task == CLASSES and columns > num_classes and (not is_own or uses & {*OF_CLASSES}):
        more = [str(column) for column in range(num_classes, columns)]
        return [f"{found}; column{'s' * (len(more) > 1)} {' to '.join(more[::max(1, len(more) - 1)])} "
                f"{'are classes' if len(more) > 1 else 'is a class'} that no node has"]
    if task == CLASSES and (columns, num_classes) == (1, 2) and is_own:
        if ending == "sigmoid" or uses & {*TAKES_LOGITS} - {*OF_CLASSES}:
            return []
        raise TrainingError(f"{found}; the loss does not show whether this column is a logit, so give "
                            "score=FUNCTION, use binary_cross_entropy_with_logits, or return 2 columns")
    advice = f"make it with {needed}"
    if task == CLASSES and (columns, num_classes) == (1, 2):
        advice += ", or give a loss for one logit, such as binary_cross_entropy_with_logits of outputs[:, 0]"
    elif is_own:
        advice += ", or give score=FUNCTION too, which says what its columns mean"
    raise TrainingError(f"{found}; {advice}")


def _check_ending(tried: Tried, task: str, uses: set[str], name: str) -> None:
    ending, values = tried.endings[0], tried.outputs
    if task == REGRESSION:
        return
    logits = sorted(uses & {*TAKES_LOGITS})
    if ending in ("sigmoid", "softmax") and logits:
        itself = "sigmoid" if "binary" in logits[0] else "softmax"
        raise TrainingError(f"{name} ends with a {ending}, and the loss {logits[0]} takes logits and applies a "
                            f"{itself} itself; leave the {ending} out")
    if ending == "log_softmax" and task == MULTI_LABEL:
        raise TrainingError(f"{name} ends with a log_softmax, and a node may have several labels; leave it out")
    if not tried.endings[1] and uses & {*TAKES_LOGS} and len(values) and not bool(
            (values.logsumexp(1).abs() < 1e-3).all()):
        raise TrainingError(f"the loss nll_loss takes log-probabilities, and {name} ends without a log_softmax; add "
                            "it, or use cross_entropy")
    if not ending and uses & {*TAKES_PROBABILITIES} and not bool(((values >= 0) & (values <= 1)).all()):
        raise TrainingError(f"the loss binary_cross_entropy takes probabilities, and {name} ends without a sigmoid; "
                            "add it, or use binary_cross_entropy_with_logits")


class _Undrawn:
    """In place of a LossGraph, before there is a pass."""

    def draw_rows(self, h: torch.Tensor, count: int) -> torch.Tensor:
        return h.new_ones((count, h.shape[1]))


class _Noting(TorchFunctionMode):
    def __init__(self, outputs: torch.Tensor):
        super().__init__()
        self.names: set[str] = set()
        self._place, self._columns = outputs.data_ptr(), outputs.shape[1]

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        known = (*TAKES_LOGITS, *TAKES_LOGS, *TAKES_PROBABILITIES)
        first: Any = args[0] if args else (kwargs or {}).get("input")
        # Only calls on the model's outputs, or on columns of them; not on results that the loss computed from them.
        if name in known and isinstance(first, torch.Tensor) and first.numel() and first.data_ptr() == self._place:
            if name not in OF_CLASSES or first.shape[1] == self._columns:      # all columns are classes
                self.names.add(name)
            if name in OF_CLASSES:
                return first.sum() * 0      # there may be too few columns: a later sentence says so
        return func(*args, **(kwargs or {}))


def _uses(objective: Objective, tried: Tried) -> set[str]:
    """Names of torch's losses that a user's loss calls with the model's outputs."""
    if not isinstance(objective.loss, OwnLoss):
        return set()
    is_train = np.isin(tried.rows, objective.rows["train"].cpu().numpy())
    chosen = np.flatnonzero(is_train)[:MOST_ROWS]
    rows, heads = Heads.joined(tried.answers)
    rows = rows[torch.from_numpy(chosen)].clone().to(objective.labels.device)
    answers = rows if heads is None else heads.split(rows)
    labels = objective.labels[torch.from_numpy(tried.rows[chosen]).to(objective.labels.device)]
    noting = _Noting(scored(answers))
    with torch.random.fork_rng(devices=[]), torch.no_grad(), left_as_it_was(objective.loss.function), noting:
        try:
            objective.loss.of(answers, labels, _Undrawn())
        except Exception:      # the first epoch raises the error again
            return noting.names
    return noting.names


