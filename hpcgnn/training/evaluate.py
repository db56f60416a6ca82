"""Evaluation: one forward pass with float32 messages and without dropout, and the scores of every split.

A graph may have other classes than the model was trained with; they are matched by name. A model that knows bee, cat,
dog predicts for a graph with cat, dog, fox: label 0 (cat) becomes 1, 1 (dog) becomes 2, and 2 (fox) becomes -1, which
no prediction equals. Classes without names are matched by number.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

from hpcgnn.errors import CollectiveError, ConfigError, TrainingError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.heads import scored
from hpcgnn.ops.arena import empty
from hpcgnn.ops.spans import blocks
from hpcgnn.run.watchdog import HERE
from hpcgnn.shards.schema import FEATURE_NAMES, GraphInfo
from hpcgnn.training.alike import alike_draws
from hpcgnn.training.model_hooks import hooks_of
from hpcgnn.training.objective import UNKNOWN_LABEL, Objective
from hpcgnn.training.own_loss import evaluating
from hpcgnn.training.scores import CLASSES, KINDS, MULTI_LABEL, REGRESSION, Score

NUM_FEATURES = "num_features"


@dataclass(frozen=True)
class Evaluation:
    """Score of each split, nan for a split without nodes, and the mean validation loss."""

    train_score: float
    val_score: float
    test_score: float
    val_loss: float

    def is_better_than(self, other: Evaluation | None, prefers_low: bool = False, has_validation: bool = True) -> bool:
        """Whether this validation score is better; on a tie, whether the validation loss is lower.

        A score that is not finite is never better. Without validation nodes the later evaluation wins. The test split
        never counts.
        """
        if not has_validation:
            return True
        if other is None or not math.isfinite(self.val_score) or not math.isfinite(other.val_score):
            return math.isfinite(self.val_score)
        sign = -1 if prefers_low else 1
        return (sign * self.val_score, -self.val_loss) > (sign * other.val_score, -other.val_loss)


@dataclass(frozen=True)
class QuantizedEvaluation(Evaluation):
    """Scores of a model trained as integers, and its `ModelHooks.feature_size`; the target may be exceeded by 1 %."""

    feature_kb: float
    mean_feature_bits: float
    feature_bits: list[float]
    meets_target: bool

    def is_better_than(self, other: Evaluation | None, prefers_low: bool = False, has_validation: bool = True) -> bool:
        """An evaluation that meets the target is better; if neither does, the smaller size; then validation decides."""
        is_undefined = has_validation and not math.isfinite(self.val_score)
        if not isinstance(other, QuantizedEvaluation) or is_undefined or (self.meets_target and other.meets_target):
            return super().is_better_than(other, prefers_low, has_validation)
        if self.meets_target != other.meets_target:
            return self.meets_target
        if self.feature_kb != other.feature_kb:
            return self.feature_kb < other.feature_kb
        return super().is_better_than(other, prefers_low, has_validation)


def evaluation_from(values: dict[str, Any]) -> Evaluation:
    return QuantizedEvaluation(**values) if "feature_kb" in values else Evaluation(**values)


@torch.no_grad()
def evaluate(comm: MPI.Comm, model: nn.Module, graph: LocalGraph, objective: Objective, score: Score) -> Evaluation:
    """Collective: score the model on the whole graph, in one pass without dropout and with rows as they are stored.

    Parameters
    ----------
    comm : MPI communicator    one rank per part
    model : nn.Module          `forward(graph, x)`, collective, to logits (num_inner, num_outputs), or to several heads
    graph : LocalGraph         this rank's part
    objective : Objective      labels and splits of this rank's nodes, and the loss
    score : Score              what is computed from the logits of each split

    Returns
    -------
    Evaluation                 train_score, val_score and test_score, nan for a split without nodes, and val_loss

    Raises
    ------
    CollectiveError            an output is not finite
    """
    model.eval()
    graph.begin_forward(seed=0, epoch=0, is_training=False)
    with alike_draws(model):
        outputs = model(graph, graph.x)
        logits = _as_floats(scored(outputs))
        taken = logits if isinstance(outputs, torch.Tensor) else outputs
        # All rows, including rows that no training pass reaches.
        with evaluating(getattr(objective.loss, "function", None)):
            sums = np.array([objective.loss_sum(taken, "val", graph).item(), _num_not_finite(logits)])
    HERE.note("waits for the sum of the scores")
    comm.Allreduce(MPI.IN_PLACE, sums)
    if sums[1] > 0:
        raise CollectiveError(f"the model's outputs for {sums[1]:.0f} nodes are not finite; lower --lr, or look for "
                              "extreme values in the features")
    scores = objective.of_model(model).scores(comm, logits, score)
    found = Evaluation(scores[0], scores[1], scores[2], val_loss=float(sums[0]) / (objective.mean_rows["val"] or 1))
    hooks = hooks_of(model)
    size = hooks.feature_size()
    if not size:
        return found
    return QuantizedEvaluation(**asdict(found), **size, meets_target=hooks.meets_target(size["feature_kb"]))


def _as_floats(rows: torch.Tensor) -> torch.Tensor:
    return rows if rows.dtype == torch.float32 else empty(rows.shape, torch.float32, rows.device).copy_(rows)


def _num_not_finite(rows: torch.Tensor) -> int:
    return sum((~torch.isfinite(rows[start:stop])).any(1).sum().item()
               for start, stop in blocks(0, len(rows), rows.device.type))


def classes_of(info: GraphInfo) -> dict[str, Any]:
    """Task and classes of a graph, names of its relations and columns, and columns of each type of nodes and of each
    relation if it has any, in a checkpoint's form.
    """
    found = {"task": info.task, "num_classes": info.num_classes, NUM_FEATURES: info.num_features,
             "class_names": list(info.class_names), "relation_names": list(info.relation_names),
             FEATURE_NAMES: list(info.feature_names), **_columns_of(info)}
    return {key: value for key, value in found.items() if value or key in ("task", "num_classes", "class_names")}


def _columns_of(info: GraphInfo) -> dict[str, list]:
    names = [name for name, _ in info.node_types]
    return {"type_columns": [list(pair) for pair in zip(names, info.type_columns, strict=False)],
            "relation_columns": [list(pair) for pair in zip(info.relation_names, info.relation_columns, strict=False)]}


def check_reads(model: nn.Module, info: GraphInfo, classes: dict[str, Any]) -> None:
    """Raise ConfigError if a model was trained on other relations, or on other columns of types or relations, than it
    would read here; `classes` are as `classes_of`.
    """
    if getattr(model, "takes_relations", False):
        _check_relations(info, classes)
    names, known_names = info.feature_names, tuple(classes.get(FEATURE_NAMES, ()))
    if names and known_names and names != known_names:
        place, (known_name, name) = next((place, pair) for place, pair in enumerate(zip_longest(known_names, names))
                                         if pair[0] != pair[1])
        raise ConfigError(f"the model was trained on {known_name!r} as column {place} of the features, from 0, and "
                          f"{info.name} has {name!r} there; give the source the same columns in the same order")
    num_known = classes.get(NUM_FEATURES, info.num_features)
    if info.num_features != num_known:
        raise ConfigError(f"the model was trained on {num_known} columns of features, and {info.name} has "
                          f"{info.num_features}; give the source the same columns in the same order")
    takes_tables = getattr(model, "takes_tables", False)
    for key, found in _columns_of(info).items():
        known = classes.get(key, found)
        # A table of each type is found by name; in one table, types have places, too.
        is_same = known == found or (takes_tables and all(
            dict(known).get(name, width) == width for name, width in found))
        if found and not is_same and (key == "type_columns" or getattr(model, "takes_attributes", False)):
            shown = [", ".join(f"{name} ({width:,})" for name, width in pairs) for pairs in (known, found)]
            what = "types" if key == "type_columns" else "relations"
            raise ConfigError(f"the model was trained on columns of the {what} {shown[0]}, and {info.name} has "
                              f"{shown[1]}; give the source the same ones{'' if takes_tables else ' in this order'}")


def _check_relations(info: GraphInfo, classes: dict[str, Any]) -> None:
    known = tuple(classes.get("relation_names", info.relation_names))
    if known == info.relation_names:
        return
    missing = next((name for name in known if name not in info.relation_names), None)
    what = "in another order" if missing is None and len(known) == len(info.relation_names) else (
        f"which {info.name} lacks, such as {missing!r}" if missing is not None else f"fewer than {info.name} has")
    raise ConfigError(f"the model was trained on {len(known)} relations, {what}; give the source the same ones, by "
                      "relation_names or by their names")


def with_classes(info: GraphInfo, classes: dict[str, Any]) -> GraphInfo:
    """The graph's info with a model's task and classes."""
    return replace(info, task=classes["task"], num_classes=classes["num_classes"],
                   class_names=tuple(classes["class_names"]), is_multi_label=classes["task"] == MULTI_LABEL)


def as_trained(labels: np.ndarray, info: GraphInfo, classes: dict[str, Any]) -> np.ndarray:
    """Labels of a part of the graph in the order of a model's `classes` (`task`, `num_classes`, `class_names`).

    Labels are (n,) ids, (n, num_classes) uint8 or (n, num_classes) float32. The results have the model's number of
    classes and are int64, uint8 or float32; -1, 255 or NaN is an unknown label, or a class that the model does not
    have. TrainingError for labels of another task, or another number of targets.
    """
    task, num_classes = classes["task"], classes["num_classes"]
    if classes_of(info) == classes:
        return labels
    if not info.num_train + info.num_val + info.num_test:
        none = {CLASSES: ((), -1, np.int64), MULTI_LABEL: ((num_classes,), UNKNOWN_LABEL, np.uint8),
                REGRESSION: ((num_classes,), np.nan, np.float32)}[task]
        return np.full((len(labels), *none[0]), *none[1:])
    if info.task != task:
        raise TrainingError(f"the model predicts labels that are {KINDS[task]}, and the labels of {info.name} are "
                            f"{KINDS[info.task]}; give the graph without labels, or with labels of the model's kind")
    if task == REGRESSION:
        if info.num_classes != num_classes:
            raise TrainingError(f"the model predicts {num_classes} targets, and {info.name} has "
                                f"{info.num_classes}; give the model's targets, NaN where they are unknown")
        return labels
    place = places_of(info, classes)
    if task == CLASSES:
        return np.where(labels < 0, -1, place[labels])
    found = np.full((len(labels), num_classes), UNKNOWN_LABEL, np.uint8)
    found[:, place[place >= 0]] = labels[:, place >= 0]
    return found


def places_of(info: GraphInfo, classes: dict[str, Any]) -> np.ndarray:
    """Per class of a graph, the model's class, (info.num_classes,) int64; -1 if it has none."""
    known = classes["class_names"]
    if info.class_names and known:
        number = {name: place for place, name in enumerate(known)}
        return np.array([number.get(name, -1) for name in info.class_names], np.int64)
    ids = np.arange(info.num_classes)
    return np.where(ids < classes["num_classes"], ids, -1)


def strange_classes(info: GraphInfo, classes: dict[str, Any]) -> list[str]:
    """A sentence on the graph's classes that the model does not know; empty if it knows them all."""
    if info.task != classes["task"] or info.task == REGRESSION or not info.num_train + info.num_val + info.num_test:
        return []
    strange = np.flatnonzero(places_of(info, classes) < 0).tolist()
    if not strange:
        return []
    names = [info.class_names[one] if info.class_names else str(one) for one in strange[:8]]
    return [f"the model does not know {len(strange)} of the classes of {info.name}: {', '.join(names)}"
            f"{', ...' if len(strange) > 8 else ''}; their nodes count as wrong predictions"]
